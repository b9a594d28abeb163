"""``horovod.common.util``: there for scripts written against the original.

Questions about extensions are questions about frontends here: nothing is compiled per framework. They are
answered by looking for modules, so that asking imports no framework.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from horovod._core import basics

__all__ = [
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

T = TypeVar("T")


# -- Frontends


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether ``horovod.torch``, say, can be used: this version has it, and the framework is installed."""
    reason = _why_unusable(ext_base_name)
    if reason and verbose:
        print(reason)
    return not reason


def check_extension(ext_name: str, *_build: str) -> None:
    """Raises ``ImportError``, with advice, if the frontend ``ext_name`` (``horovod.torch``) cannot be used.

    What follows the name in the original, a variable and a path of the build, has no meaning here.
    """
    reason = _why_unusable(ext_name.removeprefix("horovod."))
    if reason:
        raise ImportError(reason)


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the frontend can work on GPU memory without going through the CPU: none can in this version."""
    return extension_available(ext_base_name, verbose) and (basics.cuda_built() or basics.rocm_built())


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Never complains.

    The original is compiled against one version of a framework, and compares it with the one that it finds
    (``HorovodVersionMismatchError``). This package is compiled against none: every version that a frontend
    supports is as good as another.
    """


def get_ext_suffix() -> str:
    """How the names of extension modules end for this Python: ``.cpython-312-x86_64-linux-gnu.so``, say."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def _why_unusable(framework: str) -> str:
    """Why there is no frontend for ``framework``, and what to do; empty if there is."""
    if not _exists(f"horovod.{framework}"):
        return f"horovod.{framework} does not exist in this version of Khorovod."
    if not _exists(framework):
        return f"horovod.{framework} needs {framework}; install it with: pip install {framework}"
    return ""


def _exists(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # it is loaded, and does not say from where
        return module in sys.modules
    except ImportError:  # of a parent
        return False
    return spec is not None and spec.origin is not None  # not just a folder of that name


# -- What the engine is made of; the answer does not depend on a framework


def mpi_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Whether collectives can go through MPI."""
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Whether jobs run without MPI."""
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:  # noqa: ARG001
    """The version of NCCL that the engine calls; 0 if it calls none."""
    return basics.nccl_built()


def ddl_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Whether the engine uses IBM's DDL."""
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Whether the engine uses Intel's oneCCL."""
    return basics.ccl_built()


# -- Reductions


class ReduceOps(Protocol):
    """Whatever has the constants: a frontend, or ``HorovodBasics``."""

    @property
    def Average(self) -> int: ...
    @property
    def Sum(self) -> int: ...


def get_average_backwards_compatibility_fun(
    reduce_ops: ReduceOps,
) -> Callable[[int | None, bool | None], int]:
    """The function ``(op, average) -> op`` that understands the old argument ``average``."""

    def choose(op: int | None, average: bool | None) -> int:
        if average is None:
            return reduce_ops.Average if op is None else op
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("Parameter `average` has been replaced with `op`.", DeprecationWarning, stacklevel=3)
        return reduce_ops.Average if average else reduce_ops.Sum

    return choose


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether Adasum can work with so many ranks: 1, 2, 4, 8, ..."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


# -- Small change


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables for a ``with`` block; those that are ``None`` stay as they are."""
    wanted = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _cache(function: Callable[..., T]) -> Callable[..., T]:
    """Calls ``function`` once for the same arguments, and remembers the result."""
    return functools.cache(function)


def split_list(l: Sequence[T], n: int) -> list[Sequence[T]]:  # noqa: E741
    """``n`` pieces of a list, one after the other; if they cannot be equal, the first have one item more."""
    each, more = divmod(len(l), n)
    ends = [each * i + min(i, more) for i in range(n + 1)]
    return [l[begin:end] for begin, end in itertools.pairwise(ends)]


def is_iterable(x: Any) -> bool:
    """Whether ``for item in x`` would work."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


_VERSION = re.compile(r"\s*v?(\d+(?:\.\d+)*)(.*)", re.DOTALL)
_EARLIER = re.compile(r"[-_.]?(a|alpha|b|beta|c|rc|pre|preview|dev)[-_.]?\d*", re.IGNORECASE)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version ``ver`` is ``target``, as ``"x.y.z"``, or a later one.

    ``2.4.0rc1`` and ``2.4.0.dev3`` are earlier than ``2.4.0``; ``2.4.0+cu121`` and ``2.4.0.post1`` are not.
    """
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"Versions must be strings, not {ver!r} and {target!r}.")
    if not re.fullmatch(r"\d+\.\d+\.\d+", target):
        raise ValueError(f"The version to compare with must have the form x.y.z, not {target!r}.")
    read = _VERSION.match(ver)
    if read is None:
        raise ValueError(f"{ver!r} is not a version.")
    ours = [int(number) for number in read[1].split(".")]
    theirs = [int(number) for number in target.split(".")]
    length = max(len(ours), len(theirs))
    ours += [0] * (length - len(ours))
    theirs += [0] * (length - len(theirs))
    return ours > theirs or (ours == theirs and not _EARLIER.match(read[2]))
