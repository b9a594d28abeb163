"""The command line: what is ours, what is the command's, and what is wrong."""

from __future__ import annotations

import re

import pytest

from horovod._config import ORIGINALS, settings_table
from horovod.runner.options import Options, Question, UsageError, build_parser, parse, split_command


@pytest.mark.parametrize(
    ("argv", "options", "command"),
    [
        (["-np", "2", "python", "x", "-np", "3"], ["-np", "2"], ["python", "x", "-np", "3"]),
        (["--num_proc=2", "ls"], ["--num-proc=2"], ["ls"]),
        (["--output_filename", "a_b", "ls", "--c_d"], ["--output-filename", "a_b"], ["ls", "--c_d"]),
        (["--verbose", "ls", "--verbose"], ["--verbose"], ["ls", "--verbose"]),
        (["--output", "dir", "ls"], ["--output", "dir"], ["ls"]),
        (["-np", "1", "--", "-odd", "name"], ["-np", "1"], ["-odd", "name"]),
        (["--log-hide-timestamp", "ls"], ["--log-hide-timestamp"], ["ls"]),
        (["-prefix-timestamp", "ls"], ["-prefix-timestamp"], ["ls"]),
        (["-np"], ["-np"], []),
        ([], [], []),
    ],
)
def test_where_the_command_begins(argv, options, command):
    assert split_command(argv, build_parser()) == (options, command)


def test_everything_together():
    argv = (
        "-np 3 -H a:3 --output-filename d -prefix-timestamp --verbose --log-level INFO --start-time 5 ls -l"
    )
    found = parse(argv.split())
    assert isinstance(found, Options)
    assert (found.num_proc, found.hosts, str(found.output_filename)) == (3, "a:3", "d")
    assert (found.prefix_timestamp, found.verbose, found.command) == (True, True, ["ls", "-l"])
    assert found.settings == {"HOROVOD_LOG_LEVEL": "info", "HOROVOD_START_TIMEOUT": "5.0"}


@pytest.mark.parametrize(
    ("flags", "exported"),
    [
        (["--timeline-filename", "t.json"], {"HOROVOD_TIMELINE": "t.json"}),
        (["--timeline_filename=a b=c"], {"HOROVOD_TIMELINE": "a b=c"}),
        (["--timeline-filename", "dynamic"], {"HOROVOD_TIMELINE": "DYNAMIC"}),
        (
            ["--timeline-filename", "t", "--timeline-mark-cycles"],
            {"HOROVOD_TIMELINE": "t", "HOROVOD_TIMELINE_MARK_CYCLES": "1"},
        ),
        (["--no-timeline-mark-cycles"], {"HOROVOD_TIMELINE_MARK_CYCLES": "0"}),
        (["--timeline-mark", "--no-timeline-mark"], {"HOROVOD_TIMELINE_MARK_CYCLES": "0"}),
    ],
)
def test_timeline(flags, exported):
    found = parse(["-np", "1", *flags, "ls"])
    assert isinstance(found, Options)
    assert found.settings == exported


@pytest.mark.parametrize(
    ("flags", "exported"),
    [
        (["--no-stall-check"], {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        (["--no-stall-check", "--stall-check"], {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        (
            ["--stall-check-warning-time-seconds=5", "--stall-check-shutdown-time-seconds", "10"],
            {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5.0", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "10.0"},
        ),
    ],
)
def test_stalls(flags, exported):
    found = parse(["-np", "1", *flags, "ls"])
    assert isinstance(found, Options)
    assert found.settings == exported


def test_flags_that_are_not_given_export_nothing():
    found = parse(["-np", "1", "ls"])
    assert isinstance(found, Options)
    assert found.settings == {}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["ls"], "-np is missing"),
        (["-np", "2"], "command is missing"),
        (["-np", "2", "--nonsense", "ls"], "--nonsense"),
        (["-np", "2", "--log", "ls"], "ambiguous"),
        (["-np", "2", "--log-level", "loud", "ls"], "--log-level='loud'"),
        (["-np", "2", "--fusion-threshold-mb=x", "ls"], "--fusion-threshold-mb='x'"),
        (["-np", "2", "--timeline-filename=", "ls"], "--timeline-filename=''"),
        (["-np", "+2", "ls"], "whole number"),
        (["-np", "2", "--fusion-treshold-mb", "3", "ls"], "did you mean --fusion-threshold-mb?"),
        (["-np", "2", "--stal-check", "ls"], "did you mean --stall-check?"),
        (["-np", "2", "--thread-affinity=a", "ls"], "--thread-affinity='a' is not valid: it must be numbers"),
    ],
)
def test_mistakes(argv, words):
    with pytest.raises(UsageError) as caught:
        parse(argv)
    assert words in str(caught.value)


def test_help_fits_on_the_screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    text = parse(["--help"])
    assert isinstance(text, str)
    assert [line for line in text.splitlines() if len(line) > 100] == []


@pytest.mark.parametrize("flag", [flag for original in ORIGINALS for flag in original.flags])
def test_help_names_the_originals_flags(flag):
    text = parse(["--help"])
    assert isinstance(text, str)
    assert re.search(rf"(^|\s){flag}(,|$)", text, re.MULTILINE)


def test_help_names_every_flag_and_variable():
    text = parse(["--help"])
    assert isinstance(text, str)
    names = [
        name for setting in settings_table() for flag in setting.flags for name in (*flag.names, setting.env)
    ]
    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize("argv", [["--version"], ["-v"], ["--vers"], ["-np", "2", "-v"]])
def test_version(argv):
    assert parse(argv) is Question.VERSION


@pytest.mark.parametrize(
    ("argv", "question"),
    [
        (["--check-build"], Question.BUILD),
        (["-cb"], Question.BUILD),
        (["--doctor"], Question.DOCTOR),
        (["-np", "2", "--doctor", "ls"], Question.DOCTOR),
        (["-v", "--doctor"], Question.VERSION),
    ],
)
def test_questions(argv, question):
    assert parse(argv) is question


FLAGS_OF_THE_ORIGINAL = """
-v --version -np --num-proc -cb --check-build --disable-cache --start-timeout --network-interfaces
--network-interface --output-filename --verbose --config-file -p --ssh-port -i --ssh-identity-file
--fusion-threshold-mb --cycle-time-ms --cache-capacity --hierarchical-allreduce
--no-hierarchical-allreduce --hierarchical-allgather --no-hierarchical-allgather --torus-allreduce
--no-torus-allreduce --autotune --no-autotune --autotune-log-file --autotune-warmup-samples
--autotune-steps-per-sample --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --min-np
--min-num-proc --max-np --max-num-proc --slots-per-host --elastic-timeout --reset-limit
--blacklist-cooldown-range --timeline-filename --timeline-mark-cycles --no-timeline-mark-cycles
--no-stall-check --stall-check --stall-check-warning-time-seconds --stall-check-shutdown-time-seconds
--mpi-threads-disable --no-mpi-threads-disable --mpi-args --tcp --binding-args --num-nccl-streams
--thread-affinity --gloo-timeout-seconds --log-level --log-with-timestamp --log-without-timestamp
--log-hide-timestamp --no-log-hide-timestamp -prefix-timestamp --prefix-output-with-timestamp -H --hosts
-hostfile --hostfile --host-discovery-script --gloo --mpi --jsrun
"""


@pytest.mark.parametrize("flag", FLAGS_OF_THE_ORIGINAL.split())
def test_every_flag_of_the_original_is_known(flag: str) -> None:
    assert flag in {name for action in build_parser()._actions for name in action.option_strings}


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--disable-cache"], "--disable-cache has no effect: nothing about hosts is cached"),
        (["-p", "22"], "-p has no effect: all ranks are on this machine"),
        (["--network-interface=eth0"], "--network-interface has no effect: all ranks are on this machine"),
        (["--num_nccl_streams", "2"], "--num-nccl-streams has no effect: NCCL is torch's"),
    ],
)
def test_flags_without_effect_are_told(words: list[str], note: str) -> None:
    found = parse(["-np", "2", *words, "ls", "-l"])
    assert isinstance(found, Options)
    assert found.notes == [note]
    assert found.command == ["ls", "-l"]


@pytest.mark.parametrize(
    "words",
    [
        ["--min-np", "1"],
        ["--blacklist-cooldown-range", "1", "2"],
        ["--autotune"],
        ["--autotune-log-file", "f"],
        ["--jsrun"],
        ["--host-discovery-script", "./find.sh"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_had_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match=f"^{words[0]}: .*not available yet"):
        parse(["-np", "2", *words, "ls"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-H", "a:1", "--hostfile", "f"], "not allowed with"),
        (["--mpi", "--gloo"], "not allowed with"),
        (["--mpi-args=-x A"], "--mpi-args and --binding-args go with --mpi"),
        (["--binding-args=--bind-to core"], "--mpi-args and --binding-args go with --mpi"),
    ],
    ids=str,
)
def test_what_does_not_go_together(words: list[str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse(["-np", "1", *words, "ls"])


@pytest.mark.parametrize(
    ("words", "environ", "ranks"),
    [
        (["ls"], {"LSB_JOBID": "7", "LSB_DJOB_NUMPROC": "6"}, 6),
        (["-np", "2", "ls"], {"LSB_JOBID": "7", "LSB_DJOB_NUMPROC": "6"}, 2),
    ],
)
def test_lsf_tells_how_many_ranks(words: list[str], environ: dict[str, str], ranks: int) -> None:
    found = parse(words, environ)
    assert isinstance(found, Options)
    assert found.num_proc == ranks


@pytest.mark.parametrize(
    "environ",
    [{"LSB_DJOB_NUMPROC": "6"}, {"LSB_JOBID": "7"}, {"LSB_JOBID": "7", "LSB_DJOB_NUMPROC": "some"}],
    ids=str,
)
def test_outside_of_lsf_somebody_must_tell(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="-np is missing"):
        parse(["ls"], environ)
