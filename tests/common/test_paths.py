"""The original's import paths lead to the same objects as the frontends, and import no framework."""

from __future__ import annotations

import subprocess
import sys

import pytest

import horovod.numpy as hvd
from horovod import exceptions
from horovod._core import basics as core
from horovod.common import basics, process_sets, util
from horovod.common import exceptions as common_exceptions
from horovod.common.basics import HorovodBasics
from tests.support.marks import on_worlds
from tests.support.world import Workers

MODULES = ["basics", "exceptions", "process_sets", "util"]
UTIL = [
    "_cache",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]


@pytest.mark.parametrize("module", MODULES)
def test_imports_no_framework(module: str) -> None:
    code = f"import sys, horovod.common.{module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {"numpy", "torch", "tensorflow", "keras", "jax", "mxnet", "mpi4py"}.isdisjoint(done.stdout.split())


@pytest.mark.parametrize(
    "name", ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
)
def test_process_sets_are_those_of_the_frontends(name: str) -> None:
    assert getattr(process_sets, name) is getattr(hvd, name)


@pytest.mark.parametrize(
    "name", ["HorovodInternalError", "HostsUpdatedInterrupt", "HorovodVersionMismatchError"]
)
def test_exceptions_are_those_that_are_raised(name: str) -> None:
    assert getattr(common_exceptions, name) is getattr(exceptions, name)


@pytest.mark.parametrize("name", UTIL)
def test_util_has_every_name_of_the_original(name: str) -> None:
    assert callable(getattr(util, name))


@pytest.mark.parametrize("name", core.__all__)
def test_basics_has_every_function_of_the_core(name: str) -> None:
    assert getattr(HorovodBasics(), name) is getattr(core, name)


@pytest.mark.parametrize("name", ["Average", "Sum", "Adasum", "Min", "Max", "Product"])
def test_basics_has_the_reductions(name: str) -> None:
    assert getattr(HorovodBasics(), name) == getattr(hvd, name)


@pytest.mark.parametrize("library", [(), (__file__, "mpi_lib_v2")])
def test_basics_is_made_as_in_the_original(library: tuple[str, ...]) -> None:
    assert basics.HorovodBasics(*library).is_initialized() is False


def _sets_by_id() -> tuple[dict[int, list[int]], ...]:
    known = HorovodBasics()
    before = known._get_process_set_ids_and_ranks()
    added = process_sets.add_process_set([1])
    during = known._get_process_set_ids_and_ranks()
    process_sets.remove_process_set(added)
    return before, during, known._get_process_set_ids_and_ranks(), {known.size(): [known.rank()]}


@on_worlds(2, 3, HOROVOD_DYNAMIC_PROCESS_SETS="1")
def test_basics_stands_for_the_running_engine(world: Workers) -> None:
    size = len(world.pids)
    everybody = {0: list(range(size))}
    results = world.run(_sets_by_id)
    assert results == [(everybody, {**everybody, 1: [1]}, everybody, {size: [rank]}) for rank in range(size)]
