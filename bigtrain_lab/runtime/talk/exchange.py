"""All-gather and reduce-scatter over gloo, each part sent straight from where it is to where it
belongs; and the highest of a few numbers in ceil(log2 N) rounds.

    gathering  rank r sends its part to all others, which receive it in row r
    scatter    rank r sends row k to rank k, which adds up what arrives to its own
    Highest    in round k rank r sends rank r + 2^k the highest that it knows

Gloo's own gather writes to a buffer first, and its reduce-scatter is an all-reduce of which parts
are dropped: half as fast. Bytes sent a rank: (N-1)/N of the whole. Memory: for a reduce-scatter
the rows that arrive, as much as is sent.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest

import torch
import torch.distributed as dist

from .message import as_bytes, channel

WAYS = {op: channel(op, "", -1) for op in ("gather", "scatter", "agreement")}
INTO = {
    "sum": torch.Tensor.add_,
    "mean": torch.Tensor.add_,
    "product": torch.Tensor.mul_,
    "max": lambda own, other: torch.maximum(own, other, out=own),
    "min": lambda own, other: torch.minimum(own, other, out=own),
}


def gathering(
    rows: Sequence[torch.Tensor], own: torch.Tensor, rank: int, process_group, way: str = "gather"
) -> list[dist.Work]:
    """`own` of every rank, each in its row, which may be where `own` is; once these are waited
    for."""
    others, to = around(rank, len(rows)), (way, process_group)
    works = [receive(rows[other], other, *to) for other in others if rows[other].numel()]
    works += [send(own, other, *to) for other in others if own.numel()]
    if rows[rank].data_ptr() != own.data_ptr():
        rows[rank].copy_(own)
    return works


def scatter(
    rows: Sequence[torch.Tensor],
    own: torch.Tensor,
    op: str,
    rank: int,
    process_group,
    room: Callable[[int], torch.Tensor],
) -> None:
    """In `own` the sum over the ranks, or what else `op` says, of this rank's row; `own` may be
    that row. `room`: so many bytes to receive in."""
    others, to = around(rank, len(rows)), ("scatter", process_group)
    come = room(own.nbytes * len(others)).view(own.dtype).view(len(others), len(own))
    works = [receive(row, other, *to) for row, other in zip(come, others) if own.numel()]
    sent = [send(rows[other], other, *to) for other in others[::-1] if rows[other].numel()]
    if rows[rank].data_ptr() != own.data_ptr():
        own.copy_(rows[rank])
    for row, work in zip(come, works):
        work.wait()
        INTO[op](own, row)
    for work in sent:
        work.wait()


class Highest:
    """`own` becomes, once waited for, the elementwise highest of every rank's, by dissemination
    (Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, 1988): after round k a
    rank knows that of the 2^(k+1) ranks up to itself. A rank sends ceil(log2 N) messages, all but
    the first in `wait`. Gloo's own all-reduce of so few bytes wakes more threads."""

    def __init__(self, own: torch.Tensor, rank: int, ranks: int, process_group):
        self.own, self.to = own, ("agreement", process_group)
        distances = [2**k for k in range((ranks - 1).bit_length())]
        rows = [torch.empty_like(own) for _ in distances]
        self.coming = [
            (row, receive(row, (rank - distance) % ranks, *self.to))
            for row, distance in zip(rows, distances)
        ]
        first, *self.then = [(rank + distance) % ranks for distance in distances]
        self.sent = [send(own, first, *self.to)]

    def wait(self) -> None:
        known = self.own
        for (row, work), dst in zip_longest(self.coming, self.then):
            work.wait()
            known = torch.maximum(known, row)
            if dst is not None:
                self.sent.append(send(known, dst, *self.to))
        for work in self.sent:  # who goes on may end, and the others come to know it too
            work.wait()
        self.own.copy_(known)


def around(rank: int, ranks: int) -> list[int]:
    """The ranks before this one, the nearest first: each receives from another first."""
    return [(rank - distance) % ranks for distance in range(1, ranks)]


def send(part: torch.Tensor, rank: int, way: str, process_group):
    return dist.isend(as_bytes(part), group=process_group, group_dst=rank, tag=WAYS[way])


def receive(part: torch.Tensor, rank: int, way: str, process_group):
    return dist.irecv(as_bytes(part), group=process_group, group_src=rank, tag=WAYS[way])
