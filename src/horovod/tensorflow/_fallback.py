"""The operations in Python, for a TensorFlow that the native adapter cannot be added to.

Signatures, names and results are those of the native operations. In graphs each runs as a
``tf.numpy_function``, one after the other; errors of graphs are ``InvalidArgumentError`` or ``UnknownError``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod._core import runtime
from horovod.exceptions import HorovodInternalError, MismatchError, NotInitializedError

Tensor = Any
Arrays = list[Any]

_NOT_INITIALIZED = -1
_UNKNOWN_SET = -3


def horovod_allreduce(
    tensor: Tensor,
    reduce_op: int,
    prescale_factor: str,
    postscale_factor: str,
    compression: int,
    process_set_id: int,
    tensor_name: str,
    name: str | None = None,
    **_: Any,
) -> Tensor:
    """One tensor, reduced."""
    options = (reduce_op, float(prescale_factor), float(postscale_factor), compression, process_set_id)

    def reduce(arrays: Arrays) -> Arrays:
        output = np.empty_like(arrays[0])
        runtime.engine().allreduce(tensor_name or None, arrays[0], output, *options)
        return [output]

    @tf.custom_gradient
    def run(given: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        def gradient(grad: Tensor) -> Tensor:
            return horovod_allreduce(
                grad,
                reduce_op,
                prescale_factor,
                postscale_factor,
                compression,
                process_set_id,
                f"{tensor_name}.gradient" if tensor_name else "",
            )

        return _run(reduce, [given], [given.dtype], [given.shape], name)[0], gradient

    return run(tf.convert_to_tensor(tensor))


def horovod_grouped_allreduce(
    tensors: Sequence[Tensor],
    reduce_op: int,
    prescale_factor: str,
    postscale_factor: str,
    compression: int,
    process_set_id: int,
    tensor_name: str,
    name: str | None = None,
    **_: Any,
) -> list[Tensor]:
    """Some tensors, reduced."""
    options = (reduce_op, float(prescale_factor), float(postscale_factor), compression, process_set_id)

    def reduce(arrays: Arrays) -> Arrays:
        outputs = [np.empty_like(array) for array in arrays]
        runtime.engine().grouped_allreduce(tensor_name or None, arrays, outputs, *options)
        return outputs

    @tf.custom_gradient
    def run(*given: Tensor) -> tuple[list[Tensor], Callable[..., list[Tensor]]]:
        def gradient(*grads: Tensor) -> list[Tensor]:
            return horovod_grouped_allreduce(
                grads,
                reduce_op,
                prescale_factor,
                postscale_factor,
                compression,
                process_set_id,
                f"{tensor_name}.gradient" if tensor_name else "",
            )

        return _run(reduce, given, [t.dtype for t in given], [t.shape for t in given], name), gradient

    given = [tf.convert_to_tensor(tensor) for tensor in tensors]
    return list(run(*given))


def horovod_allgather(
    tensor: Tensor, process_set_id: int, tensor_name: str, name: str | None = None, **_: Any
) -> Tensor:
    """The tensors of all ranks."""
    from horovod.tensorflow._op_gradients import own_rows

    def gather(arrays: Arrays) -> Arrays:
        return [runtime.engine().allgather(tensor_name or None, arrays[0], _wrap(arrays), process_set_id)]

    @tf.custom_gradient
    def run(given: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        output = _run(gather, [given], [given.dtype], [_other_rows(given)], name)[0]
        return output, lambda grad: own_rows(grad, given, process_set_id)

    return run(tf.convert_to_tensor(tensor))


def horovod_grouped_allgather(
    tensors: Sequence[Tensor], process_set_id: int, tensor_name: str, name: str | None = None, **_: Any
) -> list[Tensor]:
    """For each tensor, those of all ranks."""
    from horovod.tensorflow._op_gradients import own_rows

    def gather(arrays: Arrays) -> Arrays:
        engine = runtime.engine()
        return list(engine.grouped_allgather(tensor_name or None, arrays, _wrap(arrays), process_set_id))

    @tf.custom_gradient
    def run(*given: Tensor) -> tuple[list[Tensor], Callable[..., list[Tensor]]]:
        def gradient(*grads: Tensor) -> list[Tensor]:
            return [own_rows(grad, one, process_set_id) for grad, one in zip(grads, given, strict=True)]

        outputs = _run(gather, given, [t.dtype for t in given], [_other_rows(t) for t in given], name)
        return outputs, gradient

    given = [tf.convert_to_tensor(tensor) for tensor in tensors]
    return list(run(*given))


def horovod_broadcast(
    tensor: Tensor,
    root_rank: int,
    process_set_id: int,
    tensor_name: str,
    name: str | None = None,
    **_: Any,
) -> Tensor:
    """The root's tensor."""
    from horovod.tensorflow._op_gradients import only_at

    def broadcast(arrays: Arrays) -> Arrays:
        output = np.empty_like(arrays[0])
        runtime.engine().broadcast(tensor_name or None, arrays[0], output, root_rank, process_set_id)
        return [output]

    @tf.custom_gradient
    def run(given: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        output = _run(broadcast, [given], [given.dtype], [given.shape], name)[0]
        return output, lambda grad: only_at(root_rank, grad, process_set_id)

    return run(tf.convert_to_tensor(tensor))


def horovod_alltoall(
    tensor: Tensor,
    splits: Tensor,
    has_splits: int,
    process_set_id: int,
    tensor_name: str,
    name: str | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """The rows that came, and how many from whom."""
    from horovod.tensorflow._op_gradients import sent_back

    def exchange(arrays: Arrays) -> Arrays:
        array, rows = arrays
        if rows.ndim != 1:
            raise ValueError(f"The splits of an alltoall have one dimension, not {rows.ndim}")
        output, received = runtime.engine().alltoall(
            tensor_name or None, array, rows.tolist() if has_splits else None, _wrap([array]), process_set_id
        )
        return [output, np.array(received, np.int32)]

    @tf.custom_gradient
    def run(given: Tensor) -> tuple[list[Tensor], Callable[[Tensor, Tensor], Tensor]]:
        output, received = _run(
            exchange, [given, splits], [given.dtype, tf.int32], [_other_rows(given), [None]], name
        )
        return [output, received], lambda grad, _: sent_back(grad, received, given, process_set_id)

    output, received = run(tf.convert_to_tensor(tensor))
    return output, received


def horovod_reducescatter(
    tensor: Tensor,
    reduce_op: int,
    prescale_factor: str,
    postscale_factor: str,
    compression: int,
    process_set_id: int,
    tensor_name: str,
    name: str | None = None,
    **_: Any,
) -> Tensor:
    """This rank's rows of the reduced tensor."""
    scales = float(prescale_factor), float(postscale_factor)

    def scatter(arrays: Arrays) -> Arrays:
        return [
            runtime.engine().reducescatter(
                tensor_name or None,
                arrays[0],
                _wrap(arrays),
                reduce_op,
                *scales,
                compression,
                process_set_id,
            )
        ]

    from horovod.tensorflow._op_gradients import gathered

    @tf.custom_gradient
    def run(given: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        output = _run(scatter, [given], [given.dtype], [_other_rows(given)], name)[0]
        return output, lambda grad: gathered(grad, reduce_op, scales[0] * scales[1], process_set_id)

    return run(tf.convert_to_tensor(tensor))


def horovod_grouped_reducescatter(
    tensors: Sequence[Tensor],
    reduce_op: int,
    prescale_factor: str,
    postscale_factor: str,
    compression: int,
    process_set_id: int,
    tensor_name: str,
    name: str | None = None,
    **_: Any,
) -> list[Tensor]:
    """This rank's rows of the reduced tensors."""
    scales = float(prescale_factor), float(postscale_factor)

    def scatter(arrays: Arrays) -> Arrays:
        options = (reduce_op, *scales, compression, process_set_id)
        engine = runtime.engine()
        return list(engine.grouped_reducescatter(tensor_name or None, arrays, _wrap(arrays), *options))

    from horovod.tensorflow._op_gradients import gathered

    @tf.custom_gradient
    def run(*given: Tensor) -> tuple[list[Tensor], Callable[..., list[Tensor]]]:
        def gradient(*grads: Tensor) -> list[Tensor]:
            return [gathered(grad, reduce_op, scales[0] * scales[1], process_set_id) for grad in grads]

        outputs = _run(scatter, given, [t.dtype for t in given], [_other_rows(t) for t in given], name)
        return outputs, gradient

    given = [tf.convert_to_tensor(tensor) for tensor in tensors]
    return list(run(*given))


def horovod_join(name: str | None = None, **_: Any) -> Tensor:
    """The rank that joined last."""
    return _number(lambda: runtime.engine().join(), name)


def horovod_size(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """How many ranks are in a set."""
    return _number(lambda: len(_ranks(process_set_id)), name)


def horovod_rank(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """This rank's number in a set."""
    return _number(lambda: _ranks(process_set_id).index(runtime.engine().rank), name)


def horovod_local_size(name: str | None = None) -> Tensor:
    """How many ranks this host has."""
    return _number(lambda: runtime.identity().local_size, name)


def horovod_local_rank(name: str | None = None) -> Tensor:
    """This rank's number on its host."""
    return _number(lambda: runtime.identity().local_rank, name)


def horovod_process_set_included(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """Whether this rank is in a set, or why that is not known."""

    def included() -> int:
        if not runtime.is_initialized():
            return _NOT_INITIALIZED
        ranks = runtime.engine().process_sets().get(process_set_id)
        return _UNKNOWN_SET if ranks is None else int(runtime.engine().rank in ranks)

    return _number(included, name)


def _ranks(process_set_id: int) -> list[int]:
    try:
        return runtime.engine().process_sets()[process_set_id]
    except KeyError:
        raise ValueError(f"There is no process set with the id {process_set_id}") from None


def _other_rows(tensor: Tensor) -> Any:
    return tf.TensorShape(None) if tensor.shape.rank is None else tf.TensorShape([None, *tensor.shape[1:]])


def _wrap(arrays: Sequence[Any]) -> Callable[..., Any]:
    return lambda memory, shape, index: np.ndarray(shape, arrays[index].dtype, memory)


def _number(ask: Callable[[], int], name: str | None) -> Tensor:
    return _run(lambda _: [np.array(ask(), np.int32)], [], [tf.int32], [[]], name)[0]


def _run(
    function: Callable[[Arrays], Arrays],
    tensors: Sequence[Tensor],
    types: Sequence[Any],
    shapes: Sequence[Any],
    name: str | None,
) -> list[Tensor]:
    """Now, if there is no graph; else when it runs."""
    if tf.executing_eagerly():
        try:
            return [tf.convert_to_tensor(array) for array in function([t.numpy() for t in tensors])]
        except (HorovodInternalError, ValueError) as error:
            raise _as_tensorflow_error(error) from error

    def run(*arrays: Any) -> Arrays:
        # A scalar comes as a number.
        return function([np.asarray(array) for array in arrays])

    outputs = list(tf.numpy_function(run, list(tensors), list(types), stateful=True, name=name))
    for output, shape in zip(outputs, shapes, strict=True):
        output.set_shape(shape)
    return outputs


def _as_tensorflow_error(error: Exception) -> Exception:
    kind = tf.errors.UnknownError
    if isinstance(error, NotInitializedError | MismatchError):
        kind = tf.errors.FailedPreconditionError
    elif isinstance(error, ValueError):
        kind = tf.errors.InvalidArgumentError
    made: Exception = kind(None, None, str(error))
    return made
