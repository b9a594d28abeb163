"""Worlds whose processes have imported torch."""

from __future__ import annotations

import weakref

import pytest

from tests.support.world import Workers

_ready: weakref.WeakSet[Workers] = weakref.WeakSet()


@pytest.fixture
def world(world: Workers) -> Workers:
    """The persistent world. To import torch, and what its optimizers load, takes long on a busy machine."""
    if world not in _ready:
        world.run(_import_torch, deadline=100)
        _ready.add(world)
    return world


def _import_torch() -> None:
    import torch._dynamo  # noqa: F401

    import horovod.torch  # noqa: F401
