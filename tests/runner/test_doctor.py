"""``--doctor``: what each check says when all is well, and when it is not."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from horovod.runner.doctor import (
    Finding,
    Level,
    _run,
    examine,
    kernel,
    limits,
    software,
    variables,
    write_down,
)
from horovod.runner.frameworks import FRAMEWORKS, Found

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM
MIB = 1 << 20
INFINITE = resource.RLIM_INFINITY


def fail(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize("check", kernel.CHECKS, ids=lambda check: check.__name__)
def test_this_machine_can_do_it(check):
    finding = check()
    assert finding.level is OK, finding


@pytest.mark.parametrize(
    ("check", "level", "advice"),
    [
        (kernel.memfd, WARNING, "sockets"),
        (kernel.pidfd, WARNING, "pidfd_open"),
        (kernel.futex, PROBLEM, "HOROVOD_CPU_OPERATIONS=tcp"),
        (kernel.eventfd, PROBLEM, "eventfd2"),
        (kernel.unix_sockets, PROBLEM, "SCM_RIGHTS"),
        (kernel.dev_shm, WARNING, "--shm-size"),
        (kernel.loopback, WARNING, "ip link set lo up"),
    ],
)
def test_what_the_kernel_refuses(check, level, advice):
    finding = check(fail)
    assert (finding.level, "Operation not permitted" in finding.found) == (level, True)
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("space", "level"),
    [((64 * MIB, 64 * MIB), WARNING), ((1 << 30, 8 * MIB), WARNING), ((1 << 30, 1 << 29), OK)],
)
def test_dev_shm(space, level):
    assert kernel.dev_shm(lambda: space).level is level


@pytest.mark.parametrize(
    ("check", "soft", "level"),
    [
        (limits.open_files, INFINITE, OK),
        (limits.open_files, 1024, OK),
        (limits.open_files, 1023, WARNING),
        (limits.open_files, 63, PROBLEM),
        (limits.processes, INFINITE, OK),
        (limits.processes, 255, WARNING),
        (limits.file_size, INFINITE, OK),
        (limits.file_size, MIB, WARNING),
        (limits.locked_memory, 0, OK),
        (limits.address_space, INFINITE, OK),
        (limits.address_space, 1 << 30, WARNING),
    ],
)
def test_limits(check, soft, level):
    finding = check(lambda _: (soft, INFINITE))
    assert (finding.level, bool(finding.advice)) == (level, level is not OK)
    assert ("unlimited" in finding.found) >= (soft == INFINITE)


@pytest.mark.parametrize(
    ("affinity", "count", "quota", "level", "found"),
    [
        ({0, 1}, 2, None, OK, "2 of 2 may be used"),
        ({0, 1}, 8, 4.0, OK, "2 of 8 may be used, with a quota of 4 (cgroup)"),
        ({0, 1, 2, 3}, 4, 1.5, WARNING, "4 of 4 may be used, with a quota of 1.5 (cgroup)"),
        ({0}, 4, None, WARNING, "1 of 4 may be used"),
    ],
)
def test_cpus(affinity, count, quota, level, found):
    finding = limits.cpus(lambda: affinity, lambda: count, lambda: quota)
    assert (finding.level, finding.found) == (level, found)


MEMINFO = "MemTotal:        8388608 kB\nMemFree: 1 kB\nMemAvailable:    {} kB\n"


@pytest.mark.parametrize(
    ("available", "limit", "level", "found"),
    [
        (4 << 20, None, OK, "8192 MiB, 4096 MiB available"),
        (4 << 20, 1 << 40, OK, "8192 MiB, 4096 MiB available"),
        (4 << 20, 256 * MIB, WARNING, "8192 MiB, 4096 MiB available, 256 MiB for this cgroup"),
        (100 << 10, None, WARNING, "8192 MiB, 100 MiB available"),
    ],
)
def test_memory(available, limit, level, found):
    finding = limits.memory(lambda: MEMINFO.format(available), lambda: limit)
    assert (finding.level, finding.found) == (level, found)


@pytest.mark.parametrize(("read", "word"), [(lambda: "1\n", "yama 1"), (fail, "no yama")])
def test_ptrace_scope_is_told(read, word):
    finding = limits.ptrace_scope(read)
    assert (finding.level, finding.found.startswith(word)) == (OK, True)


@pytest.mark.parametrize(("version", "level"), [((3, 10, 9), PROBLEM), ((3, 11, 0), OK), ((3, 14, 1), OK)])
def test_python(version, level):
    assert software.python(version).level is level


@pytest.mark.parametrize(
    ("index", "version", "frontend", "level", "words"),
    [
        (0, "2.1", True, OK, "numpy 2.1, use horovod.numpy"),
        (0, None, True, WARNING, "not installed"),
        (2, None, False, OK, "not installed"),
        (2, "2.4", False, WARNING, "torch 2.4, no frontend"),
        (2, "2.4", True, OK, "torch 2.4, use horovod.torch"),
    ],
)
def test_frameworks(index, version, frontend, level, words):
    one = FRAMEWORKS[index]
    finding = software.framework(one, lambda _: Found(one, one.distributions[0], version, frontend))
    assert (finding.level, finding.found, bool(finding.advice)) == (level, words, level is not OK)


def never(_: str) -> str:
    raise subprocess.TimeoutExpired("mpirun", 20)


@pytest.mark.parametrize(
    ("path", "version", "level", "words"),
    [
        (None, never, OK, "not found"),
        (
            "/a/mpirun",
            lambda _: "mpirun (Open MPI) 5.0.8\n\nReport bugs",
            OK,
            "Open MPI (mpirun (Open MPI) 5.0.8)",
        ),
        ("/a/mpirun", lambda _: "HYDRA build details:\n", OK, "MPICH"),
        ("/a/mpirun", lambda _: "Intel(R) MPI Library for Linux\n", OK, "Intel MPI"),
        ("/a/mpirun", lambda _: "", OK, "unknown kind"),
        ("/a/mpirun", never, WARNING, "does not run"),
        ("/a/mpirun", fail, WARNING, "does not run"),
    ],
)
def test_mpirun(path, version, level, words):
    finding = software.mpirun(lambda: path, version)
    assert finding.level is level
    assert words in finding.found


@pytest.mark.parametrize(
    ("check", "there"), [(software.mpi4py, lambda *_: "4.1"), (software.ssh, lambda: "/ssh")]
)
def test_what_is_not_needed_is_told(check, there):
    assert check(there).level is OK
    missing = check(lambda *_: None)
    assert (missing.level, "not needed" in missing.found) == (OK, True)


@pytest.mark.parametrize(
    ("check", "environ", "level", "words"),
    [
        (variables.settings, {}, OK, "none set"),
        (variables.settings, {"HOROVOD_CYCLE_TIME": "2"}, OK, "HOROVOD_CYCLE_TIME=2"),
        (variables.settings, {"HOROVOD_CYCLE_TIME": "x"}, PROBLEM, "HOROVOD_CYCLE_TIME='x'"),
        (variables.leftovers, {"HOME": "/"}, OK, "none"),
        (variables.leftovers, {"HOROVOD_RANK": "0"}, WARNING, "unset HOROVOD_RANK"),
        (variables.leftovers, {"PMI_RANK": "0", "WORLD_SIZE": "2"}, WARNING, "unset PMI_RANK WORLD_SIZE"),
        (variables.unknown, {"HOROVOD_CYCLE_TIME": "x", "HOROVOD_RANK": "0"}, OK, "none"),
        (variables.unknown, {"HOROVOD_CYCLETIME": "1"}, WARNING, "did you mean HOROVOD_CYCLE_TIME?"),
        (variables.unknown, {"HOROVOD_AUTOTUNE": "1"}, WARNING, "not available yet"),
        (variables.unknown, {"HOROVOD_ZEBRA": "1"}, WARNING, "HOROVOD_ZEBRA: it is not known"),
    ],
)
def test_variables(check, environ, level, words):
    finding = check(environ)
    assert finding.level is level
    assert words in f"{finding.found} {finding.advice}"


def test_a_check_that_fails_is_a_finding():
    def odd_check() -> Finding:
        raise KeyError("x")

    assert _run(odd_check) == Finding("odd check", WARNING, "could not be checked: KeyError: 'x'")


def test_what_is_written():
    findings = [Finding("a", OK, "fine"), Finding("long name", PROBLEM, "bad", "mend it")]
    assert write_down(findings).splitlines() == [
        "ok       a          fine",
        "problem  long name  bad",
        "                    -> mend it",
        "",
        "2 checks: 1 ok, 0 warnings, 1 problem",
    ]


def test_the_documented_checks_are_those_there_are():
    text = (Path(__file__).parents[2] / "docs/launchers/horovodrun.md").read_text()
    table = text.partition("| check | warning | problem |\n")[2].partition("\n\n")[0]
    documented = [name for row in table.splitlines()[1:] for name in row.split("|")[1].strip().split(", ")]
    report = examine({})[0].partition("\n\n")[0]
    names = [line[9:].partition("  ")[0] for line in report.splitlines() if not line.startswith(" ")]
    assert names == documented


def test_nothing_is_left_behind():
    before = sorted(os.listdir("/proc/self/fd"))
    examine(os.environ)
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("env", "code"), [({}, 0), ({"HOROVOD_CYCLE_TIME": "x"}, 1)])
def test_the_exit_code(horovodrun, env, code):
    done = horovodrun.run("--doctor", env=env)
    assert (done.returncode, done.stderr) == (code, b"")
    assert (b"\nproblem " in done.stdout) == bool(code)


def test_a_limit_is_seen(horovodrun):
    command = " ".join([*horovodrun.prefix, "--doctor"])
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 60; ulimit -f 1000; exec {command}"],
        env=horovodrun.env,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"problem  open files              60 (ulimit -n" in done.stdout
    assert b"warning  file size" in done.stdout


def test_no_framework_and_no_engine_is_imported():
    code = """
import sys, os
from horovod.runner.doctor import examine
from horovod.runner.build import describe_build
examine(os.environ), describe_build("1")
print([m for m in ('numpy', 'torch', 'mpi4py', 'horovod._native', 'horovod._core') if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"[]\n"
