"""The helpers of ``horovod.common.util``."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import horovod.numpy as hvd
from horovod.common import util
from horovod.common.basics import HorovodBasics

# -- Frontends


@pytest.fixture
def frontend_without_framework(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """``horovod.nowhere``, for a framework that is not installed."""
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "nowhere" / "__init__.py").touch()
    import horovod

    monkeypatch.setattr(horovod, "__path__", [*horovod.__path__, str(tmp_path)])
    return "nowhere"


def test_the_numpy_frontend_is_available() -> None:
    assert util.extension_available("numpy")
    util.check_extension("horovod.numpy")
    util.check_extension("horovod.numpy", "HOROVOD_WITH_NUMPY", __file__, "mpi_lib")


def test_a_frontend_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert not util.extension_available("mxnet")
    assert capsys.readouterr().out == ""
    assert not util.extension_available("mxnet", verbose=True)
    assert capsys.readouterr().out == "horovod.mxnet does not exist in this version of Khorovod.\n"
    with pytest.raises(ImportError, match=r"horovod\.mxnet does not exist"):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")


def test_a_frontend_whose_framework_is_missing(frontend_without_framework: str) -> None:
    assert not util.extension_available(frontend_without_framework)
    with pytest.raises(ImportError, match="needs nowhere; install it with: pip install nowhere"):
        util.check_extension(f"horovod.{frontend_without_framework}")


def test_a_frontend_whose_framework_is_there(
    frontend_without_framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, frontend_without_framework, types.ModuleType("nowhere"))
    assert util.extension_available(frontend_without_framework)


def test_a_folder_is_not_a_framework(
    frontend_without_framework: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere" / "nowhere").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    assert not util.extension_available(frontend_without_framework)


def test_a_framework_that_was_made_unimportable(
    frontend_without_framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, frontend_without_framework, None)
    assert not util.extension_available(frontend_without_framework)


@pytest.mark.parametrize("name", ["numpy", "torch", "no.such.thing"])
def test_no_frontend_moves_gpu_memory(name: str) -> None:
    assert util.gpu_available(name) is False


@pytest.mark.parametrize("exception", [None, ImportError("libtorch.so")])
def test_no_version_of_a_framework_is_wrong(exception: Exception | None) -> None:
    util.check_installed_version("torch", "1.0.0", exception)


def test_ext_suffix() -> None:
    assert util.get_ext_suffix() == sysconfig.get_config_var("EXT_SUFFIX")
    assert util.get_ext_suffix() in EXTENSION_SUFFIXES


@pytest.mark.parametrize("name", ["mpi_built", "gloo_built", "nccl_built", "ddl_built", "ccl_built"])
def test_built_is_what_every_frontend_says(name: str) -> None:
    assert getattr(util, name)() == getattr(util, name)(verbose=True) == getattr(hvd, name)()


# -- Reductions


@pytest.mark.parametrize(
    "reduce_ops", [hvd, HorovodBasics(), HorovodBasics], ids=["module", "object", "class"]
)
@pytest.mark.parametrize(("op", "chosen"), [(None, hvd.Average), (hvd.Sum, hvd.Sum), (hvd.Max, hvd.Max)])
def test_without_average(reduce_ops: Any, op: int | None, chosen: int) -> None:
    assert util.get_average_backwards_compatibility_fun(reduce_ops)(op, None) == chosen


@pytest.mark.parametrize(("average", "chosen"), [(True, hvd.Average), (False, hvd.Sum)])
def test_average_alone_is_deprecated(average: bool, chosen: int) -> None:
    choose = util.get_average_backwards_compatibility_fun(hvd)
    with pytest.warns(DeprecationWarning, match="`average` has been replaced with `op`"):
        assert choose(None, average) == chosen


def test_the_warning_is_the_users() -> None:
    def allreduce(average: bool) -> int:
        return util.get_average_backwards_compatibility_fun(hvd)(None, average)

    with pytest.warns(DeprecationWarning, match="average") as caught:
        allreduce(True)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("average", [True, False])
def test_average_and_op_exclude_each_other(op: int, average: bool) -> None:
    with pytest.raises(ValueError, match="only one of them"):
        util.get_average_backwards_compatibility_fun(hvd)(op, average)


@pytest.mark.parametrize(
    ("number", "is_power"),
    [(-4, False), (0, False), (1, True), (2, True), (3, False), (4, True), (6, False), (1 << 20, True)],
)
def test_num_rank_is_power_2(number: int, is_power: bool) -> None:
    assert util.num_rank_is_power_2(number) is is_power


# -- Small change


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize(("value", "inside"), [("new", "new"), (None, "before")])
def test_env(monkeypatch: pytest.MonkeyPatch, before: str | None, value: str | None, inside: str) -> None:
    if before is None:
        monkeypatch.delenv("KHOROVOD_TEST", raising=False)
    else:
        monkeypatch.setenv("KHOROVOD_TEST", before)
    with util.env(KHOROVOD_TEST=value):
        assert os.environ.get("KHOROVOD_TEST") == (before if inside == "before" else inside)
    assert os.environ.get("KHOROVOD_TEST") == before


def _delete_and_raise() -> None:
    del os.environ["KHOROVOD_TEST"]
    raise KeyError("inside")


def test_env_is_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KHOROVOD_TEST", "old")
    with pytest.raises(KeyError, match="inside"), util.env(KHOROVOD_TEST="new"):
        _delete_and_raise()
    assert os.environ["KHOROVOD_TEST"] == "old"


def test_cache_calls_once_for_the_same_arguments() -> None:
    calls = []

    @util._cache
    def ask(name: str, verbose: bool = False) -> int:
        calls.append((name, verbose))
        return len(calls)

    assert [ask("a"), ask("b"), ask("a"), ask("a", verbose=True), ask("b")] == [1, 2, 1, 3, 2]


@pytest.mark.parametrize(
    ("items", "n", "pieces"),
    [
        ([1, 2, 3, 4], 2, [[1, 2], [3, 4]]),
        ([1, 2, 3, 4, 5], 3, [[1, 2], [3, 4], [5]]),
        ([1, 2], 3, [[1], [2], []]),
        ([], 2, [[], []]),
    ],
)
def test_split_list(items: list[int], n: int, pieces: list[list[int]]) -> None:
    assert util.split_list(items, n) == pieces


@given(st.lists(st.integers()), st.integers(1, 40))
def test_split_list_loses_nothing(items: list[int], n: int) -> None:
    pieces = util.split_list(items, n)
    lengths = [len(piece) for piece in pieces]
    assert list(chain(*pieces)) == items
    assert len(pieces) == n
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    ("make", "iterable"),
    [
        (lambda: [1], True),
        (lambda: "text", True),
        (lambda: iter(()), True),
        (lambda: 1, False),
        (object, False),
    ],
)
def test_is_iterable(make: Callable[[], Any], iterable: bool) -> None:
    assert util.is_iterable(make()) is iterable


@pytest.mark.parametrize(
    ("version", "target", "is_later"),
    [
        ("2.4.0", "2.4.0", True),
        ("2.4", "2.4.0", True),
        ("2.4.0.0.1", "2.4.0", True),
        ("2.10.0", "2.9.9", True),
        ("10.0.0", "9.9.9", True),
        ("2.3.9", "2.4.0", False),
        ("1", "1.0.1", False),
        ("v2.4.1", "2.4.0", True),
        ("2.4.0+cu121", "2.4.0", True),
        ("2.4.0.post1", "2.4.0", True),
        ("2.4.0rc1", "2.4.0", False),
        ("2.4.0a0+git1234", "2.4.0", False),
        ("2.4.0.dev20240101", "2.4.0", False),
        ("2.4.1-rc0", "2.4.0", True),
    ],
)
def test_versions(version: str, target: str, is_later: bool) -> None:
    assert util.is_version_greater_equal_than(version, target) is is_later


@pytest.mark.parametrize(
    ("version", "target", "complaint"),
    [
        (2.4, "2.4.0", "must be strings"),
        ("2.4.0", None, "must be strings"),
        ("2.4.0", "2.4", "must have the form x.y.z"),
        ("2.4.0", "2.4.0.1", "must have the form x.y.z"),
        ("2.4.0", "a.b.c", "must have the form x.y.z"),
        ("new", "2.4.0", "'new' is not a version"),
    ],
)
def test_versions_that_make_no_sense(version: Any, target: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        util.is_version_greater_equal_than(version, target)
