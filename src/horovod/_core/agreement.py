"""Whether all ranks have the same, asked before anything depends on it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from horovod._core.objects import allgather_object
from horovod._core.process_sets import ProcessSet, global_process_set
from horovod._core.runtime import engine
from horovod.exceptions import MismatchError

__all__ = ["agree"]

Item = tuple[str, Any]


def agree(items: Sequence[Item], call: str, process_set: ProcessSet = global_process_set) -> None:
    """Raises on every rank of the set, and names the first difference, unless all gave the same items."""
    if process_set.size() == 1:
        return
    digest = hashlib.blake2b(repr(list(items)).encode(), digest_size=16).digest()
    name = f"{call}.agreement"
    digests = bytes(
        engine().allgather(name, digest, lambda memory, *_: memoryview(memory), process_set.process_set_id)
    )
    if digests == digest * (len(digests) // len(digest)):
        return
    lists = allgather_object(list(items), name, process_set)
    ranks = process_set.ranks or []
    for rank, other in zip(ranks[1:], lists[1:], strict=True):
        if problem := first_difference(ranks[0], lists[0], rank, other):
            raise MismatchError(f"{call}: the ranks differ. {problem} Build the same model on every rank.")


def first_difference(rank_a: int, a: Sequence[Item], rank_b: int, b: Sequence[Item]) -> str:
    """Where two lists of names and values part; empty if they do not."""
    for number, (left, right) in enumerate(zip_longest(a, b)):
        if left == right:
            continue
        if left is None or right is None:
            longer, shorter, name = (rank_a, rank_b, left[0]) if right is None else (rank_b, rank_a, right[0])
            count = min(len(a), len(b))
            return f"Rank {longer} has {name!r} (number {number}), rank {shorter} has only {count}."
        if left[0] != right[0]:
            return f"Number {number} is {left[0]!r} on rank {rank_a} and {right[0]!r} on rank {rank_b}."
        return f"{left[0]!r} is {left[1]} on rank {rank_a} and {right[1]} on rank {rank_b}."
    return ""
