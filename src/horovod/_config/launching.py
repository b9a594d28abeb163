"""The options of ``horovodrun`` that concern the launcher alone. Pure data.

A setting's option is declared with its setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod._forms import COUNT, Form

__all__ = ["GROUP_TITLES", "LAUNCHER_OPTIONS", "LauncherOption"]

GENERAL, STARTING, OUTPUT = "general", "starting", "output"
GROUP_TITLES = {
    GENERAL: "general",
    STARTING: "starting the job",
    OUTPUT: "the ranks' output",
    "tuning": "tuning",
    "logging": "the engine's messages",
    "recording": "recording a timeline",
    "stalls": "operations that wait for a rank",
}
"""In the order of ``--help``; also those of the settings."""

_TEXT = Form("a text", str)
_PATH = Form("a path", Path)


@dataclass(frozen=True)
class LauncherOption:
    """One option. With ``form`` it takes a value; without, it is a switch."""

    dest: str
    names: tuple[str, ...]
    group: str
    help: str
    metavar: str = ""
    form: Form[Any] | None = None
    one_of: str = ""
    """Options with the same word here exclude each other."""
    hidden: bool = False
    """Left out of ``--help``."""


LAUNCHER_OPTIONS = (
    LauncherOption("help", ("-h", "--help"), GENERAL, "show this text and exit"),
    LauncherOption("version", ("-v", "--version"), GENERAL, "show the version and exit"),
    LauncherOption(
        "check_build",
        ("-cb", "--check-build"),
        GENERAL,
        "show which frameworks and operations there are, and exit",
    ),
    LauncherOption(
        "doctor", ("--doctor",), GENERAL, "check this machine, say what to do about problems, and exit"
    ),
    LauncherOption(
        "config_file",
        ("--config-file",),
        GENERAL,
        "read settings from a YAML file; flags win over it, it wins over the environment",
        "FILE",
        _PATH,
    ),
    LauncherOption("verbose", ("--verbose",), GENERAL, "say what the launcher does"),
    LauncherOption("num_proc", ("-np", "--num-proc"), STARTING, "number of ranks to start", "N", COUNT),
    LauncherOption(
        "hosts",
        ("-H", "--hosts"),
        STARTING,
        "where, with room for how many ranks (default localhost:N)",
        "HOST:SLOTS,...",
        _TEXT,
        one_of="where",
    ),
    LauncherOption(
        "hostfile",
        ("-hostfile", "--hostfile"),
        STARTING,
        "the same as lines of a file: HOST slots=SLOTS",
        "FILE",
        _PATH,
        one_of="where",
    ),
    LauncherOption(
        "mpi", ("--mpi",), STARTING, "start the ranks by mpirun, whichever is in PATH", one_of="how"
    ),
    LauncherOption(
        "gloo", ("--gloo",), STARTING, "what the original calls our default", one_of="how", hidden=True
    ),
    LauncherOption(
        "mpi_args",
        ("--mpi-args",),
        STARTING,
        "with --mpi: more options for mpirun, as one word",
        "ARGS",
        _TEXT,
    ),
    LauncherOption(
        "binding_args",
        ("--binding-args",),
        STARTING,
        "with --mpi: how ranks are bound to CPUs (default: not at all)",
        "ARGS",
        _TEXT,
    ),
    LauncherOption(
        "output_filename",
        ("--output-filename",),
        OUTPUT,
        "also write each rank's output to DIR/rank.N/stdout and stderr",
        "DIR",
        _PATH,
    ),
    LauncherOption(
        "prefix_timestamp",
        ("-prefix-timestamp", "--prefix-output-with-timestamp"),
        OUTPUT,
        "put the time before each line",
    ),
)
