"""The options by which gradients are reduced, checked: the same for tapes and optimizers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from horovod._core.process_sets import ProcessSet
from horovod._core.reduction import Average

__all__ = ["check_groups", "check_passes", "check_predivide", "check_registered"]

Groups = int | Sequence[Sequence[Any]] | None


def check_predivide(op: int, factor: float) -> None:
    """Raises ``ValueError`` if gradients cannot be divided by ``factor`` before they are added up."""
    if op != Average and factor != 1.0:
        raise ValueError("gradient_predivide_factor not supported with op other than Average.")
    if not math.isfinite(factor) or factor == 0.0:
        raise ValueError(f"gradient_predivide_factor must be a finite number other than 0, not {factor}.")


def check_registered(process_set: ProcessSet) -> None:
    """Raises ``TypeError`` if there is no such process set yet."""
    if process_set.process_set_id is None:
        raise TypeError(f"{process_set} is not registered: give it to hvd.init() or hvd.add_process_set().")


def check_passes(passes: int) -> None:
    """Raises ``ValueError`` if so many steps cannot make one."""
    if not isinstance(passes, int) or isinstance(passes, bool) or passes <= 0:
        raise ValueError(f"backward_passes_per_step must be > 0, not {passes!r}.")


def check_groups(num_groups: int, groups: Groups) -> int | list[list[Any]] | None:
    """The groups that the two arguments, of which ``num_groups`` is the old one, ask for."""
    if num_groups != 0 and groups is None:
        groups = num_groups
    if groups is None:
        return None
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups <= 0:
            raise ValueError(f"groups must be a positive number or lists of variables, not {groups}.")
        return groups
    if not isinstance(groups, list) or not all(isinstance(group, list | tuple) for group in groups):
        raise ValueError("groups must be a positive number or a list of lists of variables.")
    members = [variable for group in groups for variable in group]
    if any(not hasattr(variable, "assign") for variable in members):
        raise ValueError("groups must contain variables only.")
    if len({id(variable) for variable in members}) != len(members):
        raise ValueError("groups has a variable twice: each may be in one group only.")
    return [list(group) for group in groups]
