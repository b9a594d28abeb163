"""Many small tensors between 2 ranks: submitted asynchronously, then all waited for, in and out of place.

This is where negotiation, fusion and the cost of a gradient hook (`submit_us`, per tensor) show.
"""

from __future__ import annotations

from itertools import product

from benchmarks.cases import Calls
from benchmarks.peers import Place
from benchmarks.results import Row
from benchmarks.session import Session

NAME = "batches"
SIZE = 2
TENSORS = (160, 1000)
BYTES = 1024
PLACES: tuple[Place, ...] = ("in", "out")


def run(session: Session) -> list[Row]:
    """160 and 1,000 tensors of 1 KiB."""
    rows: list[Row] = []
    for tensors, place in product(TENSORS, PLACES):
        case = Calls(BYTES, place=place, tensors=tensors)
        rows += session.measure_calls(NAME, "batches", case, SIZE, tensors=tensors)
    return rows
