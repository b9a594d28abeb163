"""Lines, prefixes, tails and sinks."""

from __future__ import annotations

import fcntl
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.runner.output import MAX_LINE, LineSplitter, Sink, Tail, open_sinks, prefixer


def split(*chunks: bytes) -> list[bytes]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb\n"], [b"a\n", b"b\n"]),
        ([b"a", b"b\nc"], [b"ab\n", b"c\n"]),
        ([b"1%\r2%\r"], [b"1%\r", b"2%\r"]),
        ([b"a\r\nb"], [b"a\r\n", b"b\n"]),
        ([b"a\r", b"\nb\n"], [b"a\r", b"", b"b\n"]),
        ([b"a\r", b"b\n"], [b"a\r", b"b\n"]),
        ([b"\n\n"], [b"\n", b"\n"]),
        ([b""], []),
    ],
)
def test_lines(chunks, lines):
    assert split(*chunks) == lines


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"\r", b"\n", b"\r\n"])))
def test_no_byte_is_lost_however_it_is_cut(chunks):
    whole = b"".join(chunks)
    joined = b"".join(line or b"\n" for line in split(*chunks))
    assert joined in (whole, whole + b"\n")


def test_endless_lines_are_cut():
    splitter = LineSplitter()
    lines = [line for _ in range(40) for line in splitter.feed(b"x" * (1 << 16))]
    assert [len(line) for line in lines] == [MAX_LINE + 1] * 2


def test_prefixes():
    join = prefixer(3, "stderr", timestamp=False)
    assert join([b"a\r", b"", b"\n", b"b\n"]) == b"[3]<stderr>:a\r\n[3]<stderr>:\n[3]<stderr>:b\n"


def test_the_tail_is_bounded_and_readable():
    tail = Tail(lines=2, width=3)
    tail.add([b"one\n", b"tw\xff\n"])
    tail.add([b"three\r\n", b""])
    assert tail.text() == ["tw\\xff", "thr"]


def test_a_sink_writes_in_pieces_and_says_when_it_is_full():
    read_end, write_end = os.pipe()
    sink = Sink(write_end)
    capacity = fcntl.fcntl(write_end, fcntl.F_GETPIPE_SZ)
    sink.write(b"x" * (capacity + 5000))
    sink.flush_some()
    assert (sink.pending, sink.full) == (5000, False)
    sink.write(b"y" * (1 << 20))
    assert sink.full
    os.close(read_end)
    sink.flush_some()
    assert (sink.closed, sink.pending, sink.full) == (True, 0, False)
    sink.write(b"more")
    assert sink.pending == 0
    os.close(write_end)


def test_one_place_has_one_sink(tmp_path):
    with open(tmp_path / "a", "wb") as a, open(tmp_path / "b", "wb") as b:
        same = open_sinks(a.fileno(), a.fileno())
        apart = open_sinks(a.fileno(), b.fileno())
    assert same[0] is same[1]
    assert apart[0] is not apart[1]
