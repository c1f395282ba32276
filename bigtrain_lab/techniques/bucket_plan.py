"""What data parallel ranks do, as a plan: the schedule of each replica, and its buckets on a lane.

    compute   [3B0]  [2B0]  [1B0]  [0B0] ........ [0U0] ...      waits before the first update
    comm:dp          [ bucket 0  ][ bucket 1 ][ bucket 2 ]       each after its last gradient

The buckets are those of `DistributedDataParallel` over all stages of a rank, so that a prediction
is of what a run does. A step that begins while buckets are under way runs beside them.

Cost: O(operations). Source: Li et al. 2020, PyTorch Distributed (arXiv:2006.15704), section 3.2.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from torch import nn

from ..core import Mesh
from ..order.pipelined_ring import pipelined_ring
from ..order.plan import Compute, Launch, Plan, Together, Wait, lower, lower_collective, moved
from ..order.schedule import Schedule
from .all_reduce import ring_all_reduce
from .reducers import Bucket, Buckets, OneServerARank, name, push_pull

LANE = "comm:dp"


def with_buckets(
    order: Schedule,
    steps: int,
    replicas: int,
    stages: Mapping[int, nn.Module],
    bucket_bytes: int,
    *,
    strategy: Buckets = Buckets(),
    overlap: bool = True,
    all_reduce: Callable | None = None,
    slices: int = 1,
) -> Plan:
    """The plan of so many replicas on Mesh(dp=replicas, pp=ranks of the order, tp=slices), whose
    gradients are averaged in buckets. `stages`: stage -> its module, on meta or not, of one slice.
    `all_reduce`: ring_all_reduce; without it the strategy's."""
    mesh = Mesh(dp=replicas, pp=order.ranks, tp=slices)
    plan = lower(order, steps).placed(mesh, "pp")
    if replicas == 1:
        return plan
    lanes = {}
    for (rank, _), ops in plan.lanes.items():
        own = {
            stage: module
            for stage, module in sorted(stages.items())
            if order.rank_of(stage, 0) == mesh.coords(rank)["pp"]
        }
        learnt = [
            (stage, p)
            for stage, module in own.items()
            for p in module.parameters()
            if p.requires_grad
        ][::-1]
        buckets = strategy.pieces([p for _, p in learnt], bucket_bytes, timed=True)
        homes = [{learnt[member][0] for member in bucket.members} for bucket in buckets]
        peers = mesh.peers(rank, "dp")
        lanes[rank, "compute"] = tuple(waiting(ops, order, homes, overlap))
        ops = []
        for batch in range(steps if buckets else 0):
            send = partial(messages, buckets, batch, rank, peers, all_reduce or strategy.all_reduce)
            ops += strategy.program(batch, buckets, bucket_bytes, True, peers, send)
            ops.append(Launch(whole(batch)))
        lanes[rank, LANE] = tuple(ops)
    return Plan(lanes, mesh.size, steps)


def waiting(ops: Sequence, order: Schedule, homes: Sequence[set[int]], overlap: bool) -> Iterator:
    """The compute lane: launch what is ready, and wait for all before the first update. `homes`:
    the stages of each bucket's gradients."""
    batch, to_launch, done = -1, [], Counter()
    for op in ops:
        if not isinstance(op, Compute):
            yield op
            continue
        if (now := op.step[0].micro_batch // order.micro_batches) != batch:
            batch, to_launch, done = now, [*enumerate(homes)], Counter()
            summed, under_way = not homes, False
        if not summed and any(action.kind == "U" for action in op.step):
            yield from (Launch(name([bucket], batch)) for bucket, _ in to_launch)
            yield Wait(whole(batch))
            summed, under_way, to_launch = True, False, []
        yield op._replace(beside=under_way)
        done.update(action.stage for action in op.step if action.kind in "BW")
        while (
            overlap
            and to_launch
            and all(done[stage] == order.micro_batches for stage in to_launch[0][1])
        ):
            yield Launch(name([to_launch.pop(0)[0]], batch))
            under_way = True


def messages(
    buckets: Sequence[Bucket],
    batch: int,
    rank: int,
    peers: tuple[int, ...],
    all_reduce: Callable,
    numbers: Sequence[int],
) -> list:
    """How a rank and its peers average these buckets."""
    first, label = buckets[numbers[0]], name(numbers, batch)
    tensor = buckets[numbers[-1]].stop - first.start, first.kind[0].itemsize
    place, ranks = peers.index(rank), len(peers)
    if all_reduce is ring_all_reduce:
        parts = chain(*pipelined_ring(place, ranks, *tensor, label))
        return [moved(part.op, peers) for part in parts]
    if all_reduce is push_pull:
        plan = lower_collective(OneServerARank(ranks), *tensor, label)
        return [moved(op, peers) for op in plan.lanes[place, "compute"]]
    return [Together(label, "all_reduce", tensor[0] * tensor[1], peers)]


def whole(batch: int) -> str:
    return f"the gradient of batch {batch}"
