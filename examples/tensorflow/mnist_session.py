"""Handwritten digits the old way: a graph, a MonitoredTrainingSession, and the hook that broadcasts.

    horovodrun -np 2 python examples/tensorflow/mnist_session.py
    mpirun -np 2 python examples/tensorflow/mnist_session.py --steps 200

A program for TensorFlow 1 needs no more than its first import changed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import horovod.tensorflow as hvd


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--batch-size", type=int, default=32, help="of each worker (default %(default)s)")
    add("--steps", type=int, default=200, help="of all workers together (default %(default)s)")
    add("--data", type=Path, default=Path("datasets/mnist.npz"), help="where MNIST is, if anywhere")
    add("--train-logs", type=Path, default=None, help="the folder for checkpoints, if any are wanted")
    return parser.parse_args()


def digits(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows of pixels from 0 to 1, and their labels."""
    if path.exists():
        with np.load(path) as mnist:
            images, labels = mnist["x_train"] / 255.0, mnist["y_train"]
    else:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images, labels = bunch.images / 16.0, bunch.target
    return images.reshape(len(images), -1).astype("float32"), labels.astype("int64")


def network(images: tf.Tensor) -> tf.Tensor:
    """Scores of the ten digits."""
    width = images.shape[1]
    hidden = tf.get_variable("hidden", [width, 64])
    offset = tf.get_variable("offset", [64], initializer=tf.zeros_initializer())
    output = tf.get_variable("output", [64, 10])
    return tf.matmul(tf.nn.relu(tf.matmul(images, hidden) + offset), output)


def main() -> None:
    """Trains."""
    args = arguments()
    tf.disable_v2_behavior()

    # Initialize Horovod
    hvd.init()
    tf.set_random_seed(hvd.rank())

    # Pin GPU to be used to process local rank (one GPU per process)
    config = tf.ConfigProto()
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    # Build model...
    pixels, digit = digits(args.data)
    dataset = tf.data.Dataset.from_tensor_slices((pixels, digit))
    dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().shuffle(2000).batch(args.batch_size)
    images, labels = tf.data.make_one_shot_iterator(dataset).get_next()
    scores = network(images)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, scores)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(scores, 1), labels), tf.float32))
    opt = tf.train.AdagradOptimizer(0.1 * hvd.size())

    # Add Horovod Distributed Optimizer
    opt = hvd.DistributedOptimizer(opt)

    # Add hook to broadcast variables from rank 0 to all other processes during
    # initialization.
    global_step = tf.train.get_or_create_global_step()
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),
        tf.train.StopAtStepHook(last_step=args.steps // hvd.size()),
    ]

    # Make training operation
    train_op = opt.minimize(loss, global_step=global_step)
    metrics = [hvd.allreduce(loss, name="loss"), hvd.allreduce(accuracy, name="accuracy")]

    # Save checkpoints only on worker 0 to prevent other workers from corrupting them.
    checkpoint_dir = args.train_logs if hvd.rank() == 0 else None

    # The MonitoredTrainingSession takes care of session initialization,
    # restoring from a checkpoint, saving to a checkpoint, and closing when done
    # or an error occurs.
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=None if checkpoint_dir is None else str(checkpoint_dir), config=config, hooks=hooks
    ) as mon_sess:
        while not mon_sess.should_stop():
            # Perform synchronous training.
            step, _, (loss_value, accuracy_value) = mon_sess.run([global_step, train_op, metrics])
            if step % 10 == 0 and hvd.rank() == 0:
                print(f"step {step}: loss {loss_value:.4f}, accuracy {accuracy_value:.2%}", flush=True)


if __name__ == "__main__":
    main()
