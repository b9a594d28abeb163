"""Limits and counters of a cgroup, of both versions, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.runner.cgroup import Cgroup


def machine(tmp_path: Path, cgroup: str, files: dict[str, str], vmstat: str = "") -> Cgroup:
    for name, text in {"proc/self/cgroup": cgroup, "proc/vmstat": vmstat, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Cgroup(tmp_path / "proc", tmp_path / "sys")


V1 = "4:memory:/a/b\n3:cpu,cpuacct:/a\n1:name=systemd:/\n0::/\n"
V2 = "0::/a/b\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "vmstat", "kills"),
    [
        (V2, {"sys/a/b/memory.events": "low 0\noom 9\noom_kill 3\noom_group_kill 0\n"}, "oom_kill 7\n", 10),
        (V1, {"sys/memory/a/b/memory.oom_control": "oom_kill_disable 0\noom_kill 2\n"}, "oom_kill 7\n", 9),
        (V2, {"sys/memory.events": "oom_kill 4\n"}, "oom_kill 7\n", 11),
        (V2, {}, "nr_free 1\noom_kill 7\n", 7),
        ("", {}, "", 0),
    ],
)
def test_oom_kills(tmp_path, cgroup, files, vmstat, kills):
    assert machine(tmp_path, cgroup, files, vmstat).oom_kills() == kills


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        (V2, {"sys/a/b/memory.max": "max\n", "sys/a/memory.max": "1000\n"}, 1000),
        (V2, {"sys/a/b/memory.max": "max\n"}, None),
        (V1, {"sys/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        (
            V1,
            {"sys/memory/a/b/memory.limit_in_bytes": "2000\n", "sys/memory/memory.limit_in_bytes": "3000"},
            2000,
        ),
        ("", {}, None),
    ],
)
def test_memory_limit(tmp_path, cgroup, files, limit):
    assert machine(tmp_path, cgroup, files).memory_limit() == limit


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        (V2, {"sys/a/b/cpu.max": "max 100000\n", "sys/a/cpu.max": "150000 100000\n"}, 1.5),
        (V2, {"sys/a/b/cpu.max": "max 100000\n"}, None),
        (
            V1,
            {"sys/cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n", "sys/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"},
            None,
        ),
        (
            V1,
            {
                "sys/cpu,cpuacct/a/cpu.cfs_quota_us": "50000\n",
                "sys/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        ("", {}, None),
    ],
)
def test_cpu_quota(tmp_path, cgroup, files, quota):
    assert machine(tmp_path, cgroup, files).cpu_quota() == quota


def test_this_machine():
    assert Cgroup().oom_kills() >= 0
