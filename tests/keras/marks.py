"""Parameters of the tests of Keras: which Keras, on what, and how many workers."""

from __future__ import annotations

import pytest

from tests.support.world import WorldKey

COMMON = (
    ("HOROVOD_DYNAMIC_PROCESS_SETS", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("TF_CPP_MIN_LOG_LEVEL", "3"),
    ("TF_NUM_INTRAOP_THREADS", "1"),
)
KINDS = {
    "tensorflow": (("KERAS_BACKEND", "tensorflow"),),
    "torch": (("KERAS_BACKEND", "torch"),),
    "tf_keras": (("TF_USE_LEGACY_KERAS", "1"),),
}


SLOW = pytest.mark.timeout(400)
"""To import frameworks in several processes takes long on a busy machine."""


def on_keras(*sizes: int, kinds: tuple[str, ...] = tuple(KINDS)) -> pytest.MarkDecorator:
    """Runs the test in persistent worlds of these sizes, once for each kind of Keras."""
    pairs = [(kind, size) for kind in kinds for size in sizes]
    keys = [WorldKey(size, "shm", COMMON + KINDS[kind]) for kind, size in pairs]
    return pytest.mark.parametrize(
        "world", keys, ids=[f"{kind}-np{size}" for kind, size in pairs], indirect=True
    )
