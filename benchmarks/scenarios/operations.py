"""The other operations on float32: allgather, broadcast, alltoall, reducescatter at 2 and 4 ranks.

Bytes are those that each rank puts in. A broadcast is in place; the others make a new result for every call,
its first touch included.
"""

from __future__ import annotations

from itertools import product

from benchmarks.cases import Calls
from benchmarks.peers import Operation, Place
from benchmarks.results import Row
from benchmarks.session import Session
from benchmarks.units import KIB, MIB

NAME = "operations"
SIZES = (2, 4)
OPERATIONS: dict[Operation, Place] = {
    "allgather": "out",
    "broadcast": "in",
    "alltoall": "out",
    "reducescatter": "out",
}
BYTES = (4 * KIB, 64 * KIB, 1 * MIB, 16 * MIB, 64 * MIB)
QUICK_BYTES = (64 * KIB, 16 * MIB)


def run(session: Session) -> list[Row]:
    """Everything at 2 ranks, then at 4; a quick run has 64 KiB and 16 MiB."""
    rows: list[Row] = []
    for size in SIZES:
        for operation, length in product(OPERATIONS, QUICK_BYTES if session.options.quick else BYTES):
            case = Calls(length, place=OPERATIONS[operation], operation=operation)
            rows += session.measure_calls(NAME, "operations", case, size, operation=operation, bytes=length)
        session.end_worlds()
    return rows
