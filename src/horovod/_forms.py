"""How the text of a setting is read: forms, each with the words that tell what is allowed.

A form knows no setting and no source: who reads a text says where it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = [
    "BOOL",
    "CORES",
    "COUNT",
    "DYNAMIC",
    "LOG_LEVELS",
    "MEGABYTES",
    "MIB",
    "NOT_BOOL",
    "TIMELINE",
    "Form",
    "NotAvailableError",
    "choice",
    "number",
    "whole_number",
]

T = TypeVar("T")
MIB = 1024 * 1024
DYNAMIC = "DYNAMIC"


@dataclass(frozen=True)
class Form(Generic[T]):
    """How the text of a value is read. ``allowed`` completes the sentence "must be ..."."""

    allowed: str
    read: Callable[[str], T]

    def parse(self, text: str, source: str) -> T:
        """Read ``text``; a ``ValueError`` names ``source`` (flag or variable), text and allowed form."""
        try:
            return self.read(text.strip())
        except NotAvailableError as error:
            raise ValueError(f"{source}={text!r}: {error}") from None
        except (ValueError, OverflowError):
            raise ValueError(f"{source}={text!r} is not valid: it must be {self.allowed}") from None


class NotAvailableError(ValueError):
    """The value is one that the original knows and that this version cannot do yet."""


def whole_number(minimum: int) -> Form[int]:
    """From ``minimum`` to what 64 bits hold."""

    def read(text: str) -> int:
        value = int(text)
        if not minimum <= value < 2**63:
            raise ValueError
        return value

    return Form(f"a whole number >= {minimum}", read)


def number(minimum: float, *, exclusive: bool = False) -> Form[float]:
    """From ``minimum`` (or just above it); never nan or infinite."""

    def read(text: str) -> float:
        value = float(text)
        # The comparisons also refuse nan; the upper bound refuses inf.
        if not minimum <= value < float("inf") or (exclusive and value == minimum):
            raise ValueError
        return value

    return Form(f"a number {'>' if exclusive else '>='} {minimum:g}", read)


def _read_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:  # int() alone would take +2 and 1_000
        raise ValueError
    return int(text)


def _read_bool(text: str) -> bool:
    words = {"true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    return int(text) > 0


def choice(choices: tuple[str, ...], aliases: Mapping[str, str], missing: tuple[str, ...] = ()) -> Form[str]:
    """One of some words, in any case. ``missing`` are those that this version cannot do yet."""

    def read(text: str) -> str:
        word = text.lower()
        if word in missing:
            raise NotAvailableError(f"not available yet in this version (use {' or '.join(choices)})")
        word = aliases.get(word, word)
        if word not in choices:
            raise ValueError
        return word

    return Form("one of " + ", ".join(choices), read)


def _megabytes_to_bytes(text: str) -> int:
    return int(number(0).read(text) * MIB)


def _read_timeline(text: str) -> str:
    if not text:
        raise ValueError
    return DYNAMIC if text.upper() == DYNAMIC else text


def _read_cores(text: str) -> tuple[int, ...]:
    return tuple(whole_number(0).read(part) for part in text.split(",")) if text else ()


BOOL = Form("0 or 1 (also true or false)", _read_bool)
NOT_BOOL = Form(BOOL.allowed, lambda text: not _read_bool(text))
MEGABYTES = Form("a number >= 0 (megabytes)", _megabytes_to_bytes)
TIMELINE = Form(f"the path of a file, or {DYNAMIC}", _read_timeline)
CORES = Form("numbers of CPUs, separated by commas, one for each rank of a host", _read_cores)
COUNT = Form("a whole number >= 1", _read_count)
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
