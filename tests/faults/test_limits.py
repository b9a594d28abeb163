"""Short of resources: a job works by another way, or every rank hears at ``init()`` what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from jobs import DEADLINE, Job, Start
from tests.support import seccomp

ROOT = Path(__file__).resolve().parents[2]

BEFORE = f"""
import ctypes, errno, os, resource, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support import seccomp
HURT = os.environ["HOROVOD_RANK"] in os.environ["HURT"].split(",")
os.environ["HOROVOD_START_TIMEOUT"] = "20"
"""

WORK = """
import horovod.rendezvous.meeting  # its files are open no more when the limits begin
before_init()
tell_error(hvd.init)
if hvd.is_initialized():
    total = hvd.allreduce(np.full(int(os.environ.get("COUNT", "5000")), RANK + 1.0), op=hvd.Sum)
    assert np.all(total == SIZE * (SIZE + 1) / 2)
    tell(plane=runtime.engine().plane)
"""

NOTHING = "\ndef before_init(): pass\n"

EVERYBODY = "0,1,2"

needs_seccomp = pytest.mark.skipif(not seccomp.supported(), reason="no system call numbers for this machine")


def _denying(*calls: str) -> str:
    """Code that takes calls away from the hurt ranks, and proves it."""
    errors = ", ".join(f'"{call}": errno.EPERM' for call in calls)
    return f"if HURT: seccomp.deny({{{errors}}})\n"


PROOFS = {
    "memfd_create": "lambda: os.memfd_create('mine')",
    "pidfd_open": "lambda: os.pidfd_open(os.getpid())",
    "eventfd2": "lambda: os.eventfd(0)",
    "timerfd_create": "lambda: missing_timer()",
}


def _work_without(call: str, rest: str = WORK) -> str:
    timer = """
def missing_timer():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.timerfd_create(1, 0) < 0:
        raise OSError(ctypes.get_errno(), "no timer")
"""
    proof = f"def before_init():\n    if HURT: tell_error({PROOFS[call]})\n"
    return timer + proof + rest


def _assert_denied(job: Job, hurt: str) -> None:
    """The fault fired: the hurt ranks have tried the call themselves."""
    for rank in map(int, hurt.split(",")):
        assert job[rank].told()[0]["error"] == "PermissionError", job[rank].err()


def _outcomes(job: Job) -> list[dict[str, object]]:
    """What each rank told last; none has crashed."""
    for rank in job.ranks:
        rank.assert_no_crash()
    return [rank.told()[-1] for rank in job.ranks]


def _assert_refused(job: Job, *parts: str) -> None:
    """On every rank init() raised, and said why."""
    for outcome in _outcomes(job):
        assert outcome["error"] == "InitError", outcome
        for part in parts:
            assert part in str(outcome["message"]), outcome


# -- No memfd


@needs_seccomp
@pytest.mark.parametrize(("hurt", "plane"), [(EVERYBODY, "tcp"), ("0", "tcp"), ("1", "shm")])
def test_no_memfd(start: Start, hurt: str, plane: str) -> None:
    job = start(3, _work_without("memfd_create"), {"HURT": hurt}, BEFORE + _denying("memfd_create"))
    assert _outcomes(job) == [{"plane": plane}] * 3
    _assert_denied(job, hurt)
    assert ("memfd_create" in job[0].err()) == (plane == "tcp"), job[0].err()


@needs_seccomp
def test_no_memfd_and_no_other_way(start: Start) -> None:
    env = {"HURT": "0", "HOROVOD_CPU_OPERATIONS": "shm"}
    job = start(3, _work_without("memfd_create"), env, BEFORE + _denying("memfd_create"))
    _assert_refused(job, "memfd_create", "seccomp", "With auto, sockets are used")
    _assert_denied(job, "0")


# -- No pidfd

STAYS = """
if RANK == VICTIM:
    if CHILD:  # behind Python's back: it keeps all of the victim's connections open
        libc = ctypes.CDLL(None)
        if libc.fork() == 0:
            libc.pause()
            libc._exit(0)
    flag("victim")
tell_error(reduce_forever)
"""


@needs_seccomp
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("child", [False, True], ids=["alone", "with a child"])
@pytest.mark.parametrize("plane", ["shm", "tcp"])
def test_death_without_pidfds(start: Start, victim: int, child: bool, plane: str) -> None:
    values = f"VICTIM, CHILD = {victim}, {child}\n"
    env = {"HURT": EVERYBODY, "HOROVOD_CPU_OPERATIONS": plane}
    job = start(3, values + _work_without("pidfd_open", WORK + STAYS), env, BEFORE + _denying("pidfd_open"))
    job.await_flags("victim", "running.0", "running.1", "running.2")
    _assert_denied(job, EVERYBODY)
    assert "no pidfds" in job[0].err()
    job[victim].kill()
    for rank in job.others(victim):
        rank.assert_no_crash()
        story = rank.told()[-1]
        assert story["internal"], story
        assert f"rank {victim} " in story["message"], story
        assert f"pid {job[victim].pid}" in story["message"], story


@needs_seccomp
def test_one_rank_without_pidfds(start: Start) -> None:
    job = start(3, _work_without("pidfd_open"), {"HURT": "1"}, BEFORE + _denying("pidfd_open"))
    assert _outcomes(job) == [{"plane": "shm"}] * 3
    _assert_denied(job, "1")


# -- No eventfd, no timer: no engine


@needs_seccomp
@pytest.mark.parametrize("hurt", ["0", "1"])
@pytest.mark.parametrize("call", ["eventfd2", "timerfd_create"])
def test_no_engine(start: Start, hurt: str, call: str) -> None:
    job = start(3, _work_without(call), {"HURT": hurt}, BEFORE + _denying(call))
    _assert_refused(job, f"Rank {hurt}", "seccomp")
    _assert_denied(job, hurt)


# -- Limits

FEW_DESCRIPTORS = """
def before_init():
    if HURT:
        used = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + MORE, used + MORE))
"""


@pytest.mark.parametrize("hurt", ["0", "1"])
@pytest.mark.parametrize(("more", "plane"), [(4, "shm"), (7, "shm"), (10, "tcp")])
def test_few_descriptors(start: Start, hurt: str, more: int, plane: str) -> None:
    env = {"HURT": hurt, "HOROVOD_CPU_OPERATIONS": plane}
    job = start(3, f"MORE = {more}\n" + FEW_DESCRIPTORS + WORK, env, BEFORE)
    _assert_refused(job, "ulimit -n")


def test_no_descriptor_at_all(start: Start) -> None:
    """Nobody can hear of it but by the deadline; the rank itself says why."""
    env = {"HURT": "1", "HOROVOD_START_TIMEOUT": "3"}
    before = BEFORE.replace('os.environ["HOROVOD_START_TIMEOUT"] = "20"', "")
    job = start(2, "MORE = 0\n" + FEW_DESCRIPTORS + WORK, env, before)
    assert "rank(s) 1 of 2" in str(_outcomes(job)[0]["message"])
    assert "ulimit -n" in str(_outcomes(job)[1]["message"])


LITTLE_MEMORY = """
def before_init():
    if HURT:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MORE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""


@pytest.mark.parametrize("hurt", ["0", "1"])
def test_no_memory_for_the_region(start: Start, hurt: str) -> None:
    """The region does not fit, the engine does: its stack is small."""
    again = """
if HURT and "AGAIN" not in os.environ:
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 18, 1 << 18))
    os.environ["AGAIN"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])
"""
    env = {"HURT": hurt, "COUNT": "50"}  # so little needs no memory
    job = start(3, f"MORE = {3 << 20}\n" + LITTLE_MEMORY + WORK, env, BEFORE + again)
    assert _outcomes(job) == [{"plane": "tcp"}] * 3
    assert "ulimit -v" in job[0].err(), job[0].err()


@pytest.mark.parametrize("hurt", ["0", "1"])
def test_no_memory_for_an_engine(start: Start, hurt: str) -> None:
    job = start(3, f"MORE = {3 << 20}\n" + LITTLE_MEMORY + WORK, {"HURT": hurt}, BEFORE)
    _assert_refused(job, f"Rank {hurt}", "ulimit -v")


@pytest.mark.parametrize("plane", ["shm", "tcp"])
@pytest.mark.parametrize("hurt", ["0", "1"])
def test_no_memory_for_a_reduction(start: Start, hurt: str, plane: str) -> None:
    """A rank that has joined stands in for others' tensors, and has no room for one."""
    code = """
hvd.init()
hvd.barrier()
if HURT:
    room = 32 << 20
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
    try:
        bytearray(2 * room)
    except MemoryError:
        tell(short=True)
    tell_error(hvd.join)
else:
    tensor = np.ones(64 << 20, np.uint8)
    tell_error(hvd.allreduce_, tensor, op=hvd.Max, name="large")
tell_error(hvd.allreduce, np.ones(3))
"""
    job = start(2, code, {"HURT": hurt, "HOROVOD_CPU_OPERATIONS": plane}, BEFORE)
    for rank in job.ranks:
        rank.assert_no_crash()
    assert job[int(hurt)].told()[0] == {"short": True}
    for rank in job.ranks:
        first, then = rank.told()[-2:]
        assert first["internal"], first
        assert f"rank {hurt} " in first["message"], first
        assert "memory" in first["message"] or "bad_alloc" in first["message"], first
        assert then["internal"], "the world is over"


@pytest.mark.parametrize(("hurt", "plane"), [("0", "tcp"), ("1", "shm")])
def test_small_files_only(start: Start, hurt: str, plane: str) -> None:
    """The kernel would kill: shared memory is a file to it."""
    limit = """
def before_init():
    if HURT:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # as where Python is embedded
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        child = os.fork()
        if child == 0:
            os.ftruncate(os.memfd_create("large"), 1 << 20)
        tell(killed=os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGXFSZ)
"""
    job = start(2, limit + WORK, {"HURT": hurt}, BEFORE)
    assert _outcomes(job) == [{"plane": plane}] * 2
    assert job[int(hurt)].told()[0] == {"killed": True}
    assert ("ulimit -f" in job[0].err()) == (plane == "tcp"), job[0].err()


def test_a_small_dev_shm(start: Start) -> None:
    """Of 1 MB, where containers have their shared memory: nothing of it is used."""
    mount = """
libc = ctypes.CDLL(None, use_errno=True)
MOUNTED = libc.unshare(0x00020000) == 0 and libc.mount(b"none", b"/", None, 0x44000, None) == 0 and (
    libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=1m") == 0)
"""
    proof = """
def before_init():
    tell(mounted=MOUNTED, bytes=os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize)
"""
    job = start(3, proof + WORK, {"HURT": EVERYBODY}, BEFORE + mount)
    outcomes = _outcomes(job)
    if not job[0].told()[0]["mounted"]:
        pytest.skip("this process may not make a mount namespace")
    assert [rank.told()[0]["bytes"] for rank in job.ranks] == [1 << 20] * 3
    assert outcomes == [{"plane": "shm"}] * 3


def test_no_home_and_a_long_temporary_directory(tmp_path: Path) -> None:
    """Nothing is written to either; also not by horovodrun."""
    script = tmp_path / "train.py"
    script.write_text(
        "import horovod.numpy as hvd\nhvd.init()\nprint('sum', hvd.allreduce(1.0, op=hvd.Sum), flush=True)\n"
    )
    env = {"PATH": str(Path(sys.executable).parent), "HOME": "/proc/nowhere", "TMPDIR": "/tmp/" + "x" * 300}
    done = _horovodrun(script, env)
    assert done.stdout.count("2.0") == 2, done


@needs_seccomp
def test_horovodrun_in_a_sandbox(tmp_path: Path) -> None:
    """Neither the launcher nor its ranks need what a strict sandbox takes away."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, horovod.numpy as hvd\n"
        "hvd.init()\n"
        "try: os.pidfd_open(1)\n"
        "except PermissionError: print('denied', hvd.allreduce(1.0, op=hvd.Sum), flush=True)\n"
    )
    sandbox = [str(ROOT / "tests/support/seccomp.py"), "pidfd_open=EPERM", "memfd_create=ENOSYS", "--"]
    done = _horovodrun(script, {"PATH": str(Path(sys.executable).parent)}, [sys.executable, *sandbox])
    assert done.stdout.count("denied 2.0") == 2, done
    assert "no pidfds" in done.stderr + done.stdout
    assert "memfd_create" in done.stderr + done.stdout


def _horovodrun(
    script: Path, env: dict[str, str], prefix: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("horovodrun")), "-np", "2", sys.executable, str(script)]
    done = subprocess.run(
        [*(prefix or []), *command], env=env, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done
    return done
