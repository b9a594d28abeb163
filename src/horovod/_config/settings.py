"""The settings of the engine and of the launcher's dealings with it.

Each field of :class:`Settings` declares its type, default, environment variable, ``horovodrun`` flags, YAML
key, group and help text. Nothing else in the package reads the environment for settings, and C++ never does.

This module must not know any framework, the engine or the launcher. How values are read is in ``_forms``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from horovod._forms import (
    BOOL,
    CORES,
    DYNAMIC,
    LOG_LEVELS,
    MEGABYTES,
    MIB,
    NOT_BOOL,
    TIMELINE,
    Form,
    choice,
    number,
    whole_number,
)

__all__ = ["DYNAMIC", "Flag", "Form", "Setting", "Settings", "YamlKey", "as_environment", "settings_table"]

T = TypeVar("T")


@dataclass(frozen=True)
class Flag:
    """One ``horovodrun`` option for a setting.

    With ``form`` the option takes a value; without, it takes none and stands for ``constant``.
    """

    names: tuple[str, ...]
    help: str
    metavar: str = ""
    form: Form[Any] | None = None
    constant: object = None

    def value(self, text: str) -> object:
        """The setting's value for what the user wrote after the flag."""
        return self.constant if self.form is None else self.form.parse(text, self.names[0])


@dataclass(frozen=True)
class YamlKey:
    """The key of a setting in a configuration file, ``section.name``, and how its value is read."""

    key: str
    form: Form[Any]


@dataclass(frozen=True)
class Setting:
    """The declaration of one field of :class:`Settings`."""

    name: str
    default: object
    env: str
    form: Form[Any]
    group: str
    help: str
    flags: tuple[Flag, ...] = ()
    yaml: YamlKey | None = None


def _setting(
    default: T,
    env: str,
    form: Form[T],
    *,
    group: str,
    help: str,
    flags: tuple[Flag, ...] = (),
    yaml: tuple[str, Form[Any]] | None = None,
) -> T:
    """Declare a field; typed as its value, so that mypy checks default and form against the annotation."""
    declared = {"env": env, "form": form, "group": group, "help": help, "flags": flags}
    declared["yaml"] = yaml and YamlKey(*yaml)
    value: T = field(default=default, metadata=declared)
    return value


def _flag(name: str, metavar: str, form: Form[Any], help: str) -> tuple[Flag, ...]:
    return (Flag((name,), help, metavar, form),)


TUNING, STARTING, LOGGING, RECORDING = "tuning", "starting", "logging", "recording"
STALLS = "stalls"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one process, checked and typed. Read them once, with :meth:`from_env`."""

    fusion_threshold: int = _setting(
        128 * MIB,
        "HOROVOD_FUSION_THRESHOLD",
        whole_number(0),
        group=TUNING,
        help="Small tensors are reduced together in buckets of up to this many bytes; 0 turns that off.",
        flags=_flag(
            "--fusion-threshold-mb",
            "MB",
            MEGABYTES,
            "reduce small tensors together in buckets of up to MB megabytes; 0 turns that off (default 128)",
        ),
        yaml=("params.fusion_threshold_mb", MEGABYTES),
    )
    cycle_time_ms: float = _setting(
        0.0,
        "HOROVOD_CYCLE_TIME",
        number(0),
        group=TUNING,
        help="Smallest gap between two rounds of the engine, in milliseconds; the engine needs none.",
        flags=_flag(
            "--cycle-time-ms", "MS", number(0), "smallest gap between two rounds of the engine (default 0)"
        ),
        yaml=("params.cycle_time_ms", number(0)),
    )
    cache_capacity: int = _setting(
        1024,
        "HOROVOD_CACHE_CAPACITY",
        whole_number(0),
        group=TUNING,
        help="How many repeated requests are remembered, so that they travel as small ids; 0 turns that off.",
        flags=_flag(
            "--cache-capacity",
            "N",
            whole_number(0),
            "remember up to N repeated requests; 0 turns that off (default 1024)",
        ),
        yaml=("params.cache_capacity", whole_number(0)),
    )
    spin_us: int = _setting(
        -1,
        "HOROVOD_SPIN_US",
        whole_number(-1),
        group=TUNING,
        help="Longest time a waiting thread spins before it sleeps, in microseconds; -1 chooses by itself.",
    )
    cpu_operations: str = _setting(
        "auto",
        "HOROVOD_CPU_OPERATIONS",
        choice(("auto", "shm", "tcp", "mpi", "torch"), {"gloo": "auto"}, missing=("ccl",)),
        group=TUNING,
        help="What carries data between CPUs: auto, shm (shared memory), tcp, mpi (by mpi4py); gloo is auto. "
        "torch has torch.distributed carry the tensors of horovod.torch, as it does those on GPUs.",
    )
    mpi_threads_disable: bool = _setting(
        False,
        "HOROVOD_MPI_THREADS_DISABLE",
        BOOL,
        group=TUNING,
        help="Initialise MPI for one thread at a time: the program must not call MPI during operations.",
        flags=(
            Flag(("--mpi-threads-disable",), "initialise MPI for one thread at a time", constant=True),
            Flag(("--no-mpi-threads-disable",), "let all threads call MPI (default)", constant=False),
        ),
        yaml=("library_options.mpi_threads_disable", BOOL),
    )
    thread_affinity: tuple[int, ...] = _setting(
        (),
        "HOROVOD_THREAD_AFFINITY",
        CORES,
        group=TUNING,
        help="Pins the engine's thread of each rank to a CPU: the one at the rank's place on its host in "
        "this list. Empty: it runs where the operating system likes.",
        flags=_flag(
            "--thread-affinity",
            "CPU,...",
            CORES,
            "pin the engine's thread of a host's first rank to the first CPU, and so on (default: none)",
        ),
        yaml=("library_options.thread_affinity", CORES),
    )
    disable_group_fusion: bool = _setting(
        False,
        "HOROVOD_DISABLE_GROUP_FUSION",
        BOOL,
        group=TUNING,
        help="Never reduce tensors of a group in one bucket with others.",
    )
    dynamic_process_sets: bool = _setting(
        False,
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        BOOL,
        group=TUNING,
        help="Allow process sets to be added and removed after init().",
    )
    start_timeout: float = _setting(
        30.0,
        "HOROVOD_START_TIMEOUT",
        number(0, exclusive=True),
        group=STARTING,
        help="Seconds that init() waits for the other ranks.",
        flags=_flag(
            "--start-timeout",
            "SECONDS",
            number(0, exclusive=True),
            "how long a rank waits for the other ranks at init() (default 30)",
        ),
    )
    log_level: str = _setting(
        "warning",
        "HOROVOD_LOG_LEVEL",
        choice(LOG_LEVELS, {}),
        group=LOGGING,
        help="How much the engine says: " + ", ".join(LOG_LEVELS) + ".",
        flags=_flag(
            "--log-level",
            "LEVEL",
            choice(LOG_LEVELS, {}),
            "how much the engine says: " + ", ".join(LOG_LEVELS) + " (default warning)",
        ),
        yaml=("logging.level", choice(LOG_LEVELS, {})),
    )
    log_hide_time: bool = _setting(
        False,
        "HOROVOD_LOG_HIDE_TIME",
        BOOL,
        group=LOGGING,
        help="Leave the time out of the engine's messages.",
        flags=(
            Flag(
                ("--log-without-timestamp", "--log-hide-timestamp"),
                "leave the time out of the engine's messages",
                constant=True,
            ),
            Flag(
                ("--log-with-timestamp", "--no-log-hide-timestamp"),
                "show the time in the engine's messages (default)",
                constant=False,
            ),
        ),
        yaml=("logging.with_timestamp", NOT_BOOL),
    )
    timeline: str = _setting(
        "",
        "HOROVOD_TIMELINE",
        TIMELINE,
        group=RECORDING,
        help=f"Record a timeline in this file, from init() on; {DYNAMIC}: only at start_timeline().",
        flags=_flag(
            "--timeline-filename",
            "FILE",
            TIMELINE,
            f"record a timeline in FILE; {DYNAMIC}: only when the program calls start_timeline()",
        ),
        yaml=("timeline.filename", TIMELINE),
    )
    timeline_mark_cycles: bool = _setting(
        False,
        "HOROVOD_TIMELINE_MARK_CYCLES",
        BOOL,
        group=RECORDING,
        help="Mark the beginning of each of the coordinator's cycles in the timeline.",
        flags=(
            Flag(("--timeline-mark-cycles",), "mark the coordinator's cycles in the timeline", constant=True),
            Flag(("--no-timeline-mark-cycles",), "do not mark cycles (default)", constant=False),
        ),
        yaml=("timeline.mark_cycles", BOOL),
    )

    stall_check_disable: bool = _setting(
        False,
        "HOROVOD_STALL_CHECK_DISABLE",
        BOOL,
        group=STALLS,
        help="Do not look for operations that some ranks have started and others have not.",
        flags=(
            Flag(("--no-stall-check",), "do not look for operations that wait for a rank", constant=True),
            Flag(("--stall-check",), "look for operations that wait for a rank (default)", constant=False),
        ),
        yaml=("stall_check.enabled", NOT_BOOL),
    )
    stall_check_seconds: float = _setting(
        60.0,
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        number(0, exclusive=True),
        group=STALLS,
        help="Seconds that an operation may wait for a rank before a warning says so.",
        flags=_flag(
            "--stall-check-warning-time-seconds",
            "SECONDS",
            number(0, exclusive=True),
            "warn of an operation that has waited this long for a rank (default 60)",
        ),
        yaml=("stall_check.warning_time_seconds", number(0, exclusive=True)),
    )
    stall_shutdown_seconds: float = _setting(
        0.0,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        number(0),
        group=STALLS,
        help="Seconds after which an operation that still waits for a rank ends the job; 0: never.",
        flags=_flag(
            "--stall-check-shutdown-time-seconds",
            "SECONDS",
            number(0),
            "end a job whose operation has waited this long for a rank; 0: never (default 0)",
        ),
        yaml=("stall_check.shutdown_time_seconds", number(0)),
    )

    def __post_init__(self) -> None:
        if not self.stall_check_disable and 0 < self.stall_shutdown_seconds <= self.stall_check_seconds:
            raise ValueError(
                f"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS={self.stall_shutdown_seconds:g} is not valid: it must"
                f" be 0 (never) or more than HOROVOD_STALL_CHECK_TIME_SECONDS={self.stall_check_seconds:g}"
                " (horovodrun: --stall-check-shutdown-time-seconds, --stall-check-warning-time-seconds)"
            )

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """The settings that ``environ`` asks for; an empty variable counts as unset."""
        values: dict[str, Any] = {}
        for setting in settings_table():
            text = environ.get(setting.env, "")
            if text.strip():
                values[setting.name] = setting.form.parse(text, setting.env)
        return cls(**values)


def settings_table() -> tuple[Setting, ...]:
    """Every declared setting, in the order of declaration."""
    return tuple(Setting(name=f.name, default=f.default, **f.metadata) for f in fields(Settings))


def as_environment(values: Mapping[str, object]) -> dict[str, str]:
    """The variables that carry ``values`` (by setting name) to the workers."""
    env_of = {setting.name: setting.env for setting in settings_table()}
    return {env_of[name]: _as_text(value) for name, value in values.items()}


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    # repr keeps every digit of a float; str of it is the same in Python 3, but only repr promises it.
    return repr(value) if isinstance(value, float) else str(value)
