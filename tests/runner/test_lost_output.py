"""Output that is huge, binary, closed or has nowhere to go: the job goes on, and its exit code is its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

MIB = 1 << 20
HUGE = 300


def peak_memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def test_a_huge_output_in_one_go(horovodrun, tmp_path):
    code = f"""
import os, time
data, written = memoryview(b'x' * ({HUGE} << 20)), 0
while written < len(data): written += os.write(1, data[written:])
while not os.path.exists({str(tmp_path / "measured")!r}): time.sleep(0.02)
os._exit(4)
"""
    expected = HUGE * (MIB + len(b"[0]<stdout>:\n"))
    command = [*horovodrun.prefix, "-np", "1", *horovodrun.script(code)]
    with subprocess.Popen(
        command, env=horovodrun.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        count = 0
        while count < expected:
            data = process.stdout.read(min(MIB, expected - count))
            assert data
            count += len(data)
        peak = peak_memory(process.pid)
        (tmp_path / "measured").touch()
        assert process.stdout.read() == b""
        assert process.wait(60) == 4
    assert peak < 64 * MIB


def test_every_byte_there_is(horovodrun):
    code = "import os; os.write(1, bytes(range(256)) * 2); os.write(2, b'\\xff\\x00\\xfe' * 3); os._exit(3)"
    done = horovodrun.run("-np", "1", *horovodrun.script(code))
    assert done.returncode == 3
    assert done.stdout.replace(b"[0]<stdout>:", b"") == bytes(range(256)) * 2 + b"\n"
    assert done.stderr.startswith(b"[0]<stderr>:" + b"\xff\x00\xfe" * 3 + b"\n")
    assert b"  | \\xff\x00\\xfe" in done.stderr  # the report is text


def test_a_rank_that_closes_its_output(horovodrun):
    code = """
import os, sys
print('before')
os.close(1)
print('still here', file=sys.stderr)
os.close(2)
os._exit(5)
"""
    done = horovodrun.run("-np", "2", *horovodrun.script(code))
    assert done.returncode == 5
    assert sorted(done.stdout.splitlines()) == [b"[0]<stdout>:before", b"[1]<stdout>:before"]
    assert b"[0]<stderr>:still here\n" in done.stderr
    assert b"[1]<stderr>:still here\n" in done.stderr


CODES = "import os\nfor _ in range(2000): print('x' * 99)\nos._exit(int(os.environ['RANK']))"


@pytest.mark.parametrize(
    "where", [">/dev/full", ">/dev/full 2>&1", "2>/dev/full", "| true", "2>&1 | true", ">&-"]
)
def test_nowhere_to_write(horovodrun, tmp_path, where):
    command = " ".join([*horovodrun.prefix, "-np", "2", *horovodrun.script(CODES)])
    shell = f"{{ {command}; echo $? > {tmp_path}/code; }} {where}"
    done = subprocess.run(
        ["bash", "-c", shell], env=horovodrun.env, capture_output=True, timeout=60, check=False
    )
    assert (tmp_path / "code").read_text() == "1\n"
    lost = done.stderr.count(b"standard output is lost from here on")
    assert lost == (1 if where in (">/dev/full", "| true") else 0)
    assert (b"rank 1 failed first" in done.stderr) == ("2>" not in where)


def test_a_full_disk_behind_the_files(horovodrun, tmp_path):
    for rank in (0, 1):
        (tmp_path / f"logs/rank.{rank}").mkdir(parents=True)
        (tmp_path / f"logs/rank.{rank}/stdout").symlink_to("/dev/full")
    done = horovodrun.run("-np", "2", "--output-filename", str(tmp_path / "logs"), *horovodrun.script(CODES))
    assert done.returncode == 1
    assert done.stdout.count(b"x" * 99) == 4000
    assert done.stderr.count(b"cannot write") == 1
    assert b"/stdout: No space left on device; this file ends here, the job goes on\n" in done.stderr


def test_a_disk_that_ends_in_the_middle_of_a_write(horovodrun, tmp_path):
    code = "import os; os.write(1, b'x' * 5000); os._exit(6)"
    logs = tmp_path / "logs"
    command = [*horovodrun.prefix, "-np", "1", "--output-filename", str(logs), *horovodrun.script(code)]
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 1; exec {' '.join(command)}"],
        env=horovodrun.env,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 6
    assert done.stdout == b"[0]<stdout>:" + b"x" * 5000 + b"\n"
    assert (logs / "rank.0/stdout").stat().st_size == 1024
    assert done.stderr.count(b"rank.0/stdout: File too large; this file ends here, the job goes on\n") == 1
