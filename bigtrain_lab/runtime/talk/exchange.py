"""All-gather and reduce-scatter over gloo, each part sent straight from where it is to where it
belongs.

    gathering  rank r sends its part to all others, which receive it in row r
    scatter    rank r sends row k to rank k, which adds up what arrives to its own

Gloo's own gather writes to a buffer first, and its reduce-scatter is an all-reduce of which parts
are dropped: half as fast. Bytes sent a rank: (N-1)/N of the whole. Memory: for a reduce-scatter
the rows that arrive, as much as is sent.
"""

from collections.abc import Callable, Sequence

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


def around(rank: int, ranks: int) -> list[int]:
    """The ranks before this one, the nearest first: each receives from another first."""
    return [(rank - distance) % ranks for distance in range(1, ranks)]


def send(part: torch.Tensor, rank: int, way: str, process_group):
    return dist.isend(as_bytes(part), group=process_group, group_dst=rank, tag=WAYS[way])


def receive(part: torch.Tensor, rank: int, way: str, process_group):
    return dist.irecv(as_bytes(part), group=process_group, group_src=rank, tag=WAYS[way])
