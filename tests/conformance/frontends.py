"""The frontends under test: how each makes tensors of numpy arrays, and arrays of what it returns."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

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


FRONTENDS: dict[str, type[Frontend]] = {"numpy": NumpyFrontend, "torch": TorchFrontend}


@functools.cache
def frontend_of(name: str) -> Frontend:
    """The frontend, imported where it is first used: in the workers."""
    return FRONTENDS[name]()
