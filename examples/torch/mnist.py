"""Handwritten digits: the eight steps that make a PyTorch script a distributed one, numbered.

    horovodrun -np 2 python examples/torch/mnist.py
    mpirun -np 2 python examples/torch/mnist.py --batch-size 256 --epochs 10

Reads MNIST's four files from --data-dir where there are any, else the small digits that come with
scikit-learn, so that it runs anywhere.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd


class Net(nn.Module):
    """Two convolutions, two linear layers; for images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logarithms of the digits' probabilities."""
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.adaptive_max_pool2d(x, 4).flatten(1)
        x = self.dropout(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--batch-size", "--batch_size", type=int, default=64, help="of each worker (default %(default)s)")
    add("--test-batch-size", type=int, default=1000)
    add("--epochs", type=int, default=10)
    add("--lr", type=float, default=0.02, help="of one worker; scaled by their number (default %(default)s)")
    add("--momentum", type=float, default=0.9)
    add("--seed", type=int, default=42)
    add("--log-interval", type=int, default=10, help="batches between two lines where there is no terminal")
    add("--fp16-allreduce", action="store_true", help="gradients travel as float16")
    add("--use-adasum", action="store_true", help="combine the workers' steps by Adasum")
    add("--gradient-predivide-factor", type=float, default=1.0)
    add("--batches-per-allreduce", type=int, default=1, help="backward passes per step")
    add("--data-dir", type=Path, default=Path("datasets/MNIST/raw"), help="where MNIST's files are, if any")
    add("--checkpoint", type=Path, default=None, help="where to save the model after every epoch")
    add("--no-cuda", action="store_true", help="train on the CPU even if there are GPUs")
    return parser.parse_args()


def mnist_file(directory: Path, stem: str) -> np.ndarray:
    """The array in one of MNIST's files, as they are distributed: maybe compressed."""
    packed = directory / f"{stem}.gz"
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else (directory / stem).read_bytes()
    dimensions = data[3]
    shape = np.frombuffer(data, ">i4", dimensions, offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def datasets(directory: Path) -> tuple[TensorDataset, TensorDataset]:
    """For training, and for testing."""
    if list(directory.glob("train-images*")):
        parts = [
            (
                mnist_file(directory, f"{part}-images-idx3-ubyte"),
                mnist_file(directory, f"{part}-labels-idx1-ubyte"),
            )
            for part in ("train", "t10k")
        ]
        pixels = [(images.astype("f4") / 255 - 0.1307) / 0.3081 for images, _ in parts]
    else:
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        parts = [(digits.images[some], digits.target[some]) for some in (order[297:], order[:297])]
        pixels = [(images.astype("f4") - 4.9) / 6.0 for images, _ in parts]
    train, test = (
        TensorDataset(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype("i8")))
        for images, (_, labels) in zip(pixels, parts, strict=True)
    )
    return train, test


def metric_average(value: float, name: str) -> float:
    """The mean of the workers' values."""
    return hvd.allreduce(torch.tensor(value), name=name).item()


def train_epoch(
    model: nn.Module, optimizer: optim.Optimizer, loader: DataLoader, epoch: int, args: argparse.Namespace
) -> None:
    """One pass over this worker's share of the data."""
    model.train()
    device = next(model.parameters()).device
    progress = Progress(f"epoch {epoch}", len(loader), args.log_interval)
    optimizer.zero_grad()
    for number, (images, labels) in enumerate(loader, 1):
        loss = F.nll_loss(model(images.to(device)), labels.to(device)) / args.batches_per_allreduce
        loss.backward()
        if number % args.batches_per_allreduce == 0:
            optimizer.step()
            optimizer.zero_grad()
        progress.show(number, loss.item())


def test(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Loss and accuracy over all workers' shares."""
    model.eval()
    device = next(model.parameters()).device
    loss = correct = 0.0
    with torch.no_grad():
        for images, labels in loader:
            output, wanted = model(images.to(device)), labels.to(device)
            loss += F.nll_loss(output, wanted, reduction="sum").item()
            correct += (output.argmax(1) == wanted).sum().item()
    samples = len(loader.sampler)
    # 8. Average metrics across all workers.
    return metric_average(loss / samples, "loss"), metric_average(correct / samples, "accuracy")


class Progress:
    """A bar on the first worker's terminal; where there is none, a line now and then."""

    def __init__(self, title: str, total: int, interval: int) -> None:
        self.title, self.total, self.interval = title, total, interval
        self.bar = sys.stdout.isatty()

    def show(self, done: int, loss: float) -> None:
        """So many batches are done."""
        if hvd.rank() != 0:
            return
        if self.bar:
            filled = "#" * (30 * done // self.total)
            end = "\n" if done == self.total else ""
            print(f"\r{self.title} [{filled:<30}] {done}/{self.total} loss {loss:.4f}", end=end, flush=True)
        elif done % self.interval == 0 or done == self.total:
            print(f"{self.title} batch {done}/{self.total} loss {loss:.4f}", flush=True)


def main() -> None:
    """Trains and tests."""
    args = arguments()

    # 1. Initialize Horovod.
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    # 2. Assign a GPU to each rank.
    device = torch.device("cpu")
    if torch.cuda.is_available() and not args.no_cuda:
        device = torch.device(f"cuda:{hvd.local_rank()}")
        torch.cuda.set_device(device)

    # 6. Load data according to the rank.
    train_data, test_data = datasets(args.data_dir)
    train_sampler = DistributedSampler(train_data, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_data, batch_size=args.batch_size, sampler=train_sampler)
    test_sampler = DistributedSampler(test_data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    test_loader = DataLoader(test_data, batch_size=args.test_batch_size, sampler=test_sampler)

    # 3. Scale the learning rate. Adasum needs no scaling.
    model = Net().to(device)
    scale = 1 if args.use_adasum else args.batches_per_allreduce * hvd.size()
    optimizer = optim.SGD(model.parameters(), lr=args.lr * scale, momentum=args.momentum)

    # 4. Wrap the optimizer.
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=args.batches_per_allreduce,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    # 5. Broadcast the model and the optimizer's state from rank 0.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(1, args.epochs + 1):
        train_sampler.set_epoch(epoch)
        train_epoch(model, optimizer, train_loader, epoch, args)
        loss, accuracy = test(model, test_loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: test loss {loss:.4f}, accuracy {accuracy:.2%}", flush=True)
            # 7. Checkpoint from the first worker only.
            if args.checkpoint is not None:
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.checkpoint
                )


if __name__ == "__main__":
    main()
