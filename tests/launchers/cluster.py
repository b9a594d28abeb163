"""A Slurm of one node for tests: its daemons on free ports of this machine, all files in one directory.

It has more CPUs than the machine, so that jobs may too. The daemons belong to whoever started them here, and
are ended by their own process objects.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

PROGRAMS = ("munged", "scancel", "sinfo", "slurmctld", "slurmd", "squeue", "srun")
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
SECONDS = 60.0
"""A guard against hangs on a loaded machine, not a measurement."""

# Without NoInAddrAny the daemons would listen on all interfaces.
CONFIGURATION = """
ClusterName=khorovodtest
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={here}/munge.socket
CredType=cred/munge
StateSaveLocation={here}/state
SlurmdSpoolDir={here}/spool
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/slurmd.pid
CommunicationParameters=NoAddrCache,NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
NodeName={node} NodeAddr=127.0.0.1 CPUs=64 RealMemory=1 State=UNKNOWN
PartitionName=debug Nodes={node} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


def missing_programs() -> list[str]:
    """What of Slurm is not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


class Cluster:
    """Running while it is entered; give ``env`` to ``srun``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.env = {"SLURM_CONF": str(directory / "slurm.conf"), "PATH": PATH}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run("scancel", "--full", "--user=root")
            self._wait(lambda: not self._run("squeue", "--noheader"), "the end of all jobs")
        finally:
            self._stop()

    def _start(self) -> None:
        here = self.directory
        for name in ("state", "spool"):
            (here / name).mkdir()
        key = here / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        node = socket.gethostname().partition(".")[0]
        controller_port, node_port = _free_ports(2)
        (here / "slurm.conf").write_text(
            CONFIGURATION.format(node=node, here=here, controller_port=controller_port, node_port=node_port)
        )
        files = [f"--{name}-file={here / f'munge.{name}'}" for name in ("key", "seed", "pid")]
        self._daemon("munged", "--foreground", "--force", f"--socket={here / 'munge.socket'}", *files)
        self._wait(lambda: (here / "munge.socket").exists(), "munged")
        self._daemon("slurmctld", "-D", "-f", str(here / "slurm.conf"))
        self._daemon("slurmd", "-D", "-f", str(here / "slurm.conf"))
        self._wait(lambda: "idle" in self._run("sinfo", "--noheader", "--format=%T"), "an idle node")

    def _daemon(self, *command: str) -> None:
        with open(self.directory / f"{command[0]}.log", "wb") as log:
            env = {**os.environ, **self.env}
            program = shutil.which(command[0], path=PATH) or command[0]
            self._daemons.append(
                subprocess.Popen([program, *command[1:]], env=env, stdout=log, stderr=subprocess.STDOUT)
            )

    def _run(self, *command: str) -> str:
        return subprocess.run(
            command,
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        ).stdout

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            dead = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            assert not dead, f"{dead} ended:\n{self.logs()}"
            assert time.monotonic() < end, f"waited in vain for {what}:\n{self.logs()}"
            time.sleep(0.1)

    def _stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def logs(self) -> str:
        """The last lines of all daemons."""
        parts: list[str] = []
        for path in sorted(self.directory.glob("*.log")):
            parts += [f"-- {path.name}", *path.read_text(errors="replace").splitlines()[-20:]]
        return "\n".join(parts)


def _free_ports(count: int) -> Sequence[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
