"""A convolutional network for 32x32 colour images in ten classes: the shape of CIFAR-10.

    horovodrun -np 2 python examples/torch/cifar.py

The images are generated (stripes under noise, a direction for each class), or read from ``--data-dir``, if
the binary version of CIFAR-10 is there. Trains with a learning rate that warms up, clips gradients, keeps
batch normalisation in step over all workers, and ends with the same accuracy on all.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd


def network() -> nn.Module:
    """Three pairs of convolutions; the normalisation sees the batches of all workers."""
    layers: list[nn.Module] = []
    inputs = 3
    for width in (16, 32, 64):
        for _ in range(2):
            layers += [
                nn.Conv2d(inputs, width, 3, padding=1, bias=False),
                hvd.SyncBatchNorm(width),
                nn.ReLU(),
            ]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--batch-size", type=int, default=32, help="of each worker (default %(default)s)")
    add("--epochs", type=int, default=3)
    add("--lr", type=float, default=0.05, help="of one worker; scaled by their number (default %(default)s)")
    add("--warmup-epochs", type=float, default=1.0, help="until the learning rate is reached")
    add("--clip", type=float, default=1.0, help="longest gradient (default %(default)s)")
    add("--samples", type=int, default=1500, help="how many images to generate for training")
    add("--data-dir", type=Path, default=Path("datasets/cifar-10-batches-bin"))
    return parser.parse_args()


def datasets(args: argparse.Namespace) -> tuple[TensorDataset, TensorDataset]:
    """For training, and for testing."""
    files = sorted(args.data_dir.glob("data_batch_*.bin"))
    if files:
        return from_files(files), from_files([args.data_dir / "test_batch.bin"])
    return generated(args.samples, seed=0), generated(400, seed=1)


def generated(count: int, seed: int) -> TensorDataset:
    """Stripes under noise: every class has a direction of its own."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count)
    angles = (labels * np.pi / 10)[:, None, None]
    phases = random.uniform(0, 2 * np.pi, (count, 1, 1))
    y, x = np.mgrid[0:32, 0:32] / 32
    stripes = np.sin(2 * np.pi * 5 * (x * np.cos(angles) + y * np.sin(angles)) + phases)
    images = stripes[:, None].astype("f4") + random.standard_normal((count, 3, 32, 32), "f4")
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))


def from_files(files: list[Path]) -> TensorDataset:
    """The binary version: for each image its class, then 3072 bytes."""
    rows = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
    images = rows[:, 1:].reshape(-1, 3, 32, 32).astype("f4") / 127.5 - 1
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(rows[:, 0].astype("i8")))


def main() -> None:
    """Trains and tests."""
    args = arguments()
    hvd.init()
    torch.manual_seed(7)
    torch.set_num_threads(1)
    device = torch.device(f"cuda:{hvd.local_rank()}" if torch.cuda.is_available() else "cpu")

    train_data, test_data = datasets(args)
    sampler = DistributedSampler(train_data, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train_data, batch_size=args.batch_size, sampler=sampler)
    test_sampler = DistributedSampler(test_data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    test_loader = DataLoader(test_data, batch_size=100, sampler=test_sampler)

    model = network().to(device)
    optimizer: optim.Optimizer = optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    steps = max(1, int(args.warmup_epochs * len(loader)))
    warmup = optim.lr_scheduler.LinearLR(optimizer, 1 / hvd.size(), 1.0, steps)

    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images.to(device)), labels.to(device)).backward()
            optimizer.synchronize()  # clipping needs the reduced gradients
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            with optimizer.skip_synchronize():
                optimizer.step()
            warmup.step()
        model.eval()
        with torch.no_grad():
            correct = sum(
                (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
                for images, labels in test_loader
            )
        accuracy = hvd.allreduce(torch.tensor(correct / len(test_sampler)), name="accuracy").item()
        print(f"worker {hvd.rank()}, epoch {epoch}: accuracy {accuracy:.2%}", flush=True)


if __name__ == "__main__":
    main()
