"""Hosts as written, and ranks on hosts."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.runner.hosts import Host, is_local, parse_hosts
from horovod.runner.placement import place


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("localhost:4", [Host("localhost", 4)]),
        ("a:1, b-2.example:3", [Host("a", 1), Host("b-2.example", 3)]),
        ("a:1,b:1,a:2", [Host("a", 3), Host("b", 1)]),
    ],
)
def test_hosts(text, hosts):
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize("text", ["", "a", "a:", "a:x", "a:-1", ":2", "a:1,,b:1", "a b:1", "a:0", "é:1"])
def test_wrong_hosts(text):
    with pytest.raises(ValueError, match="host"):
        parse_hosts(text)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.0.1.1", os.uname().nodename])
def test_this_machine(name):
    assert is_local(name)


@pytest.mark.parametrize("name", ["no-such-host.invalid", "203.0.113.77"])
def test_other_machines(name):
    assert not is_local(name)


def test_a_last_host_that_is_not_full():
    slots = place([Host("a", 2), Host("b", 2)], 3)
    found = [(s.host, s.rank, s.local_rank, s.local_size, s.cross_rank, s.cross_size) for s in slots]
    assert found == [("a", 0, 0, 2, 0, 2), ("a", 1, 1, 2, 0, 1), ("b", 2, 0, 1, 1, 2)]


@pytest.mark.parametrize("num_proc", [0, -1, 5])
def test_impossible_numbers(num_proc):
    with pytest.raises(ValueError, match=r"processes"):
        place([Host("a", 2), Host("b", 2)], num_proc)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_placement_is_consistent(counts, data):
    hosts = [Host(f"h{index}", count) for index, count in enumerate(counts)]
    num_proc = data.draw(st.integers(1, sum(counts)))
    slots = place(hosts, num_proc)
    assert [slot.rank for slot in slots] == list(range(num_proc))
    by_host = {h.name: [s for s in slots if s.host == h.name] for h in hosts}
    assert all([s.local_rank for s in group] == list(range(len(group))) for group in by_host.values())
    assert all(s.local_size == len(by_host[s.host]) <= h.slots for h in hosts for s in by_host[h.name])
    by_local = [[s for s in slots if s.local_rank == local] for local in range(max(counts))]
    assert all([s.cross_rank for s in group] == list(range(len(group))) for group in by_local)
    assert all(s.cross_size == len(group) for group in by_local for s in group)
