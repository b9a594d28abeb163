"""Settings: every variable and flag is declared once, and a wrong value is told with name, value and form."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod._config import Settings, as_environment, settings_table

TABLE = settings_table()


def test_defaults():
    assert Settings.from_env({}) == Settings(
        fusion_threshold=128 << 20,
        cycle_time_ms=0.0,
        cache_capacity=1024,
        spin_us=-1,
        cpu_operations="auto",
        mpi_threads_disable=False,
        thread_affinity=(),
        disable_group_fusion=False,
        dynamic_process_sets=False,
        start_timeout=30.0,
        log_level="warning",
        log_hide_time=False,
        timeline="",
        timeline_mark_cycles=False,
        stall_check_disable=False,
        stall_check_seconds=60.0,
        stall_shutdown_seconds=0.0,
    )


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "0", "fusion_threshold", 0),
        ("HOROVOD_CYCLE_TIME", "2.5", "cycle_time_ms", 2.5),
        ("HOROVOD_CACHE_CAPACITY", " 7 ", "cache_capacity", 7),
        ("HOROVOD_CACHE_CAPACITY", "", "cache_capacity", 1024),
        ("HOROVOD_SPIN_US", "0", "spin_us", 0),
        ("HOROVOD_CPU_OPERATIONS", "TCP", "cpu_operations", "tcp"),
        ("HOROVOD_CPU_OPERATIONS", "gloo", "cpu_operations", "auto"),
        ("HOROVOD_CPU_OPERATIONS", "MPI", "cpu_operations", "mpi"),
        ("HOROVOD_MPI_THREADS_DISABLE", "1", "mpi_threads_disable", True),
        ("HOROVOD_START_TIMEOUT", "600", "start_timeout", 600.0),
        ("HOROVOD_LOG_LEVEL", "DEBUG", "log_level", "debug"),
        ("HOROVOD_LOG_HIDE_TIME", "1", "log_hide_time", True),
        ("HOROVOD_LOG_HIDE_TIME", "2", "log_hide_time", True),
        ("HOROVOD_LOG_HIDE_TIME", "0", "log_hide_time", False),
        ("HOROVOD_LOG_HIDE_TIME", "-1", "log_hide_time", False),
        ("HOROVOD_LOG_HIDE_TIME", "True", "log_hide_time", True),
        ("HOROVOD_LOG_HIDE_TIME", "false", "log_hide_time", False),
        ("HOROVOD_TIMELINE", "/tmp/My Timeline.json", "timeline", "/tmp/My Timeline.json"),
        ("HOROVOD_TIMELINE", "DYNAMIC", "timeline", "DYNAMIC"),
        ("HOROVOD_TIMELINE", "Dynamic", "timeline", "DYNAMIC"),
        ("HOROVOD_TIMELINE", "./dynamic", "timeline", "./dynamic"),
        ("HOROVOD_TIMELINE", "", "timeline", ""),
        ("HOROVOD_TIMELINE_MARK_CYCLES", "1", "timeline_mark_cycles", True),
        ("HOROVOD_THREAD_AFFINITY", "3", "thread_affinity", (3,)),
        ("HOROVOD_THREAD_AFFINITY", "0, 2,5", "thread_affinity", (0, 2, 5)),
        ("HOROVOD_DISABLE_GROUP_FUSION", "1", "disable_group_fusion", True),
        ("HOROVOD_DYNAMIC_PROCESS_SETS", "1", "dynamic_process_sets", True),
        ("HOROVOD_STALL_CHECK_DISABLE", "1", "stall_check_disable", True),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "0.5", "stall_check_seconds", 0.5),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60.1", "stall_shutdown_seconds", 60.1),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0", "stall_shutdown_seconds", 0.0),
    ],
)
def test_values(variable, text, field, value):
    assert getattr(Settings.from_env({variable: text}), field) == value


@pytest.mark.parametrize(
    ("variable", "text", "form"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "-1", "a whole number >= 0"),
        ("HOROVOD_FUSION_THRESHOLD", "1.5", "a whole number >= 0"),
        ("HOROVOD_FUSION_THRESHOLD", str(2**63), "a whole number >= 0"),
        ("HOROVOD_CYCLE_TIME", "nan", "a number >= 0"),
        ("HOROVOD_CYCLE_TIME", "inf", "a number >= 0"),
        ("HOROVOD_SPIN_US", "-2", "a whole number >= -1"),
        ("HOROVOD_START_TIMEOUT", "0", "a number > 0"),
        ("HOROVOD_LOG_LEVEL", "loud", "one of trace, debug, info, warning, error, fatal"),
        ("HOROVOD_LOG_HIDE_TIME", "maybe", "0 or 1"),
        ("HOROVOD_TIMELINE_MARK_CYCLES", "often", "0 or 1"),
        ("HOROVOD_THREAD_AFFINITY", "0,,1", "numbers of CPUs"),
        ("HOROVOD_THREAD_AFFINITY", "-1", "numbers of CPUs"),
        ("HOROVOD_DISABLE_GROUP_FUSION", "x", "0 or 1"),
        ("HOROVOD_DYNAMIC_PROCESS_SETS", "x", "0 or 1"),
        ("HOROVOD_STALL_CHECK_DISABLE", "x", "0 or 1"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "0", "a number > 0"),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "-1", "a number >= 0"),
        ("HOROVOD_CPU_OPERATIONS", "pigeon", "one of auto, shm, tcp, mpi, torch"),
        ("HOROVOD_MPI_THREADS_DISABLE", "x", "0 or 1"),
        ("HOROVOD_CPU_OPERATIONS", "CCL", "not available yet"),
    ],
)
def test_wrong_values_name_variable_value_and_form(variable, text, form):
    with pytest.raises(ValueError, match=variable) as caught:
        Settings.from_env({variable: text})
    assert repr(text) in str(caught.value)
    assert form in str(caught.value)


@pytest.mark.parametrize(("warning", "shutdown"), [("60", "60"), ("60", "30"), ("0.5", "0.25")])
def test_the_end_of_a_stalled_job_comes_after_the_warning(warning, shutdown):
    environ = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": warning,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": shutdown,
    }
    with pytest.raises(ValueError, match=f"SHUTDOWN_TIME_SECONDS={shutdown} is not valid") as caught:
        Settings.from_env(environ)
    assert f"more than HOROVOD_STALL_CHECK_TIME_SECONDS={warning}" in str(caught.value)
    Settings.from_env({**environ, "HOROVOD_STALL_CHECK_DISABLE": "1"})


def test_names_are_declared_once():
    variables = [setting.env for setting in TABLE]
    flags = [name for setting in TABLE for flag in setting.flags for name in flag.names]
    keys = [setting.yaml.key for setting in TABLE if setting.yaml]
    assert [sorted(set(names)) for names in (variables, flags, keys)] == [
        sorted(names) for names in (variables, flags, keys)
    ]
    assert [variable for variable in variables if not variable.startswith("HOROVOD_")] == []
    assert [flag for flag in flags if not flag.startswith("--") or "_" in flag] == []


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.name)
def test_every_default_survives_the_environment(setting):
    environ = as_environment({setting.name: setting.default})
    assert list(environ) == [setting.env]
    assert Settings.from_env(environ) == Settings()


@settings(deadline=None)
@given(st.floats(min_value=0, allow_infinity=False))
def test_floats_reach_the_workers_exactly(value):
    assert Settings.from_env(as_environment({"cycle_time_ms": value})).cycle_time_ms == value


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=1 << 40))
def test_megabytes_become_bytes(megabytes):
    [flag] = next(setting.flags for setting in TABLE if setting.name == "fusion_threshold")
    assert flag.value(str(megabytes)) == megabytes << 20


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().spin_us = 3  # type: ignore[misc]
