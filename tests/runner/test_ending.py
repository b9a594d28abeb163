"""The end from outside: Ctrl-C, SIGTERM, the launcher or a guardian killed. Nothing may be left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from horovod.runner.processes import descendants

STUBBORN_FAMILY = """
import os, signal, subprocess, sys, time
here = os.path.dirname(os.path.abspath(__file__))
sleeper = [sys.executable, '-S', '-c', 'import time; time.sleep(300)']
deaf = [sys.executable, '-S', '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(300)']
subprocess.Popen(sleeper, start_new_session=True)
subprocess.Popen(deaf)
if os.fork() == 0:            # a daemon: its parent is gone, its session is its own
    os.setsid()
    if os.fork() == 0:
        open(f'{here}/daemon.' + os.environ['RANK'], 'w').close()
        time.sleep(300)
    os._exit(0)
os.wait()
open(f'{here}/up.' + os.environ['RANK'], 'w').close()
time.sleep(300)
"""

HANDLES = """
import os, signal, sys, time
here = os.path.dirname(os.path.abspath(__file__))
def on(signum, frame):
    print('got', signal.Signals(signum).name)
    sys.exit(0)
for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT): signal.signal(s, on)
try:
    open(f'{here}/up.' + os.environ['RANK'], 'w').close()
    time.sleep(300)
except KeyboardInterrupt:
    print('got SIGINT')
"""

DEAF = """
import os, signal, time
here = os.path.dirname(os.path.abspath(__file__))
for s in (2, 15): signal.signal(s, signal.SIG_IGN)
open(f'{here}/up.' + os.environ['RANK'], 'w').close()
time.sleep(300)
"""


def peak_memory_mib(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024


def start(horovodrun, code):
    process = horovodrun.start("-np", "2", *horovodrun.script(code))
    horovodrun.wait_for_files("up.0", "up.1")
    return process


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_are_forwarded_as_they_are(horovodrun, tmp_path, signum):
    with start(horovodrun, HANDLES) as process:
        process.send_signal(signum)
        assert process.wait(30) == 128 + signum
    name = signum.name
    assert sorted((tmp_path / "out").read_text().splitlines()) == [
        f"[{r}]<stdout>:got {name}" for r in (0, 1)
    ]
    assert horovodrun.err().endswith(f"horovodrun: interrupted by {name}; all ranks have ended\n")
    horovodrun.wait_until_all_gone()


EXITS = """
import os, signal, sys, time
here = os.path.dirname(os.path.abspath(__file__))
def on(signum, frame):
    open(f'{here}/saved.' + os.environ['RANK'], 'w').close()
    sys.exit(int(os.environ['RANK']) * 85)
for s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, on)
open(f'{here}/up.' + os.environ['RANK'], 'w').close()
time.sleep(300)
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 85), (signal.SIGINT, 130)])
def test_a_handler_runs_and_its_exit_code_counts(horovodrun, signum, code):
    with start(horovodrun, EXITS) as process:
        process.send_signal(signum)
        assert process.wait(30) == code
    horovodrun.wait_for_files("saved.0", "saved.1")
    assert f"interrupted by {signum.name}; all ranks have ended" in horovodrun.err()
    assert ("; rank 1 ended with exit code 85\n" in horovodrun.err()) == (code == 85)
    horovodrun.wait_until_all_gone()


def test_a_terminals_signal_reaches_only_the_launcher(horovodrun):
    with start(horovodrun, HANDLES) as process:
        groups = {os.getpgid(pid) for pid in horovodrun.marked()}
        sessions = {os.getsid(pid) for pid in horovodrun.marked() if pid != process.pid}
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert len(groups) == 5  # the launcher, two guardians, two ranks
    assert len(sessions) == 4


def test_ranks_that_ignore_ctrl_c_are_ended_later(horovodrun):
    with start(horovodrun, DEAF) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert "sending SIGTERM" in horovodrun.err()
    assert "sending SIGKILL" in horovodrun.err()
    horovodrun.wait_until_all_gone()


def test_a_second_ctrl_c_kills_at_once(horovodrun):
    with start(horovodrun, DEAF) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert "interrupted a second time: sending SIGKILL" in horovodrun.err()
    assert "sending SIGTERM" not in horovodrun.err()
    horovodrun.wait_until_all_gone()


def test_ctrl_c_works_while_nobody_reads_the_output(horovodrun):
    code = "import os, sys\nwhile True: os.write(1, b'x' * 1000 + b'\\n')"
    command = [*horovodrun.prefix, "-np", "2", *horovodrun.script(code)]
    with subprocess.Popen(command, env=horovodrun.env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(100_000)
        time.sleep(1)  # now the pipe is full
        assert peak_memory_mib(process.pid) < 100
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    horovodrun.wait_until_all_gone()


def test_user_signals_are_passed_on_and_end_nothing(horovodrun, tmp_path):
    code = """
import os, signal, subprocess, sys, time
here = os.path.dirname(os.path.abspath(__file__))
child = subprocess.Popen(['sleep', '300'])  # dies of SIGUSR1, were it to get it
signal.signal(signal.SIGUSR1, lambda *_: None)
open(f'{here}/up.' + os.environ['RANK'], 'w').close()
signal.pause()
print('checkpoint', child.poll())
"""
    with start(horovodrun, code) as process:
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == 0
    assert sorted((tmp_path / "out").read_text().splitlines()) == [
        f"[{r}]<stdout>:checkpoint None" for r in (0, 1)
    ]


def test_nohup_is_respected(horovodrun):
    command = [
        "nohup",
        sys.executable,
        "-m",
        "horovod.runner.cli",
        "-np",
        "1",
        *horovodrun.script(HANDLES.replace("signal.SIGHUP, ", "")),
    ]
    with subprocess.Popen(
        command,
        env=horovodrun.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        horovodrun.wait_for_files("up.0")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143


def test_sigkill_of_the_launcher_ends_everything(horovodrun):
    with start(horovodrun, STUBBORN_FAMILY) as process:
        horovodrun.wait_for_files("daemon.0", "daemon.1")
        assert len(horovodrun.marked()) == 1 + 2 * (1 + 4)
        process.kill()
    horovodrun.wait_until_all_gone()


def test_sigkill_of_the_launcher_ends_stopped_ranks(horovodrun):
    with start(horovodrun, STUBBORN_FAMILY) as process:
        ranks = [pid for pid in descendants(process.pid) if os.getsid(pid) == pid]
        stopped = [os.kill(pid, signal.SIGSTOP) for pid in descendants(process.pid) if pid not in ranks]
        process.kill()
        assert stopped
    horovodrun.wait_until_all_gone()


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_a_stubborn_family(horovodrun, times):
    with start(horovodrun, STUBBORN_FAMILY) as process:
        process.send_signal(signal.SIGINT)
        if times == 2:
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert horovodrun.marked() == []


def test_sigkill_of_a_guardian_ends_its_rank_and_the_job(horovodrun):
    with start(horovodrun, STUBBORN_FAMILY) as process:
        guardian = next(pid for pid in descendants(process.pid) if _parent(pid) == process.pid)
        os.kill(guardian, signal.SIGKILL)
        assert process.wait(60) == 137
    assert "guardian" in horovodrun.err()
    horovodrun.wait_until_all_gone()


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


NESTED = """
import json, os, subprocess, sys
import numpy as np
import horovod.numpy as hvd
hvd.init()
deep = int(sys.argv[1])
told = {'job': os.environ['HOROVOD_JOB_ID'], 'size': hvd.size()}
told['sum'] = float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
if deep:
    inner = [sys.executable, '-m', 'horovod.runner.cli', '-np', '3', sys.executable, __file__, '0']
    done = subprocess.run(inner, capture_output=True, text=True)
    told['inner'] = sorted(line.partition('>:')[2] for line in done.stdout.splitlines())
    told['err'], told['code'] = done.stderr, done.returncode
told['again'] = float(hvd.allreduce(np.full(1, 2.0), op=hvd.Sum)[0])
print(json.dumps(told))
"""


def test_a_job_inside_each_rank_of_a_job(horovodrun):
    script = horovodrun.script(NESTED)[-1]
    done = horovodrun.run("-np", "2", sys.executable, script, "1")
    assert (done.returncode, done.stderr) == (0, b"")
    outer = [json.loads(line.partition(b">:")[2]) for line in done.stdout.splitlines()]
    assert [(o["sum"], o["again"], o["size"], o["err"], o["code"]) for o in outer] == [
        (2.0, 4.0, 2, "", 0)
    ] * 2
    inner = [json.loads(line) for o in outer for line in o["inner"]]
    assert [(i["sum"], i["again"], i["size"]) for i in inner] == [(3.0, 6.0, 3)] * 6
    jobs = [o["job"] for o in outer] + [i["job"] for i in inner]
    assert sorted(jobs.count(job) for job in set(jobs)) == [2, 3, 3]


def test_a_job_inside_a_job(horovodrun):
    inner = [*horovodrun.prefix, "-np", "2", *horovodrun.script(STUBBORN_FAMILY)]
    with start_outer(horovodrun, inner) as process:
        process.kill()
    horovodrun.wait_until_all_gone()


def start_outer(horovodrun, inner):
    process = horovodrun.start("-np", "1", *inner)
    horovodrun.wait_for_files("up.0", "up.1")
    return process
