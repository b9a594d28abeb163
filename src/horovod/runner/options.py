"""The ``horovodrun`` command line: from words to checked options. Pure, except that ``--help`` prints.

The flags of settings come from ``_config``; only what concerns the launcher alone is declared here.
"""

from __future__ import annotations

import argparse
import difflib
import enum
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from horovod._config import Flag, Setting, as_environment, settings_table
from horovod.runner.help import Formatter, epilog
from horovod.runner.originals import ORIGINALS, Original

__all__ = [
    "GROUP_TITLES",
    "Options",
    "Question",
    "UsageError",
    "check_together",
    "parse",
    "parse_args",
    "split_command",
]

GROUP_TITLES = {
    "starting": "starting the job",
    "tuning": "tuning",
    "logging": "the engine's messages",
    "recording": "recording a timeline",
    "stalls": "operations that wait for a rank",
}


class UsageError(ValueError):
    """The command line cannot be understood; the text is one line for the user."""


@dataclass(frozen=True)
class Options:
    """What the user wants."""

    num_proc: int
    command: Sequence[str]
    hosts: str | None = None
    hostfile: Path | None = None
    mpi: bool = False
    gloo: bool = False
    mpi_args: str | None = None
    binding_args: str | None = None
    output_filename: Path | None = None
    prefix_timestamp: bool = False
    verbose: bool = False
    config_file: Path | None = None
    settings: dict[str, str] = field(default_factory=dict)
    """Settings given as flags or in the configuration file, as variables for the workers."""
    notes: Sequence[str] = ()
    """What the user should know about the options."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ").split("=")[0].split(" ")[0]
        near = difflib.get_close_matches(unknown, self._option_string_actions, n=1, cutoff=0.7)
        if message.startswith("unrecognized") and near:
            message += f"; did you mean {near[0]}?"
        raise UsageError(message)


class _Note(argparse.Action):
    """A flag of the original without effect: refused, or noted."""

    def __init__(self, *args: Any, original: Original, **kwargs: Any) -> None:
        self._original = original
        super().__init__(*args, **kwargs)

    def __call__(self, _parser: Any, namespace: Any, _values: Any, option_string: str | None = None) -> None:
        if self._original.refused:
            raise UsageError(f"{option_string}: {self._original.why}")
        namespace.notes = [*namespace.notes, f"{option_string} has no effect: {self._original.why}"]


class _Store(argparse.Action):
    """Checks a setting's flag and keeps its value under the setting's name."""

    def __init__(self, *args: Any, flag: Flag, **kwargs: Any) -> None:
        self._flag = flag
        super().__init__(*args, **kwargs)

    def __call__(self, _parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        del option_string
        try:
            value = self._flag.value(values if isinstance(values, str) else "")
        except ValueError as error:
            raise UsageError(str(error)) from None
        namespace.settings = {**namespace.settings, self.dest: value}


def build_parser() -> argparse.ArgumentParser:
    """The parser for everything before the command."""
    parser = _Parser(
        prog="horovodrun",
        usage="horovodrun -np N [options] command [argument ...]",
        description="Run a command as N ranks of one job.",
        epilog=epilog(),
        formatter_class=Formatter,
        add_help=False,
    )
    parser.set_defaults(settings={}, notes=[])
    _add_general(parser)
    starting = parser.add_argument_group(GROUP_TITLES["starting"])
    _add_starting(starting)
    output = parser.add_argument_group("the ranks' output")
    output.add_argument(
        "--output-filename",
        type=Path,
        metavar="DIR",
        help="also write each rank's output to DIR/rank.N/stdout and stderr",
    )
    output.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        dest="prefix_timestamp",
        help="put the time before each line",
    )
    groups = {"starting": starting}
    for setting in settings_table():
        _add_setting(parser, groups, setting)
    for original in ORIGINALS:
        parser.add_argument(
            *original.flags,
            action=_Note,
            original=original,
            nargs=original.values if original.values != 1 else None,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )
    return parser


def _add_starting(starting: argparse._ArgumentGroup) -> None:
    starting.add_argument("-np", "--num-proc", type=_positive, metavar="N", help="number of ranks to start")
    where = starting.add_mutually_exclusive_group()
    where.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="where, with room for how many ranks (default localhost:N)",
    )
    where.add_argument(
        "-hostfile",
        "--hostfile",
        type=Path,
        metavar="FILE",
        help="the same as lines of a file: HOST slots=SLOTS",
    )
    how = starting.add_mutually_exclusive_group()
    how.add_argument("--mpi", action="store_true", help="start the ranks by mpirun, whichever is in PATH")
    # What the original calls our default.
    how.add_argument("--gloo", action="store_true", help=argparse.SUPPRESS)
    starting.add_argument(
        "--mpi-args", metavar="ARGS", help="with --mpi: more options for mpirun, as one word"
    )
    starting.add_argument(
        "--binding-args", metavar="ARGS", help="with --mpi: how ranks are bound to CPUs (default: not at all)"
    )


def _add_general(parser: argparse.ArgumentParser) -> None:
    general = parser.add_argument_group("general")
    general.add_argument("-h", "--help", action="store_true", help="show this text and exit")
    general.add_argument("-v", "--version", action="store_true", help="show the version and exit")
    general.add_argument(
        "-cb",
        "--check-build",
        action="store_true",
        help="show which frameworks and operations there are, and exit",
    )
    general.add_argument(
        "--doctor", action="store_true", help="check this machine, say what to do about problems, and exit"
    )
    general.add_argument(
        "--config-file",
        type=Path,
        metavar="FILE",
        help="read settings from a YAML file; flags win over it, it wins over the environment",
    )
    general.add_argument("--verbose", action="store_true", help="say what the launcher does")


def _add_setting(parser: argparse.ArgumentParser, groups: dict[str, Any], setting: Setting) -> None:
    for flag in setting.flags:
        if setting.group not in groups:
            groups[setting.group] = parser.add_argument_group(GROUP_TITLES[setting.group])
        takes_value: dict[str, Any] = {"metavar": flag.metavar} if flag.form else {"nargs": 0}
        groups[setting.group].add_argument(
            *flag.names,
            action=_Store,
            flag=flag,
            dest=setting.name,
            default=argparse.SUPPRESS,
            help=f"{flag.help} [{setting.env}]",
            **takes_value,
        )


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid: it must be a whole number >= 1")
    return int(text)


def split_command(argv: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Divide ``argv`` into the launcher's options and the command.

    argparse alone would also look at the command's own options, and stumble over those that resemble ours.
    """
    arity = {name: _words(action) for action in parser._actions for name in action.option_strings}
    options: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            return options, [word, *words]
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        options.append(name + equals + value)
        matches = [name] if name in arity else [known for known in arity if known.startswith(name)]
        if not equals and matches:
            following = min(arity[match] for match in matches)
            options += [value for value in (next(words, None) for _ in range(following)) if value is not None]
    return options, list(words)


def _words(action: argparse.Action) -> int:
    """How many words an option takes."""
    return 1 if action.nargs is None else int(action.nargs)


class Question(enum.Enum):
    """What the user wants to know instead of running a job."""

    VERSION = enum.auto()
    BUILD = enum.auto()
    DOCTOR = enum.auto()


def parse(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Options | Question | str:
    """The checked options, or a question, or a text to print. Raises :class:`UsageError`.

    Of the environment only the batch system's word on the number of ranks counts here.
    """
    parser = build_parser()
    words, command = split_command(argv, parser)
    found = parser.parse_args(words)
    if found.help:
        return parser.format_help()
    for asked, question in (
        (found.version, Question.VERSION),
        (found.check_build, Question.BUILD),
        (found.doctor, Question.DOCTOR),
    ):
        if asked:
            return question
    num_proc = found.num_proc if found.num_proc is not None else _slots_of_lsf(environ or {})
    if num_proc is None:
        raise UsageError("-np is missing: how many ranks shall be started?")
    if not command:
        raise UsageError("the command is missing: what shall the ranks run?")
    options = Options(
        num_proc=num_proc,
        command=command,
        hosts=found.hosts,
        hostfile=found.hostfile,
        mpi=found.mpi,
        gloo=found.gloo,
        mpi_args=found.mpi_args,
        binding_args=found.binding_args,
        output_filename=found.output_filename,
        prefix_timestamp=found.prefix_timestamp,
        verbose=found.verbose,
        config_file=found.config_file,
        settings=as_environment(found.settings),
        notes=found.notes,
    )
    if options.config_file is None:  # which may ask for --mpi
        check_together(options)
    return options


def _slots_of_lsf(environ: Mapping[str, str]) -> int | None:
    """How many slots LSF has given to this job; None outside of one."""
    slots = environ.get("LSB_DJOB_NUMPROC", "")
    return int(slots) if environ.get("LSB_JOBID") and slots.isdecimal() and int(slots) > 0 else None


def check_together(options: Options) -> None:
    """Raises :class:`UsageError` for options that do not go together, wherever they come from."""
    if not options.mpi and (options.mpi_args is not None or options.binding_args is not None):
        raise UsageError("--mpi-args and --binding-args go with --mpi")


def parse_args(argv: Sequence[str] | None = None) -> Options:
    """The options in ``argv`` (default: this program's); ``SystemExit`` for whatever does not start a job."""
    try:
        found = parse(sys.argv[1:] if argv is None else argv, os.environ)
    except UsageError as error:
        raise SystemExit(f"horovodrun: error: {error}") from None
    if not isinstance(found, Options):
        raise SystemExit(found if isinstance(found, str) else 0)
    return found
