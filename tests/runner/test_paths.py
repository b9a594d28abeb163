"""Module paths of the original below ``horovod.runner``."""

from __future__ import annotations

import os
import subprocess

import psutil
import pytest

from horovod.runner import cli, launch
from horovod.runner.common.util import env


def test_the_command_line() -> None:
    assert launch.run_commandline is cli.main
    options = launch.parse_args(["-np", "2", "--verbose", "python", "train.py"])
    assert (options.num_proc, options.verbose, options.command) == (2, True, ["python", "train.py"])


def test_running_what_was_parsed(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch._run(launch.parse_args(["-np", "2", "sh", "-c", "exit 3"])) == 3
    assert "failed first: exit code 3" in capfd.readouterr().err


def test_the_caller_adopts_no_orphans_afterwards() -> None:
    """It would never hear of their end, and they would stay as zombies."""
    launch._run(launch.parse_args(["-np", "1", "true"]))
    shown = subprocess.run(["sh", "-c", "sleep 60 >/dev/null & echo $!"], capture_output=True, check=True)
    orphan = psutil.Process(int(shown.stdout))
    try:
        assert orphan.ppid() != os.getpid()
    finally:
        orphan.kill()


def test_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    launch.check_build()
    assert "Available Frameworks:" in capsys.readouterr().out


def test_a_wrong_command_line_ends_the_program() -> None:
    with pytest.raises(SystemExit, match="-np is missing"):
        launch.parse_args(["python"])


def test_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        launch.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "3", "PMI_RANK": "0", "PMI_SIZE": "1"}, (1, 3)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
    ],
)
def test_rank_and_size(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: tuple[int, int]
) -> None:
    monkeypatch.setattr("os.environ", variables)
    assert env.get_env_rank_and_size() == expected


def test_half_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"PMI_SIZE": "2"})
    with pytest.raises(RuntimeError, match="PMI_SIZE but not PMI_RANK"):
        env.get_env_rank_and_size()
