"""Who am I: rank, size and host, read from the environment that whichever launcher has set.

``discover`` is a function of the environment alone; the few facts that are not in it (the parent process, the
host's name, a fresh random name) come in as arguments. It must not know the engine or any framework, it makes
no MPI call and it opens no connection.

The launchers are asked in a fixed order, first complete answer wins: horovodrun, torchrun, Open MPI, PALS,
MPICH and Intel MPI (PMI), MVAPICH2, PMIx, Slurm, LSF's jsrun, ALPS, else a single process. PBS, Cobalt and
LSF are schedulers: what starts the ranks in their jobs is one of those.

``cross_rank`` and ``cross_size`` are exact on one host, under horovodrun and under Slurm. Where a launcher
tells only the number of ranks on *this* host, all hosts are taken to have as many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from horovod._ancestors import parent_process

__all__ = ["Identity", "discover", "is_foreign", "parent_process"]


@dataclass(frozen=True)
class Identity:
    """One rank's place in the job."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostname: str
    launcher: str
    job_id: str
    """Equal on all ranks of a job on a host, different between concurrent jobs. Not a secret."""


Env = Mapping[str, str]

# Slurm numbers the steps of users from 0; the batch script, an interactive allocation's shell and the like
# get ids at the top of the 32-bit range (the batch step is 4294967291). They are no parallel run.
_FIRST_SPECIAL_SLURM_STEP = 0xFFFFFFF0
_LOOPBACK = ("localhost", "::1")

# Variables by which an enclosing launcher tells *its* processes who they are. A launcher must not hand them
# on.
_FOREIGN_PREFIXES = (
    "ALPS_APP_",
    "HYDI_",
    "JSM_NAMESPACE_",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_",
    "OMPI_COMM_WORLD_",
    "OMPI_FILE_LOCATION",
    "OMPI_MCA_ess_",
    "OMPI_MCA_orte_ess_",
    "OMPI_MCA_orte_hnp_uri",
    "OMPI_WORLD_",
    "PALS_",
    "PMIX_",
    "PMI_",
    "PRTE_LAUNCHED",
    "ROLE_",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_PROCID",
    "SLURM_STEP",
    "TORCHELASTIC_",
)
_FOREIGN_NAMES = frozenset({"GROUP_WORLD_SIZE"})
# Settings that a user may have exported for a nested mpirun; not identity.
_NOT_FOREIGN_PREFIXES = ("PMIX_MCA_",)


def is_foreign(variable: str) -> bool:
    """Whether ``variable`` is another launcher's word about its own processes."""
    if variable.startswith(_NOT_FOREIGN_PREFIXES):
        return False
    return variable in _FOREIGN_NAMES or variable.startswith(_FOREIGN_PREFIXES)


def discover(
    environ: Env,
    *,
    parent: Callable[[], str] | None = None,
    hostname: Callable[[], str] | None = None,
    fresh: Callable[[], str] | None = None,
) -> Identity:
    """This process's identity.

    ``parent`` names the process that started the ranks of this host (for launchers that set no job-wide
    variable), ``hostname`` this host, ``fresh`` gives a name that was never used before. A ``ValueError``
    says which variable is wrong.
    """
    place = _Facts(environ, parent or parent_process, hostname or _nodename)
    incomplete: ValueError | None = None
    for launcher, ask in _LAUNCHERS:
        try:
            found = ask(launcher, place)
        except _IncompleteError as error:
            if launcher == "horovodrun":
                raise ValueError(str(error)) from None
            # Another launcher, further down, may still give a complete answer.
            incomplete = incomplete or ValueError(str(error))
            continue
        if found is not None:
            return found
    if incomplete is not None:
        raise incomplete
    name = (fresh or _random_name)()
    return Identity(0, 1, 0, 1, 0, 1, place.hostname(), "none", name)


class _IncompleteError(ValueError):
    """A launcher has set some of its variables, but not enough of them."""


@dataclass(frozen=True)
class _Facts:
    env: Env
    parent: Callable[[], str]
    node: Callable[[], str]

    def hostname(self) -> str:
        return self.env.get("HOROVOD_HOSTNAME") or self.node()

    def get(self, name: str) -> str | None:
        """A variable's text; an empty one counts as unset."""
        return self.env.get(name, "").strip() or None

    def number(self, name: str, *, instead_of: str = "") -> int:
        text = self.get(name)
        if text is None:
            raise _IncompleteError(
                f"{instead_of or 'another variable of its launcher'} is set but {name} is not"
            )
        if not (text.isascii() and text.isdigit()):
            raise ValueError(f"{name}={text!r} is not valid: it must be a whole number >= 0")
        return int(text)

    def pair(self, rank_name: str, size_name: str) -> tuple[int, int] | None:
        """A (rank, size) pair of variables: both there and consistent, or neither."""
        if self.get(rank_name) is None and self.get(size_name) is None:
            return None
        rank = self.number(rank_name, instead_of=size_name)
        size = self.number(size_name, instead_of=rank_name)
        if rank >= size:
            raise ValueError(f"{rank_name}={rank} is not valid: it must be less than {size_name}={size}")
        return rank, size


def _identity(
    launcher: str,
    facts: _Facts,
    world: tuple[int, int],
    local: tuple[int, int],
    job_facts: tuple[str | None, ...],
    cross: tuple[int, int] | None = None,
) -> Identity:
    if local[1] > world[1]:
        raise ValueError(
            f"{launcher} claims {local[1]} ranks on this host, but only {world[1]} in the whole job"
        )
    cross = cross or _cross(launcher, world, local)
    job_id = _digest((launcher, str(world[1]), *job_facts))
    return Identity(*world, *local, *cross, facts.hostname(), launcher, job_id)


def _cross(launcher: str, world: tuple[int, int], local: tuple[int, int]) -> tuple[int, int]:
    """Index and number of hosts, when every host has as many ranks as this one."""
    (rank, size), (local_rank, local_size) = world, local
    if local_size == size:
        return 0, 1
    hosts, rest = divmod(size, local_size)
    if rest:
        raise ValueError(
            f"{launcher}: {size} ranks with {local_size} of them on this host: hosts with different"
            " numbers of ranks are not supported with this launcher; use horovodrun or srun"
        )
    if rank % local_size != local_rank and rank // hosts == local_rank:
        return rank % hosts, hosts  # ranks are dealt out to the hosts in turn
    # Ranks fill one host after the other. Their order within a host says nothing: Open MPI 5 numbers three
    # ranks on one host 0, 2, 1.
    return rank // local_size, hosts


def _horovodrun(launcher: str, facts: _Facts) -> Identity | None:
    world = facts.pair("HOROVOD_RANK", "HOROVOD_SIZE")
    if world is None:
        return None
    local = facts.pair("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
    if local is None:
        if world[1] > 1:
            raise _IncompleteError("HOROVOD_RANK is set but HOROVOD_LOCAL_RANK is not")
        local = (0, 1)
    cross = facts.pair("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")
    job_id = facts.get("HOROVOD_JOB_ID")
    # Started by hand, without a job id: ranks that one shell or test has started belong together.
    found = _identity(launcher, facts, world, local, () if job_id else (facts.parent(),), cross)
    return replace(found, job_id=job_id) if job_id else found


def _torchrun(launcher: str, facts: _Facts) -> Identity | None:
    world = facts.pair("RANK", "WORLD_SIZE")
    if world is None:
        return None
    job = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return _identity(launcher, facts, world, _torch_local(facts, world), tuple(map(facts.get, job)))


def _torch_local(facts: _Facts, world: tuple[int, int]) -> tuple[int, int]:
    if facts.get("LOCAL_RANK") and facts.get("LOCAL_WORLD_SIZE"):
        return facts.pair("LOCAL_RANK", "LOCAL_WORLD_SIZE") or world
    address = facts.get("MASTER_ADDR") or ""
    if address in _LOOPBACK or address.startswith("127."):
        return world  # nobody can reach a loopback address from elsewhere, so all ranks are here
    if world[1] == 1 or (facts.get("LOCAL_RANK") is None and facts.get("LOCAL_WORLD_SIZE") is None):
        return 0, 1  # the convention of Kubernetes' PyTorchJob: one process per pod
    return facts.pair("LOCAL_RANK", "LOCAL_WORLD_SIZE") or world


def _open_mpi(launcher: str, facts: _Facts) -> Identity | None:
    world = facts.pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if world is None:
        return None
    local = _required_pair(facts, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    # Open MPI 5 sets PMIX_NAMESPACE=prterun-<host>-<pid>@<n>; version 4 sets both.
    job = facts.get("PMIX_NAMESPACE") or facts.get("OMPI_MCA_ess_base_jobid") or facts.parent()
    return _identity(launcher, facts, world, local, (job,))


def _pals(launcher: str, facts: _Facts) -> Identity | None:
    """HPE's ``mpiexec`` under PBS. Its own variables have no sizes; those are PMI's."""
    if facts.get("PALS_RANKID") is None or _in_slurm_step(facts):
        return None  # Slurm sets these too, on the same machines
    sizes = [name for name in ("PMI_SIZE", "PALS_SIZE") if facts.get(name)] or ["PMI_SIZE"]
    local_sizes = [name for name in ("PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE") if facts.get(name)]
    world = _required_pair(facts, "PALS_RANKID", sizes[0])
    local = _required_pair(facts, "PALS_LOCAL_RANKID", (local_sizes or ["PMI_LOCAL_SIZE"])[0])
    return _identity(launcher, facts, world, local, (facts.get("PALS_APID") or facts.parent(),))


def _pmi(launcher: str, facts: _Facts) -> Identity | None:
    world = facts.pair("PMI_RANK", "PMI_SIZE")
    if world is None:
        return None
    local = facts.pair("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    if local is None and _in_slurm_step(facts):
        return None  # srun --mpi=pmi2, or on a Cray: Slurm's own variables tell it all
    local = local or facts.pair("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")
    if local is None:
        local = _required_pair(facts, "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    # Hydra sets nothing that is unique to a job (looked at with MPICH 5.0.2): its proxy process is.
    return _identity(launcher, facts, world, local, (facts.parent(),))


def _mvapich2(launcher: str, facts: _Facts) -> Identity | None:
    world = facts.pair("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE")
    if world is None:
        return None
    local = _required_pair(facts, "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE")
    return _identity(launcher, facts, world, local, (facts.parent(),))


def _pmix(launcher: str, facts: _Facts) -> Identity | None:
    # PMIx's environment has a rank but no size: without a further source of it there is no answer.
    if facts.get("PMIX_RANK") is None or _in_slurm_step(facts) or facts.get("JSM_NAMESPACE_RANK"):
        return None
    raise _IncompleteError(
        f"{launcher} has set PMIX_RANK, but no variable tells the number of ranks: set HOROVOD_RANK,"
        " HOROVOD_SIZE, HOROVOD_LOCAL_RANK and HOROVOD_LOCAL_SIZE"
    )


def _in_slurm_step(facts: _Facts) -> bool:
    """Inside a step that srun has started; not in a batch script, nor in salloc's shell."""
    step = facts.get("SLURM_STEP_ID") or facts.get("SLURM_STEPID")
    if step is None or not step.isdigit() or int(step) >= _FIRST_SPECIAL_SLURM_STEP:
        return False
    return facts.get("SLURM_PROCID") is not None


def _slurm(launcher: str, facts: _Facts) -> Identity | None:
    if not _in_slurm_step(facts):
        return None
    size_name = "SLURM_STEP_NUM_TASKS" if facts.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    world = facts.pair("SLURM_PROCID", size_name)
    assert world is not None  # SLURM_PROCID is there
    counts_name = "SLURM_STEP_TASKS_PER_NODE"
    counts = facts.get(counts_name) or facts.get("SLURM_TASKS_PER_NODE")
    if counts is None:
        raise _IncompleteError(f"SLURM_PROCID is set but {counts_name} is not")
    tasks = slurm_tasks_per_node(counts, counts_name)
    node = facts.number("SLURM_NODEID", instead_of="SLURM_PROCID")
    local_rank = facts.number("SLURM_LOCALID", instead_of="SLURM_PROCID")
    if sum(tasks) != world[1] or node >= len(tasks) or local_rank >= tasks[node]:
        raise ValueError(
            f"{counts_name}={counts!r} does not fit {size_name}={world[1]}, SLURM_NODEID={node},"
            f" SLURM_LOCALID={local_rank}"
        )
    cross = (sum(n > local_rank for n in tasks[:node]), sum(n > local_rank for n in tasks))
    job = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_RESTART_COUNT")
    return _identity(launcher, facts, world, (local_rank, tasks[node]), tuple(map(facts.get, job)), cross)


def slurm_tasks_per_node(text: str, variable: str) -> list[int]:
    """Read Slurm's run-length form: ``2(x3),1`` is three nodes with 2 tasks and one with 1."""
    tasks: list[int] = []
    for part in text.split(","):
        count, _, repeat = part.strip().partition("(x")
        times = repeat.removesuffix(")") if repeat else "1"
        if not (count.isdigit() and times.isdigit()):
            raise ValueError(f"{variable}={text!r} is not valid: it must look like 2(x3),1")
        tasks += [int(count)] * int(times)
    return tasks


def _jsrun(launcher: str, facts: _Facts) -> Identity | None:
    world = facts.pair("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE")
    if world is None:
        return None
    local = _required_pair(facts, "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE")
    return _identity(launcher, facts, world, local, (facts.get("LSB_JOBID"), facts.get("PMIX_NAMESPACE")))


def _alps(launcher: str, facts: _Facts) -> Identity | None:
    """``aprun`` of the Cray XC, under PBS or Cobalt: it tells the rank, but not how many there are."""
    if facts.get("ALPS_APP_PE") is None:
        return None
    raise _IncompleteError(
        f"{launcher} has set ALPS_APP_PE, but no variable tells the number of ranks: set HOROVOD_RANK,"
        " HOROVOD_SIZE, HOROVOD_LOCAL_RANK and HOROVOD_LOCAL_SIZE"
    )


def _required_pair(facts: _Facts, rank_name: str, size_name: str) -> tuple[int, int]:
    pair = facts.pair(rank_name, size_name)
    if pair is None:
        raise _IncompleteError(f"the launcher has set a global rank, but not {rank_name} and {size_name}")
    return pair


_LAUNCHERS: tuple[tuple[str, Callable[[str, _Facts], Identity | None]], ...] = (
    ("horovodrun", _horovodrun),
    ("torchrun", _torchrun),
    ("openmpi", _open_mpi),
    ("pals", _pals),
    ("pmi", _pmi),
    ("mvapich2", _mvapich2),
    ("pmix", _pmix),
    ("slurm", _slurm),
    ("jsrun", _jsrun),
    ("alps", _alps),
)


def _digest(parts: tuple[str | None, ...]) -> str:
    from hashlib import sha256  # loads OpenSSL: only for who needs it

    return sha256("\0".join(part or "" for part in parts).encode()).hexdigest()[:32]


def _nodename() -> str:
    return os.uname().nodename


def _random_name() -> str:
    return os.urandom(16).hex()
