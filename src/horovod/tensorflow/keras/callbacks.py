"""The callbacks of ``horovod.tensorflow.keras``."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from horovod._keras import callbacks as _callbacks

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_Callback: Any = tf.keras.callbacks.Callback
_ModelCheckpoint: Any = tf.keras.callbacks.ModelCheckpoint

KERAS: Any = sys.modules[_Callback.__module__.partition(".")[0]]
"""The Keras behind ``tf.keras``: ``keras`` or ``tf_keras``."""


class BroadcastGlobalVariablesCallback(_callbacks.Broadcast, _Callback):
    __doc__ = _callbacks.Broadcast.__doc__


class MetricAverageCallback(_callbacks.MetricAverage, _Callback):
    __doc__ = _callbacks.MetricAverage.__doc__


class LearningRateScheduleCallback(_callbacks.Schedule, _Callback):
    __doc__ = _callbacks.Schedule.__doc__


class LearningRateWarmupCallback(_callbacks.Warmup, _Callback):
    __doc__ = _callbacks.Warmup.__doc__


class BestModelCheckpoint(_callbacks.Best, _ModelCheckpoint):
    __doc__ = _callbacks.Best.__doc__
