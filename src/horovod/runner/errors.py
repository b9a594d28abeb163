"""What :func:`horovod.run` raises."""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.runner.handover import Failure

__all__ = ["WorkerFailedError"]


class WorkerFailedError(RuntimeError):
    """A rank of :func:`horovod.run` failed, and the job has ended.

    ``rank`` is the first that failed by itself (``None`` if none could say so: it was killed, perhaps),
    ``exit_code`` the launcher's, ``remote_traceback`` what the rank's Python would have shown.
    """

    def __init__(
        self,
        launcher: str,
        exit_code: int,
        rank: int | None,
        failure: Failure | None,
        tail: str,
        silent: Sequence[int] = (),
    ) -> None:
        self.rank = rank
        self.exit_code = exit_code
        self.remote_traceback = failure.text if failure is not None else ""
        lines = ["Horovod detected that one or more processes exited with non-zero status."]
        if launcher == "mpirun":
            lines.append(f"mpirun failed with exit code {exit_code}.")
        if silent and (failure is None or failure.peer_lost):
            lines.append(f"No result came from rank {', '.join(map(str, silent))}.")
        if failure is not None:
            lines += [f"Rank {rank} raised {failure.summary}", "", failure.text.rstrip()]
        if failure is None or failure.peer_lost:
            lines += ["", f"The last words of {launcher} (exit code {exit_code}):", tail.rstrip()]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        # A pool of processes sends errors to its owner: the text is made already.
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]
