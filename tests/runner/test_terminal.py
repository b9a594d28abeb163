"""A job on a real terminal: Ctrl-C as a key, once and twice, and the terminal closed. Nothing may be left."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

# The session's leader takes its standard input as terminal, as a shell's window does.
ON_TERMINAL = """
import fcntl, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
"""

TELLS = """
import os, signal, sys, time
here, rank = os.path.dirname(os.path.abspath(__file__)), os.environ['RANK']
def on(signum, frame):
    open(f'{here}/got.{signal.Signals(signum).name}.{rank}', 'w').close()
    sys.exit(0)
signal.signal(signal.SIGHUP, on)
signal.signal(signal.SIGINT, on)
open(f'{here}/up.{rank}', 'w').close()
time.sleep(300)
"""

DEAF = """
import os, signal, time
here = os.path.dirname(os.path.abspath(__file__))
for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)
open(f'{here}/up.' + os.environ['RANK'], 'w').close()
time.sleep(300)
"""


class Terminal:
    """The master's side of a pseudo terminal, read all the time as a window is."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._over = threading.Event()

    def start(self, command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command, env=env, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True
        )
        os.close(self.slave)
        self._reader.start()
        return process

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the last process on the terminal has ended
            while not self._over.is_set():
                if select.select([self.master], [], [], 0.05)[0]:
                    self._shown += os.read(self.master, 4096)

    def close(self) -> None:
        """Close the window; nobody may be reading while that happens."""
        if not self._over.is_set():
            self._over.set()
            self._reader.join()
            os.close(self.master)

    def press(self, key: bytes) -> None:
        os.write(self.master, key)

    def text(self) -> str:
        return self._shown.decode()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal, closed after the test."""
    terminal = Terminal()
    yield terminal
    terminal.close()


def start(horovodrun, terminal, code, *options):
    wrapper = horovodrun.tmp_path / "on_terminal.py"
    wrapper.write_text(ON_TERMINAL)
    python, entry = horovodrun.prefix
    command = [python, str(wrapper), entry, "-np", "2", *options, *horovodrun.script(code)]
    process = terminal.start(command, horovodrun.env)
    horovodrun.wait_for_files("up.0", "up.1")
    return process


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_ctrl_c(horovodrun, terminal):
    with start(horovodrun, terminal, TELLS) as process:
        terminal.press(b"\x03")
        assert process.wait(20) == 130
    until(lambda: "interrupted by SIGINT; all ranks have ended" in terminal.text())
    assert (horovodrun.tmp_path / "got.SIGINT.0").exists()
    assert (horovodrun.tmp_path / "got.SIGINT.1").exists()
    horovodrun.wait_until_all_gone()


def test_ctrl_c_twice(horovodrun, terminal):
    with start(horovodrun, terminal, DEAF, "--verbose") as process:
        terminal.press(b"\x03")
        until(lambda: "forwarding SIGINT" in terminal.text())
        time.sleep(0.5)  # two at once are one wish
        terminal.press(b"\x03")
        assert process.wait(20) == 130
    until(lambda: "interrupted a second time: sending SIGKILL" in terminal.text())
    assert "sending SIGTERM" not in terminal.text()
    horovodrun.wait_until_all_gone()


def test_the_terminal_is_closed(horovodrun, terminal):
    with start(horovodrun, terminal, TELLS) as process:
        terminal.close()
        assert process.wait(20) == 129
    assert (horovodrun.tmp_path / "got.SIGHUP.0").exists()
    assert (horovodrun.tmp_path / "got.SIGHUP.1").exists()
    horovodrun.wait_until_all_gone()


def test_the_terminal_is_closed_on_deaf_ranks(horovodrun, terminal):
    with start(horovodrun, terminal, DEAF) as process:
        terminal.close()
        assert process.wait(60) == 129
    horovodrun.wait_until_all_gone()
