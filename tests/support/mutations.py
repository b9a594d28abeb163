"""Bytes that were a message once: changed, cut, spliced, repeated. For every parser that reads a socket."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st


def mutated(messages: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Mutations of these encoded messages, and bytes that never were one."""
    whole = st.sampled_from(messages)
    part = st.tuples(whole, st.integers(0, 1 << 16), st.integers(0, 1 << 16)).map(_part)
    spliced = st.lists(st.one_of(part, whole, st.binary(max_size=8)), min_size=1, max_size=4).map(b"".join)
    changed = st.tuples(
        spliced, st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4)
    )
    return st.one_of(changed.map(_changed), spliced, st.binary(max_size=300))


def _part(drawn: tuple[bytes, int, int]) -> bytes:
    message, begin, end = drawn
    return message[begin % (len(message) + 1) : end % (len(message) + 1)]


def _changed(drawn: tuple[bytes, list[tuple[int, int]]]) -> bytes:
    message, changes = bytearray(drawn[0]), drawn[1]
    for position, value in changes:
        if message:
            message[position % len(message)] = value
    return bytes(message)
