"""How long to spin: a function of the CPUs there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod._core.spinning import AUTOMATIC, cgroup_cpus, spin_microseconds, usable_cpus


@pytest.mark.parametrize(
    ("setting", "ranks", "cpus", "spins"),
    [
        (AUTOMATIC, 2, 2.0, True),
        (AUTOMATIC, 2, 8.0, True),
        (AUTOMATIC, 4, 4.0, True),
        (AUTOMATIC, 3, 2.0, False),
        (AUTOMATIC, 2, 1.0, False),
        (AUTOMATIC, 2, 1.5, False),
        (AUTOMATIC, 1, 1.0, False),
        (AUTOMATIC, 64, 63.9, False),
        (100, 64, 1.0, True),
        (0, 1, 64.0, False),
    ],
)
def test_spins_only_where_nobody_else_wants_the_cpu(
    setting: int, ranks: int, cpus: float, spins: bool
) -> None:
    assert (spin_microseconds(setting, ranks, cpus) > 0) is spins


@pytest.mark.parametrize("setting", [0, 1, 12345])
def test_the_setting_is_taken_as_it_is(setting: int) -> None:
    assert spin_microseconds(setting, 7, 0.5) == setting


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "garbage"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "50000\n"}, None),
    ],
    ids=str,
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], cpus: float | None) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cgroup_cpus(tmp_path) == cpus


def test_this_machine_has_a_cpu() -> None:
    assert usable_cpus() > 0
