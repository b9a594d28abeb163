"""``--config-file``: every key reaches the ranks; what is wrong is told with file, key, value and form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from horovod._config import Settings, settings_table
from horovod.runner.config_file import interpret, read_config_file

WHOLE = """
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 2.5
  cache_capacity: 7
timeline:
  filename: /tmp/My Timeline.json
  mark_cycles: true
library_options:
  thread_affinity: 0,1
  mpi_threads_disable: true
stall_check:
  enabled: false
  warning_time_seconds: 5
  shutdown_time_seconds: 10
logging:
  level: INFO
  with_timestamp: no
"""


def test_every_key(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(WHOLE)
    found = read_config_file(file)
    assert found.notes == []
    assert found.settings == {
        "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_TIMELINE": "/tmp/My Timeline.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_MPI_THREADS_DISABLE": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5.0",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "10.0",
        "HOROVOD_THREAD_AFFINITY": "0,1",
        "HOROVOD_LOG_LEVEL": "info",
        "HOROVOD_LOG_HIDE_TIME": "1",
    }
    assert sorted(found.settings) == sorted(setting.env for setting in settings_table() if setting.yaml)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {}),
        ("params:", {}),
        ("timeline: {filename: }", {}),
        ("timeline: {filename: dynamic}", {"HOROVOD_TIMELINE": "DYNAMIC"}),
        ("stall_check: {enabled: true}", {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        ("stall_check: {enabled: 1}", {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        ("logging: {with_timestamp: on}", {"HOROVOD_LOG_HIDE_TIME": "0"}),
        ('params: {cache_capacity: "8"}', {"HOROVOD_CACHE_CAPACITY": "8"}),
        ("params: {fusion_threshold_mb: 0.5}", {"HOROVOD_FUSION_THRESHOLD": str(1 << 19)}),
        ("controller:", {}),
        ("controller: mpi", {}),
        ("library_options: {thread_affinity: 3}", {"HOROVOD_THREAD_AFFINITY": "3"}),
        ("library_options: {thread_affinity: [0, 2]}", {"HOROVOD_THREAD_AFFINITY": "0,2"}),
        ('library_options: {thread_affinity: "0,2"}', {"HOROVOD_THREAD_AFFINITY": "0,2"}),
    ],
)
def test_forms(tmp_path, text, settings):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert read_config_file(file).settings == settings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "params: {cycle_time_ms: fast}",
            "params.cycle_time_ms='fast' is not valid: it must be a number >= 0",
        ),
        ("params: {cycle_time_ms: -1}", "params.cycle_time_ms='-1' is not valid: it must be a number >= 0"),
        ("params: {cycle_time_ms: true}", "params.cycle_time_ms=True is not valid: it must be a number"),
        ("params: {cache_capacity: 1.5}", "params.cache_capacity='1.5' is not valid: it must be a whole"),
        (
            "params: {cache_capacity: [1]}",
            "params.cache_capacity=[1] is not valid: it must be a whole number",
        ),
        ("timeline: {filename: 3}", "timeline.filename=3 is not valid: it must be the path of a file"),
        ("timeline: {mark_cycles: often}", "timeline.mark_cycles='often' is not valid: it must be 0 or 1"),
        ("logging: {level: loud}", "logging.level='loud' is not valid: it must be one of trace, debug"),
        ("params: {cycle_time: 1}", "unknown key params.cycle_time; did you mean params.cycle_time_ms?"),
        ("zebra: {x: 1}", "unknown key zebra.x; known are autotune."),
        ("controller: carrier", "controller='carrier' is not valid: it must be gloo or mpi"),
        (
            "library_options: {thread_affinity: [a]}",
            "library_options.thread_affinity='a' is not valid: it must be numbers of CPUs",
        ),
        ("params: 3", "params=3 is not valid: it must be a section with keys"),
        ("- a\n- b", "['a', 'b'] is not valid: it must be sections with keys"),
        ("a: b: c", ", line 1, column 5: this is not YAML"),
        ("a: \x00", "this is not YAML"),
    ],
)
def test_mistakes(tmp_path, text, words):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"config\.yaml") as caught:
        read_config_file(file)
    assert str(caught.value).startswith(str(file))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_the_original_has_and_we_have_not_is_told():
    found = interpret({"autotune": {"enabled": True}, "params": {"torus_allreduce": False}}, "f.yaml")
    assert found.settings == {}
    assert found.notes == [
        "f.yaml: autotune.enabled has no effect: autotuning is not available yet in this version",
        "f.yaml: params.torus_allreduce has no effect: all ranks are on this machine",
    ]


def test_the_documented_file_holds_every_key_and_its_default():
    text = (Path(__file__).parents[2] / "docs/launchers/horovodrun.md").read_text()
    block = text.partition("```yaml\n")[2].partition("```")[0]
    found = interpret(yaml.safe_load(block), "docs")
    assert sorted(found.settings) == sorted(setting.env for setting in settings_table() if setting.yaml)
    assert Settings.from_env(found.settings) == Settings(timeline="timeline.json")


SHOW = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('HOROVOD_')}))"


def test_flags_win_over_the_file_and_the_file_over_the_environment(horovodrun, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("params: {cycle_time_ms: 2, cache_capacity: 3}\nautotune: {enabled: true}")
    env = {"HOROVOD_CYCLE_TIME": "1", "HOROVOD_CACHE_CAPACITY": "1", "HOROVOD_SPIN_US": "1"}
    arguments = ("--cycle-time-ms", "4", "--config-file", str(file))
    done = horovodrun.run("-np", "1", *arguments, *horovodrun.script(SHOW), env=env)
    found = json.loads(done.stdout.partition(b">:")[2])
    assert (found["HOROVOD_CYCLE_TIME"], found["HOROVOD_CACHE_CAPACITY"], found["HOROVOD_SPIN_US"]) == (
        "4.0",
        "3",
        "1",
    )
    assert done.stderr.decode() == (
        f"horovodrun: {file}: autotune.enabled has no effect: "
        "autotuning is not available yet in this version\n"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["config.yaml: No such file or directory"]),
        ("params: {cycle_time_ms: x}", ["config.yaml: params.cycle_time_ms='x'", "a number >= 0"]),
        ("stall_check: {shutdown_time_seconds: 9}", ["SHUTDOWN_TIME_SECONDS=9", "more than"]),
    ],
)
def test_a_wrong_file_starts_nothing(horovodrun, tmp_path, text, words):
    file = tmp_path / "config.yaml"
    if text is not None:
        file.write_text(text)
    done = horovodrun.run("-np", "2", "--config-file", str(file), *horovodrun.script("print('started')"))
    error = done.stderr.decode()
    assert (done.returncode, done.stdout, error.count("\n")) == (2, b"", 1)
    assert [word for word in words if word not in error] == []


@pytest.mark.parametrize(
    ("text", "mpi"), [("controller: mpi", True), ("controller: gloo", False), ("params: {}", False)]
)
def test_the_controller_says_who_starts_the_ranks(text, mpi):
    assert interpret(yaml.safe_load(text), "config.yaml").mpi is mpi
