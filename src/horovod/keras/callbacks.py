"""The callbacks of ``horovod.keras``."""

from __future__ import annotations

from typing import Any

import keras

from horovod._keras import callbacks as _callbacks

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_Callback: Any = keras.callbacks.Callback
_ModelCheckpoint: Any = keras.callbacks.ModelCheckpoint


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

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: Any = "epoch",
        save_weights_only: bool = False,
    ) -> None:
        super().__init__(monitor, verbose, save_weights_only, mode, save_freq)
