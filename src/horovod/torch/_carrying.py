"""Carrying out works: what each operation means in terms of a group's exchanges of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from horovod._core.reduction import Adasum, Average
from horovod.torch import _arithmetic as arithmetic
from horovod.torch._groups import Group
from horovod.torch._work import Order, Share

Tensor = torch.Tensor


def carry_out(order: Order, shares: Sequence[Share], group: Group | None) -> None:
    """Gives every share its results. Without a group this rank is alone."""
    _KINDS[order.kind](order, shares, group)


def _allreduce(order: Order, shares: Sequence[Share], group: Group | None) -> None:
    for dtype, pairs in _by_type(shares):
        wire = arithmetic.wire_type(dtype, order.compression)
        given = [
            arithmetic.travelling(
                tensor if share.stands_in else arithmetic.prescaled(tensor, order.prescale), wire
            )
            for share, number in pairs
            for tensor in [share.inputs[number]]
        ]
        if order.op == Adasum:
            results = [_reduce_all([tensor], order, group, wire)[0] for tensor in given]
        else:
            results = _reduce_all(given, order, group, wire)
        for (share, number), result in zip(pairs, results, strict=True):
            put(share.outputs[number], arithmetic.arrived(result, dtype))


def _reduce_all(tensors: list[Tensor], order: Order, group: Group | None, wire: torch.dtype) -> list[Tensor]:
    """The tensors, all of the type ``wire``, reduced over the ranks in one go."""
    if group is not None and order.op != Adasum and wire not in group.reduces:
        whole = _reduce_shares(tensors, order, group, wire)
    else:
        flat = _bytes_of(tensors)
        if group is None:
            whole = arithmetic.reduced(order.op, [flat.view(wire)], order.postscale, 1)
        elif order.op == Adasum:
            rows = _rows(group.gather(flat, [flat.numel()] * group.size), group.size, wire)
            whole = arithmetic.reduced(order.op, rows, order.postscale, group.size)
        else:
            whole = flat.view(wire)
            group.allreduce(whole, order.op)
            whole = arithmetic.prescaled(whole, order.postscale / (group.size if order.op == Average else 1))
    parts = torch.split(whole, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _reduce_shares(tensors: list[Tensor], order: Order, group: Group, wire: torch.dtype) -> Tensor:
    """Every rank reduces its share of all ranks' bytes, in the order of ranks, and the shares are gathered.

    As many bytes travel as in a ring, and any type and reduction works, with the same bits on all ranks.
    """
    n, elements = group.size, sum(tensor.numel() for tensor in tensors)
    share = -(-elements // n) * wire.itemsize
    came = group.exchange(_bytes_of(tensors, share * n), [share] * n, [share] * n)
    mine = arithmetic.reduced(order.op, _rows(came, n, wire), order.postscale, n)
    del came
    return group.gather(_bytes_of([mine]), [share] * n).view(wire)[:elements]


def _broadcast(order: Order, shares: Sequence[Share], group: Group | None) -> None:
    inputs = [tensor for share in shares for tensor in share.inputs]
    outputs = [tensor for share in shares for tensor in share.outputs]
    if group is None:
        for output, tensor in zip(outputs, inputs, strict=True):
            put(output, tensor)
        return
    flat = _bytes_of(inputs)
    group.broadcast(flat, order.ranks.index(order.root))
    ends = list(accumulate(tensor.nbytes for tensor in inputs))
    for output, end in zip(outputs, ends, strict=True):
        put(output, flat[end - output.nbytes : end].clone().view(output.dtype).view(output.shape))


def _allgather(order: Order, shares: Sequence[Share], group: Group | None) -> None:  # noqa: ARG001
    if group is None:
        for share in shares:
            share.results = [tensor.clone() for tensor in share.inputs]
        return
    # A block of a rank has all of its tensors, one after the other.
    lengths = [
        [share.numbers[i * group.size + member] * _row_bytes(tensor) for member in range(group.size)]
        for share in shares
        for i, tensor in enumerate(share.inputs)
    ]
    sizes = [sum(column) for column in zip(*lengths, strict=True)]
    whole = group.gather(_bytes_of([tensor for share in shares for tensor in share.inputs]), sizes)
    blocks = torch.split(whole, sizes)
    places = [0] * group.size
    by_tensor = iter(lengths)
    for share in shares:
        share.results = []
        for i, tensor in enumerate(share.inputs):
            counts = next(by_tensor)
            rows = sum(share.numbers[i * group.size : (i + 1) * group.size])
            parts = [
                block[place : place + count]
                for block, place, count in zip(blocks, places, counts, strict=True)
            ]
            places = [place + count for place, count in zip(places, counts, strict=True)]
            joined = whole if len(lengths) == 1 else torch.cat(parts)
            share.results.append(joined.view(tensor.dtype).view(rows, *tensor.shape[1:]))


def _alltoall(order: Order, shares: Sequence[Share], group: Group | None) -> None:
    (share,) = shares
    (tensor,) = share.inputs
    n, row = len(order.ranks), _row_bytes(tensor)
    me = 0 if group is None else group.index
    table = [share.numbers[i * n : i * n + n] for i in range(n)]  # from each member to each
    sent = table[me]
    share.received = [row[me] for row in table]
    given = tensor[: sum(sent)]
    if group is None:
        share.results = [given.clone()]
        return
    came = group.exchange(
        _bytes_of([given]), [count * row for count in sent], [count * row for count in share.received]
    )
    share.results = [came.view(tensor.dtype).view(sum(share.received), *tensor.shape[1:])]


def _reducescatter(order: Order, shares: Sequence[Share], group: Group | None) -> None:
    n, me = (1, 0) if group is None else (group.size, group.index)
    for share in shares:
        share.results = [torch.empty(0)] * len(share.inputs)
    for dtype, pairs in _by_type(shares):
        wire = arithmetic.wire_type(dtype, order.compression)
        blocks: list[list[Tensor]] = [[] for _ in range(n)]  # for each member, its rows of every tensor
        for share, number in pairs:
            tensor = arithmetic.travelling(arithmetic.prescaled(share.inputs[number], order.prescale), wire)
            for block, rows in zip(blocks, _rows_by_member(tensor, n), strict=True):
                block.append(rows)
        flats = [_bytes_of(block) for block in blocks]
        mine = flats[me].numel()
        if group is None or not any(flat.numel() for flat in flats):
            rows_of_all = [flats[me].view(wire)]
        else:
            sent = [flat.numel() for flat in flats]
            rows_of_all = _rows(group.exchange(torch.cat(flats), sent, [mine] * n), n, wire)
        total = arithmetic.reduced(order.op, rows_of_all, order.postscale, n)
        parts = torch.split(arithmetic.arrived(total, dtype), [rows.numel() for rows in blocks[me]])
        for (share, number), part, rows in zip(pairs, parts, blocks[me], strict=True):
            share.results[number] = part.clone().view(rows.shape)


_KINDS = {
    "allreduce": _allreduce,
    "broadcast": _broadcast,
    "allgather": _allgather,
    "alltoall": _alltoall,
    "reducescatter": _reducescatter,
}


def put(output: Tensor, values: Tensor) -> None:
    """Fills a tensor, whichever mode it was made in."""
    if output.is_inference():
        with torch.inference_mode():
            output.copy_(values)
    else:
        output.copy_(values)


def _bytes_of(tensors: Sequence[Tensor], length: int = 0) -> Tensor:
    """A copy of the tensors' bytes, one after the other; filled up with zeros to a length."""
    parts = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors if tensor.numel() > 0]
    rest = length - sum(part.numel() for part in parts)
    if rest > 0 or not parts:
        parts.append(torch.zeros(max(rest, 0), dtype=torch.uint8, device=tensors[0].device))
    return torch.cat(parts)


def _rows(data: Tensor, count: int, dtype: torch.dtype) -> list[Tensor]:
    """Bytes of several ranks, the same number from each, as tensors."""
    return list(data.view(dtype).view(count, data.numel() // dtype.itemsize // count).unbind())


def _row_bytes(tensor: Tensor) -> int:
    elements = 1
    for length in tensor.shape[1:]:
        elements *= length
    return elements * tensor.element_size()


def _rows_by_member(tensor: Tensor, n: int) -> list[Tensor]:
    """The rows that each member gets; the first ones get one more."""
    rows = tensor.shape[0]
    counts = [rows // n + (1 if member < rows % n else 0) for member in range(n)]
    return list(torch.split(tensor, counts))


def _by_type(shares: Sequence[Share]) -> Iterator[tuple[torch.dtype, list[tuple[Share, int]]]]:
    """The tensors of each type, as shares and numbers in them, in an order that is the same on all ranks."""
    found: dict[torch.dtype, list[tuple[Share, int]]] = {}
    for share in shares:
        for number, tensor in enumerate(share.inputs):
            found.setdefault(tensor.dtype, []).append((share, number))
    yield from found.items()
