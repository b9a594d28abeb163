"""Which frontend runs where: the reference frontend everywhere, the others where they may differ from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.marks import PLANES_OF_FRONTENDS
from tests.support.mpi import MPIS
from tests.support.world import WorldKey

REFERENCE = "numpy"
LARGEST_OF_OTHERS = 4
SOCKETS_OF_OTHERS = 2

# Not under mpirun: what ends before a plane moves a byte, and what is the same on every plane but takes long.
NOT_BY_MPI = {"test_huge", "test_mismatch", "test_misuse", "test_process_set_errors"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drops the combinations that make no sense, of the tests here."""
    here = Path(__file__).parent
    items[:] = [item for item in items if here not in item.path.parents or _makes_sense(item)]


def _makes_sense(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    world, frontend = params.get("world"), params.get("frontend")
    if not isinstance(world, WorldKey):
        return True
    if world.plane in MPIS:
        return frontend in (None, REFERENCE) and item.path.stem not in NOT_BY_MPI
    owner = PLANES_OF_FRONTENDS.get(world.plane)
    if owner is not None or frontend in (None, REFERENCE):
        return owner is None or frontend == owner
    # What sockets and many ranks do to bytes does not depend on who gave them.
    return world.size <= LARGEST_OF_OTHERS and (world.plane != "tcp" or world.size == SOCKETS_OF_OTHERS)
