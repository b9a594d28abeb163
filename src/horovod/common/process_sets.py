"""``horovod.common.process_sets``: there for scripts written against the original."""

from __future__ import annotations

from horovod._core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
