"""``horovodrun``: from the command line to a running job and its exit code. A table of contents."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from horovod._config import Settings
from horovod._variables import without_effect
from horovod._version import __version__
from horovod.runner.desk import Desk
from horovod.runner.environment import CALLER, JobFacts, tells_a_place, worker_environment
from horovod.runner.hosts import Host, parse_hosts, read_hostfile
from horovod.runner.launch import Worker
from horovod.runner.launch.local import LocalLauncher
from horovod.runner.launch.mpirun import (
    Wishes,
    find_mpirun,
    make_output_directories,
    mpirun_command,
)
from horovod.runner.options import Options, Question, UsageError, check_together, parse
from horovod.runner.output import Sink, open_sinks, rank_directory
from horovod.runner.placement import Slot, place_here
from horovod.runner.processes import die_with_parent
from horovod.runner.supervisor import Supervisor, View

__all__ = ["main", "run"]

USAGE, NOT_EXECUTABLE, NOT_FOUND = 2, 126, 127


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``horovodrun`` with ``argv`` (default: the process's own) and return its exit code."""
    _open_standard_descriptors()
    try:
        options = parse(sys.argv[1:] if argv is None else argv, os.environ)
    except UsageError as error:
        return _complain(f"{error} (see horovodrun --help)", USAGE)
    if isinstance(options, str):
        return _print(options)
    if isinstance(options, Question):
        return _answer(options)
    return run(options)


def run(options: Options) -> int:
    """Run the job that the options ask for; its exit code."""
    try:
        options = _with_config_file(options)
        check_together(options)
        Settings.from_env({**os.environ, **options.settings})  # a mistake is told once, not by every rank
        slots = _slots(options)
        _make_output_directories(options, slots)
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}", USAGE)
    except ValueError as error:
        return _complain(
            f"{error} (see horovodrun --help)" if isinstance(error, UsageError) else str(error), USAGE
        )
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if (caller := os.environ.get(CALLER)) and not die_with_parent(signal.SIGTERM, int(caller)):
        return 128 + signal.SIGTERM
    try:
        if options.mpi:
            _run_by_mpi(options)
        return _run(options, slots)
    except ValueError as error:  # an option that this mpirun does not have
        return _complain(str(error), USAGE)
    except RuntimeError as error:  # no mpirun
        return _complain(str(error), NOT_FOUND)
    except OSError as error:  # too many processes or open files; the guardians end what was started
        return _complain(f"cannot start the ranks: {error}", 1)


def _answer(question: Question) -> int:
    """What the user asked, instead of running a job."""
    if question is Question.VERSION:
        return _print(__version__ + "\n")
    if question is Question.BUILD:
        from horovod.runner.build import describe_build

        return _print(describe_build(__version__))
    from horovod.runner.doctor import examine

    text, healthy = examine(os.environ)
    _print(text)
    return 0 if healthy else 1


def _with_config_file(options: Options) -> Options:
    if options.config_file is None:
        return options
    from horovod.runner.config_file import read_config_file

    config = read_config_file(options.config_file)
    notes = [*options.notes, *config.notes]
    mpi = options.mpi or (config.mpi and not options.gloo)
    return replace(options, settings={**config.settings, **options.settings}, notes=notes, mpi=mpi)


def _run(options: Options, slots: Sequence[Slot]) -> int:
    path, code = find_command(options.command[0], os.environ)
    if code:
        return _complain(_why_not(options.command[0], code), code)
    job = JobFacts(os.urandom(16).hex(), "127.0.0.1", _free_port(), options.settings)
    hosts = list(dict.fromkeys(slot.host for slot in slots))
    workers = [
        Worker(
            slot,
            [path, *options.command[1:]],
            worker_environment(os.environ, slot, job, hosts.index(slot.host)),
        )
        for slot in slots
    ]
    out, err = open_sinks()
    view = View(out, err, options.prefix_timestamp, options.output_filename, options.verbose)
    for note in [*options.notes, *without_effect(os.environ)]:
        view.say(note)
    if options.verbose:
        _explain(view, options, workers)
    desk = _open_desk(view, job.job_id, len(workers))
    launcher = LocalLauncher(_ignored_signals(), [desk.fileno()] if desk else [])
    return Supervisor(launcher, view, desk).run(workers)


def _run_by_mpi(options: Options) -> NoReturn:
    """Becomes ``mpirun``."""
    hosts = (
        ",".join(f"{host.name}:{host.slots}" for host in _hosts(options)) if _names_hosts(options) else None
    )
    mpi = find_mpirun(os.environ)
    wishes = Wishes(
        hosts,
        options.mpi_args,
        options.binding_args,
        options.output_filename and options.output_filename.absolute(),
        options.prefix_timestamp,
    )
    command = mpirun_command(mpi, options.num_proc, options.command, wishes)
    make_output_directories(mpi, options.num_proc, wishes.output_directory)
    for note in options.notes:
        _write_all(Sink(2), f"horovodrun: {note}\n")
    if options.verbose:
        said = f"horovodrun: {shlex.join(command)}\nhorovodrun: this mpirun is {mpi.maker.value}'s\n"
        _write_all(Sink(2), said)
    env = {name: value for name, value in os.environ.items() if not tells_a_place(name) and name != CALLER}
    os.execve(command[0], command, {**env, **options.settings})


def _names_hosts(options: Options) -> bool:
    return options.hosts is not None or options.hostfile is not None


def _hosts(options: Options) -> list[Host]:
    if options.hostfile is not None:
        return read_hostfile(options.hostfile.read_text(), str(options.hostfile))
    if options.hosts is None:
        return [Host("localhost", options.num_proc)]
    try:
        return parse_hosts(options.hosts)
    except ValueError as error:
        raise UsageError(f"argument -H/--hosts: {error}") from None


def _open_desk(view: View, job_id: str, size: int) -> Desk | None:
    try:
        return Desk(job_id, size, view.say, verbose=view.verbose)
    except OSError as error:  # a sandbox without unix sockets: the ranks do without
        if view.verbose:
            view.say(f"the ranks cannot ask the launcher anything: {error}")
        return None


def _slots(options: Options) -> list[Slot]:
    return place_here(_hosts(options), options.num_proc)


def _make_output_directories(options: Options, slots: Sequence[Slot]) -> None:
    if options.output_filename is not None and not options.mpi:
        for slot in slots:
            directory = rank_directory(options.output_filename, slot.rank, slot.size)
            directory.mkdir(parents=True, exist_ok=True)


def find_command(name: str, environ: Mapping[str, str]) -> tuple[str, int]:
    """The program's path, or the exit code that a shell gives when there is none."""
    directories = [""] if "/" in name else environ.get("PATH", os.defpath).split(os.pathsep)
    code = NOT_FOUND
    for directory in directories:
        path = os.path.join(directory, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path, 0
        if os.path.exists(path):
            code = NOT_EXECUTABLE
    return name, code


def _why_not(command: str, code: int) -> str:
    reason = "command not found" if code == NOT_FOUND else "cannot be executed"
    hint = (
        f"; a script needs its interpreter: horovodrun ... python {command}"
        if command.endswith(".py")
        else ""
    )
    return f"{command}: {reason}{hint}"


def _free_port() -> int:
    """A port that torch.distributed may bind; this process lets go of it at once and never uses it."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def _ignored_signals() -> frozenset[int]:
    # Python itself ignores SIGPIPE and SIGXFSZ at its start; whether they were before cannot be told.
    own = {signal.SIGPIPE, signal.SIGXFSZ}
    return frozenset(s for s in signal.valid_signals() - own if signal.getsignal(s) == signal.SIG_IGN)


def _explain(view: View, options: Options, workers: Sequence[Worker]) -> None:
    env = workers[0].env
    job = env["HOROVOD_JOB_ID"]
    view.say(f"starting {len(workers)} ranks of job {job}, without MPI: {' '.join(options.command)}")
    if "OMP_NUM_THREADS" not in os.environ and "OMP_NUM_THREADS" in env:
        view.say("OMP_NUM_THREADS is not set: the ranks get 1, so that they do not fight for the CPUs")


def _open_standard_descriptors() -> None:
    """Where one of 0, 1, 2 is closed (``>&-``), a pipe of ours would get its number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _print(text: str) -> int:
    _write_all(Sink(1), text)
    return 0


def _complain(text: str, code: int) -> int:
    _write_all(Sink(2), f"horovodrun: error: {text}\n")
    return code


def _write_all(sink: Sink, text: str) -> None:
    sink.write(text.encode("utf-8", "surrogateescape"))
    while sink.pending:
        sink.flush_some()


if __name__ == "__main__":
    sys.exit(main())
