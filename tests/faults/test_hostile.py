"""Hostile bytes and impostors: refused, said once in the log, and the job goes on.

Where a rank itself sends nonsense there is no job to save: then every rank gets an error, and none crashes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from jobs import Job, Start, until
from tests.support.world import clean_environment, rank_environment

import horovod
from horovod import _native
from horovod.rendezvous import mesh
from horovod.rendezvous.invitation import Invitation, address
from horovod.rendezvous.messages import Hello

LATE_RANK = """
from horovod.rendezvous.reception import Reception
hear = Reception._hear
def hear_and_tell(self, channel):
    hear(self, channel)
    flag(f"here.{len(self.guests)}")
Reception._hear = hear_and_tell
if RANK == LAST:
    await_flag("go")
hvd.init()
assert np.all(hvd.allreduce(np.full(5000, RANK + 1.0), op=hvd.Sum) == SIZE * (SIZE + 1) / 2)
tell(well=True)
"""


def _door(job: Job) -> str:
    """The name under which rank 0 listens."""
    job_id = job.mark.partition("=")[2]
    return address(Invitation(0, 0, "", job_id, 1, "", "", 0, lambda: 0, 0, 0))


def _knock(job: Job) -> socket.socket:
    """A connection with rank 0, which waits for its last rank."""
    made: list[socket.socket] = []

    def connected() -> bool:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(5)
            connection.connect(_door(job))
        except OSError:
            connection.close()
            return False
        made.append(connection)
        return True

    until(connected, "rank 0")
    return made[0]


def _assert_all_well(job: Job) -> None:
    for rank in job.ranks:
        rank.assert_no_crash()
        assert rank.told() == [{"well": True}], rank.err()


def _hello(rank: int, size: int) -> bytes:
    return msgspec.json.encode(Hello(rank, size, "here", horovod.__version__, "auto"))


STRANGERS: dict[str, tuple[int, bytes, str]] = {
    "garbage": (1, b"\x00\xffGET / HTTP/1.1\r\n\r\n", "malformed"),
    "truncated": (1, _hello(1, 3)[:-9], "truncated"),
    "huge": (1, b"x" * 190_000, "too long"),
    "silent": (1, b"", "all ranks are here"),
    "a flood": (300, b"", "there are too many"),
    "a rank that is here": (1, _hello(1, 3), "is taken already"),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_strangers_at_the_door(start: Start, kind: str) -> None:
    count, data, why = STRANGERS[kind]
    job = start(3, LATE_RANK)
    job.await_flags("here.1")  # the stranger that says it is rank 1 comes second
    strangers = [_knock(job) for _ in range(count)]
    for stranger in strangers:
        if data:
            socket.send_fds(stranger, [data], [0])
    job.flag("go")
    _assert_all_well(job)
    for stranger in strangers:
        stranger.close()
    refusals = [line for line in job[0].err().splitlines() if "refused" in line]
    assert why in refusals[0], refusals
    assert f"pid {os.getpid()}" in refusals[0], refusals
    assert len(refusals) <= 4, refusals


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user(start: Start) -> None:
    """Is turned away unread."""
    job = start(2, LATE_RANK)
    _knock(job).close()
    code = f"""
import os, socket
os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
    stranger.connect({_door(job)!r})
    stranger.settimeout(30)
    try:
        assert stranger.recv(100) == b""
    except ConnectionResetError:
        pass
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    job.flag("go")
    _assert_all_well(job)
    assert "uid 65534" in job[0].err(), job[0].err()


# -- The ports of ranks that share no memory

LATE_CALLER = """
from horovod.rendezvous import mesh
connect = mesh.connect
def late(*arguments):
    flag("listening")
    await_flag("go")
    return connect(*arguments)
if RANK == LAST:
    mesh.connect = late
hvd.init()
assert runtime.engine().plane == "tcp"
assert np.all(hvd.allreduce(np.full(5000, RANK + 1.0), op=hvd.Sum) == SIZE * (SIZE + 1) / 2)
tell(well=True)
"""


def _listening_port(pid: int) -> int:
    """The TCP port on which a process listens."""
    inodes = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            return int(fields[1].partition(":")[2], 16)
    raise AssertionError(f"pid {pid} listens nowhere")


def _scan(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def _prove_nothing(port: int) -> socket.socket:
    """A handshake as rank 1's, without the secret; and once more with the proof that was overheard."""
    caller = _scan(port)
    caller.sendall(mesh._INTRODUCTION.pack(mesh._MAGIC, 1, 0) + bytes(32))
    overheard = mesh._receive(caller, 64)[32:]
    caller.sendall(overheard)
    assert caller.recv(1) == b""
    return caller


def _send_garbage(port: int) -> socket.socket:
    caller = _scan(port)
    caller.sendall(os.urandom(4096))
    return caller


ATTACKS: dict[str, tuple[Callable[[int], socket.socket], int, str]] = {
    "a scan": (_scan, 1, "it was not expected"),
    "garbage": (_send_garbage, 1, "nobody like that is expected"),
    "a wrong proof": (_prove_nothing, 1, "does not know the job's secret"),
    "a flood": (_scan, 300, "there are too many"),
}


@pytest.mark.parametrize("kind", ATTACKS)
def test_strangers_at_a_port(start: Start, kind: str) -> None:
    attack, count, why = ATTACKS[kind]
    job = start(2, LATE_CALLER, {"HOROVOD_CPU_OPERATIONS": "tcp"})
    job.await_flags("listening")
    port = _listening_port(job[0].pid)
    strangers = [attack(port) for _ in range(count)]
    job.flag("go")
    _assert_all_well(job)
    for stranger in strangers:
        stranger.close()
    refusals = [line for line in job[0].err().splitlines() if "refused" in line]
    assert "127.0.0.1:" in refusals[0], refusals
    assert why in refusals[0], refusals
    assert len(refusals) <= 4, refusals


# -- Impostors and deserters


def test_a_child_that_inherits_a_rank_of_the_second_world(start: Start) -> None:
    """It is told at once, and by whom the rank is taken; it does not wait for a world that is over."""
    job = start(
        2,
        """
import subprocess
hvd.init()
hvd.shutdown()
hvd.init()
if RANK == LAST:
    code = "import horovod.numpy as hvd; hvd.init()"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    tell(code=child.returncode, error=child.stderr.splitlines()[-1])
hvd.barrier()
""",
        {"HOROVOD_START_TIMEOUT": "600"},
    )
    for rank in job.ranks:
        rank.assert_quiet_exit()
    (story,) = job[1].told()
    assert story["code"] == 1
    assert f"Another process (pid {job[1].pid}) is rank 1 of this job already" in story["error"]


def test_two_processes_of_one_rank(start: Start) -> None:
    job = start(2, LATE_RANK)
    _knock(job).close()
    mark = job.mark.partition("=")[2]
    second = subprocess.run(
        [sys.executable, "-c", "import horovod.numpy as hvd; hvd.init()"],
        env={**clean_environment(), **rank_environment(0, 2, "auto", mark), "HOROVOD_START_TIMEOUT": "600"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    job.flag("go")
    _assert_all_well(job)
    assert second.returncode == 1
    assert f"(pid {job[0].pid}) is rank 0 of this job already" in second.stderr


@pytest.mark.parametrize("deserter", [0, 2])
def test_a_rank_that_goes_in_the_midst_of_the_meeting(start: Start, deserter: int) -> None:
    job = start(
        3,
        f"""
from horovod.rendezvous import guest, host
def desert(*arguments):
    os._exit(7)
if RANK == {deserter}:
    guest.Guest._look_into = host.Host._open_pidfds = desert
tell_error(hvd.init)
""",
        {"HOROVOD_START_TIMEOUT": "600"},
    )
    assert job[deserter].wait() == 7
    for rank in job.others(deserter):
        rank.assert_no_crash()
        (story,) = rank.told()
        assert story["error"] == "InitError", story
        named = f"pid {job[deserter].pid}" if deserter else "lost rank 0"
        assert named in story["message"], story


# -- A rank that sends nonsense

SABOTAGE = """
hvd.init()
hvd.barrier()
flag(f"ready.{RANK}")
for rank in range(SIZE):
    await_flag(f"ready.{rank}")
def sockets_to(rank):
    # In the order in which they were made: control, then data.
    found = {}
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            with socket.socket(fileno=os.dup(fd)) as one:
                if one.family == socket.AF_INET and one.type == socket.SOCK_STREAM:
                    found.setdefault(one.getpeername(), []).append(fd)
        except OSError:
            pass
    return [fds for fds in found.values() if len(fds) == 2][rank]

def scribble(offset, data):
    for line in open("/proc/self/maps"):
        if "/memfd:khorovod" in line:
            at = int(line.partition("-")[0], 16)
            ctypes.memmove(at + offset, data, len(data))
            return
    raise AssertionError("no region")
"""

BAD_FRAMES = {
    "a huge length": b"\xff\xff\xff\x7f" + bytes(64),
    "an unknown tag": b"\x05\x00\x00\x00\x09abcd",
    "a bad announcement": b"\x07\x00\x00\x00\x00\x01\x01\xff\xff\xff\xff",
}


def _assert_broken(job: Job, *parts: str) -> None:
    for rank in job.ranks:
        rank.assert_no_crash()
        story = rank.told()[-1]
        assert story["internal"], story
        assert any(part in story["message"] for part in parts), story


@pytest.mark.parametrize("frame", BAD_FRAMES)
def test_nonsense_on_a_control_connection(start: Start, frame: str) -> None:
    attack = f"""
if RANK == LAST:
    os.write(sockets_to(0)[0], {BAD_FRAMES[frame]!r})
tell_error(reduce_forever)
"""
    job = start(3, "import socket\n" + SABOTAGE + attack, {"HOROVOD_CPU_OPERATIONS": "tcp"})
    _assert_broken(job, f"a control message from rank 2 (host testhost, pid {job[2].pid}) makes no sense")


def test_nonsense_on_a_data_connection(start: Start) -> None:
    attack = """
if RANK == LAST:
    os.write(sockets_to(0)[1], bytes(range(16)))
tell_error(reduce_forever)
"""
    job = start(3, "import socket\n" + SABOTAGE + attack, {"HOROVOD_CPU_OPERATIONS": "tcp"})
    _assert_broken(job, f"data from rank 2 (host testhost, pid {job[2].pid}) make no sense", "rank 2")


def test_nonsense_in_shared_memory(start: Start) -> None:
    """Every mailbox has counters that cannot be."""
    attack = """
if RANK == LAST:
    # Before the slots there are two mailboxes of each rank: two counters, and bytes.
    mailboxes = 2 * SIZE * (2 * 64 + (1 << 17))
    scribble(REGION - SLOTS - mailboxes, os.urandom(mailboxes))
tell_error(reduce_forever)
"""
    slots = 3 * 8 * (128 << 10)
    values = f"REGION, SLOTS = {_native.shm_bytes_needed(3)}, {slots}\n"
    job = start(3, values + SABOTAGE + attack, {"HOROVOD_CPU_OPERATIONS": "shm"})
    _assert_broken(job, "makes no sense", "is corrupt")


def test_a_silent_world_is_not_disturbed_afterwards(start: Start) -> None:
    """Nothing listens any more but the names that ranks have, and nobody answers there."""
    job = start(2, "hvd.init()\nflag(f'in.{RANK}')\nawait_flag('go')\nhvd.barrier()\ntell(well=True)\n")
    job.await_flags("in.0", "in.1")
    with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.connect(_door(job))
    job.flag("go")
    _assert_all_well(job)
