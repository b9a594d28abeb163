"""Handwritten digits in a training loop of your own: the steps that make it a distributed one, numbered.

    horovodrun -np 2 python examples/tensorflow/mnist.py
    mpirun -np 2 python examples/tensorflow/mnist.py --batch_size 256 --epochs 10

Reads MNIST from --data (mnist.npz, as Keras distributes it) where there is one, else the small digits that
come with scikit-learn, so that it runs anywhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--batch-size", "--batch_size", type=int, default=32, help="of each worker (default %(default)s)")
    add("--epochs", type=int, default=10)
    add("--fp16-allreduce", action="store_true", help="gradients travel as float16")
    add("--data", type=Path, default=Path("datasets/mnist.npz"), help="where MNIST is, if anywhere")
    add("--checkpoints", type=Path, default=None, help="the folder for checkpoints, if any are wanted")
    return parser.parse_args()


def digits(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images from 0 to 1, and their labels."""
    if path.exists():
        with np.load(path) as mnist:
            images, labels = mnist["x_train"] / 255.0, mnist["y_train"]
    else:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images, labels = bunch.images / 16.0, bunch.target
    return images[..., np.newaxis].astype("float32"), labels.astype("int64")


def main() -> None:
    """Trains."""
    args = arguments()

    # 1. Initialize Horovod.
    hvd.init()
    tf.keras.utils.set_random_seed(42 + hvd.rank())

    # 2. Assign a GPU to each rank.
    gpus = tf.config.experimental.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    # 3. Every worker reads another part of the data.
    images, labels = digits(args.data)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shard(num_shards=hvd.size(), index=hvd.rank())
    dataset = dataset.repeat().shuffle(10000).batch(args.batch_size)
    steps = len(labels) // args.batch_size // hvd.size()

    mnist_model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.25),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    loss = tf.losses.SparseCategoricalCrossentropy()

    # 4. Scale the learning rate by the number of workers.
    opt = tf.optimizers.Adam(0.001 * hvd.size())
    checkpoint = tf.train.Checkpoint(model=mnist_model, optimizer=opt)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

    @tf.function
    def training_step(images: tf.Tensor, labels: tf.Tensor, first_batch: bool) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            probs = mnist_model(images, training=True)
            loss_value = loss(labels, probs)

        # 5. Wrap the tape: its gradients are averages over all workers.
        tape = hvd.DistributedGradientTape(tape, compression=compression)

        grads = tape.gradient(loss_value, mnist_model.trainable_variables)
        opt.apply_gradients(zip(grads, mnist_model.trainable_variables, strict=True))

        # 6. Broadcast the model and the optimizer's state from rank 0: after the first step, when all
        # variables exist.
        if first_batch:
            hvd.broadcast_variables(mnist_model.variables, root_rank=0)
            hvd.broadcast_variables(opt.variables, root_rank=0)  # tf_keras: opt.variables()

        hits = tf.cast(tf.argmax(probs, axis=1) == labels, tf.float32)
        return loss_value, tf.reduce_mean(hits)

    batches = iter(dataset)
    for epoch in range(1, args.epochs + 1):
        results = []
        for step in range(steps):
            images, labels = next(batches)
            results.append(training_step(images, labels, epoch == 1 and step == 0))
        loss_value, accuracy = (tf.reduce_mean(values) for values in zip(*results, strict=True))

        # 7. Average the metrics over all workers.
        loss_value = hvd.allreduce(loss_value, name="loss")
        accuracy = hvd.allreduce(accuracy, name="accuracy")
        if hvd.rank() == 0:
            print(f"epoch {epoch}: loss {loss_value:.4f}, accuracy {accuracy:.2%}", flush=True)

            # 8. Save checkpoints on the first worker only.
            if args.checkpoints is not None:
                checkpoint.save(str(args.checkpoints / "model"))


if __name__ == "__main__":
    main()
