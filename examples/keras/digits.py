"""Handwritten digits by Model.fit, on whatever framework Keras 3 runs: TensorFlow or torch.

horovodrun -np 2 python examples/keras/digits.py
KERAS_BACKEND=torch horovodrun -np 2 python examples/keras/digits.py
mpirun -np 2 python examples/keras/digits.py --epochs 20 --save digits.keras
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
from sklearn.datasets import load_digits

import horovod.keras as hvd


def main() -> None:
    """Trains and tests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker (default %(default)s)")
    parser.add_argument("--save", type=Path, default=None, help="where the first worker saves the model")
    parser.add_argument("--resume", type=Path, default=None, help="a saved model to go on with")
    args = parser.parse_args()

    # 1. Initialize Horovod.
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())

    # 2. Every worker has another part of the data, and all have as many batches.
    digits = load_digits()
    images, labels = (digits.images[..., None] / 16.0).astype("float32"), digits.target.astype("int64")
    train = slice(297 + hvd.rank(), None, hvd.size())

    if args.resume is None:
        # 3. Scale the learning rate, and wrap the optimizer.
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
        model = keras.Sequential(
            [
                keras.layers.Input((8, 8, 1)),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    else:
        # The optimizer of a loaded model is a distributed one, with its state.
        model = hvd.load_model(args.resume)

    callbacks = [
        # 4. Start from the same weights; average the metrics; begin gently.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.001 * hvd.size(), warmup_epochs=3),
    ]

    # 5. Save on the first worker only.
    if hvd.rank() == 0 and args.save is not None:
        callbacks.append(keras.callbacks.ModelCheckpoint(args.save))

    model.fit(
        images[train],
        labels[train],
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    loss, accuracy = model.evaluate(images[:297], labels[:297], verbose=0)
    print(
        f"worker {hvd.rank()} of {hvd.size()} on {keras.backend.backend()}: test loss {loss:.4f}, "
        f"accuracy {accuracy:.2%}",
        flush=True,
    )


if __name__ == "__main__":
    main()
