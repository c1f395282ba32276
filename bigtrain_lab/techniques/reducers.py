"""What replicas send together, when, and by which messages: three strategies for one mean.

    buckets       a bucket leaves when it is full, first in first out                  (PyTorch)
    fused cycle   at each cycle, what is ready on all ranks leaves, fused              (Horovod)
    push-pull     when the lane is free, the bucket leaves that the next forward needs
                  first; rank k sums the k-th part of it, and all pull it from there   (BytePS)

A strategy cuts the gradients into buckets, numbered as they come: those of the last layer first.
Its program is a plan's operations, which the simulator and the real lane both carry out. A cycle
is one request a rank: an all-reduce of how many buckets it has ready by now. So what is sent
follows from virtual time alone. Gradients that come one after the other lie side by side: fused
ones need no copies into a buffer. Without a modelled clock there is no virtual time: they are then
fused by size alone, and leave as they come.

Cost: 2 (N-1)/N S bytes a rank, whatever the strategy, and 16 (N-1)/N a cycle. Small messages pay
the latency often; in a long cycle gradients wait.
Source: Li et al. 2020, PyTorch Distributed (arXiv:2006.15704), section 3.2; Sergeev and Del Balso
2018, Horovod (arXiv:1802.05799), Tensor Fusion; Jiang et al. 2020, BytePS (OSDI). BytePS's workers
need no request, since its servers take what comes first; here nobody receives from any source.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import ClassVar

from ..core.later import later, torch
from ..order.collectives.push_pull import PushPull as OneServerARank
from ..order.plan import Cycle, lower_collective
from .replica_rules import name

with later():
    from ..runtime.talk import execute, group as groups, moves

BUCKET_BYTES = 25 * 2**20  # of gradients that travel together, where nothing else is asked


@dataclass(eq=False)
class Bucket:
    """Elements start to stop of the flat tensor of a kind (dtype, device), with gradients
    `members` in them, which are counted from the last parameter."""

    kind: "tuple[torch.dtype, torch.device]"
    start: int
    stop: int
    members: list[int]


def backend_all_reduce(
    tensor: "torch.Tensor", group: "groups.Group", op: str, name: str
) -> "torch.Tensor":
    """The backend's own all-reduce: a choice for `all_reduce`."""
    return group.all_reduce(tensor, op, name)


def push_pull(
    tensor: "torch.Tensor", group=None, op: str = "sum", name: str = "push_pull"
) -> "torch.Tensor":
    """Replace the tensor on every rank by the sum, or mean, over the ranks, of which each is the
    server of one part: a choice for `all_reduce`."""
    group, own = groups.Group.of(group), tensor.detach()
    collective = OneServerARank(group.size)
    plan = lower_collective(collective, own.numel(), own.itemsize, name)
    work = moves.Chunks(collective, group.rank, own)
    execute.run(plan.lanes[group.rank, "compute"], group, work, {}, {})
    work.store(own)
    if op == "mean":
        own.div_(group.size)
    return tensor


@dataclass(frozen=True)
class Buckets:
    """Of at most so many bytes; a larger parameter has one of its own, or is `split`."""

    split: bool = False
    every_ticks: ClassVar[int] = 0
    all_reduce = staticmethod(backend_all_reduce)  # by which messages, where nothing else is asked

    def buckets(
        self, parameters: "Sequence[torch.Tensor]", most_bytes: int, timed: bool
    ) -> list[Bucket]:
        """Of the gradients of these parameters, given in the order in which gradients come, in
        which the buckets are full. `timed`: there is virtual time."""
        return buckets_of(parameters, most_bytes, self.split)

    def program(
        self,
        buckets: Sequence[Bucket],
        most_bytes: int,
        ranks: tuple[int, ...],
        send: Callable[[int, list[int]], Sequence],
        batch: int,
    ) -> list:
        """What the lane does in a batch where it asks at each cycle what is there. `send`: (batch,
        numbers of buckets that lie side by side) -> the operations that average them."""
        send = partial(send, batch)
        labels = tuple(name([k], batch) for k in range(len(buckets)))

        def cycles(left: list[int], number: int) -> list:
            def then(least: int) -> list:
                leaving = self.leaving([k for k in left if k < least], buckets, most_bytes)
                gone = {*chain(*leaving)}
                return [
                    *chain(*map(send, leaving)),
                    *cycles([k for k in left if k not in gone], number + 1),
                ]

            about = f"cycle {number} of batch {batch}", labels
            return [Cycle(*about, left[0], self.every_ticks, ranks, then)] if left else []

        return cycles([*range(len(buckets))], 0)


@dataclass(frozen=True)
class FusedCycle(Buckets):
    """At each multiple of `every_ticks` of the modelled clock, what is ready leaves in messages of
    at most so many bytes; a larger gradient has one of its own."""

    every_ticks: int = 1

    def buckets(self, parameters, most_bytes, timed):
        return buckets_of(parameters, 1 if timed else most_bytes, False)

    def leaving(self, ready: list[int], buckets: Sequence[Bucket], most_bytes: int):
        """What of the ready buckets leaves in this cycle: those of each message."""
        fused: list[list[int]] = []
        for k in ready:
            start, end = (buckets[fused[-1][0]], buckets[fused[-1][-1]]) if fused else (None, None)
            if (
                fused
                and (end.kind, end.stop) == (buckets[k].kind, buckets[k].start)
                and (buckets[k].stop - start.start) * end.kind[0].itemsize <= most_bytes
            ):
                fused[-1].append(k)
            else:
                fused.append([k])
        return fused


@dataclass(frozen=True)
class PushPull(Buckets):
    """Buckets of so many bytes, cut from gradients; small neighbours share one. Of those that are
    ready that of the front layer leaves first."""

    split: bool = True
    every_ticks: ClassVar[int] = 1
    all_reduce = staticmethod(push_pull)

    def leaving(self, ready, buckets, most_bytes):
        return [[max(ready)]]


def buckets_of(
    parameters: "Sequence[torch.Tensor]", bucket_bytes: int, split: bool
) -> list[Bucket]:
    """Buckets of the gradients of these parameters, given in the order in which gradients come;
    in the order in which they fill."""
    filling: dict[tuple, Bucket] = {}  # kind -> the bucket that has room
    buckets = []
    for number, parameter in enumerate(parameters):
        kind, left = (parameter.dtype, parameter.device), parameter.numel()
        most = max(bucket_bytes // parameter.itemsize, 1)
        while True:
            bucket = filling.get(kind)
            size = bucket.stop - bucket.start if bucket else 0
            if bucket is None or size and size + (1 if split else left) > most:
                start = bucket.stop if bucket else 0
                filling[kind] = bucket = Bucket(kind, start, start, [])
                buckets.append(bucket)
                size = 0
            taken = min(left, most - size) if split else left
            bucket.stop += taken
            bucket.members.append(number)
            if not (left := left - taken):
                break
    return sorted(buckets, key=lambda bucket: bucket.members[-1])
