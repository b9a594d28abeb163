"""Parameters of the conformance tests."""

from __future__ import annotations

import pytest

from tests.conformance.frontends import FRONTENDS
from tests.support.mpi import MPIS
from tests.support.world import PLANES, WorldKey

every_frontend = pytest.mark.parametrize("frontend", FRONTENDS)

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}

PLANES_OF_FRONTENDS = {"torch": "torch"}
"""Planes that belong to one frontend; the others' tests do not run on them (see ``conftest.py``)."""
LARGEST_OF_FRONTENDS = 3

SIZES_OF_MPI = (2, 3)
"""Worlds that ``mpirun`` starts, with Open MPI and MPICH: what more ranks do, the other planes have shown."""


def _keys(sizes: tuple[int, ...], settings: dict[str, str]) -> list[WorldKey]:
    pairs = [(size, plane) for size in sizes for plane in PLANES]
    pairs += [(size, p) for p in PLANES_OF_FRONTENDS for size in sizes if size <= LARGEST_OF_FRONTENDS]
    pairs += [(size, name) for name in MPIS for size in sizes if size in SIZES_OF_MPI]
    return [WorldKey(size, plane, tuple(sorted(settings.items()))) for size, plane in pairs]


def on_worlds(*sizes: int, **settings: str) -> pytest.MarkDecorator:
    """Runs the test in persistent worlds of these sizes, on every plane, with variables set."""
    return pytest.mark.parametrize("world", _keys(sizes, settings), ids=str, indirect=True)


def keys_of_worlds(*sizes: int, **settings: str) -> pytest.MarkDecorator:
    """Like ``on_worlds``, but gives the key: for tests that may need the world more than once."""
    return pytest.mark.parametrize("world", _keys(sizes, settings), ids=str)


every_world = on_worlds(1, 2, 3, 4, 7)
