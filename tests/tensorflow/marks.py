"""Parameters of the tests of ``horovod.tensorflow``."""

from __future__ import annotations

from importlib import metadata

import pytest

from tests.support.world import WorldKey

SETTINGS = (
    ("HOROVOD_DYNAMIC_PROCESS_SETS", "1"),
    ("TF_CPP_MIN_LOG_LEVEL", "2"),
    ("TF_ENABLE_ONEDNN_OPTS", "0"),
)


def on_worlds(*sizes: int) -> pytest.MarkDecorator:
    """Runs the test in persistent worlds of these sizes.

    On one plane: the frontend knows none. Process sets may be added, so that all tests share these worlds: to
    import TensorFlow takes seconds.
    """
    keys = [WorldKey(size, "shm", SETTINGS) for size in sizes]
    return pytest.mark.parametrize("world", keys, ids=[f"np{size}" for size in sizes], indirect=True)


def _version() -> tuple[int, ...]:
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            return tuple(int(part) for part in metadata.version(name).split(".")[:2])
        except metadata.PackageNotFoundError:
            continue
    return (0,)


needs_xla = pytest.mark.skipif(_version() < (2, 18), reason="XLA can call nothing before TensorFlow 2.18")
"""On tests of what XLA compiles."""
