"""Small models, their data, and the oracle: the same training by one plain worker. Runs in the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

import horovod.torch as hvd

Tensor = torch.Tensor
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]

WIDE = 520
ROWS = 12
"""Of a batch: as many for each of 1, 2, 3 and 4 ranks."""


def mlp(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Sequential:
    """Two layers, the same whenever it is made. In double precision rounding is no concern.

    The matrices are large enough to be reduced on their own; the biases are not.
    """
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, WIDE), nn.Tanh(), nn.Linear(WIDE, 4)).to(dtype)


def batch(step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Input and target of one step, of all ranks together."""
    random = torch.Generator().manual_seed(1000 + step)
    return (
        torch.randn(ROWS, 6, generator=random, dtype=torch.float64).to(dtype),
        torch.randn(ROWS, 4, generator=random, dtype=torch.float64).to(dtype),
    )


def own(tensor: Tensor) -> Tensor:
    """This rank's rows of a batch."""
    share = len(tensor) // hvd.size()
    return tensor[hvd.rank() * share : (hvd.rank() + 1) * share]


def loss_of(model: nn.Module, data: Tensor, target: Tensor) -> Tensor:
    """The mean over the rows: its gradient is the average of those of equal parts."""
    return nn.functional.mse_loss(model(data), target)


CLOSE = {"rtol": 1e-9, "atol": 1e-9}
"""Equal but for the order of additions, in double precision."""


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    """The optimizer of most tests."""
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4, part: Callable[[Tensor], Tensor] = own
) -> nn.Module:
    """Some steps on this rank's parts of the batches."""
    dtype = next(model.parameters()).dtype
    for step in range(steps):
        data, target = (part(tensor) for tensor in batch(step, dtype))
        optimizer.zero_grad()
        loss_of(model, data, target).backward()
        optimizer.step()
    return model


def whole(tensor: Tensor) -> Tensor:
    """All rows: what the plain worker trains on."""
    return tensor


def trained_alone(make: MakeOptimizer, model: nn.Module | None = None, steps: int = 4) -> nn.Module:
    """The oracle: plain torch on whole batches."""
    model = mlp() if model is None else model
    return train(model, make(model), steps, whole)


def assert_same_model(model: nn.Module, expected: nn.Module, **tolerance: Any) -> None:
    """Close to the oracle, and the same bits on all ranks."""
    assert_close(model.state_dict().values(), expected.state_dict().values(), **tolerance)
    assert_same_everywhere(model.state_dict().values())


def assert_close(tensors: Iterable[Tensor], expected: Iterable[Tensor], **tolerance: Any) -> None:
    """Equal but for rounding; to the bit with ``rtol=0, atol=0``."""
    torch.testing.assert_close(list(tensors), list(expected), **tolerance)


def assert_same_everywhere(tensors: Iterable[Tensor]) -> None:
    """Every rank has the same bits."""
    mine = [tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]
    assert all(theirs == mine for theirs in hvd.allgather_object(mine))


def all_parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """What it optimizes."""
    for group in optimizer.param_groups:
        yield from group["params"]


class Numbers(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """A data set that loader processes can import. It remembers who read it."""

    def __len__(self) -> int:
        return 4 * ROWS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        data, target = batch(index // ROWS)
        return data[index % ROWS], target[index % ROWS]
