"""The environment of a worker: what ``horovodrun`` exports, and what it takes away. Pure.

Knows nothing about processes; which settings exist is ``_config``'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from horovod._identity import is_foreign
from horovod._variables import OF_A_RANK
from horovod.runner.placement import Slot

__all__ = ["CALLER", "OF_TORCHRUN", "JobFacts", "tells_a_place", "worker_environment"]

OF_TORCHRUN = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"})
"""By these torchrun, and we, tell a rank its place."""
CALLER = "HOROVOD_RUN_CALLER"
"""Tells ``horovodrun`` the process that it must not outlive: that of :func:`horovod.run`."""


@dataclass(frozen=True)
class JobFacts:
    """What all ranks of a job have in common."""

    job_id: str
    master_addr: str
    master_port: int
    settings: Mapping[str, str]
    """Settings given on the command line, as variables; they win over the caller's environment."""


def tells_a_place(variable: str) -> bool:
    """Whether a launcher around this one has told us our own place by ``variable``."""
    return is_foreign(variable) or variable in OF_A_RANK | OF_TORCHRUN


def worker_environment(base: Mapping[str, str], slot: Slot, job: JobFacts, node_rank: int) -> dict[str, str]:
    """``base`` without what an enclosing launcher said of its processes, and with this rank's place."""
    env = {name: value for name, value in base.items() if not is_foreign(name) and name != CALLER}
    env.update(job.settings)
    env.update(
        HOROVOD_RANK=str(slot.rank),
        HOROVOD_SIZE=str(slot.size),
        HOROVOD_LOCAL_RANK=str(slot.local_rank),
        HOROVOD_LOCAL_SIZE=str(slot.local_size),
        HOROVOD_CROSS_RANK=str(slot.cross_rank),
        HOROVOD_CROSS_SIZE=str(slot.cross_size),
        HOROVOD_HOSTNAME=slot.host,
        HOROVOD_JOB_ID=job.job_id,
        # torchrun's names, so that scripts for torch.distributed, Lightning and Hugging Face run as they are.
        RANK=str(slot.rank),
        WORLD_SIZE=str(slot.size),
        LOCAL_RANK=str(slot.local_rank),
        LOCAL_WORLD_SIZE=str(slot.local_size),
        GROUP_RANK=str(node_rank),
        MASTER_ADDR=job.master_addr,
        MASTER_PORT=str(job.master_port),
        PYTHONUNBUFFERED="1",
    )
    if slot.size > 1:
        # As torchrun does: several ranks with a full set of threads each are slower than with one each.
        env.setdefault("OMP_NUM_THREADS", "1")
    return env
