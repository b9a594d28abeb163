"""After a lost peer the survivors make a smaller world in the same processes, a hundred times in a row."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path

import pytest
from jobs import DEADLINE
from tests.support.chaos.nursery import Birth, Nursery

MODULE = "tests.support.chaos.generations"
ROUNDS = 100
AHEAD = 3
"""Guests that may wait for their round: they come sooner than they are needed."""


def bear(nursery: Nursery, directory: Path, job: str, plane: str, member: str) -> int:
    """Starts a member of the worlds."""
    own = {"HOROVOD_HOSTNAME": "testhost", "HOROVOD_START_TIMEOUT": "60"}
    return nursery.bear(Birth(MODULE, (job, plane, str(ROUNDS), member), own, str(directory), member))


@pytest.mark.parametrize("plane", ["shm", "tcp"])
def test_a_hundred_worlds_that_lose_a_rank(nursery: Nursery, tmp_path: Path, plane: str) -> None:
    job = secrets.token_hex(8)
    lasting = [bear(nursery, tmp_path, job, plane, member) for member in ("0", "1")]
    guests: list[int] = []
    end = time.monotonic() + 2 * DEADLINE
    while not set(lasting) <= nursery.ends().keys() and time.monotonic() < end:
        waiting = [pid for pid in guests if pid not in nursery.ends()]
        if len(guests) < ROUNDS and len(waiting) < AHEAD:
            guests.append(bear(nursery, tmp_path, job, plane, f"guest.{len(guests)}"))
        time.sleep(0.002)
    codes = nursery.ends()
    errors = [(tmp_path / f"err.{member}").read_text()[-3000:] for member in ("0", "1")]
    assert [codes.get(pid) for pid in lasting] == [0, 0], errors
    assert [codes.get(pid) for pid in guests] == [-9] * ROUNDS
    for member in ("0", "1"):
        told = json.loads((tmp_path / f"out.{member}").read_text())
        assert told["rounds"] == ROUNDS
        assert_constant(told["before"], told["after"])


def assert_constant(before: dict[str, int], after: dict[str, int]) -> None:
    """Nothing grows; memory and mappings but for what an allocator may do."""
    assert after["regions"] == 0
    assert (after["descriptors"], after["threads"]) == (before["descriptors"], before["threads"])
    assert after["mappings"] <= before["mappings"] + 8
    assert after["resident KiB"] <= before["resident KiB"] + 4096
