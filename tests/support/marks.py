"""Parameters that many tests share."""

from __future__ import annotations

import pytest

from tests.support.world import PLANES, WorldKey

DTYPES = ("float32", "float64", "int32", "int64")

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def on_worlds(*sizes: int, **settings: str) -> pytest.MarkDecorator:
    """Runs the test in persistent worlds of these sizes, on every plane, with variables set."""
    keys = [WorldKey(size, plane, tuple(sorted(settings.items()))) for size in sizes for plane in PLANES]
    return pytest.mark.parametrize("world", keys, ids=str, indirect=True)
