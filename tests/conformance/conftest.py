"""Which frontend runs where: the reference frontend everywhere, the others where they may differ from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.marks import PLANES_OF_FRONTENDS
from tests.support.frameworks import import_tensorflow, import_torch
from tests.support.mpi import MPIS
from tests.support.nursery import Prepare
from tests.support.world import WorldKey

REFERENCE = "numpy"
LARGEST_OF_OTHERS = 4
SOCKETS_OF_OTHERS = 2

# Not under mpirun: what ends before a plane moves a byte, and what is the same on every plane but takes long.
NOT_BY_MPI = {"test_huge", "test_mismatch", "test_misuse", "test_process_set_errors"}

WAITING = "tensorflow"
"""A frontend whose functions all wait: it has no handles, so tests of several in flight are not for it."""
LARGEST_WAITING = 3
FOR_WAITING = {
    "test_adasum": {"test_sizes", "test_groups_are_combined_tensor_by_tensor", "test_needs_floating_types"},
    "test_allgather": {"test_rows", "test_several_chunks", "test_of_a_scalar_is_refused"},
    "test_allreduce": {
        "test_every_type_and_reduction",
        "test_several_chunks",
        "test_factors",
        "test_default_is_the_average",
        "test_shapes",
        "test_special_values",
        "test_compression",
        "test_bool_has_no_sum",
    },
    "test_alltoall": {
        "test_splits",
        "test_even",
        "test_ways_to_give_splits",
        "test_bad_splits",
        "test_rows_that_cannot_be_divided",
        "test_of_a_scalar_is_refused",
    },
    "test_broadcast": {"test_every_type_and_root", "test_several_chunks", "test_every_bit_arrives"},
    "test_groups": {
        "test_allreduce_of_every_type",
        "test_many_tensors",
        "test_allgather",
        "test_reducescatter",
        "test_a_bad_member_refuses_the_group",
    },
    "test_join": {"test_uneven_batches", "test_again_and_again", "test_the_last_is_told_to_all"},
    "test_mismatch": {"test_one_story", "test_in_a_process_set", "test_other_operations_in_the_same_place"},
    "test_process_sets": {"test_ids"},
    "test_reducescatter": {
        "test_rows",
        "test_factors",
        "test_compression",
        "test_other_reductions_are_refused",
        "test_scalars_and_bool_are_refused",
    },
}

PREPARE = {"tensorflow": import_tensorflow, "torch": import_torch}


@pytest.fixture
def prepare(request: pytest.FixtureRequest) -> Prepare | None:
    """What the frontend needs."""
    return PREPARE.get(request.node.callspec.params.get("frontend"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drops the combinations that make no sense, of the tests here."""
    here = Path(__file__).parent
    items[:] = [item for item in items if here not in item.path.parents or _makes_sense(item)]


def _makes_sense(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    world, frontend = params.get("world"), params.get("frontend")
    if not isinstance(world, WorldKey):
        return frontend != WAITING
    if world.plane in MPIS:
        return frontend in (None, REFERENCE) and item.path.stem not in NOT_BY_MPI
    owner = PLANES_OF_FRONTENDS.get(world.plane)
    if owner is not None or frontend in (None, REFERENCE):
        return owner is None or frontend == owner
    if frontend == WAITING:
        names = FOR_WAITING.get(item.path.stem, set())
        original = getattr(item, "originalname", "")
        return original in names and world.plane == "shm" and world.size <= LARGEST_WAITING
    # What sockets and many ranks do to bytes does not depend on who gave them.
    sockets = SOCKETS_OF_OTHERS if item.path.stem != "test_huge" else 0
    return world.size <= LARGEST_OF_OTHERS and (world.plane != "tcp" or world.size == sockets)
