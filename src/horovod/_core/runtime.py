"""The runtime of this process: one engine, one world, whatever number of frameworks use it.

``init()`` meets the other ranks and builds the engine, ``shutdown()`` ends it; both may be repeated. A forked
child has no runtime: its calls raise, and its exit does not end its parent's.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from horovod import _native
from horovod._config import Settings
from horovod._core import mpi, observer
from horovod._core.affinity import pinned
from horovod._core.communicators import place_in
from horovod._core.log import configure, logger
from horovod._core.spinning import spin_microseconds
from horovod._identity import Identity, discover
from horovod._variables import without_effect
from horovod._version import __version__
from horovod.exceptions import InitError, NotInitializedError

if TYPE_CHECKING:
    from horovod.rendezvous import meeting

__all__ = ["Runtime", "at_end", "current", "engine", "identity", "init", "is_initialized", "shutdown"]


EXIT_SECONDS = 2.0
"""How long the end of the program waits for an ``init()`` or ``shutdown()`` that is under way."""


@dataclass(frozen=True)
class Runtime:
    """One generation of the world, as this process sees it."""

    identity: Identity
    settings: Settings
    engine: _native.Engine
    generation: int
    why_sockets: str
    """Why the ranks do not use shared memory; empty if they do."""
    claim: meeting.Claim | None = None
    """Keeps other processes from being this rank."""
    dynamic_process_sets: bool = False
    """Whether process sets may be added and removed while the job runs."""
    key: str = ""
    """Known to the ranks of this world alone; empty in a world of one."""

    def give_up_claim(self) -> None:
        """Lets go of this rank's name."""
        if self.claim is not None:
            self.claim.close()


_LAUNCHERS = {"none": "no launcher"}
_lock = threading.Lock()
_current: Runtime | None = None
_ending: Runtime | None = None  # while shutdown() is at work, for a child that is forked meanwhile
_generations: Counter[str] = Counter()  # by job: an elastic rank may be in one world more than another
_forked = False
_at_end: list[Callable[[], None]] = []  # what frontends have running for this world


def init(comm: Any = None, dynamic_process_sets: bool = False) -> bool:
    """Joins the world that the environment describes; ``False`` if that has happened already."""
    global _current
    _refuse_in_callback("init()")
    with _lock:
        if _current is not None:
            return False
        if _forked:
            raise NotInitializedError(
                "init() was called in a forked child of a process that uses Horovod. Only the processes that "
                "a launcher started are ranks; call it there, before or without forking."
            )
        launched, settings = discover(os.environ), Settings.from_env(os.environ)
        who = place_in(comm, launched)
        configure(settings, who.rank)
        _point_out_variables(launched)
        # Counted only when it comes to a world: a rank that failed alone tries again for the same one.
        generation = _generations[who.job_id] + 1
        built = _build(comm, launched, who, settings, generation)
        dynamic = dynamic_process_sets or settings.dynamic_process_sets
        _current = replace(built, dynamic_process_sets=dynamic)
        _generations[who.job_id] = generation
        _native.set_current_world(built.engine, who.local_rank, who.local_size)
        if who.launcher == "horovodrun":
            _check_in(launched, built.engine.plane)
        return True


def _point_out_variables(who: Identity) -> None:
    """Names that nobody reads are told once: by horovodrun, if there is one."""
    if who.rank != 0 or who.launcher == "horovodrun" or _generations:
        return
    for line in without_effect(os.environ):
        logger.warning("%s", line)


def _check_in(who: Identity, plane: str) -> None:
    """Lets the launcher know, if it listens; not a word if it does not."""
    from horovod.rendezvous import desk

    host, cpus = os.uname().nodename, desk.cpu_ranges(os.sched_getaffinity(0))
    desk.check_in(who.job_id, desk.CheckIn(who.rank, os.getpid(), host, cpus, plane))


def shutdown(last_words: str = "") -> None:
    """Leaves the world. Operations that are pending, here or waiting for this rank elsewhere, fail.

    ``last_words`` are for the ranks that still wait for this one.
    """
    _refuse_in_callback("shutdown()")
    with _lock:
        _end(last_words)


def _end(last_words: str) -> None:
    global _current, _ending
    if _current is not None:
        _ending, _current = _current, None
        _native.clear_current_world()
        _ending.engine.shutdown(last_words)
        _ending.give_up_claim()
        while _at_end:
            _at_end.pop()()
        _ending = None


def at_end(call: Callable[[], None]) -> None:
    """Has ``call`` called once, when this world has ended."""
    _at_end.append(call)


def is_initialized() -> bool:
    """Whether this process is in a world."""
    return _current is not None


def current() -> Runtime:
    """The runtime; ``NotInitializedError`` if there is none."""
    runtime = _current
    if runtime is None:
        if _forked:
            raise NotInitializedError(
                "This is a forked child of the process that called init(): it is not a rank and cannot take "
                "part in collective operations. Do them in the parent."
            )
        raise NotInitializedError("Horovod has not been initialized; use hvd.init().")
    return runtime


def engine() -> _native.Engine:
    """The engine; ``NotInitializedError`` if there is none."""
    runtime = _current
    return runtime.engine if runtime is not None else current().engine


def identity() -> Identity:
    """This rank's place in the world."""
    return current().identity


def _refuse_in_callback(call: str) -> None:
    # A shutdown waits for the callbacks that run: one that waits for a shutdown would never end.
    if _native.in_callback():
        raise RuntimeError(
            f"{call} was called in a callback of an operation. Call it on a thread of your own."
        )


def _build(comm: Any, launched: Identity, who: Identity, settings: Settings, generation: int) -> Runtime:
    options: dict[str, int] = {
        "fusion_threshold": settings.fusion_threshold,
        "groups_alone": int(settings.disable_group_fusion),
        "cache_capacity": settings.cache_capacity,
        "cycle_time_ns": int(settings.cycle_time_ms * 1_000_000),
        "spin_ns": spin_microseconds(settings.spin_us, who.local_size) * 1000,
        "stall_warn_ns": 0 if settings.stall_check_disable else _nanoseconds(settings.stall_check_seconds),
        "stall_shutdown_ns": _nanoseconds(settings.stall_shutdown_seconds),
    }
    if who.size == 1:
        alone = _native.Engine.alone(options, observer.error_makers(who))
        logger.info("init() number %d of %s: 1 rank", generation, _LAUNCHERS.get(who.launcher, who.launcher))
        return Runtime(who, settings, alone, generation, "")
    if who.local_size != who.size:
        raise InitError(
            f"The launcher ({who.launcher}) placed {who.size} ranks on several machines, {who.local_size} on "
            "this one. This version works on one machine only."
        )
    uses_mpi = settings.cpu_operations == "mpi"
    if uses_mpi:
        mpi.require()
    # Not needed in a world of one, and not free to import.
    from horovod.rendezvous import meeting

    world, engine, claim = meeting.meet(
        meeting.Invitation(
            rank=who.rank,
            size=who.size,
            host=who.hostname,
            job_id=who.job_id,
            generation=generation,
            version=__version__,
            plane="auto" if settings.cpu_operations == "torch" else settings.cpu_operations,
            timeout=settings.start_timeout,
            create_region=lambda: _native.create_region(_native.shm_bytes_needed(who.size)),
            region_bytes=_native.shm_bytes_needed(who.size),
            nonce_offset=_native.NONCE_OFFSET,
        ),
        lambda world: _start(
            who,
            world,
            settings,
            options,
            lambda: mpi.engine_handles(comm, launched, who, settings, world.key) if uses_mpi else None,
        ),
    )
    if world.why_sockets and settings.cpu_operations in ("auto", "torch"):
        logger.warning("the ranks use sockets, which are slower than shared memory: %s", world.why_sockets)
    logger.info(
        "init() number %d of %s: plane %s, %d ranks", generation, who.launcher, engine.plane, who.size
    )
    return Runtime(who, settings, engine, generation, world.why_sockets, claim, key=world.key)


def _start(
    who: Identity,
    world: meeting.World,
    settings: Settings,
    options: dict[str, int],
    mpi_handles: Callable[[], mpi.Handles | None],
) -> _native.Engine:
    try:
        handles = mpi_handles()
    except BaseException:
        world.close()
        raise
    with pinned(settings.thread_affinity, who.local_rank, who.local_size):
        return _engine(who, world, options, handles)


def _engine(
    who: Identity, world: meeting.World, options: dict[str, int], handles: mpi.Handles | None
) -> _native.Engine:
    errors, watcher = observer.error_makers(who), (observer.place, observer.warn)
    peers = [(m.rank, m.host, m.pid, world.watch.get(m.rank, -1)) for m in world.members]
    if world.region is None:
        control = [world.control.get(rank, -1) for rank in range(who.size)]
        data = [world.data.get(rank, -1) for rank in range(who.size)]
        return _native.Engine.tcp(
            who.rank, who.size, world.wake, control, data, peers, options, errors, watcher, handles
        )
    try:
        return _native.Engine.shm(
            who.rank,
            who.size,
            world.region,
            world.wake,
            world.eventfds,
            peers,
            options,
            errors,
            watcher,
            handles,
        )
    finally:
        os.close(world.region)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _leave() -> None:
    # A thread that ends with the program may be in init(), for as long as the other ranks take to come.
    if _lock.acquire(timeout=EXIT_SECONDS):
        try:
            _end(observer.how_the_program_ends())
        finally:
            _lock.release()


def _after_fork_in_child() -> None:
    global _current, _ending, _forked, _lock
    _lock = threading.Lock()  # the parent's other threads may have held it
    for runtime in (_current, _ending):
        if runtime is not None:
            runtime.engine.abandon_in_child()
            runtime.give_up_claim()
            _forked = True
    _current = _ending = None


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_leave)
