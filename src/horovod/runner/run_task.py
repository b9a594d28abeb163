"""``python -m horovod.runner.run_task``: one rank of :func:`horovod.run`, which calls the function."""

from __future__ import annotations

import os
import sys
import traceback

from horovod._identity import discover
from horovod.runner.handover import Failure, Handover, Success

__all__ = ["main"]


def main() -> int:
    """The exit code: 0 if the function returned and its result could be left behind."""
    rank = discover(os.environ).rank
    handover = Handover.open(os.environ)
    try:
        call = handover.take()
        handover.leave(rank, Success(call.function(*call.args, **call.kwargs)))
    except SystemExit as error:
        if error.code in (None, 0):
            handover.leave(rank, Success(None))
        else:
            handover.leave(rank, Failure.of(error))
        raise
    except BaseException as error:
        # Shown without this file's own frame; noted as the end of the program, for the other ranks.
        error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        handover.leave(rank, Failure.of(error))
        sys.last_value = error
        traceback.print_exception(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
