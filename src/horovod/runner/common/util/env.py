"""``horovod.runner.common.util.env``: there for scripts written against the original."""

from __future__ import annotations

import os

__all__ = ["get_env_rank_and_size"]

_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks, as a launcher has put them into the environment.

    ``(0, 1)`` if none has; ``RuntimeError`` if only one of two variables is there.
    """
    for names in _PAIRS:
        rank, size = (os.environ.get(name) for name in names)
        if rank is not None and size is not None:
            return int(rank), int(size)
        if rank is not None or size is not None:
            there, missing = names if rank is not None else names[::-1]
            raise RuntimeError(f"The environment has {there} but not {missing}: a launcher sets both.")
    return 0, 1
