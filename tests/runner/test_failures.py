"""A rank fails: the rest end, the exit code says how, and the last lines say who, how and why."""

from __future__ import annotations

import pytest

RAISE = """
import os, sys, time
def step(): raise ValueError('the cause')
if os.environ['RANK'] == '1': step()
time.sleep(60)
"""


def report(stderr: bytes) -> list[str]:
    """The launcher's last word: everything from its first own line on."""
    lines = stderr.decode().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("horovodrun: rank"))
    return lines[start:]


def test_the_first_failure_is_reported(horovodrun):
    done = horovodrun.run("-np", "3", *horovodrun.script(RAISE))
    horovodrun.wait_until_all_gone()
    lines = report(done.stderr)
    assert done.returncode == 1
    assert lines[0].startswith("horovodrun: rank 1 failed first: exit code 1 (host ")
    assert ", pid " in lines[0]
    assert "  | ValueError: the cause" in lines
    assert "step()" in "".join(lines)
    assert lines[-1] == "horovodrun: exit code 1; after it ended: 2 ranks: 0, 2"
    assert len(lines) <= 15


@pytest.mark.parametrize(
    ("act", "code", "words"),
    [
        ("sys.exit(7)", 7, "exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, "killed by SIGKILL (9)"),
        ("os.kill(os.getpid(), 11)", 139, "killed by SIGSEGV (11)"),
        ("os.abort()", 134, "killed by SIGABRT (6)"),
    ],
)
def test_exit_codes(horovodrun, act, code, words):
    done = horovodrun.run(
        "-np", "2", *horovodrun.script(f"import os, sys, time\nif os.environ['RANK'] == '0': {act}")
    )
    lines = report(done.stderr)
    assert done.returncode == code
    assert words in lines[0]
    assert "rank 0" in lines[0]
    assert lines[-1] == f"horovodrun: exit code {code}"


LONG_TRACEBACK = """
import sys
def down(n):
    if n == 0:
        raise RuntimeError('deep\\n' + 'x' * 5000)
    a = n; down(n - 1)
for i in range(200): print('noise', i, file=sys.stderr)
exec(compile('\\n' * 5 + 'def up(n):\\n  return down(n) if n % 2 else up(n - 1)', 'f', 'exec'))
up(6)
"""


def test_a_long_traceback_is_cut_to_fifteen_lines(horovodrun):
    done = horovodrun.run("-np", "4", *horovodrun.script(LONG_TRACEBACK))
    lines = report(done.stderr)
    assert len(lines) <= 15
    assert max(map(len, lines)) < 250
    assert any("RuntimeError: deep" in line for line in lines)


def test_survivors_that_report_the_lost_peer_are_not_blamed(horovodrun):
    code = """
import os, signal, sys, time
class PeerLostError(RuntimeError): pass
PeerLostError.__module__ = 'horovod.exceptions'
flag = os.path.join(os.path.dirname(__file__), 'pid')
if os.environ['RANK'] == '1':
    with open(flag + '.new', 'w') as f: f.write(str(os.getpid()))
    os.rename(flag + '.new', flag)
    time.sleep(60)
while not os.path.exists(flag): time.sleep(0.01)
if os.environ['RANK'] == '0':
    os.kill(int(open(flag).read()), signal.SIGKILL)
raise PeerLostError('rank 1 was lost')
"""
    done = horovodrun.run("-np", "3", *horovodrun.script(code))
    lines = report(done.stderr)
    assert done.returncode == 137
    assert lines[0].startswith("horovodrun: rank 1 failed first: killed by SIGKILL (9)")
    assert "PeerLostError" not in "".join(lines)
    assert lines[-1] == "horovodrun: exit code 137; after it ended: 2 ranks: 0, 2"


def test_the_grace_lets_survivors_speak(horovodrun):
    code = """
import os, sys, time
if os.environ['RANK'] == '1': sys.exit(3)
time.sleep(1)
print('I saw it')
sys.exit(4)
"""
    done = horovodrun.run("-np", "2", *horovodrun.script(code))
    assert done.stdout == b"[0]<stdout>:I saw it\n"
    assert done.returncode == 3


def test_a_rank_that_ignores_sigterm_is_killed(horovodrun):
    code = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.path.join(os.path.dirname(__file__), 'up.' + os.environ['RANK']), 'w').close()
while not os.path.exists(os.path.join(os.path.dirname(__file__), 'up.0')): time.sleep(0.01)
if os.environ['RANK'] == '1': sys.exit(5)
time.sleep(300)
"""
    done = horovodrun.run("-np", "2", *horovodrun.script(code))
    horovodrun.wait_until_all_gone()
    assert done.returncode == 5


def test_an_early_success_is_no_failure(horovodrun):
    code = "import os, time\nif os.environ['RANK'] == '0': time.sleep(3)\nprint('done')"
    done = horovodrun.run("-np", "2", *horovodrun.script(code))
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(done.stdout.splitlines()) == [b"[0]<stdout>:done", b"[1]<stdout>:done"]


def test_a_silent_failure(horovodrun):
    done = horovodrun.run("-np", "1", "false")
    assert done.returncode == 1
    assert "  (it wrote nothing to standard error)" in report(done.stderr)


def test_what_a_rank_leaves_running_is_ended(horovodrun):
    code = """
import subprocess, sys
subprocess.Popen(['sleep', '300'], start_new_session=True)
subprocess.Popen([sys.executable, '-S', '-c',
                  'import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(300)'])
print('bye')
"""
    done = horovodrun.run("-np", "2", *horovodrun.script(code))
    horovodrun.wait_until_all_gone()
    assert (done.returncode, done.stderr) == (0, b"")
