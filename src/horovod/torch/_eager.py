"""Functions that ``torch.compile`` must not look into: it leaves its graph for them, and comes back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch._compile import _disable_dynamo
from torch.compiler import is_compiling

try:
    from torch._C._dynamo import eval_frame
except ImportError:  # another version's
    eval_frame = None  # type: ignore[assignment]

P = ParamSpec("P")
R = TypeVar("R")


@_disable_dynamo  # unlike torch.compiler.disable it does not load the compiler, which takes seconds
def _outside(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


compiler_of_frames = getattr(eval_frame, "get_eval_frame_callback", lambda: None)
"""What looks at every frame that begins, if anything does: torch says so in no public way."""


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, called from compiled code as from any other."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_compiling() or compiler_of_frames() is not None:
            result: R = _outside(function, args, kwargs)
            return result
        return function(*args, **kwargs)

    return call
