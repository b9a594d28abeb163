"""One rank: fits a model, or reduces many small tensors, and says how long it took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.tensorflow.trainers import TRAINERS, Trainer
from benchmarks.worker import die_with, options_of, report_to, serve

ROWS = 32
SIZES = (1024, 4096, 4096, 1024)
"""An MLP of 25 million parameters: 100 MB of gradients."""


@dataclass(frozen=True)
class Fit:
    """`steps` steps of ``model.fit``."""

    kind: ClassVar[str] = "fit"
    steps: int


@dataclass(frozen=True)
class Small:
    """`count` tensors of 1 KiB, reduced in one ``tf.function``, so many times."""

    kind: ClassVar[str] = "small"
    count: int
    calls: int


class Trainee:
    """Keeps its model from case to case."""

    def __init__(self, trainer: Trainer, ready: Callable[[], None]) -> None:
        self._trainer, self._ready = trainer, ready
        self._model: Any = None

    def run(self, message: dict[str, Any]) -> dict[str, Any]:
        """One case."""
        parameters = message["parameters"]
        if message["case"] == Fit.kind:
            return self._fit(Fit(**parameters))
        return self._small(Small(**parameters))

    def _fit(self, case: Fit) -> dict[str, Any]:
        import tensorflow as tf

        if self._model is None:
            self._model = self._compiled()
        rows = ROWS * self._trainer.share
        batch = tf.random.normal([rows, SIZES[0]]), tf.random.normal([rows, SIZES[-1]])
        data = tf.data.Dataset.from_tensors(batch).repeat()
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        data = data.with_options(options)
        self._model.fit(data, steps_per_epoch=2, verbose=0)
        times: list[float] = []
        note = tf.keras.callbacks.LambdaCallback(on_batch_end=lambda *_, **__: times.append(time.monotonic()))
        self._ready()
        self._model.fit(data, steps_per_epoch=case.steps + 1, verbose=0, callbacks=[note])
        return {"step_ms": (times[-1] - times[0]) / case.steps * 1000}

    def _compiled(self) -> Any:
        import tensorflow as tf

        with self._trainer.scope():
            layers = [tf.keras.layers.Dense(size, activation="relu") for size in SIZES[1:-1]]
            model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(SIZES[-1])])
            optimizer = self._trainer.distribute(tf.keras.optimizers.SGD(0.001))
            model.compile(optimizer=optimizer, loss="mse")
        return model

    def _small(self, case: Small) -> dict[str, Any]:
        """Microseconds per tensor, above what the same function costs without reductions."""
        import tensorflow as tf

        hvd: Any = getattr(self._trainer, "hvd", None)
        stacked = tf.random.normal([case.count, 256])

        def reduced(together: bool) -> Any:
            def work(x: Any) -> Any:
                parts = tf.unstack(x)
                if hvd is None:
                    return tf.stack([-part for part in parts])
                if together:
                    return tf.stack(hvd.grouped_allreduce(parts, name="small"))
                return tf.stack([hvd.allreduce(part, name=f"small_{n}") for n, part in enumerate(parts)])

            return tf.function(work)

        base = tf.function(lambda x: tf.stack([-part for part in tf.unstack(x)]))
        plain = self._timed(base, stacked, case.calls)
        single = self._timed(reduced(False), stacked, case.calls)
        group = self._timed(reduced(True), stacked, case.calls)
        return {
            "single_us": (single - plain) / case.count,
            "group_us": (group - plain) / case.count,
            "plain_us": plain / case.count,
        }

    def _timed(self, function: Any, argument: Any, calls: int) -> float:
        for _ in range(20):
            function(argument)
        self._ready()
        times = []
        for _ in range(calls):
            began = time.perf_counter_ns()
            function(argument).numpy()
            times.append((time.perf_counter_ns() - began) / 1000)
        return statistics.median(times)


def main() -> None:
    """Join, serve."""
    options = options_of("benchmarks.tensorflow.worker")
    die_with(options.driver)
    trainer = TRAINERS[options.peer]()
    trainer.connect()
    channel, ready = report_to(options.directory, trainer.rank, trainer.size)
    trainee = Trainee(trainer, ready)
    serve(channel, trainee.run)


if __name__ == "__main__":
    main()
