"""Plays a script: starts the ranks, waits, and gathers everything that the judge wants to know."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time
from pathlib import Path

from tests.support.chaos import remains
from tests.support.chaos.judge import Outcome
from tests.support.chaos.nursery import Birth, Nursery
from tests.support.chaos.script import Script
from tests.support.chaos.story import Event, read
from tests.support.nursery import ROOT
from tests.support.world import rank_environment

DEADLINE = 90.0
"""A guard against hangs on a loaded machine, not a measurement."""

START_TIMEOUT = "45"
"""Seconds after which a rank that never comes is missed."""

RANK = "tests.support.chaos.rank"
RUNNER = "horovod.runner.cli"
LAUNCHER = "launcher"


def play(nursery: Nursery, script: Script, directory: Path) -> Outcome:
    """The whole job, in a directory of its own. Nothing of it is left running."""
    born = begin(nursery, script, directory, secrets.token_hex(8), START_TIMEOUT)
    hung = await_end(nursery, born, directory)
    ends = nursery.ends()
    codes = {name: ends[pid] for name, pid in born.items() if pid in ends}
    stories = {rank: read(directory / f"story.{rank}") for rank in range(script.size)}
    left = what_is_left(nursery, script, directory)
    nursery.clear()
    return Outcome(
        stories,
        {int(name): code for name, code in codes.items() if name != LAUNCHER},
        {rank: _text(directory / f"err.{rank}") for rank in range(script.size)},
        codes.get(LAUNCHER),
        _text(directory / f"err.{LAUNCHER}"),
        tuple(hung),
        tuple(left),
    )


def begin(nursery: Nursery, script: Script, directory: Path, job: str, timeout: str) -> dict[str, int]:
    """Starts the ranks, or horovodrun; the pids of either, by name."""
    (directory / "tmp").mkdir(parents=True)
    (directory / "script.json").write_text(script.dumps())
    own = {
        "HOROVOD_CPU_OPERATIONS": script.plane,
        "HOROVOD_START_TIMEOUT": timeout,
        "TMPDIR": str(directory / "tmp"),
        "XDG_RUNTIME_DIR": str(directory / "tmp"),
        "HOME": str(directory / "tmp"),
        "PYTHONPATH": str(ROOT),
    }
    if script.launcher == "horovodrun":
        command = ("-np", str(script.size), sys.executable, "-m", RANK, str(directory))
        return {LAUNCHER: nursery.bear(Birth(RUNNER, command, own, str(directory), LAUNCHER))}
    own["HOROVOD_HOSTNAME"] = "testhost"
    born = {}
    for rank in range(script.size):
        environment = {**rank_environment(rank, script.size, script.plane, job), **own}
        birth = Birth(RANK, (str(directory),), environment, str(directory), str(rank))
        born[str(rank)] = nursery.bear(birth)
    return born


def await_end(nursery: Nursery, born: dict[str, int], directory: Path) -> list[str]:
    """Waits for all; what does not end in time, with where it stands.

    Time that a process of the job has spent waiting for a core does not count: that is no hang.
    """
    began = time.monotonic()
    while not set(born.values()) <= nursery.ends().keys():
        waited = time.monotonic() - began
        if waited > DEADLINE and waited > DEADLINE + remains.starved_seconds(nursery.alive()):
            return _interrogate(nursery, directory)
        time.sleep(0.003)
    return []


def _interrogate(nursery: Nursery, directory: Path) -> list[str]:
    ranks = {event["pid"]: rank for rank in range(8) for event in read(directory / f"story.{rank}")[:1]}
    living = nursery.alive()
    for pid in set(ranks) & set(living):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGUSR1)
    time.sleep(1.0)
    return [
        f"rank {ranks[pid]}, pid {pid}:\n{_text(directory / f'stacks.{ranks[pid]}')[-3000:]}"
        if pid in ranks
        else f"pid {pid}"
        for pid in living
    ]


def what_is_left(nursery: Nursery, script: Script, directory: Path, patience: float = 10.0) -> list[str]:
    """What the job has left. A child of a rank that nobody supervises may live on, and holds nothing."""
    stories = [read(directory / f"story.{rank}") for rank in range(script.size)]
    worlds = [event for story in stories for event in story if event["event"] == "world"]
    regions = {region for world in worlds for region in world["regions"]}
    sockets = {socket for world in worlds for socket in world["sockets"]}
    jobs = {event["job"] for story in stories for event in story if event["event"] == "start"}
    orphans = 0 if script.launcher == "horovodrun" else _forked(stories)
    end = time.monotonic() + patience
    while True:
        living = nursery.alive()
        found = [f"process {pid}" for pid in living] if len(living) > orphans else []
        found += [f"a region mapped by process {pid}" for pid in remains.holders(regions)] if regions else []
        found += [f"socket {name}" for job in jobs for name in remains.unix_sockets(job)]
        found += [f"socket {inode}" for inode in remains.sockets(sockets)]
        found += [f"file {name}" for name in os.listdir(directory / "tmp")]
        found += [f"file /dev/shm/{name}" for job in jobs for name in remains.shared_memory_files(job)]
        if not found or time.monotonic() > end:
            return found
        nursery.ends()
        time.sleep(0.02)


def _forked(stories: list[list[Event]]) -> int:
    return sum(e["event"] == "fired" and e["kind"] == "fork and die" for story in stories for e in story)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
