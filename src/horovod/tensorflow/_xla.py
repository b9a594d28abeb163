"""Calls from what XLA compiles (``jit_compile=True``) to the native handler.

TensorFlow has no public interface for this; where its parts are missing, :func:`why_not` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import tensorflow as tf

from horovod import _native
from horovod._core import runtime
from horovod.tensorflow._stablehlo import TYPES, Array, program

__all__ = ["XlaCall", "compiling", "differentiable", "refuse", "why_not"]

Tensor = Any

_VERSION = 9
"""Of the interface between TensorFlow and the programs that it is given."""
_LINK: Array = ("int32", [])
_QUERIES = ("size", "rank", "local_size", "local_rank", "included")
_numbers = count()
_chains: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_in_gradient: ContextVar[bool] = ContextVar("_in_gradient", default=False)


def compiling() -> bool:
    """Whether what is traced now is for XLA."""
    if tf.executing_eagerly():
        return False
    if _in_gradient.get():
        return True
    try:
        from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
    except ImportError:
        return False
    return bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def why_not() -> str:
    """Why nothing can be compiled here; empty if it can."""
    try:
        _call_module()
    except (ImportError, AttributeError) as error:
        problem = str(error)
    else:
        problem = _native.add_to_xla_of_tensorflow()
    return f"TensorFlow {tf.__version__}: {problem}" if problem else ""


def _why_not_here() -> str:
    return "it would run on a GPU, and is for CPUs" if "GPU" in _device() else ""


def _device() -> str:
    """Where TensorFlow puts what is called here, if nothing else is said."""
    with tf.init_scope():
        return str(tf.zeros([]).device)


def _call_module() -> Any:
    """TensorFlow's operation that is a program of XLA's; it has no public name."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_call_module


def refuse(operation: str, why: str) -> NoReturn:
    """What XLA would say later is of kernels and devices, and says nothing of what to do."""
    raise NotImplementedError(
        f"{operation} cannot be compiled by XLA ({why}). Use jit_compile=False for the function or model "
        "that calls it; what it calls may be compiled."
    )


class XlaCall:
    """One call to the handler."""

    def __init__(self, operation: str, attributes: dict[str, Any], name: str | None) -> None:
        links = {} if operation in _QUERIES else {"links": 1}
        self._operation, self._attributes, self._name = operation, {**attributes, **links}, name
        if problem := why_not() or _why_not_here():
            self.refuse(problem)

    def refuse(self, why: str) -> NoReturn:
        """This one cannot be compiled."""
        refuse("Horovod" + self._operation.title().replace("_", ""), why)

    def ranks(self, process_set: int) -> list[int]:
        """The members of a set: the shape of a result depends on their number."""
        ranks = runtime.engine().process_sets().get(process_set)
        if ranks is None or runtime.engine().rank not in ranks:
            what = "There is no process set" if ranks is None else "This rank is not in the process set"
            raise tf.errors.InvalidArgumentError(None, None, f"{what} with the id {process_set}")
        return ranks

    def with_rows(self, tensor: Tensor, rows_of: Callable[[int], int]) -> tf.TensorShape:
        """The shape of a result with other rows."""
        shape = self._known(tensor)
        if not shape.rank:
            raise tf.errors.InvalidArgumentError(
                None, None, f"{self._operation} works on the first dimension; a scalar has none."
            )
        return tf.TensorShape([rows_of(shape[0]), *shape[1:]])

    def on(self, tensors: Sequence[Tensor], shapes: Sequence[Any], in_place: bool = False) -> list[Tensor]:
        """The results, of these shapes, after all that came before in the program."""
        inputs = [(self._type(tensor), self._known(tensor).as_list()) for tensor in tensors]
        outputs = [(kind, shape.as_list()) for (kind, _), shape in zip(inputs, shapes, strict=True)]
        chain = _chain(self)
        link = tf.raw_ops.ReadVariableOp(resource=chain, dtype=tf.int32)
        places = range(len(inputs)) if in_place else []
        results = self._call([*tensors, link], [*inputs, _LINK], [*outputs, _LINK], [*places, len(inputs)])
        tf.raw_ops.AssignVariableOp(resource=chain, value=results.pop())
        return results

    def number(self) -> Tensor:
        """The result of one that asks for a number."""
        return self._call([], [], [("int32", [])])[0]

    def _call(
        self, tensors: Sequence[Tensor], inputs: Sequence[Array], outputs: Sequence[Array], places: Any = ()
    ) -> list[Tensor]:
        in_place = [(place, place) for place in places]
        results: list[Tensor] = _call_module()(
            args=list(tensors),
            version=_VERSION,
            module=program(self._operation, self._attributes, inputs, outputs, in_place),
            Sout=[tf.TensorShape(shape) for _, shape in outputs],
            Tout=[tf.dtypes.as_dtype(kind) for kind, _ in outputs],
            platforms=["CPU"],
            name=self._name,
        )
        return list(results)

    def _known(self, tensor: Tensor) -> Any:
        if not tensor.shape.is_fully_defined():
            self.refuse(f"the shape of {tensor.name} is not known when it is traced: {tensor.shape}")
        return tensor.shape

    def _type(self, tensor: Tensor) -> str:
        kind = str(tensor.dtype.name)
        if kind not in TYPES:
            raise TypeError(f"{self._operation} takes no tensors of {kind}; it takes {', '.join(TYPES)}.")
        return kind


def _chain(operation: XlaCall) -> Any:
    """The variable that every call of a program reads before and writes after it.

    XLA runs calls in an order of its own, which depends on the rest of the program, and may run them one by
    one: two ranks could wait for each other for ever. A variable makes it the order of the program, through
    conditions, loops and functions.
    """
    graph = tf.compat.v1.get_default_graph()
    while (outer := getattr(graph, "outer_graph", None)) is not None and hasattr(outer, "outer_graph"):
        graph = outer
    if graph not in _chains:
        with tf.init_scope(), tf.device("CPU:0"):
            if not tf.executing_eagerly():
                operation.refuse("it is in a graph of TensorFlow 1")
            # Not a tf.Variable, of which a function may make none but the first time it is traced.
            name = f"khorovod_chain_{next(_numbers)}"
            chain = tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name=name)
            tf.raw_ops.AssignVariableOp(resource=chain, value=tf.constant(0))
            _chains[graph] = chain
    return _chains[graph]


def differentiable(run: Callable[..., Any], tensors: Sequence[Tensor]) -> list[Tensor]:
    """``run`` on the tensors; what it returns beside the results is the gradient."""

    @tf.custom_gradient
    def recorded(*given: Tensor) -> tuple[list[Tensor], Callable[..., list[Tensor]]]:
        results, gradient = run(*given)

        def compiled_gradient(*grads: Tensor) -> list[Tensor]:
            with _for_xla():
                gradients: list[Tensor] = gradient(*grads)
            return gradients

        return results, compiled_gradient

    return list(recorded(*[tf.convert_to_tensor(tensor) for tensor in tensors]))


@contextmanager
def _for_xla() -> Iterator[None]:
    """The gradient of a compiled function is traced later, but compiled all the same."""
    token = _in_gradient.set(True)
    try:
        yield
    finally:
        _in_gradient.reset(token)
