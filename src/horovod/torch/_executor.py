"""The executor: a thread that carries out what the engine hands it, one work after the other.

The engine decides on the order, which is the same on all ranks; so groups, which are made when a work first
needs them, are made in the same order too.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from typing import Any

import torch

from horovod import _native
from horovod.torch import _arithmetic as arithmetic
from horovod.torch._carrying import carry_out
from horovod.torch._groups import CLOSING_SECONDS, CONNECTING, Group, directory_of
from horovod.torch._streams import AbandonedError, CudaStreams, HostStreams, Streams
from horovod.torch._work import DTYPES, Order, Share

CAUSE_SECONDS = 1.0
"""How long an error is kept back: the engine may learn why a connection has ended."""


class Executor:
    """Of one world."""

    def __init__(self, engine: _native.Engine, key: str, start_seconds: float) -> None:
        self.device: torch.device | None = None
        """The GPU of a rank that has joined: where it stands in."""
        self._engine, self._key, self._seconds = engine, key, start_seconds
        self._shares: weakref.WeakValueDictionary[int, Share] = weakref.WeakValueDictionary()
        self._tokens = itertools.count(1)
        self._streams: dict[torch.device, Streams] = {HostStreams.device: HostStreams()}
        self._groups: dict[tuple[Any, ...], Group] = {}
        self._under_way: list[Share] = []  # memory that a GPU may write to
        self._thread = threading.Thread(target=self._run, name="horovod.torch plane", daemon=True)
        engine.open_handing()
        self._thread.start()

    def expect(self, share: Share) -> int:
        """The token under which the engine hands the share back, while somebody keeps it."""
        token = next(self._tokens)
        self._shares[token] = share
        return token

    def streams_of(self, device: torch.device) -> Streams:
        """The streams for the tensors of a device."""
        if device not in self._streams:
            self._streams[device] = CudaStreams(device)
        return self._streams[device]

    def join(self) -> None:
        """After the engine's end: waits for the thread's, for a while."""
        if self._thread is not threading.current_thread():
            self._thread.join(CONNECTING.total_seconds() + CLOSING_SECONDS)

    def _run(self) -> None:
        while not self._engine.handing_closed():
            work = self._engine.next_handed(60.0)
            if work is None:
                continue
            try:
                self._carry_out(work)
                error = ""
            except AbandonedError:
                break
            except Exception as failure:
                if self._engine.handing_closed(CAUSE_SECONDS):
                    break
                error = f"{type(failure).__name__}: {failure}"
            self._engine.finish_handed(work.number, error)
            del work
        self._close()

    def _wanted(self) -> bool:
        return not self._engine.handing_closed()

    def _carry_out(self, work: _native.HandedWork) -> None:
        order = Order(
            work.kind, work.ranks, work.op, work.prescale, work.postscale, work.compression, work.root
        )
        shares = [self._share(order, work.gpu, *operation) for operation in work.operations]
        device = next((share.inputs[0].device for share in shares if share.inputs), HostStreams.device)
        streams = self.streams_of(device)
        with torch.no_grad(), streams.behind([share.mark for share in shares if share.mark is not None]):
            self._under_way = shares
            carry_out(order, shares, self._group(work, streams))
            streams.settle(self._wanted)
            self._under_way = []

    def _share(
        self,
        order: Order,
        gpu: bool,
        token: int | None,
        tensors: list[tuple[str, list[int]]],
        numbers: list[int],
    ) -> Share:
        share = self._shares.get(token) if token is not None else None
        if share is None:  # this rank has joined; or nobody keeps the operation, which only a dead world has
            device = torch.device("cpu") if not gpu else self.device or torch.device("cuda")
            given = [arithmetic.neutral(order.op, shape, DTYPES[name], device) for name, shape in tensors]
            share = Share(given, given, stands_in=True)
        share.numbers = numbers
        return share

    def _group(self, work: _native.HandedWork, streams: Streams) -> Group:
        ranks = work.ranks
        key = (work.process_set, tuple(ranks), work.gpu)
        if key not in self._groups:
            self._groups[key] = Group(
                directory_of(self._key, work.plan),
                ranks.index(self._engine.rank),
                len(ranks),
                streams,
                self._wanted,
                self._seconds,
            )
        return self._groups[key]

    def _close(self) -> None:
        """Drops the groups: members that wait for this rank find their connections closed."""
        end = time.monotonic() + CLOSING_SECONDS
        for group in self._groups.values():
            group.close(end)
        self._groups.clear()
        for streams in self._streams.values():
            streams.drain()
        self._under_way = []
