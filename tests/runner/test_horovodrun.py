"""``horovodrun`` with real processes: what the ranks get, where their output goes, exit codes of mistakes."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SHOW_ENV = """
import json, os
print(json.dumps(dict(os.environ)))
"""


def environments(output: bytes) -> dict[int, dict[str, str]]:
    """The environment that each rank has printed."""
    import json

    return {
        int(line[1 : line.index(b"]")]): json.loads(line.partition(b">:")[2]) for line in output.splitlines()
    }


def test_ranks_get_both_vocabularies(horovodrun):
    done = horovodrun.run("-np", "3", *horovodrun.script(SHOW_ENV))
    assert (done.returncode, done.stderr) == (0, b"")
    found = environments(done.stdout)
    assert sorted(found) == [0, 1, 2]
    names = ["HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "RANK", "LOCAL_RANK"]
    assert [[env[name] for name in names] for _, env in sorted(found.items())] == [[r] * 4 for r in "012"]
    common = {
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_SIZE": "3",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "localhost",
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "3",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    assert [{name: env.get(name) for name in common} for env in found.values()] == [common] * 3
    assert len({(env["HOROVOD_JOB_ID"], env["MASTER_PORT"]) for env in found.values()}) == 1
    assert len(found[0]["HOROVOD_JOB_ID"]) == 32


def test_two_jobs_have_different_ids(horovodrun):
    command = ("-np", "1", *horovodrun.script(SHOW_ENV))
    first, second = (environments(horovodrun.run(*command).stdout)[0] for _ in range(2))
    assert first["HOROVOD_JOB_ID"] != second["HOROVOD_JOB_ID"]


def test_flags_reach_the_ranks_and_win_over_the_environment(horovodrun):
    flags = ("--fusion-threshold-mb", "32", "--cycle_time_ms=2.5", "--log-hide-timestamp")
    done = horovodrun.run("-np", "1", *flags, *horovodrun.script(SHOW_ENV), env={"HOROVOD_CYCLE_TIME": "7"})
    env = environments(done.stdout)[0]
    assert env["HOROVOD_FUSION_THRESHOLD"] == str(32 << 20)
    assert env["HOROVOD_CYCLE_TIME"] == "2.5"
    assert env["HOROVOD_LOG_HIDE_TIME"] == "1"
    assert "HOROVOD_CACHE_CAPACITY" not in env


def test_an_enclosing_launchers_variables_are_dropped(horovodrun):
    stale = {"OMPI_COMM_WORLD_RANK": "7", "PMI_RANK": "7", "PMIX_RANK": "7", "SLURM_PROCID": "7", "RANK": "7"}
    kept = {"OMPI_MCA_btl": "^openib", "SLURM_JOB_ID": "12"}
    done = horovodrun.run("-np", "1", *horovodrun.script(SHOW_ENV), env={**stale, **kept})
    env = environments(done.stdout)[0]
    assert {name: env.get(name) for name in stale} == dict.fromkeys(stale) | {"RANK": "0"}
    assert {name: env[name] for name in kept} == kept


def test_a_single_rank_keeps_its_threads(horovodrun):
    env = {name: value for name, value in horovodrun.env.items() if name != "OMP_NUM_THREADS"}
    horovodrun.env = env
    done = horovodrun.run("-np", "1", *horovodrun.script(SHOW_ENV))
    assert "OMP_NUM_THREADS" not in environments(done.stdout)[0]


def test_fewer_ranks_than_slots(horovodrun):
    done = horovodrun.run("-np", "2", "-H", "localhost:4", *horovodrun.script("print('here')"))
    assert sorted(done.stdout.splitlines()) == [b"[0]<stdout>:here", b"[1]<stdout>:here"]


def test_two_names_of_this_machine_are_two_hosts(horovodrun):
    done = horovodrun.run("-np", "3", "-H", "localhost:2,127.0.0.1:2", *horovodrun.script(SHOW_ENV))
    names = [
        "HOROVOD_HOSTNAME",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_CROSS_RANK",
        "HOROVOD_CROSS_SIZE",
        "GROUP_RANK",
    ]
    found = [[env[name] for name in names] for _, env in sorted(environments(done.stdout).items())]
    assert found == [
        ["localhost", "0", "0", "2", "0"],
        ["localhost", "1", "0", "1", "0"],
        ["127.0.0.1", "0", "1", "2", "1"],
    ]


def test_streams_stay_apart_and_partial_lines_come_out(horovodrun):
    code = "import sys; sys.stdout.write('out\\nno end'); sys.stderr.write('err')"
    done = horovodrun.run("-np", "1", *horovodrun.script(code))
    assert done.stdout == b"[0]<stdout>:out\n[0]<stdout>:no end\n"
    assert done.stderr == b"[0]<stderr>:err\n"


def test_progress_bars_and_binary_output(horovodrun):
    code = r"import os; os.write(1, b'10%\r20%\r\nx\xff\x00y\n\n')"
    done = horovodrun.run("-np", "1", *horovodrun.script(code))
    p = b"[0]<stdout>:"
    assert done.stdout == p + b"10%\r" + p + b"20%\r\n" + p + b"x\xff\x00y\n" + p + b"\n"


def test_a_progress_bar_is_seen_at_once(horovodrun):
    code = r"""
import os, time
os.write(1, b'10%\r')
while not os.path.exists('seen'): time.sleep(0.02)
"""
    command = [*horovodrun.prefix, "-np", "1", *horovodrun.script(code)]
    with subprocess.Popen(
        command, env=horovodrun.env, stdout=subprocess.PIPE, cwd=horovodrun.tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(16) == b"[0]<stdout>:10%\r"
        (horovodrun.tmp_path / "seen").touch()
        assert process.wait() == 0


def test_timestamps(horovodrun):
    done = horovodrun.run("-np", "1", "-prefix-timestamp", *horovodrun.script("print('x')"))
    stamp, label, text = done.stdout.decode().partition("[0]<stdout>:")
    assert (label, text) == ("[0]<stdout>:", "x\n")
    time.strptime(stamp)


@pytest.mark.parametrize(("size", "directories"), [(1, ["rank.0"]), (11, ["rank.00", "rank.10"])])
def test_output_files(horovodrun, tmp_path, size, directories):
    code = r"import os, sys; os.write(1, b'a\xff\r'); os.write(2, os.environ['RANK'].encode())"
    target = tmp_path / "logs"
    done = horovodrun.run("-np", str(size), "--output-filename", str(target), *horovodrun.script(code))
    assert done.returncode == 0
    assert len(list(target.iterdir())) == size
    written = [(target / name / "stdout").read_bytes() for name in directories]
    assert written == [b"a\xff\r"] * len(directories)
    ranks = [(target / name / "stderr").read_bytes() for name in directories]
    assert ranks == [str(int(name.partition(".")[2])).encode() for name in directories]


def test_output_directory_that_cannot_be_made(horovodrun):
    done = horovodrun.run("-np", "1", "--output-filename", "/proc/no/such", *horovodrun.script("print('x')"))
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"/proc/no: No such file" in done.stderr


LOUD = """
import os
rank = os.environ['RANK']
line = (rank * 99 + '\\n').encode()
for _ in range(125):
    os.write(1, line * 1000)
"""


@pytest.mark.parametrize("same_pipe", [False, True])
def test_fifty_megabytes_arrive_whole(horovodrun, same_pipe):
    code = LOUD + "    os.write(2, line)\n" if same_pipe else LOUD
    done = subprocess.run(
        [*horovodrun.prefix, "-np", "4", *horovodrun.script(code)],
        env=horovodrun.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if same_pipe else subprocess.PIPE,
        timeout=100,
        check=True,
    )
    expected = {f"[{r}]<stdout>:{str(r) * 99}".encode(): 125_000 for r in range(4)}
    if same_pipe:
        expected |= {f"[{r}]<stderr>:{str(r) * 99}".encode(): 125 for r in range(4)}
    assert collections.Counter(done.stdout.split(b"\n")[:-1]) == expected


def test_a_reader_that_leaves_does_not_end_the_job(horovodrun, tmp_path):
    code = LOUD + f"open(r'{tmp_path}/done.' + rank, 'w').close()\n"
    command = " ".join([*horovodrun.prefix, "-np", "2", *horovodrun.script(code)])
    shell = f"{{ {command}; echo code $? >&2; }} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", shell], env=horovodrun.env, capture_output=True, timeout=60, check=False
    )
    assert done.stdout.startswith(b"[")
    lost = b"horovodrun: standard output is lost from here on: nobody reads it any more; the job goes on\n"
    assert done.stderr == lost + b"code 0\n"
    assert (tmp_path / "done.0").exists()
    assert (tmp_path / "done.1").exists()


def test_a_full_disk_is_told_and_does_not_end_the_job(horovodrun):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*horovodrun.prefix, "-np", "1", *horovodrun.script("print('x')")],
            env=horovodrun.env,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        0,
        b"horovodrun: standard output is lost from here on: No space left on device; the job goes on\n",
    )


def test_closed_standard_descriptors(horovodrun, tmp_path):
    code = f"print('x'); open(r'{tmp_path}/done', 'w').close()"
    command = " ".join([*horovodrun.prefix, "-np", "1", *horovodrun.script(code)])
    done = subprocess.run(
        ["bash", "-c", command + " <&- >&- 2>&-"], env=horovodrun.env, timeout=60, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, ["-np is missing"]),
        (["-np", "2"], 2, ["command is missing"]),
        (["-np", "none", "ls"], 2, ["-np", "'none'", "whole number"]),
        (["-np", "1", "--no-such", "ls"], 2, ["--no-such"]),
        (["-np", "1", "--cycle-time-ms", "-1", "ls"], 2, ["--cycle-time-ms", "'-1'", ">= 0"]),
        (["-np", "1", "-H", "far.example:1", "ls"], 2, ["far.example", "not available yet"]),
        (["-np", "1", "-H", "localhost", "ls"], 2, ["'localhost'", "host:slots"]),
        (["-np", "9", "-H", "localhost:2", "ls"], 2, ["9 processes", "2 slots"]),
        (["-np", "1", "no-such-command"], 127, ["no-such-command", "not found"]),
        (["-np", "1", "./no/such/command"], 127, ["./no/such/command", "not found"]),
        (["-np", "1", "/etc/passwd"], 126, ["/etc/passwd", "cannot be executed"]),
        (["-np", "1", "/etc"], 126, ["/etc", "cannot be executed"]),
    ],
)
def test_mistakes_are_told_in_one_line(horovodrun, arguments, code, words):
    done = horovodrun.run(*arguments)
    text = done.stderr.decode()
    assert (done.returncode, done.stdout, text.count("\n")) == (code, b"", 1)
    assert text.startswith("horovodrun: error: ")
    assert [word for word in words if word not in text] == []


def test_a_wrong_variable_is_told_once(horovodrun):
    done = horovodrun.run("-np", "4", "ls", env={"HOROVOD_CACHE_CAPACITY": "many"})
    assert done.returncode == 2
    assert done.stderr.decode().count("HOROVOD_CACHE_CAPACITY='many'") == 1


def test_a_file_that_is_no_program(horovodrun, tmp_path):
    file = tmp_path / "program"
    file.write_bytes(b"\x00\x01\x02")
    file.chmod(0o755)
    done = horovodrun.run("-np", "1", str(file))
    assert done.returncode == 126
    assert b"Exec format error" in done.stderr


@pytest.mark.parametrize(
    ("flag", "word"), [("--help", b"--num-proc"), ("-h", b"usage:"), ("--version", b".")]
)
def test_information(horovodrun, flag, word):
    done = horovodrun.run(flag)
    assert (done.returncode, done.stderr) == (0, b"")
    assert word in done.stdout


def test_the_commands_options_are_its_own(horovodrun):
    command = horovodrun.script("import sys; print(sys.argv[1:])")
    done = horovodrun.run("--num-proc=1", *command, "--help", "--log", "-np", "7", "--a_b", "--")
    assert done.stdout.decode() == "[0]<stdout>:['--help', '--log', '-np', '7', '--a_b', '--']\n"


def test_verbose_tells_of_the_threads(horovodrun):
    horovodrun.env.pop("OMP_NUM_THREADS", None)
    done = horovodrun.run("-np", "2", "--verbose", "--gloo", *horovodrun.script(""))
    assert done.returncode == 0
    assert b"OMP_NUM_THREADS" in done.stderr


def test_ranks_see_ordinary_signals_and_no_stray_descriptors(horovodrun):
    code = """
import os, signal
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(0, []))
fds = []
for fd in range(3, 64):
    try: fds.append(os.readlink(f'/proc/self/fd/{fd}'))
    except OSError: pass
print([f for f in fds if f.startswith('pipe')])
"""
    done = horovodrun.run("-np", "2", *horovodrun.script(code))
    lines = sorted(line.partition(b">:")[2] for line in done.stdout.splitlines())
    assert lines == [b"True set()"] * 2 + [b"[]"] * 2


def test_secrets_and_jobs_are_not_on_command_lines(horovodrun):
    code = "import os; print(open('/proc/self/cmdline').read().count(os.environ['HOROVOD_JOB_ID']))"
    done = horovodrun.run("-np", "1", *horovodrun.script(code))
    assert done.stdout == b"[0]<stdout>:0\n"


def test_importing_the_launcher_loads_no_framework_and_no_native_code():
    code = "import sys, horovod.runner.cli as c; print([m for m in sys.modules if m in sys.argv])"
    heavy = ["torch", "tensorflow", "jax", "numpy", "yaml", "psutil", "horovod._native", "horovod._core"]
    env = {**os.environ, "PYTHONPATH": str(Path(__import__("horovod").__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code, *heavy], env=env, capture_output=True, timeout=60, check=True
    )
    assert done.stdout == b"[]\n"
