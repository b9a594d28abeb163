"""The programs that people have, letter for letter, with ``TF_USE_LEGACY_KERAS=1``.

Only what they leave out (data, a model) is added, and numbers of steps are made small. On Keras 3 the lines
that docs/keras.md names are replaced.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SECONDS = 280
pytestmark = pytest.mark.timeout(SECONDS + 20)

# What downloads MNIST: there is no network here.
DATA = """
def _digits(path="mnist.npz"):
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.kron(digits.images, np.ones((1, 4, 4)))[:, 2:30, 2:30] * 15
    return (images.astype("uint8"), digits.target), (images.astype("uint8"), digits.target)


import tensorflow as tf

tf.keras.datasets.mnist.load_data = _digits
"""

CUSTOM_LOOP = """
import tensorflow as tf
import horovod.tensorflow as hvd

# Initialize Horovod
hvd.init()

# Pin GPU to be used to process local rank (one GPU per process)
gpus = tf.config.experimental.list_physical_devices('GPU')
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], 'GPU')

# Build model and dataset
(mnist_images, mnist_labels), _ = tf.keras.datasets.mnist.load_data(path='mnist-%d.npz' % hvd.rank())
dataset = tf.data.Dataset.from_tensor_slices(
    (tf.cast(mnist_images[..., tf.newaxis] / 255.0, tf.float32),
     tf.cast(mnist_labels, tf.int64)))
dataset = dataset.repeat().shuffle(10000).batch(32)
mnist_model = tf.keras.Sequential([
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(64, activation='relu'),
    tf.keras.layers.Dense(10, activation='softmax')
])
model = mnist_model
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(0.001 * hvd.size())

checkpoint_dir = './checkpoints'
checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)

@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = mnist_model(images, training=True)
        loss_value = loss(labels, probs)

    # Horovod: add Horovod Distributed GradientTape.
    tape = hvd.DistributedGradientTape(tape)

    grads = tape.gradient(loss_value, mnist_model.trainable_variables)
    opt.apply_gradients(zip(grads, mnist_model.trainable_variables))

    # Horovod: broadcast initial variable states from rank 0 to all other processes.
    # This is necessary to ensure consistent initialization of all workers when
    # training is started with random weights or restored from a checkpoint.
    #
    # Note: broadcast should be done after the first gradient step to ensure optimizer
    # initialization.
    if first_batch:
        hvd.broadcast_variables(mnist_model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)

    return loss_value

# Horovod: adjust number of steps based on number of GPUs.
for batch, (images, labels) in enumerate(dataset.take(10000 // hvd.size())):
    loss_value = training_step(images, labels, batch == 0)

    if batch % 10 == 0 and hvd.local_rank() == 0:
        print('Step #%d\\tLoss: %.6f' % (batch, loss_value))

# Horovod: save checkpoints only on worker 0 to prevent other workers from
# corrupting it.
if hvd.rank() == 0:
    checkpoint.save(checkpoint_dir)
"""

FIT = """
import horovod

def training_func():

  import tensorflow as tf
  import horovod.tensorflow as hvd

  hvd.init()

  # Pinning GPUs (one GPU per process)
  gpus = tf.config.experimental.list_physical_devices('GPU')
  for gpu in gpus:
      tf.config.experimental.set_memory_growth(gpu, True)
  if gpus:
      tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], 'GPU')

  (mnist_images, mnist_labels), _ = tf.keras.datasets.mnist.load_data(path='mnist-%d.npz' % hvd.rank())

  dataset = tf.data.Dataset.from_tensor_slices(
      (tf.cast(mnist_images[..., tf.newaxis] / 255.0, tf.float32),
       tf.cast(mnist_labels, tf.int64)))
  batch_size = 128
  dataset = dataset.repeat().shuffle(10000).batch(batch_size)

  # Horovod: adjust learning rate based on number of GPUs.
  scaled_lr = 0.001 * hvd.size()
  opt = tf.optimizers.Adam(scaled_lr)
  opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)

  mnist_model = tf.keras.Sequential([
      tf.keras.layers.Conv2D(32, 3, activation='relu'),
      tf.keras.layers.MaxPooling2D(),
      tf.keras.layers.Conv2D(64, 3, activation='relu'),
      tf.keras.layers.MaxPooling2D(),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(64, activation='relu'),
      tf.keras.layers.Dense(10, activation='softmax')
  ])

  mnist_model.compile(loss=tf.losses.SparseCategoricalCrossentropy(),
                  optimizer=opt,
                  metrics=['accuracy'],
                  experimental_run_tf_function=False)

  callbacks = [
  horovod.tensorflow.keras.callbacks.BroadcastGlobalVariablesCallback(0),
  horovod.tensorflow.keras.callbacks.MetricAverageCallback(),
  horovod.tensorflow.keras.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr,
  warmup_epochs=3, verbose=1),
  ]

  if hvd.rank() == 0:
      callbacks.append(tf.keras.callbacks.ModelCheckpoint('./checkpoint-{epoch}.h5'))

  verbose = 1 if hvd.rank() == 0 else 0

  mnist_model.fit(dataset, steps_per_epoch=500 // hvd.size(), callbacks=callbacks, epochs=24, verbose=verbose)
"""

RUN = """
horovod.run(training_func, np=2, verbose=False, disable_cache=True, use_mpi=True)
"""

FEWER = {
    "10000 // hvd.size()": "42 // hvd.size()",
    "500 // hvd.size()": "6 // hvd.size()",
    "epochs=24": "epochs=3",
}
ON_KERAS_3 = {
    "opt.variables()": "opt.variables",
    ",\n                  experimental_run_tf_function=False": "",
}


def _text(program: str, legacy: bool) -> str:
    for old, new in {**FEWER, **({} if legacy else ON_KERAS_3)}.items():
        program = program.replace(old, new)
    return program


def _run(directory: Path, command: list[str], legacy: bool) -> str:
    openmpi = Path(os.environ.get("KHOROVOD_TEST_OPENMPI") or ROOT / "build" / "mpi" / "openmpi")
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith(("HOROVOD_", "OMPI_"))},
        "TF_USE_LEGACY_KERAS": "1" if legacy else "0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PATH": f"{BIN}{os.pathsep}{openmpi / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return done.stdout


@pytest.mark.parametrize("legacy", [True, False], ids=["tf_keras", "keras 3"])
def test_custom_loop(tmp_path: Path, legacy: bool) -> None:
    (tmp_path / "train.py").write_text(DATA + _text(CUSTOM_LOOP, legacy))
    output = _run(tmp_path, ["horovodrun", "-np", "2", "python", "train.py"], legacy)
    assert "Step #0\tLoss:" in output
    assert "Step #20\tLoss:" in output
    assert list(tmp_path.glob("checkpoints-1*"))


@pytest.mark.parametrize("legacy", [True, False], ids=["tf_keras", "keras 3"])
def test_fit_by_horovod_run(tmp_path: Path, legacy: bool) -> None:
    program = _text(FIT, legacy).replace("hvd.init()", "hvd.init()\n  exec(DATA)", 1)
    (tmp_path / "train.py").write_text(
        f"DATA = {DATA!r}\n{program}\nif __name__ == '__main__':\n  {RUN.strip()}\n"
    )
    output = _run(tmp_path, [sys.executable, "train.py"], legacy)
    assert "finished gradual learning rate warmup to 0.002." in output
    assert sorted(path.name for path in tmp_path.glob("*.h5")) == [f"checkpoint-{n}.h5" for n in (1, 2, 3)]
