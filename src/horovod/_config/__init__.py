"""Everything that a user can set, declared once: the one place that knows.

``settings`` has what the engine is told, by variable, flag or key of a file; ``launching`` the options of
``horovodrun`` alone; ``originals`` the original's options that have no effect here, and why. The command
line, its ``--help``, the reference page and the variables for the workers are all derived from these.
"""

from horovod._config.launching import GROUP_TITLES, LAUNCHER_OPTIONS, LauncherOption
from horovod._config.originals import ORIGINALS, Original, yaml_keys
from horovod._config.settings import (
    DYNAMIC,
    Flag,
    Form,
    Setting,
    Settings,
    YamlKey,
    as_environment,
    settings_table,
)

__all__ = [
    "DYNAMIC",
    "GROUP_TITLES",
    "LAUNCHER_OPTIONS",
    "ORIGINALS",
    "Flag",
    "Form",
    "LauncherOption",
    "Original",
    "Setting",
    "Settings",
    "YamlKey",
    "as_environment",
    "settings_table",
    "yaml_keys",
]
