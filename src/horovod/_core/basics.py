"""The calls that every frontend offers under the same names: who am I, and with how many others."""

from __future__ import annotations

from horovod._core import runtime
from horovod._core.runtime import init, is_initialized, shutdown
from horovod._core.timeline import start_timeline, stop_timeline

__all__ = [
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def rank() -> int:
    """This process's number among all, from 0."""
    return runtime.identity().rank


def size() -> int:
    """How many processes there are."""
    return runtime.identity().size


def local_rank() -> int:
    """This process's number among those on its host: the device to use."""
    return runtime.identity().local_rank


def local_size() -> int:
    """How many processes this host has."""
    return runtime.identity().local_size


def cross_rank() -> int:
    """This host's number among the hosts that have this local rank."""
    return runtime.identity().cross_rank


def cross_size() -> int:
    """How many hosts have this local rank."""
    return runtime.identity().cross_size
