"""Parameters of the tests of ``horovod.torch``."""

from __future__ import annotations

import pytest

from tests.support.world import WorldKey

SETTINGS = (("HOROVOD_DYNAMIC_PROCESS_SETS", "1"), ("MKL_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "1"))


def on_worlds(*sizes: int) -> pytest.MarkDecorator:
    """Runs the test in persistent worlds of these sizes.

    On one plane: the frontend knows none, and the conformance suite runs it on all. One thread per rank, and
    process sets may be added, so that all tests share these worlds: to import torch takes seconds.
    """
    keys = [WorldKey(size, "shm", SETTINGS) for size in sizes]
    return pytest.mark.parametrize("world", keys, ids=[f"np{size}" for size in sizes], indirect=True)
