"""Trains a softmax classifier on scikit-learn's handwritten digits, on any number of workers.

Run it alone, ``python examples/numpy/digits.py``, or on two workers::

    horovodrun -np 2 python examples/numpy/digits.py

The five changes that make it distributed are marked ``# Horovod``.
"""

from __future__ import annotations

import argparse
import hashlib
import sys

import numpy as np
from sklearn.datasets import load_digits

import horovod.numpy as hvd


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate of one worker")
    args = parser.parse_args()

    hvd.init()  # Horovod: 1. find the other workers
    # Horovod: 2. pin a device: nothing to do on CPUs; elsewhere, device = hvd.local_rank()

    data = load_digits()
    pixels, labels = data.data.astype(np.float32) / 16, data.target
    order = np.random.default_rng(1).permutation(len(labels))
    test, train = order[:360], order[360:]
    shard = train[hvd.rank() :: hvd.size()][: len(train) // hvd.size()]  # every worker its own samples

    random = np.random.default_rng(hvd.rank())
    weights = random.normal(0, 0.01, (64, 10)).astype(np.float32)
    bias = np.zeros(10, dtype=np.float32)
    learning_rate = args.lr * hvd.size()  # Horovod: 3. scale the learning rate

    hvd.broadcast_(weights, root_rank=0, name="weights")  # Horovod: 5. start from rank 0's weights
    hvd.broadcast_(bias, root_rank=0, name="bias")

    for epoch in range(args.epochs):
        random.shuffle(shard)
        losses = []
        for begin in range(0, len(shard) - args.batch_size + 1, args.batch_size):
            batch = shard[begin : begin + args.batch_size]
            probabilities = softmax(pixels[batch] @ weights + bias)
            losses.append(-np.log(probabilities[np.arange(len(batch)), labels[batch]] + 1e-9).mean())
            error = (probabilities - np.eye(10, dtype=np.float32)[labels[batch]]) / len(batch)
            # Horovod: 4. average the gradients; both travel at once
            handles = [
                hvd.allreduce_async(pixels[batch].T @ error, name="gradient.weights"),
                hvd.allreduce_async(error.sum(axis=0), name="gradient.bias"),
            ]
            weights -= learning_rate * hvd.synchronize(handles[0])
            bias -= learning_rate * hvd.synchronize(handles[1])
        loss = float(hvd.allreduce(np.mean(losses), name="loss"))
        if hvd.rank() == 0 and (epoch + 1) % 5 == 0:
            print(f"epoch {epoch + 1:3d}  loss {loss:.4f}")

    predictions = np.argmax(pixels[test] @ weights + bias, axis=1)
    accuracy = float(np.mean(predictions == labels[test]))
    same = np.array_equal(weights, hvd.broadcast(weights, root_rank=0, name="final"))
    digest = hashlib.sha256(weights.tobytes() + bias.tobytes()).hexdigest()[:16]
    print(f"worker {hvd.rank()} of {hvd.size()}: test accuracy {accuracy:.1%}, weights {digest}")
    if not same:
        print(f"worker {hvd.rank()}: the weights differ from those of worker 0", file=sys.stderr)
    return 0 if same and accuracy > 0.93 else 1


if __name__ == "__main__":
    sys.exit(main())
