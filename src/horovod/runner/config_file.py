"""The YAML file of ``--config-file``: from its text to settings. Pure, but for the reading of the file.

Which keys there are is ``_config``'s business. A key of the original that this version has no use for yet is
told and ignored, so that old files work; any other key is a mistake.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from horovod._config import Setting, as_environment, settings_table, yaml_keys

__all__ = ["ConfigFile", "interpret", "read_config_file"]

_CONTROLLER = "controller"


@dataclass(frozen=True)
class ConfigFile:
    """What a file asks for."""

    settings: dict[str, str]
    """As variables for the workers."""
    notes: list[str]
    """What of it has no effect, a line each."""
    mpi: bool = False
    """Whether ``mpirun`` shall start the ranks."""


def read_config_file(path: Path) -> ConfigFile:
    """Read ``path``. ``OSError`` if that cannot be done; ``ValueError`` says what in the file is wrong."""
    import yaml  # only for who needs it

    try:
        document = yaml.safe_load(path.read_bytes())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ValueError(f"{path}{where}: this is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: this is not YAML: {str(error).splitlines()[0]}") from None
    return interpret(document, str(path))


def interpret(document: object, source: str) -> ConfigFile:
    """The settings in a parsed document; ``source`` names it in errors."""
    known = {setting.yaml.key: setting for setting in settings_table() if setting.yaml is not None}
    without_effect = yaml_keys()
    values: dict[str, object] = {}
    notes: list[str] = []
    mpi = False
    for key, value in _flatten(document, source):
        if key in known:
            if value is not None:  # "filename:" alone counts as unset, as an empty variable does
                values[known[key].name] = _read(known[key], value, f"{source}: {key}")
        elif key == _CONTROLLER:
            mpi = _is_mpi(value, f"{source}: {key}")
        elif key in without_effect:
            notes.append(f"{source}: {key} has no effect: {without_effect[key]}")
        else:
            raise ValueError(f"{source}: {_unknown(key, [*known, *without_effect, _CONTROLLER])}")
    return ConfigFile(as_environment(values), notes, mpi)


def _flatten(document: object, source: str) -> Iterator[tuple[str, object]]:
    """``section.name`` and the value, for all that is there."""
    if document is None:  # an empty file
        return
    if not isinstance(document, Mapping):
        raise ValueError(f"{source}: {_short(document)} is not valid: it must be sections with keys")
    for section, content in document.items():
        if isinstance(content, Mapping):
            for name, value in content.items():
                yield f"{section}.{name}", value
        elif section == _CONTROLLER:
            yield section, content
        elif content is not None:
            raise ValueError(
                f"{source}: {section}={_short(content)} is not valid: it must be a section with keys"
            )


def _read(setting: Setting, value: object, source: str) -> object:
    assert setting.yaml is not None
    form = setting.yaml.form
    if isinstance(value, list) and isinstance(setting.default, tuple):
        value = ",".join(map(str, value))
    is_bool = isinstance(value, bool)
    is_number = isinstance(value, int | float) and not is_bool
    fits = {bool: is_bool or is_number, str: False}.get(type(setting.default), is_number)
    if not fits and not isinstance(value, str):
        raise ValueError(f"{source}={_short(value)} is not valid: it must be {form.allowed}")
    return form.parse(str(value), source)


def _is_mpi(controller: object, source: str) -> bool:
    if controller not in (None, "gloo", "mpi"):
        raise ValueError(f"{source}={_short(controller)} is not valid: it must be gloo or mpi")
    return controller == "mpi"


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"unknown key {key}" + (
        f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "..."
