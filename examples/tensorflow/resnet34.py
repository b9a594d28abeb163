"""A ResNet-34 in a training loop of your own, on generated images: loss and accuracy over all workers.

    horovodrun -np 2 python examples/tensorflow/resnet34.py
    mpirun -np 2 python examples/tensorflow/resnet34.py --steps 100 --image-size 224

The images are noise with a pattern per class, so there is something to learn, and nothing to download.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

layers = tf.keras.layers


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--batch-size", type=int, default=8, help="of each worker (default %(default)s)")
    add("--steps", type=int, default=40, help="per epoch, of all workers together (default %(default)s)")
    add("--epochs", type=int, default=3)
    add("--image-size", type=int, default=32)
    add("--width", type=int, default=64, help="channels of the first blocks (default %(default)s)")
    add("--blocks", default="3,4,6,3", help="of each stage (default %(default)s)")
    add("--fp16-allreduce", action="store_true", help="gradients travel as float16")
    return parser.parse_args()


def block(x: Any, channels: int, stride: int) -> Any:
    """Two convolutions beside a shortcut."""
    shortcut = x
    if stride != 1 or x.shape[-1] != channels:
        shortcut = layers.Conv2D(channels, 1, stride, use_bias=False)(x)
        shortcut = layers.BatchNormalization(momentum=0.9)(shortcut)
    x = layers.Conv2D(channels, 3, stride, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization(momentum=0.9)(x)
    return layers.ReLU()(layers.Add()([x, shortcut]))


def resnet(size: int, width: int, blocks: list[int], classes: int = 10) -> tf.keras.Model:
    """With 3, 4, 6 and 3 blocks: a ResNet-34."""
    images = layers.Input((size, size, 3))
    x = layers.Conv2D(width, 7, 2, padding="same", use_bias=False)(images)
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, count in enumerate(blocks):
        for number in range(count):
            x = block(x, width << stage, 2 if stage and number == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(images, layers.Dense(classes)(x))


def generated(count: int, size: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images of noise, with the pattern of their class."""
    random = np.random.default_rng(0)
    patterns = random.normal(size=(classes, 4, 4, 3)).repeat(-(-size // 4), 1).repeat(-(-size // 4), 2)
    labels = random.integers(0, classes, count)
    noise = random.normal(size=(count, size, size, 3))
    return (patterns[labels, :size, :size] + noise).astype("float32"), labels.astype("int64")


def main() -> None:
    """Trains."""
    args = arguments()

    # Initialize Horovod
    hvd.init()
    tf.keras.utils.set_random_seed(hvd.rank())

    # Get the list of GPU, pin one to the rank
    gpus = tf.config.experimental.list_physical_devices("GPU")
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    # Loading data according to rank ID and adjusting the number of time steps
    steps = args.steps // hvd.size()
    images, labels = generated(args.steps * args.batch_size, args.image_size)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shard(num_shards=hvd.size(), index=hvd.rank())
    dataset = dataset.shuffle(1000).batch(args.batch_size, drop_remainder=True).take(steps)

    # Scale the learning rate with number of workers
    model = resnet(args.image_size, args.width, [int(count) for count in args.blocks.split(",")])
    opt = tf.keras.optimizers.SGD(0.01 * hvd.size(), momentum=0.9)
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor, first_batch: bool) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            output = model(images, training=True)
            loss = loss_fn(labels, output)

        # Wrap tf.GradientTape with Horovod Distributed Gradient Tape
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))

        # Broadcast the model from rank 0, after the first gradient step to ensure optimizer initialization
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(opt.variables, root_rank=0)  # tf_keras: opt.variables()
        return loss, tf.reduce_mean(tf.cast(tf.argmax(output, 1) == labels, tf.float32))

    for epoch in range(1, args.epochs + 1):
        began = time.monotonic()
        results = [train_step(*data, epoch == 1 and number == 0) for number, data in enumerate(dataset)]
        loss, acc = (tf.reduce_mean(values) for values in zip(*results, strict=True))

        # Average the metrics across all the workers
        loss = hvd.allreduce(loss, name="loss")
        acc = hvd.allreduce(acc, name="acc")
        if hvd.rank() == 0:
            speed = hvd.size() * len(results) * args.batch_size / (time.monotonic() - began)
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {acc:.2%}, {speed:.1f} images/s", flush=True)


if __name__ == "__main__":
    main()
