"""Functions that ``torch.compile`` must not look into: it leaves its graph for them, and comes back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch._C._dynamo.eval_frame import skip_code
from torch.compiler import is_compiling

P = ParamSpec("P")
R = TypeVar("R")


@torch._disable_dynamo  # unlike torch.compiler.disable it does not load the compiler, which takes seconds
def _outside(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, called from compiled code as from any other."""
    skip_code(function.__code__)  # type: ignore[attr-defined]  # nor compiled when code around it is not

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_compiling():
            result: R = _outside(function, args, kwargs)
            return result
        return function(*args, **kwargs)

    return call
