"""Which gradients travel together, and what becomes of hooks when their optimizer is gone."""

from __future__ import annotations

import gc

import torch
from hypothesis import given
from hypothesis import strategies as st

import horovod.torch as hvd
from horovod.torch._reducer import BUNDLE_BYTES, BUNDLE_TENSORS, SMALL, bundles, bundles_of
from tests.support.world import Workers
from tests.torch.marks import on_worlds
from tests.torch.training import assert_same_everywhere


@given(st.lists(st.integers(0, 2 * SMALL), max_size=300))
def test_bundles(sizes: list[int]) -> None:
    found = bundles_of(sizes)
    members = [number for bundle in found for number in bundle]
    assert members == sorted(set(members)), "in order, and in one bundle at most"
    assert all(sizes[number] <= SMALL for number in members)
    assert all(2 <= len(bundle) <= BUNDLE_TENSORS for bundle in found)
    assert all(sum(sizes[number] for number in bundle) <= BUNDLE_BYTES for bundle in found)
    alone = [number for number, size in enumerate(sizes) if size <= SMALL and number not in members]
    assert len(alone) <= 1, "small ones are left over only if there is no other"


def test_bundles_are_full() -> None:
    assert [len(bundle) for bundle in bundles_of([256] * 3000)] == [1024, 1024, 952]
    assert [len(bundle) for bundle in bundles_of([SMALL] * 130)] == [64, 64, 2]


def test_a_bundle_is_of_one_device() -> None:
    tensors = [torch.empty(4, device=device) for device in ("cpu", "meta", "cpu", "meta", "meta", "cpu")]
    assert bundles(tensors) == [[0, 2, 5], [1, 3, 4]]


@on_worlds(2)
def test_another_optimizer_for_the_same_model(world: Workers) -> None:
    world.run(_optimizer_after_optimizer)


def _optimizer_after_optimizer() -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 1))
    x = torch.randn(8, 100) + hvd.rank()
    for lr in (0.01, 0.001):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=lr), model.named_parameters()
        )
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        del optimizer
        gc.collect()
    assert all(not parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    assert_same_everywhere(model.parameters())
