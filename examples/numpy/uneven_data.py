"""Fits a line to data of which every worker has another amount, and checks it on some of the workers.

::

    horovodrun -np 3 python examples/numpy/uneven_data.py

A worker that has no batch left calls ``hvd.join()``: the others go on without it. A process set lets the
first half of the workers share the evaluation, which the others do not take part in.
"""

from __future__ import annotations

import argparse
import hashlib
import sys

import numpy as np

import horovod.numpy as hvd

TRUE_WEIGHTS = np.array([2.0, -1.0, 0.5])


def measurements(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Points, and noisy values of the true line there."""
    random = np.random.default_rng(seed)
    points = random.normal(size=(rows, len(TRUE_WEIGHTS)))
    return points, points @ TRUE_WEIGHTS + random.normal(0, 0.1, rows)


def train(weights: np.ndarray, points: np.ndarray, values: np.ndarray, args: argparse.Namespace) -> int:
    """One pass over this worker's data, in step with the others as long as it lasts."""
    steps = 0
    for begin in range(0, len(points), args.batch_size):
        batch, wanted = points[begin : begin + args.batch_size], values[begin : begin + args.batch_size]
        gradient = batch.T @ (batch @ weights - wanted)
        # A worker that has joined adds zeros to both sums, so their quotient is the mean over all samples
        # that there are in this step. hvd.Average would divide by the number of all workers.
        total, samples = hvd.grouped_allreduce([gradient, np.float64(len(batch))], op=hvd.Sum, name="step")
        weights -= args.lr * total / samples
        steps += 1
    last = hvd.join()  # waits until everybody is here; meanwhile helps the others
    # Only the workers that joined last have seen every step.
    hvd.broadcast_(weights, root_rank=last, name="weights")
    return steps


def evaluate(weights: np.ndarray, evaluators: hvd.ProcessSet) -> float:
    """The mean squared error on common data, each evaluator with a part of it; NaN on the other workers."""
    if not evaluators.included():
        return float("nan")
    points, values = measurements(seed=12345, rows=1000)
    share = slice(evaluators.rank(), None, evaluators.size())
    squares = np.square(points[share] @ weights - values[share]).sum()
    return float(hvd.allreduce(squares, op=hvd.Sum, name="squares", process_set=evaluators)) / len(points)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    hvd.init(process_sets="dynamic")
    half = range((hvd.size() + 1) // 2)
    # Alone, the half is everybody: that set exists already.
    evaluators = hvd.global_process_set if hvd.size() == 1 else hvd.add_process_set(half)

    points, values = measurements(seed=hvd.rank(), rows=200 + 150 * hvd.rank())
    weights = np.zeros(len(TRUE_WEIGHTS))
    steps = sum(train(weights, points, values, args) for _ in range(args.epochs))

    error = float(hvd.broadcast(np.float64(evaluate(weights, evaluators)), root_rank=0, name="error"))
    digest = hashlib.sha256(weights.tobytes()).hexdigest()[:16]
    print(f"worker {hvd.rank()} of {hvd.size()}: {steps} steps, error {error:.4f}, weights {digest}")
    return 0 if error < 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
