"""The frontends under test: how each makes tensors of numpy arrays, and arrays of what it returns."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from horovod._core import runtime
from horovod.exceptions import HorovodInternalError, MismatchError
from tests.conformance.calls import Array, Call

Finish = Callable[[], list[Array]]


class Frontend:
    """What the frontends have in common: the signatures."""

    module: str

    def __init__(self) -> None:
        self.hvd = importlib.import_module(self.module)

    def tensor(self, array: Array) -> Any:
        """A tensor that shares or copies the array's values."""
        raise NotImplementedError

    def array(self, tensor: Any) -> Array:
        """A tensor's values; refuses what is no tensor of this frontend."""
        raise NotImplementedError

    def start(self, call: Call, rank: int, process_set: Any = None) -> Finish:
        """Calls the function; what it returns waits if need be and gives the results."""
        given = [tensor.of(rank) for tensor in call.tensors]
        before = [array.tobytes() for array in given]
        tensors = [self.tensor(array) for array in given]
        function = getattr(self.hvd, call.kind + call.form)
        returned = function(tensors if call.grouped else tensors[0], **self._options(call, rank, process_set))

        def finish() -> list[Array]:
            result = returned if call.waits else self.hvd.synchronize(returned)
            results = self._results(call, result)
            if call.in_place:
                same = all(r is t for r, t in zip(results, tensors, strict=True))
                assert same, "an operation in place returned another tensor"
            else:
                untouched = [self.array(tensor).tobytes() for tensor in tensors] == before
                assert untouched, "an operation out of place changed its input"
            return [np.asarray(self.array(result)) for result in results]

        return finish

    def _options(self, call: Call, rank: int, process_set: Any) -> dict[str, Any]:
        """Only what differs from the defaults, which are under test as well."""
        options: dict[str, Any] = {}
        if call.base == "broadcast":
            options["root_rank"] = call.root
        if call.name is not None:
            options["name"] = call.name
        if call.op is not None:
            options["op"] = call.op
        if call.prescale != 1.0:
            options["prescale_factor"] = call.prescale
        if call.postscale != 1.0:
            options["postscale_factor"] = call.postscale
        if call.splits is not None:
            options["splits"] = list(call.splits[rank])
        if call.compression != "none":
            options["compression"] = getattr(self.hvd.Compression, call.compression)
        if process_set is not None:
            options["process_set"] = process_set
        return options

    @staticmethod
    def _results(call: Call, result: Any) -> list[Any]:
        if call.grouped:
            assert isinstance(result, list | tuple), f"a group gave a {type(result).__name__}"
            return list(result)
        if call.base == "alltoall" and (call.splits is not None or not call.waits):
            output, received = result
            return [output, received]
        return [result]


class NumpyFrontend(Frontend):
    """``horovod.numpy``."""

    module = "horovod.numpy"

    def tensor(self, array: Array) -> Any:
        return array

    def array(self, tensor: Any) -> Array:
        assert isinstance(tensor, np.ndarray), f"a {type(tensor).__name__} is no array"
        return tensor


class TorchFrontend(Frontend):
    """``horovod.torch``. Tensors are contiguous: others are refused, which tests/torch checks."""

    module = "horovod.torch"

    def __init__(self) -> None:
        super().__init__()
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(1)

    def tensor(self, array: Array) -> Any:
        copied = np.array(array, order="C")
        if copied.dtype.name == "bfloat16":
            return self.torch.from_numpy(copied.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(copied)

    def array(self, tensor: Any) -> Array:
        assert isinstance(tensor, self.torch.Tensor), f"a {type(tensor).__name__} is no tensor"
        if tensor.dtype == self.torch.bfloat16:
            return tensor.view(self.torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()


class TensorflowFrontend(Frontend):
    """``horovod.tensorflow``, eagerly. It waits and makes new tensors, always: other forms are taken as this.

    Errors are those of ``tf.errors``; the suite knows them by what others raise instead.
    """

    module = "horovod.tensorflow"

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what TensorFlow itself imports
            self.tf = importlib.import_module("tensorflow")
        super().__init__()
        self.hvd = _Translated(self.hvd, self.tf.errors)

    def start(self, call: Call, rank: int, process_set: Any = None) -> Finish:
        """The results of an alltoall without splits have no received ones, in whichever form."""
        finish = super().start(replace(call, form=""), rank, process_set)
        if call.base != "alltoall" or call.waits or call.splits is not None:
            return finish
        members = call.ranks(self.hvd.size())
        rows = [call.tensors[0].of(peer).shape[0] // len(members) for peer in members]
        return lambda: [*finish(), np.array(rows, np.int32)]

    def tensor(self, array: Array) -> Any:
        return self.tf.constant(np.array(array, order="C"))

    def array(self, tensor: Any) -> Array:
        assert self.tf.is_tensor(tensor), f"a {type(tensor).__name__} is no tensor"
        return np.asarray(tensor.numpy())


class _Translated:
    """A module whose functions raise what the other frontends do; and a barrier, which it has not."""

    def __init__(self, module: Any, errors: Any) -> None:
        self._module = module
        self._classes = {
            errors.InvalidArgumentError: ValueError,
            errors.FailedPreconditionError: MismatchError,
            errors.AbortedError: HorovodInternalError,
            errors.UnknownError: HorovodInternalError,
        }

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if not inspect.isfunction(found):
            return found

        @functools.wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return found(*args, **kwargs)
            except tuple(self._classes) as error:
                raise self._classes[type(error)](_undecorated(error.message)) from error

        return call

    def barrier(self, process_set: Any = None) -> None:
        runtime.engine().barrier(0 if process_set is None else process_set.process_set_id)

    def join(self) -> int:
        return int(self._module.join())


def _undecorated(message: str) -> str:
    """Without what TensorFlow adds: in which of its operations it was, which may differ between ranks."""
    return re.sub(r" \[Op:\w+\].*$", "", re.sub(r"^\{\{.*?\}\} ", "", message), flags=re.DOTALL)


FRONTENDS: dict[str, type[Frontend]] = {
    "numpy": NumpyFrontend,
    "torch": TorchFrontend,
    "tensorflow": TensorflowFrontend,
}


@functools.cache
def frontend_of(name: str) -> Frontend:
    """The frontend, imported where it is first used: in the workers."""
    return FRONTENDS[name]()
