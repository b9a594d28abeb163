"""How ``horovodrun --help`` looks: its width, the order of names, and the last paragraphs. Pure."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable

from horovod._config import ORIGINALS

__all__ = ["WIDTH", "Formatter", "epilog"]

WIDTH = 100
_COLUMN = 38

_EXAMPLES = """\
examples:
  horovodrun -np 4 python train.py
  horovodrun -np 2 --output-filename logs python train.py --epochs 3
  horovodrun -np 4 --mpi python train.py
  horovodrun --doctor
"""
_RULES = (
    "Options come before the command; everything after it belongs to the command. --a_b means the same as "
    "--a-b, and an option may be cut short as long as it is clear which one is meant. An option wins over "
    "the file of --config-file, the file over the environment's variable (in brackets), the variable over "
    "the default. docs/settings.md lists all settings."
)


class Formatter(argparse.RawDescriptionHelpFormatter):
    """The whole text within :data:`WIDTH` columns, whatever the terminal; a value's name once per option."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_COLUMN, width=WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = ", ".join(action.option_strings)
        takes_value = action.nargs != 0 and action.metavar is not None
        return f"{names} {action.metavar}" if takes_value else names


def epilog() -> str:
    """Examples, rules, and the original's flags that have no effect or cannot be had yet."""
    noted = [flag for original in ORIGINALS if not original.refused for flag in original.flags]
    refused = [flag for original in ORIGINALS if original.refused for flag in original.flags]
    return "\n".join(
        [
            "the original's options that change nothing here (a line at the start says why):",
            _listed(noted),
            "",
            "the original's options for what is not available yet (they are refused):",
            _listed(refused),
            "",
            _EXAMPLES,
            textwrap.fill(_RULES, WIDTH, break_on_hyphens=False),
        ]
    )


def _listed(flags: Iterable[str]) -> str:
    return textwrap.fill(
        ", ".join(flags), WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
