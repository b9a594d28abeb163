"""Where the members of a group find each other: a directory that belongs to them alone."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from horovod.torch._groups import directory_of, make_directory, meet
from horovod.torch._streams import AbandonedError


def test_it_is_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "place"
    make_directory(str(path))
    make_directory(str(path))  # as the next member finds it
    assert path.stat().st_mode & 0o777 == 0o700


def _readable(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


def _link(path: Path) -> None:
    path.with_name("elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize("prepare", [_readable, _link])
def test_another_one_is_refused(tmp_path: Path, prepare: object) -> None:
    path = tmp_path / "place"
    prepare(path)  # type: ignore[operator]
    with pytest.raises(PermissionError, match="place"):
        make_directory(str(path))


def test_it_has_a_name_for_every_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/somewhere")
    assert directory_of("key", 7) == "/somewhere/horovod-key-7"


def test_all_come(tmp_path: Path) -> None:
    path = str(tmp_path / "place")
    members = [threading.Thread(target=meet, args=(path, i, 3, lambda: True, 60.0)) for i in range(3)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    assert sorted(os.listdir(path)) == ["0", "1", "2"]


def test_one_does_not_come(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"1 of 2 ranks.*TMPDIR"):
        meet(str(tmp_path / "place"), 0, 2, lambda: True, 0.05)


def test_nobody_waits_for_a_group_that_is_not_wanted(tmp_path: Path) -> None:
    with pytest.raises(AbandonedError):
        meet(str(tmp_path / "place"), 0, 2, lambda: False, 60.0)
