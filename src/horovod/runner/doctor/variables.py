"""The environment: settings that are wrong, words of another launcher, names that nobody reads."""

from __future__ import annotations

from collections.abc import Mapping

from horovod._config import Settings, settings_table
from horovod._variables import advice, unread
from horovod.runner.doctor.finding import Finding, Level
from horovod.runner.environment import tells_a_place

__all__ = ["leftovers", "settings", "unknown"]


def settings(environ: Mapping[str, str]) -> Finding:
    """What every rank would stumble over."""
    try:
        Settings.from_env(environ)
    except ValueError as error:
        return Finding("settings", Level.PROBLEM, str(error), "correct or unset it")
    used = [setting.env for setting in settings_table() if environ.get(setting.env, "").strip()]
    return Finding("settings", Level.OK, ", ".join(f"{name}={environ[name]}" for name in used) or "none set")


def leftovers(environ: Mapping[str, str]) -> Finding:
    """By these a plain ``python`` would take itself for a rank of somebody's job."""
    found = sorted(name for name in environ if tells_a_place(name))
    if not found:
        return Finding("leftovers of launchers", Level.OK, "none")
    shown = ", ".join(found[:8]) + (", ..." if len(found) > 8 else "")
    advice = (
        "inside a job that is as it should be; elsewhere a script without launcher takes itself for a rank:"
        f" unset {' '.join(found)}"
    )
    return Finding("leftovers of launchers", Level.WARNING, shown, advice)


def unknown(environ: Mapping[str, str]) -> Finding:
    """A setting that is spelt wrong has no effect, and nobody says so."""
    names = unread(environ)
    if not names:
        return Finding("HOROVOD_ variables", Level.OK, "none without effect")
    advised = "; ".join(f"{name}: {advice(name)}" for name in names)
    return Finding("HOROVOD_ variables", Level.WARNING, f"without effect: {', '.join(names)}", advised)
