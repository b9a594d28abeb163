"""Start-up: how long until two Python processes that do nothing have come and gone, and what imports cost.

Wall time of whole commands, interleaved in rounds with plain `python -c pass`, whose time is then subtracted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.peers import by_name
from benchmarks.peers.base import environment, importable
from benchmarks.peers.mpi import Mpi
from benchmarks.results import Row
from benchmarks.session import Session
from benchmarks.stats import Metrics

NAME = "startup"
SECONDS = 60.0
LAUNCHER = ("horovod.runner.cli",)
PASS = (sys.executable, "-c", "pass")
INIT = (sys.executable, "-c", "import horovod.numpy as hvd; hvd.init()")


@dataclass(frozen=True)
class Command:
    """Something to start: its row's peer and name, its argv and its environment."""

    peer: str
    what: str
    argv: tuple[str, ...]
    env: dict[str, str]
    needs: tuple[str, ...] = ()
    imports: str = ""


def run(session: Session) -> list[Row]:
    """Round after round, every command once; plain Python comes first and is the base of its round."""
    commands = [command for command in _commands() if _wanted(session, command)]
    rows = {command.what: _row(session, command) for command in commands}
    for _ in range(session.options.rounds):
        base = 0.0
        for command in commands:
            row = rows[command.what]
            if row.status != "ok":
                continue
            try:
                metrics = _import_time(command) if command.imports else _wall(command, base)
            except (subprocess.SubprocessError, OSError) as error:
                row.status, row.error = "failed", _explain(error)
                continue
            base = base or metrics["seconds"]
            row.rounds.append(metrics)
    return session.finish(list(rows.values()))


def _commands() -> list[Command]:
    plain = environment()
    run2 = (*_horovodrun(), "-np", "2")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python")
    found = [
        Command("python", "python -c pass", PASS, plain),
        Command("hvd", "horovodrun -np 2 python -c pass", (*run2, *PASS), plain, LAUNCHER),
        Command("hvd", "horovodrun -np 2, hvd.init()", (*run2, *INIT), plain, (*LAUNCHER, "horovod.numpy")),
    ]
    for name in ("openmpi", "mpich"):
        peer = by_name(name)
        assert isinstance(peer, Mpi)
        argv = (*peer.mpirun(2), *PASS)
        found.append(Command(name, f"mpirun -n 2 python -c pass ({name})", argv, peer.environment()))
    found.append(Command("gloo", "torchrun, 2 processes, python -c pass", (*torchrun, *PASS), plain))
    for module, owner in (("horovod", "hvd"), ("horovod.numpy", "hvd"), ("torch", "gloo")):
        found.append(Command(owner, f"import {module}", PASS, plain, (module,), imports=module))
    return found


def _horovodrun() -> tuple[str, ...]:
    script = Path(sys.executable).parent / "horovodrun"
    return (str(script),) if script.is_file() else (sys.executable, "-m", "horovod.runner.cli")


def _wanted(session: Session, command: Command) -> bool:
    return command.peer == "python" or command.peer in session.peers


def _row(session: Session, command: Command) -> Row:
    return Row(NAME, command.peer, {"what": command.what}, status=_missing(session, command) or "ok")


def _missing(session: Session, command: Command) -> str | None:
    """Ours is asked module by module: the launcher needs no engine, `import horovod` no launcher."""
    if command.peer == "python":
        return None
    if command.peer == "hvd":
        return None if all(map(importable, command.needs)) else "not installed"
    return session.missing(command.peer)


def _wall(command: Command, base: float) -> Metrics:
    seconds = _timed(lambda: _call(command.argv, command.env))
    return {"seconds": seconds, "over_python": seconds - base if base else 0.0}


def _import_time(command: Command) -> Metrics:
    clock = "time.perf_counter()"
    code = f"import time; began = {clock}; import {command.imports}; print({clock} - began)"
    return {"seconds": float(_call((sys.executable, "-c", code), command.env))}


def _call(argv: tuple[str, ...], env: dict[str, str]) -> str:
    nothing = subprocess.DEVNULL
    return subprocess.run(
        argv, env=env, cwd=ROOT, check=True, timeout=SECONDS, capture_output=True, text=True, stdin=nothing
    ).stdout


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _explain(error: Exception) -> str:
    tail = getattr(error, "stderr", None) or ""
    return os.linesep.join([str(error), *str(tail).splitlines()[-5:]])
