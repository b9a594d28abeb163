"""How fast a model trains on generated images, per worker and in total.

    horovodrun -np 2 python examples/torch/synthetic_benchmark.py
    horovodrun -np 4 python examples/torch/synthetic_benchmark.py --model resnet50 --batch-size 32

Says also how well it scales: images per second of all workers, over those of as many workers that do not
communicate. The models are written out here, so that nothing has to be downloaded.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim

import horovod.torch as hvd


class Block(nn.Module):
    """Two convolutions of 3x3 beside a shortcut; a bottleneck has one of 1x1 before and after instead."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = width * 4 if bottleneck else width
        kernels = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        if not bottleneck:
            kernels = [(inputs, width, 3, stride), (width, width, 3, 1)]
        layers: list[nn.Module] = []
        for size_in, size_out, kernel, step in kernels:
            layers += [
                nn.Conv2d(size_in, size_out, kernel, step, kernel // 2, bias=False),
                nn.BatchNorm2d(size_out),
                nn.ReLU(inplace=True),
            ]
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the body adds to the input."""
        return F.relu(self.body(x) + self.shortcut(x))


def resnet(depths: tuple[int, ...], bottleneck: bool, width: int = 64, classes: int = 1000) -> nn.Module:
    """A residual network with so many blocks in each stage."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Block(inputs, width << stage, stride, bottleneck))
            inputs = (width << stage) * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


MODELS = {
    "resnet10": lambda: resnet((1, 1, 1, 1), False, width=16),
    "resnet18": lambda: resnet((2, 2, 2, 2), False),
    "resnet34": lambda: resnet((3, 4, 6, 3), False),
    "resnet50": lambda: resnet((3, 4, 6, 3), True),
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", choices=MODELS, default="resnet18")
    add("--batch-size", type=int, default=8, help="images per worker and step (default %(default)s)")
    add("--image-size", type=int, default=64, help="pixels of a side (default %(default)s)")
    add("--num-warmup-batches", type=int, default=3)
    add("--num-batches-per-iter", type=int, default=5, help="steps that are timed together")
    add("--num-iters", type=int, default=5, help="how often")
    add("--fp16-allreduce", action="store_true", help="gradients travel as float16")
    add("--use-adasum", action="store_true", help="combine the workers' steps by Adasum")
    add("--no-cuda", action="store_true", help="train on the CPU even if there are GPUs")
    return parser.parse_args()


def rates(step: object, args: argparse.Namespace) -> np.ndarray:
    """Images per second of this worker, several times."""
    for _ in range(args.num_warmup_batches):
        step()  # type: ignore[operator]
    found = []
    for _ in range(args.num_iters):
        hvd.barrier()
        began = time.perf_counter()
        for _ in range(args.num_batches_per_iter):
            step()  # type: ignore[operator]
        found.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - began))
    return np.array(found)


def main() -> None:
    """Measures alone and together, and prints."""
    args = arguments()
    hvd.init()
    torch.manual_seed(hvd.rank())
    device = torch.device("cpu")
    if torch.cuda.is_available() and not args.no_cuda:
        device = torch.device(f"cuda:{hvd.local_rank()}")
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)

    model = MODELS[args.model]().to(device)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
    labels = torch.randint(0, 1000, (args.batch_size,), device=device)
    lr = 0.01 * (1 if args.use_adasum else hvd.size())
    optimizer = optim.SGD(model.parameters(), lr=lr)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    if hvd.rank() == 0:
        count = sum(parameter.numel() for parameter in model.parameters())
        print(
            f"{args.model}, {count / 1e6:.1f} million parameters, batch size {args.batch_size}, {device.type}"
        )
    silent = rates(step, args)

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
    )
    together = rates(step, args)

    own = torch.tensor([together.mean(), 1.96 * together.std(), silent.mean()])
    mean, spread, alone = hvd.allreduce(own, name="rates").tolist()
    if hvd.rank() == 0:
        workers = hvd.size()
        print(f"images/s per worker: {mean:.1f} +- {spread:.1f}")
        print(f"images/s of {workers} worker(s): {workers * mean:.1f} +- {workers * spread:.1f}")
        print(f"scaling efficiency, against workers that do not communicate: {mean / alone:.1%}")


if __name__ == "__main__":
    main()
