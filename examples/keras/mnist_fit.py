"""Model.fit on two workers, from one program or notebook: horovod.run() calls a function on each of them.

    python examples/keras/mnist_fit.py
    python examples/keras/mnist_fit.py --np 2 --epochs 24 --no-mpi
    horovodrun -np 2 python examples/keras/mnist_fit.py --inside

With --inside the program is one of the workers, started by a launcher of your choice.
"""

from __future__ import annotations

import argparse

import horovod


def training_func(epochs: int = 6, directory: str = ".") -> float:
    """What every worker does; the accuracy in the end."""
    import tensorflow as tf
    from sklearn.datasets import load_digits

    import horovod.tensorflow as hvd

    hvd.init()

    # Pinning GPUs (one GPU per process)
    gpus = tf.config.experimental.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    digits = load_digits()
    dataset = tf.data.Dataset.from_tensor_slices(
        (tf.cast(digits.images[..., tf.newaxis] / 16.0, tf.float32), tf.cast(digits.target, tf.int64))
    )
    batch_size = 64
    dataset = dataset.repeat().shuffle(10000, seed=hvd.rank()).batch(batch_size)

    # Horovod: adjust learning rate based on number of GPUs.
    scaled_lr = 0.001 * hvd.size()
    opt = tf.optimizers.Adam(scaled_lr)
    opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)

    mnist_model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )

    mnist_model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])

    callbacks = [
        horovod.tensorflow.keras.callbacks.BroadcastGlobalVariablesCallback(0),
        horovod.tensorflow.keras.callbacks.MetricAverageCallback(),
        horovod.tensorflow.keras.callbacks.LearningRateWarmupCallback(
            initial_lr=scaled_lr, warmup_epochs=3, verbose=1
        ),
    ]

    if hvd.rank() == 0:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(f"{directory}/checkpoint-{{epoch}}.keras"))

    verbose = 2 if hvd.rank() == 0 else 0

    history = mnist_model.fit(
        dataset, steps_per_epoch=60 // hvd.size(), callbacks=callbacks, epochs=epochs, verbose=verbose
    )
    return history.history["accuracy"][-1]


def main() -> None:
    """Starts the workers, or is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="how many workers (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--directory", default=".", help="where checkpoints go")
    parser.add_argument("--no-mpi", action="store_true", help="start them without mpirun")
    parser.add_argument("--inside", action="store_true", help="this is one of the workers")
    args = parser.parse_args()
    if args.inside:
        accuracies = [training_func(args.epochs, args.directory)]
    else:
        accuracies = horovod.run(
            training_func,
            args=(args.epochs, args.directory),
            np=args.np,
            verbose=False,
            disable_cache=True,
            use_mpi=not args.no_mpi,
        )
    print(f"accuracy of each worker: {', '.join(f'{accuracy:.2%}' for accuracy in accuracies)}", flush=True)


if __name__ == "__main__":
    main()
