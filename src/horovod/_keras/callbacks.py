"""The callbacks, without their base class: that depends on which Keras is used.

``horovod.keras.callbacks`` and ``horovod.tensorflow.keras.callbacks`` put the two together.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from horovod._core import runtime
from horovod._keras.optimizer import is_distributed
from horovod._keras.state import averaged, broadcast, is_on_torch, number

__all__ = ["Best", "Broadcast", "MetricAverage", "Schedule", "Warmup"]


class Broadcast:
    """Gives every rank the root's model and optimizer state, at the end of the first batch.

    Only then the optimizer has all of its variables. What is broadcast are the model's weights; the states of
    random generators are not, so that dropout differs between workers.
    """

    model: Any

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Sequence[Any] | None = None
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local = {id(variable): variable for variable in local_variables or ()}

    def register_local_var(self, var: Any) -> None:
        """``var`` is each rank's own, and not broadcast."""
        self._local[id(var)] = var

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Checks that somebody reduces the gradients."""
        optimizer = getattr(self.model, "optimizer", None)
        custom = type(self.model).train_step is not _plain_train_step(self.model)
        if runtime.identity().size > 1 and not custom and not is_distributed(optimizer):
            warnings.warn(
                f"The model's optimizer ({type(optimizer).__name__}) is not distributed: every worker trains "
                "a model of its own. Compile with hvd.DistributedOptimizer(optimizer); load saved models "
                "with hvd.load_model().",
                stacklevel=2,
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Broadcasts, once."""
        if self.broadcast_done:
            return
        weights = [weight for weight in self.model.weights if id(weight) not in self._local]
        broadcast(weights, self.root_rank, "BroadcastGlobalVariablesCallback: model")
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None:
            broadcast(_variables_of(optimizer), self.root_rank, "BroadcastGlobalVariablesCallback: optimizer")
        self.broadcast_done = True


def _variables_of(optimizer: Any) -> list[Any]:
    """All that an optimizer remembers; in ``tf_keras`` the learning rate is not among its variables."""
    found = optimizer.variables
    variables = list(found() if callable(found) and not isinstance(found, list) else found)
    rate = getattr(optimizer, "learning_rate", None)
    if hasattr(rate, "assign") and not any(rate is variable for variable in variables):
        variables.append(rate)
    return variables


def _plain_train_step(model: Any) -> Any:
    """The method of Keras itself, which a model of one's own may replace."""
    for base in type(model).__mro__:
        if "train_step" in vars(base) and base.__module__.partition(".")[0] in ("keras", "tf_keras"):
            return vars(base)["train_step"]
    return None


class MetricAverage:
    """Replaces every metric of an epoch by its mean over all ranks.

    Callbacks that look at metrics must come after it.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Looks who comes before."""
        caller = sys._getframe(1).f_locals.get("self")
        early = []
        for callback in getattr(caller, "callbacks", None) or ():
            if callback is self:
                break
            if hasattr(callback, "monitor") or type(callback).__name__ in ("TensorBoard", "CSVLogger"):
                early.append(type(callback).__name__)
        if early and runtime.identity().size > 1:
            warnings.warn(
                f"{', '.join(early)} before MetricAverageCallback: it sees this worker's metrics, not the "
                "averages. Put MetricAverageCallback before it in the list of callbacks.",
                stacklevel=2,
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Averages, in place."""
        if logs and runtime.identity().size > 1:
            logs.update(averaged(logs))


class Schedule:
    """Multiplies the learning rate by a number, or by a function of the epoch."""

    model: Any
    params: Any

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required: the learning rate before any multiplier.")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._restored_momentum: Any = None
        factor: Any = multiplier
        self.multiplier: Callable[[float], float] = (
            factor if callable(factor) else lambda epoch: float(factor ** (epoch - start_epoch))
        )

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Finds out how many steps an epoch has."""
        check_settable(self.model.optimizer)
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._steps()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Notes it."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Sets the learning rate, in the epochs that are this callback's."""
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if self.staircase and batch == 0:
            self._adjust(self.current_epoch)
        elif not self.staircase:
            self._adjust(self.current_epoch + batch / float(self.steps_per_epoch or 1))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """The momentum was corrected for one batch."""
        if self._restored_momentum is not None:
            _set(self.model.optimizer, "momentum", self._restored_momentum)
            self._restored_momentum = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Logs the learning rate."""
        if logs is not None:
            logs["lr"] = number(self.model.optimizer.learning_rate)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = number(optimizer.learning_rate), self.initial_lr * self.multiplier(epoch)
        _set(optimizer, "learning_rate", new)
        momentum = getattr(optimizer, "momentum", None)
        if self.momentum_correction and momentum is not None and old and _is_read(momentum, self.model):
            # See the paper cited below, section 2.1: as if the old gradients had the new learning rate.
            self._restored_momentum = number(momentum)
            _set(optimizer, "momentum", self._restored_momentum * new / old)

    def _steps(self) -> int:
        params = self.params or {}
        if params.get("steps"):
            return int(params["steps"])
        if params.get("samples") and params.get("batch_size"):
            return int(params["samples"] // params["batch_size"])
        raise ValueError(
            "Could not autodetect the number of steps per epoch. Please specify the parameter "
            f"steps_per_epoch of {type(self).__name__}()."
        )


class Warmup(Schedule):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr`` in the first epochs.

    As in "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", https://arxiv.org/abs/1706.02677.
    ``initial_lr`` is the one that was scaled by the number of workers.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.verbose = verbose
        self.warmup_epochs = warmup_epochs

        def multiplier(epoch: float) -> float:
            size = runtime.identity().size
            epoch += 1.0 / float(self.steps_per_epoch or 1)  # so that the last batch has the whole rate
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Says when it is done."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose > 0 and runtime.identity().rank == 0:
            rate = number(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.", flush=True)


class Best:
    """A ModelCheckpoint of the best model, whose ``filepath`` is given later."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        later = "later.weights.h5" if save_weights_only else "later.keras"  # Keras wants a suffix
        checkpoint: Any = super()
        checkpoint.__init__(
            filepath=later,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = None


def _is_read(momentum: Any, model: Any) -> bool:
    """Whether every step reads it. A number becomes a constant of a step that TensorFlow compiles."""
    return hasattr(momentum, "assign") or model.run_eagerly or is_on_torch(model.optimizer.learning_rate)


def check_settable(optimizer: Any) -> None:
    """Raises ``ValueError`` if the learning rate cannot be set."""
    rate = getattr(optimizer, "_learning_rate", None)
    if type(optimizer).__name__ == "LossScaleOptimizer":
        rate = getattr(optimizer.inner_optimizer, "_learning_rate", None)
    if rate is not None and callable(rate) and not hasattr(rate, "assign"):
        raise ValueError(
            f"The optimizer has a learning rate schedule ({type(rate).__name__}), which a callback cannot "
            "change: give it a number, or leave out the callback."
        )


def _set(optimizer: Any, name: str, value: float) -> None:
    target = getattr(optimizer, name)
    if name != "learning_rate" and hasattr(target, "assign"):
        target.assign(value)
    else:
        setattr(optimizer, name, value)
