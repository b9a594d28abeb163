"""The ``horovodrun`` command line: from words to checked options. Pure, except that ``--help`` prints.

Which there are is declared in ``_config``.
"""

from __future__ import annotations

import argparse
import difflib
import enum
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from horovod._config import (
    GROUP_TITLES,
    LAUNCHER_OPTIONS,
    ORIGINALS,
    Flag,
    Form,
    LauncherOption,
    Original,
    Setting,
    as_environment,
    settings_table,
)
from horovod.runner.help import Formatter, epilog

__all__ = [
    "Options",
    "Question",
    "UsageError",
    "check_together",
    "parse",
    "parse_args",
    "split_command",
]


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
    groups = {name: parser.add_argument_group(title) for name, title in GROUP_TITLES.items()}
    exclusive: dict[str, Any] = {}
    for option in LAUNCHER_OPTIONS:
        group = groups[option.group]
        if option.one_of:
            group = exclusive.setdefault(option.one_of, group.add_mutually_exclusive_group())
        _add_option(group, option)
    for setting in settings_table():
        _add_setting(groups[setting.group], setting)
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


def _add_option(group: Any, option: LauncherOption) -> None:
    takes_value: dict[str, Any] = {"action": "store_true"}
    if option.form is not None:
        takes_value = {"metavar": option.metavar, "type": _reader(option.form)}
    shown = argparse.SUPPRESS if option.hidden else option.help
    group.add_argument(*option.names, dest=option.dest, help=shown, **takes_value)


def _add_setting(group: Any, setting: Setting) -> None:
    for flag in setting.flags:
        takes_value: dict[str, Any] = {"metavar": flag.metavar} if flag.form else {"nargs": 0}
        group.add_argument(
            *flag.names,
            action=_Store,
            flag=flag,
            dest=setting.name,
            default=argparse.SUPPRESS,
            help=f"{flag.help} [{setting.env}]",
            **takes_value,
        )


def _reader(form: Form[Any]) -> Callable[[str], Any]:
    """A form as argparse wants it, which names the option itself."""

    def read(text: str) -> Any:
        try:
            return form.read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not valid: it must be {form.allowed}") from None

    return read


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
