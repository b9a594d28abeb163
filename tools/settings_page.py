"""Write docs/settings.md from the declarations: `python tools/settings_page.py`; a test sees that it is done.

Settings and options come from `horovod._config`, variables that have no effect from `horovod._variables`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from horovod._config import GROUP_TITLES, LAUNCHER_OPTIONS, ORIGINALS, Setting, settings_table
from horovod._forms import MIB
from horovod._variables import ORIGINALS as VARIABLES

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

TITLES = ("variable", "option, key", "default", "allowed", "meaning")
INTRODUCTION = """\
# Settings

<!-- Written by tools/settings_page.py from the declarations in src/horovod/_config: change those. -->

Every setting can be given as a variable in the environment; most also as an option of
[horovodrun](launchers/horovodrun.md) or as a key of the YAML file of its `--config-file`. An option wins
over the file, the file over the variable, the variable over the default. An empty variable counts as
unset. A wrong value is an error that names the option, key or variable, the value and what is allowed,
before anything starts. A variable whose name is not known is pointed out once, with the nearest name that
is: by `horovodrun`, or by rank 0 at `init()`.

Options may be written with `_` instead of `-`, and cut short as long as it is clear which one is meant.
Where 0 or 1 is allowed, every whole number above 0 means 1.
"""
NO_EFFECT = """\
## Of the original, without effect here

These options and keys are understood. What merely changes nothing is told, and the job runs; what asks
for something that is not there yet is refused as an option, and told as a key.
"""
VARIABLES_TEXT = """\
These variables have no effect. Those that are not available yet are pointed out like unknown ones, unless
they are 0.
"""


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    groups: dict[str, list[Setting]] = {}
    for setting in settings_table():
        groups.setdefault(setting.group, []).append(setting)
    for group, settings in groups.items():
        title = GROUP_TITLES[group]
        parts.append(f"## {title[0].upper()}{title[1:]}\n")
        parts.append(
            _table(("variable", "option, key", "default", "allowed", "meaning"), map(_row, settings))
        )
    parts += ["## Options of horovodrun alone\n", _table(("option", "meaning"), _launcher_options())]
    parts += [NO_EFFECT, _table(("options", "keys", "why"), _originals())]
    rows = [(f"`{name}`", why) for name, why in VARIABLES.items()]
    parts += [VARIABLES_TEXT, _table(("variable", "why"), rows)]
    return "\n".join(parts)


def _row(setting: Setting) -> Sequence[str]:
    names = [f"`{' '.join([name, flag.metavar]).strip()}`" for flag in setting.flags for name in flag.names]
    if setting.yaml is not None:
        names.append(f"`{setting.yaml.key}`")
    return f"`{setting.env}`", "<br>".join(names), _default(setting), setting.form.allowed, setting.help


def _default(setting: Setting) -> str:
    value = setting.default
    if isinstance(value, bool):
        return str(int(value))
    if value in ("", ()):
        return "none"
    if isinstance(value, int) and value >= MIB and value % MIB == 0:
        return f"{value} ({value // MIB} MiB)"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _launcher_options() -> Iterable[Sequence[str]]:
    for option in LAUNCHER_OPTIONS:
        if not option.hidden:
            yield f"`{' '.join([', '.join(option.names), option.metavar]).strip()}`", option.help


def _originals() -> Iterable[Sequence[str]]:
    for original in ORIGINALS:
        flags = ", ".join(f"`{flag}`" for flag in original.flags)
        keys = ", ".join(f"`{key}`" for key in original.yaml)
        yield flags, keys, original.why + ("; refused" if original.refused else "")


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def main() -> int:
    """Write the page."""
    PAGE.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
