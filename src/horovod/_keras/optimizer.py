"""``DistributedOptimizer``: a Keras optimizer whose gradients are reduced over all ranks.

The result is of a class of its own, a subclass of the optimizer's with the same name. Saved models know
nothing of it: what Keras writes down is the class of the wrapped optimizer (``__class__`` says so).

Where gradients are reduced: before anything looks at them. In Keras 3 that is the beginning of ``apply()``;
in ``tf_keras`` the methods for aggregation over devices. Clipping, loss scaling and weight decay follow.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from horovod._core import runtime
from horovod._core.gradient_options import check_groups, check_passes
from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.reduction import Average, Sum
from horovod._keras.backends import Aggregation, Backend, Reduce, backend_named

F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["convert", "create_distributed_optimizer", "is_distributed"]


def create_distributed_optimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer like ``optimizer``, with reduced gradients; see ``horovod.keras.DistributedOptimizer``."""
    keras = _keras_of(optimizer)
    if is_distributed(optimizer):
        raise ValueError("The optimizer is distributed already: its gradients would be reduced twice.")
    optimizer = _with_loss_scale(keras, optimizer)
    work = Work.of(
        keras,
        op=op,
        compression=compression,
        predivide=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense,
        groups=check_groups(num_groups, groups),
        process_set=process_set,
        device_dense=device_dense,
        device_sparse=device_sparse,
        scale_local_gradients=scale_local_gradients,
        passes=backward_passes_per_step,
        average=average_aggregated_gradients,
    )
    if backward_passes_per_step > 1 and getattr(optimizer, "gradient_accumulation_steps", None):
        raise ValueError(
            "backward_passes_per_step and Keras's gradient_accumulation_steps do the same: use one of them."
        )
    copy = _copy(optimizer, name or f"Distributed{type(optimizer).__name__}")
    return convert(keras, copy, work)


def convert(keras: Any, optimizer: Any, work: Work) -> Any:
    """Makes this very object a distributed optimizer; whatever state it has stays."""
    addition = _TfKerasOptimizer if keras.__name__ == "tf_keras" else _Keras3Optimizer
    vars(optimizer)["_hvd_work"] = work  # not by Keras, which would track and save it
    object.__setattr__(optimizer, "__class__", _distributed_class(type(optimizer), addition))
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether gradients that this optimizer applies are reduced: by itself, or by the one inside of it."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return isinstance(optimizer, _Distributed) or isinstance(inner, _Distributed)


class Work:
    """What is done with the gradients of an optimizer."""

    def __init__(self, backend: Backend, options: dict[str, Any], passes: int, average: bool) -> None:
        self._backend, self._options = backend, options
        self._reduce: Reduce = backend.reducer("DistributedOptimizer", options)
        self._local: dict[int, Any] = {}
        self.aggregation: Aggregation | None = None
        if passes > 1:
            self.aggregation = backend.aggregation(passes, self._reduce, options, average)

    @classmethod
    def of(cls, keras: Any, *, passes: int = 1, average: bool = False, **options: Any) -> Work:
        """Checks the options, too."""
        runtime.engine()  # an error, here and not in the first step, if there is none
        check_passes(passes)
        if options["op"] not in (Average, Sum):
            raise ValueError(
                "Keras optimizers reduce by op=hvd.Average or op=hvd.Sum. For Adasum use "
                "hvd.DistributedGradientTape(op=hvd.Adasum), or horovod.torch."
            )
        backend = backend_named(backend_of(keras))
        if options.get("compression") is None:
            options["compression"] = backend.compression().none
        return cls(backend, options, passes, average)

    def register_local_var(self, var: Any) -> None:
        """The gradient of ``var`` is this rank's own: it is not reduced."""
        self._local[self._backend.key_of(var)] = var
        if self.aggregation is not None:
            self.aggregation.register_local_var(var)

    def reduced(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of one step, reduced."""
        if not self._local:
            return self._reduce(grads, variables)
        local = [self._backend.key_of(variable) in self._local for variable in variables]
        shared = [None if own else grad for own, grad in zip(local, grads, strict=True)]
        return [
            self._backend.scaled_local(self._options, grad) if own else common
            for own, grad, common in zip(local, grads, self._reduce(shared, variables), strict=True)
        ]


class _Variables(list[Any]):
    """What both ``optimizer.variables`` and, as in the days of TensorFlow 1, ``optimizer.variables()`` is."""

    def __call__(self) -> list[Any]:
        return self


class _Distributed:
    """What distributed optimizers of all kinds of Keras have in common."""

    _hvd_work: Work

    def register_local_var(self, var: Any) -> None:
        """The gradient of ``var`` is this rank's own: it is not reduced."""
        self._hvd_work.register_local_var(var)

    @property
    def _agg_helper(self) -> Aggregation | None:
        return self._hvd_work.aggregation


def _as_written(method: F) -> F:
    """Marks a method for AutoGraph, which would rewrite it in a ``tf.function``."""
    method.autograph_info__ = {}  # type: ignore[attr-defined]
    return method


class _Keras3Optimizer(_Distributed):
    """What is added to the class of a Keras 3 optimizer."""

    @_as_written
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduces the gradients, and applies them."""
        this: Any = self
        base: Any = super()
        grads = list(grads)
        if not grads:
            return
        if trainable_variables is None:
            variables = list(getattr(this, "_trainable_variables", []))
            if len(variables) != len(grads):
                base.apply(grads)  # raises: Keras knows best what to say
                return
        else:
            variables = list(trainable_variables)
        aggregation = self._hvd_work.aggregation
        if aggregation is None:
            base.apply(self._hvd_work.reduced(grads, variables), variables)
            return
        if not this.built:  # not inside of a condition
            this.build(variables)
            this.built = True
        sums = aggregation.compute_gradients(grads, variables)
        aggregation.apply_gradients(lambda: base.apply(sums, variables), this)

    @property
    def variables(self) -> _Variables:
        """The optimizer's variables, also as ``variables()``."""
        base: Any = super()
        return _Variables(base.variables)

    @property
    def loss_scale_factor(self) -> Any:
        """Keras's attribute; who sets it may be a LossScaleOptimizer that takes this one in."""
        if sys._getframe(1).f_code.co_name == "__setattr__":
            raise AttributeError  # TensorFlow would not call the setter for a value that is there already
        return vars(self).get("loss_scale_factor")

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: Any) -> None:
        caller = sys._getframe(1)
        while caller is not None and caller.f_code.co_name == "__setattr__":
            caller = caller.f_back  # type: ignore[assignment]
        owner = caller.f_locals.get("self") if caller is not None else None
        if owner is not self and type(owner).__name__ == "LossScaleOptimizer":
            raise ValueError(
                "A LossScaleOptimizer around a distributed optimizer cannot work: workers may disagree on "
                "whether gradients are finite, and wait for each other for ever. Wrap it the other way "
                "round: hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)). (compile() "
                "adds one if the model's policy is mixed_float16; DistributedOptimizer does so itself if "
                "the global policy is.)"
            )
        vars(self)["loss_scale_factor"] = value


class _TfKerasOptimizer(_Distributed):
    """What is added to the class of a ``tf_keras`` optimizer, also of ``tf_keras.optimizers.legacy``."""

    def build(self, var_list: Any) -> None:
        """Makes the optimizer's variables; with the state of the one that it was made from."""
        base: Any = super()
        base.build(var_list)
        state = vars(self).pop("_hvd_state", None)
        if state is not None:
            _assign(base.variables, state)

    def aggregate_gradients(self, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        """Keras asks for the sum over devices; before it looks at the gradients in any way."""
        pairs = list(grads_and_vars)
        if not pairs:
            return pairs
        grads, variables = zip(*pairs, strict=True)
        return list(zip(self._hvd_work.reduced(grads, variables), variables, strict=True))

    _aggregate_gradients = aggregate_gradients  # its name in tf_keras.optimizers.legacy

    @_as_written
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies gradients; every so many steps, if they add up."""
        this: Any = self
        base: Any = super()
        aggregation = self._hvd_work.aggregation
        scales = getattr(this, "inner_optimizer", None) is not None
        if aggregation is None and not scales:
            return base.apply_gradients(grads_and_vars, *args, **kwargs)
        pairs = list(grads_and_vars)
        kwargs["experimental_aggregate_gradients"] = False  # done here
        if aggregation is None:
            return base.apply_gradients(self.aggregate_gradients(pairs), *args, **kwargs)
        grads, variables = zip(*pairs, strict=True)
        if hasattr(this, "build"):
            import tensorflow as tf

            with tf.init_scope():
                this.build(variables)
        sums = aggregation.compute_gradients(grads, variables)
        applied = list(zip(sums, variables, strict=True))
        return aggregation.apply_gradients(lambda: base.apply_gradients(applied, *args, **kwargs), this)


def _distributed_class(base: type, addition: type) -> type:
    """A subclass of ``base`` with the same name, and with the class that Keras writes down."""
    names = {
        "__module__": "horovod._keras",
        "__doc__": base.__doc__,
        "__class__": property(lambda _self: base),
    }
    return types.new_class(base.__name__, (addition, base), {}, lambda namespace: namespace.update(names))


def _copy(optimizer: Any, name: str) -> Any:
    """A new optimizer with the same configuration, and the state of the old one if it has any."""
    try:
        config = dict(optimizer.get_config())
    except NotImplementedError as error:
        raise ValueError(
            f"{type(optimizer).__name__} does not say how to make another one: its class needs get_config()."
        ) from error
    config["name"] = name
    if isinstance(config.get("learning_rate"), dict):
        config["learning_rate"] = optimizer._learning_rate  # the schedule itself: it may be anybody's
    if "inner_optimizer" in config:
        if not _takes_name(optimizer):
            del config["name"]
        inner = optimizer.inner_optimizer
        if getattr(inner, "_is_wrapped_by_loss_scale_optimizer", False):  # tf_keras allows it once
            inner = _copy(inner, inner.name)
        copy = type(optimizer)(**{**config, "inner_optimizer": inner})
    else:
        copy = type(optimizer).from_config(config)
    for key, value in vars(optimizer).items():
        if key.startswith("_exclude_from_weight_decay"):
            vars(copy)[key] = value
    _copy_state(optimizer, copy)
    return copy


def _takes_name(optimizer: Any) -> bool:
    return "name" in optimizer.get_config()


def _copy_state(optimizer: Any, copy: Any) -> None:
    if getattr(optimizer, "_built", False) and hasattr(optimizer, "_index_dict"):
        # tf_keras does not remember for which variables it was built: later, when it is told again.
        vars(copy)["_hvd_state"] = list(optimizer.variables)
        return
    variables = list(getattr(optimizer, "_trainable_variables", ()))
    if not getattr(optimizer, "built", False) or not variables:
        return
    copy.build(variables)
    copy.built = True
    _assign(copy.variables, optimizer.variables)


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _with_loss_scale(keras: Any, optimizer: Any) -> Any:
    """In Keras 3, with the policy mixed_float16: what ``compile()`` would make of it, but inside out.

    It would put the distributed optimizer into a LossScaleOptimizer, which calls it only if this rank's own
    gradients are finite.
    """
    if keras.__name__ == "tf_keras" or hasattr(optimizer, "inner_optimizer"):
        return optimizer
    policy = keras.mixed_precision.dtype_policy().name
    return keras.optimizers.LossScaleOptimizer(optimizer) if policy == "mixed_float16" else optimizer


def _keras_of(optimizer: Any) -> Any:
    """The Keras that the optimizer's class comes from: ``keras`` or ``tf_keras``."""
    if isinstance(optimizer, type):
        raise ValueError(
            f"DistributedOptimizer wraps an optimizer, not a class: call {optimizer.__name__}(...) first."
        )
    for base in type(optimizer).__mro__:
        package = base.__module__.partition(".")[0]
        if package in ("keras", "tf_keras") and base.__name__ in (
            "BaseOptimizer",
            "_BaseOptimizer",
            "OptimizerV2",
        ):
            return sys.modules[package]
    kind = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
    advice = ""
    if kind.startswith("torch."):
        advice = " For optimizers of PyTorch use horovod.torch.DistributedOptimizer."
    elif "GradientTape" in kind:
        advice = " For tapes use horovod.tensorflow.DistributedGradientTape."
    elif isinstance(optimizer, str):
        advice = f" Make one: keras.optimizers.get({optimizer!r})."
    raise ValueError(f"DistributedOptimizer wraps a Keras optimizer, not {kind}.{advice}")


def backend_of(keras: Any) -> str:
    """The framework that this Keras runs on."""
    return "tensorflow" if keras.__name__ == "tf_keras" else str(keras.backend.backend())
