"""``horovod.run``: a function on many ranks."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import horovod
from horovod.runner.errors import WorkerFailedError


def total(start: int, *, step: int = 1) -> tuple[int, int, float]:
    """Sent by reference: this module is found by the ranks, too."""
    import horovod.numpy as hvd

    hvd.init()
    value = hvd.allreduce(np.array([start + step * hvd.rank()], float), op=hvd.Sum)[0]
    return hvd.rank(), hvd.size(), float(value)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_results_by_rank(ranks: int) -> None:
    expected = float(sum(10 + 5 * rank for rank in range(ranks)))
    results = horovod.run(total, (10,), {"step": 5}, num_proc=ranks)
    assert results == [(rank, ranks, expected) for rank in range(ranks)]


def test_closures_and_lambdas() -> None:
    factor = 7

    def scaled(x: int) -> int:
        return factor * x

    assert horovod.run(lambda x: scaled(x) + 1, args=(6,), num_proc=2) == [43, 43]


def test_the_paths_of_the_contract() -> None:
    import horovod.runner

    assert horovod.run is horovod.runner.run


def test_output_goes_to_the_callers_streams(capsys: pytest.CaptureFixture[str]) -> None:
    def speak() -> None:
        print("aloud")
        print("aside", file=sys.stderr)

    horovod.run(speak, num_proc=2)
    said = capsys.readouterr()
    assert sorted(said.out.splitlines()) == ["[0]<stdout>:aloud", "[1]<stdout>:aloud"]
    assert sorted(said.err.splitlines()) == ["[0]<stderr>:aside", "[1]<stderr>:aside"]


def test_output_goes_to_files_too(tmp_path: Path) -> None:
    horovod.run(lambda: print("hello"), num_proc=1, output_filename=tmp_path / "logs")
    assert (tmp_path / "logs" / "rank.0" / "stdout").read_text() == "hello\n"


def test_the_ranks_exception_is_the_cause() -> None:
    def fail() -> None:
        import horovod.numpy as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("no such thing")
        hvd.allreduce(np.ones(3))

    with pytest.raises(WorkerFailedError) as caught:
        horovod.run(fail, num_proc=2)
    assert str(caught.value).startswith(
        "Horovod detected that one or more processes exited with non-zero status"
    )
    assert caught.value.rank == 1
    assert "in fail" in caught.value.remote_traceback
    assert "KeyError: 'no such thing'" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_rank_that_is_killed() -> None:
    def die() -> None:
        import horovod.numpy as hvd

        hvd.init()
        if hvd.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()

    with pytest.raises(RuntimeError, match="rank 0 failed first: killed by SIGKILL"):
        horovod.run(die, num_proc=2)


ENDS = {
    "ctypes.string_at(0)": "rank 1 failed first: killed by SIGSEGV",
    "os._exit(3)": "rank 1 failed first: exit code 3",
    "os._exit(0)": "No result came from rank 1",
    "import horovod.no_such_module": "ModuleNotFoundError: No module named 'horovod.no_such_module'",
    "resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31)); bytearray(1 << 33)": "MemoryError",
}


@pytest.mark.parametrize(("deed", "words"), ENDS.items())
def test_the_caller_survives_whatever_ends_a_rank(deed: str, words: str) -> None:
    def end() -> None:
        import ctypes
        import resource

        if os.environ["HOROVOD_RANK"] == "1":
            exec(deed, {"ctypes": ctypes, "os": os, "resource": resource})

    with pytest.raises(WorkerFailedError) as caught:
        horovod.run(end, num_proc=2)
    assert words in str(caught.value)
    assert horovod.run(os.getpid) != [os.getpid()], "and can start the next job"


def test_a_python_without_this_package(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho No module named horovod >&2; exit 1\n")
    python.chmod(0o755)
    with pytest.raises(WorkerFailedError, match="No module named horovod"):
        horovod.run(os.getpid, executable=str(python))


def test_the_python_of_the_ranks(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nCHOSEN=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert horovod.run(lambda: os.environ.get("CHOSEN"), executable=str(python)) == ["1"]


def test_names_mean_the_callers_modules(tmp_path: Path) -> None:
    """Also where a module of the same name is in the directory that the job is started from."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "helpers.py").write_text("def answer():\n    return 'that of the directory'\n")
    (tmp_path / "scripts" / "helpers.py").write_text("def answer():\n    return 'ours'\n")
    script = tmp_path / "scripts" / "main.py"
    script.write_text("import helpers, horovod\nprint(horovod.run(helpers.answer, num_proc=2))\n")
    done = subprocess.run(
        [sys.executable, "scripts/main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.strip() == "['ours', 'ours']", done.stderr


def test_the_error_can_be_sent_on() -> None:
    """As a pool of processes does."""

    def fail() -> None:
        raise ValueError("boom")

    with pytest.raises(WorkerFailedError) as caught:
        horovod.run(fail, num_proc=1)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is WorkerFailedError
    assert str(copy) == str(caught.value)
    assert (copy.rank, copy.exit_code) == (0, caught.value.exit_code)
    assert "ValueError: boom" in copy.remote_traceback


def test_a_result_that_cannot_be_read() -> None:
    def make() -> Any:
        class Odd:
            def __reduce__(self) -> Any:
                return int, ("no number",)

        return Odd()

    with pytest.raises(RuntimeError, match="The result of rank 0 cannot be read here: ValueError"):
        horovod.run(make)


def test_an_exception_that_cannot_be_sent() -> None:
    def fail() -> None:
        class Odd(Exception):
            def __reduce__(self) -> Any:
                raise TypeError("never")

        raise Odd("odd")

    with pytest.raises(WorkerFailedError, match=r"Odd: odd") as caught:
        horovod.run(fail)
    assert caught.value.__cause__ is None


def test_a_result_that_cannot_be_sent() -> None:
    with pytest.raises(WorkerFailedError, match="pickle"):
        horovod.run(threading.Lock)


@pytest.mark.parametrize(("code", "fine"), [(0, True), (3, False)])
def test_sys_exit(code: int, fine: bool) -> None:
    if fine:
        assert horovod.run(sys.exit, (code,)) == [None]
    else:
        with pytest.raises(WorkerFailedError) as caught:
            horovod.run(sys.exit, (code,))
        assert caught.value.exit_code == code


def test_large_arguments_and_results() -> None:
    data = np.arange(40_000_000, dtype=np.float32)
    results = horovod.run(lambda x: x + 1, (data,), num_proc=2)
    assert all(np.array_equal(result, data + 1) for result in results)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_gigabyte_each_way() -> None:
    data = np.arange(1 << 27, dtype=np.int64)
    (result,) = horovod.run(np.negative, (data,))
    assert result.nbytes == 1 << 30
    assert np.array_equal(result, -data)


def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = set(psutil.Process().children(recursive=True))
    horovod.run(total, (1,), num_proc=2)
    with pytest.raises(RuntimeError):
        horovod.run(lambda: 1 // 0, num_proc=2)
    assert list(tmp_path.iterdir()) == []
    assert set(psutil.Process().children(recursive=True)) == before


def test_from_a_thread() -> None:
    found: list[list[Any]] = []
    thread = threading.Thread(target=lambda: found.append(horovod.run(total, (1,), num_proc=2)))
    thread.start()
    thread.join()
    assert found == [[(0, 2, 3.0), (1, 2, 3.0)]]


INTERRUPTED = """
import os, time, horovod
from pathlib import Path

def wait():
    Path(os.environ["FLAGS"], f"pid.{os.getpid()}").touch()
    time.sleep(600)

try:
    horovod.run(wait, num_proc=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def _ranks(flags: Path) -> list[int]:
    return [int(path.name.removeprefix("pid.")) for path in flags.glob("pid.*")]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=lambda s: signal.Signals(s).name)
def test_the_workers_end_with_their_caller(tmp_path: Path, signum: int) -> None:
    """Interrupted, it says so; killed, it cannot."""
    env = {**os.environ, "FLAGS": str(tmp_path)}
    code = textwrap.dedent(INTERRUPTED)
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) as caller:
        end = time.monotonic() + 60
        while len(_ranks(tmp_path)) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        ranks = _ranks(tmp_path)
        assert len(ranks) == 2
        caller.send_signal(signum)
        output, _ = caller.communicate(timeout=60)
    assert output == (b"interrupted\n" if signum == signal.SIGINT else b"")
    while any(map(psutil.pid_exists, ranks)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(psutil.pid_exists, ranks))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"hosts": "a:1", "hostfile": "b"}, ValueError, "not both"),
        ({"use_gloo": True, "use_mpi": True}, ValueError, "not both"),
        ({"min_num_proc": 1}, NotImplementedError, "Elastic"),
        ({"host_discovery_script": "./find"}, NotImplementedError, "Elastic"),
        ({"num_proc": 0}, ValueError, "num_proc"),
        ({"num_proc": "2"}, ValueError, "num_proc must be a whole number >= 1, not '2'"),
        ({"hosts": "localhost"}, ValueError, "must look like host:slots"),
        ({"hosts": "localhost:1", "num_proc": 2}, ValueError, "2 processes do not fit on 1 slots"),
        ({"hosts": "far.example:2", "num_proc": 2}, ValueError, "far.example is another machine"),
        ({"hostfile": "/nowhere/hosts"}, FileNotFoundError, "/nowhere/hosts"),
        ({"start_timeout": -1}, ValueError, "start_timeout='-1' is not valid: it must be a number > 0"),
        ({"args": (threading.Lock(),)}, TypeError, "cannot be sent to the ranks"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        horovod.run(total, **options)


def test_not_a_function() -> None:
    with pytest.raises(TypeError, match="function"):
        horovod.run("train.py")  # type: ignore[arg-type]


def test_old_names() -> None:
    with pytest.warns(DeprecationWarning, match="num_proc"):
        assert horovod.run(os.getpid, np=2).__len__() == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"np": 0}, ValueError),
        ({"min_np": 1}, NotImplementedError),
        ({"max_np": 2}, NotImplementedError),
        ({"network_interface": "lo", "num_proc": 0}, ValueError),
    ],
)
def test_old_names_mean_the_same(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.warns(DeprecationWarning, match="has been replaced"), pytest.raises(error):
        horovod.run(total, (1,), **options)


def test_a_hostfile(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# ours\nlocalhost slots=2\n\n")
    assert horovod.run(total, (0,), num_proc=2, hostfile=str(hostfile))[1] == (1, 2, 1.0)


def test_a_directory_that_others_can_read_is_refused(tmp_path: Path) -> None:
    from horovod.runner.handover import VARIABLE, Handover

    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError, match="not private"):
        Handover.open({VARIABLE: str(tmp_path)})
