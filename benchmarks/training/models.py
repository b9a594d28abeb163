"""The three models of the goals: a large one, one that computes a lot, one of many small pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input, and what the convolutions make of it."""
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(inner)))


class Pieces(nn.Module):
    """A thousand parameters of 64 floats, each used once."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.full((64,), 0.001)) for _ in range(1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All of them, added."""
        for weight in self.weights:
            x = x + weight
        return x


def mlp() -> nn.Module:
    """100 MB of gradients."""
    return nn.Sequential(
        nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024)
    )


def cnn() -> nn.Module:
    """Three residual blocks of 64 channels, four of 128."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        *[Residual(64) for _ in range(3)],
        nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(128),
        nn.ReLU(),
        *[Residual(128) for _ in range(4)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


@dataclass(frozen=True)
class Task:
    """A model, and the shape of a batch for it."""

    about: str
    model: Callable[[], nn.Module]
    batch: tuple[int, ...]


TASKS = {
    "mlp": Task("MLP 1024-4096-4096-1024, batch 32, 100 MB of gradients", mlp, (32, 1024)),
    "cnn": Task("CNN, 3 blocks of 64 and 4 of 128 channels, batch 8 of 64x64", cnn, (8, 3, 64, 64)),
    "pieces": Task("1,000 parameters of 64 floats", Pieces, (32, 64)),
}
