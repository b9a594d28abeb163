"""What differs between the frameworks that Keras runs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from horovod._core.frontends import frontend

Reduce = Callable[[Sequence[Any], Sequence[Any]], list[Any]]

__all__ = ["Aggregation", "Backend", "Reduce", "backend_named"]


class Aggregation(Protocol):
    """Adds up the gradients of several steps."""

    def register_local_var(self, var: Any) -> None: ...
    def compute_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]: ...
    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any) -> Any: ...


class Backend(Protocol):
    """A framework under Keras."""

    def compression(self) -> Any:
        """The class ``Compression`` of its frontend."""

    def reducer(self, name: str, options: dict[str, Any]) -> Reduce:
        """The function ``(gradients, variables) -> reduced gradients``; checks the options."""

    def scaled_local(self, options: dict[str, Any], grad: Any) -> Any:
        """The gradient of a variable that is not reduced."""

    def aggregation(self, passes: int, reduce: Reduce, options: dict[str, Any], average: bool) -> Aggregation:
        """What adds up the gradients of ``passes`` steps."""

    def key_of(self, variable: Any) -> int:
        """Two objects that stand for the same variable have the same key."""

    def tensor(self, value: Any) -> Any:
        """A tensor of a value."""

    def operations(self) -> Any:
        """The frontend's module: ``allreduce`` and the like, for tensors."""


def backend_named(name: str) -> Backend:
    """The backend that Keras says it runs on."""
    if name == "tensorflow":
        from horovod._keras.on_tensorflow import TensorFlow

        return TensorFlow(frontend("tensorflow"))
    if name == "torch":
        from horovod._keras.on_torch import Torch

        return Torch(frontend("torch"))
    raise NotImplementedError(
        f"Keras runs on {name} here, which is not supported yet. Set KERAS_BACKEND=tensorflow or "
        "KERAS_BACKEND=torch in the environment, before Keras is imported."
    )
