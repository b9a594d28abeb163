"""Batch normalisation over all workers, of what convolutions make."""

from __future__ import annotations

from tests.keras.marks import SLOW, on_keras
from tests.support.world import Workers

pytestmark = SLOW


@on_keras(2, kinds=("tensorflow", "tf_keras"))
def test_images(world: Workers) -> None:
    world.run(_images)


def _images() -> None:
    """Output and moving statistics are those of the whole batch, in a model."""
    import numpy as np
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from tests.keras import training

    keras = training.keras
    whole = np.random.default_rng(0).normal(size=(8, 5, 5, 3)).astype(np.float32) * 3 + 1
    share = len(whole) // hvd.size()
    rows = slice(hvd.rank() * share, (hvd.rank() + 1) * share)
    results = []
    for layer, batch in (
        (hvd.SyncBatchNormalization(), whole[rows]),
        (keras.layers.BatchNormalization(), whole),
    ):
        model = keras.Sequential([keras.layers.Input((5, 5, 3)), layer])
        output = tf.function(model)(batch, training=True)
        results.append((output.numpy(), layer.moving_mean.numpy(), layer.moving_variance.numpy()))
    (ours, mean, variance), (plain, whole_mean, whole_variance) = results
    np.testing.assert_allclose(ours, plain[rows], atol=1e-5)
    np.testing.assert_allclose(mean, whole_mean, atol=1e-6)
    # The fused kernel of Keras takes the unbiased variance for its moving average: n / (n - 1).
    np.testing.assert_allclose(variance, whole_variance, rtol=2e-3)
