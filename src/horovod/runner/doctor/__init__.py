"""``horovodrun --doctor``: looks at this machine and says what to do about what it finds.

A check is a function that returns a :class:`Finding`; what it asks the machine comes in as an argument, so
that every answer can be tested. No check imports a framework or the engine, and none leaves anything behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from horovod.runner.doctor import kernel, limits, software, variables
from horovod.runner.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "examine", "write_down"]

Check = Callable[[], Finding]


def examine(environ: Mapping[str, str]) -> tuple[str, bool]:
    """The text for the user, and whether there was no problem."""
    findings = [_run(check) for check in _checks(environ)]
    return write_down(findings), all(finding.level is not Level.PROBLEM for finding in findings)


def _checks(environ: Mapping[str, str]) -> list[Check]:
    return [
        *kernel.CHECKS,
        *limits.CHECKS,
        *software.checks(environ),
        lambda: variables.settings(environ),
        lambda: variables.leftovers(environ),
        lambda: variables.unknown(environ),
    ]


def _run(check: Check) -> Finding:
    try:
        return check()
    except Exception as error:  # a doctor that falls over its own feet helps nobody
        name = getattr(check, "__name__", "check").replace("_", " ")
        return Finding(name, Level.WARNING, f"could not be checked: {type(error).__name__}: {error}")


def write_down(findings: Sequence[Finding]) -> str:
    """A line for each finding, its advice below it, and a count."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.level.value:<8} {finding.name:<{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':<8} {'':<{width}}  -> {finding.advice}")
    counts = [sum(finding.level is level for finding in findings) for level in Level]
    words = [
        f"{count} {level.value}{'s' if count != 1 and level is not Level.OK else ''}"
        for count, level in zip(counts, Level, strict=True)
    ]
    lines += ["", f"{len(findings)} checks: {', '.join(words)}"]
    return "\n".join(lines) + "\n"
