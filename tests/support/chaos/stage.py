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
from tests.support.chaos.nursery import ROOT, Birth, Nursery
from tests.support.chaos.script import Script
from tests.support.chaos.story import Event, read
from tests.support.world import rank_environment

DEADLINE = 60.0
"""A guard against hangs on a loaded machine, not a measurement."""

START_TIMEOUT = "20"
"""Seconds after which a rank that never comes is missed."""

RANK = "tests.support.chaos.rank"


def play(nursery: Nursery, script: Script, directory: Path) -> Outcome:
    """The whole job, in a directory of its own. Nothing of it is left running."""
    directory.mkdir()
    (directory / "script.json").write_text(script.dumps())
    (directory / "tmp").mkdir()
    job = secrets.token_hex(8)
    born = _launched(nursery, script, directory) if script.launcher == "horovodrun" else {}
    born = born or _ranks(nursery, script, directory, job)
    hung = _await_end(nursery, born, directory)
    stories = {rank: read(directory / f"story.{rank}") for rank in range(script.size)}
    ends = nursery.ends()
    codes = {name: ends[pid] for name, pid in born.items() if pid in ends}
    left = _left(nursery, script, stories, directory)
    nursery.clear()
    return Outcome(
        stories,
        {int(name): code for name, code in codes.items() if name != "launcher"},
        {rank: _text(directory / f"err.{rank}") for rank in range(script.size)},
        codes.get("launcher"),
        _text(directory / "err.launcher"),
        tuple(hung),
        tuple(left),
    )


def _surroundings(directory: Path, plane: str) -> dict[str, str]:
    return {
        "HOROVOD_CPU_OPERATIONS": plane,
        "HOROVOD_START_TIMEOUT": START_TIMEOUT,
        "TMPDIR": str(directory / "tmp"),
        "XDG_RUNTIME_DIR": str(directory / "tmp"),
        "HOME": str(directory / "tmp"),
    }


def _ranks(nursery: Nursery, script: Script, directory: Path, job: str) -> dict[str, int]:
    own = {**_surroundings(directory, script.plane), "HOROVOD_HOSTNAME": "testhost"}
    return {
        str(rank): nursery.bear(
            Birth(
                RANK,
                (str(directory),),
                {**rank_environment(rank, script.size, script.plane, job), **own},
                str(directory),
                str(rank),
            )
        )
        for rank in range(script.size)
    }


def _launched(nursery: Nursery, script: Script, directory: Path) -> dict[str, int]:
    command = (sys.executable, "-m", RANK, str(directory))
    own = {**_surroundings(directory, script.plane), "PYTHONPATH": str(ROOT)}
    birth = Birth("horovod.runner.cli", ("-np", str(script.size), *command), own, str(directory), "launcher")
    return {"launcher": nursery.bear(birth)}


def _await_end(nursery: Nursery, born: dict[str, int], directory: Path) -> list[str]:
    """Waits for all; what does not end in time, with where it stands."""
    end = time.monotonic() + DEADLINE
    while not set(born.values()) <= nursery.ends().keys():
        if time.monotonic() > end:
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


def _left(nursery: Nursery, script: Script, stories: dict[int, list[Event]], directory: Path) -> list[str]:
    """What the job has left. A child of a rank that nobody supervises may live on, and holds nothing."""
    worlds = [event for story in stories.values() for event in story if event["event"] == "world"]
    regions = {region for world in worlds for region in world["regions"]}
    sockets = {socket for world in worlds for socket in world["sockets"]}
    jobs = {event["job"] for story in stories.values() for event in story if event["event"] == "start"}
    orphans = 0 if script.launcher == "horovodrun" else _forked(stories)
    end = time.monotonic() + 10
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


def _forked(stories: dict[int, list[Event]]) -> int:
    return sum(e["event"] == "fired" and e["kind"] == "fork and die" for s in stories.values() for e in s)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
