"""The plan of replicas: each replica's schedule, with the messages of its rules on a second lane.

    compute   [3B0]  [2B0]  [1B0]  [0B0] ........ [0U0] ...      waits before the first update
    comm:dp          [ bucket 0  ][ bucket 1 ][ bucket 2 ]       each after its last gradient

A run cuts its parts by `parts_of` too, and orders its messages by the same `Rules`. So simulator
and run have one list. A step that begins while a message is in flight overlaps with it.

Cost: O(operations). Source: Li et al. 2020, PyTorch Distributed (arXiv:2006.15704), section 3.2;
Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 5 and 7.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain

from ..core import Mesh, grouped
from ..core.later import torch
from ..order.pipelined_ring import pipelined_ring
from ..order.plan import (
    Compute,
    Launch,
    Plan,
    Together,
    Wait,
    called,
    in_parts,
    lower,
    lower_collective,
    moved,
)
from ..order.schedule import Schedule
from .all_reduce import ring_all_reduce
from .flat import Flat
from .reducers import BUCKET_BYTES, Buckets, OneServerARank, push_pull
from .replica_rules import LANE, Drop, Part, Rules, name


def parts_of(
    weights: "Sequence[torch.Tensor]",
    units: Sequence[Collection[int]],
    stage: int,
    ranks: int,
    bucket_bytes: int = BUCKET_BYTES,
    *,
    strategy: Buckets = Buckets(),
    timed: bool = True,
    alone: Collection[int] = (),
    compute_dtype: "torch.dtype | None" = None,
) -> list[Part]:
    """Cut weights, given in the module's order, into parts: buckets in the order of the backward,
    or at stage 3 one a unit and dtype.

    units          for each weight, the numbers of the units that use it
    strategy       stage 0: how buckets are cut
    timed          there is a modelled clock
    alone          numbers of weights with a part each, so that copies of a tied one are cut alike
    compute_dtype  format of the messages at stage 3
    """
    learnt = [n for n, w in enumerate(weights) if w.requires_grad][::-1]
    cut = (strategy if stage == 0 else Buckets()).buckets
    buckets = cut([weights[n] for n in learnt], bucket_bytes, timed) if stage < 3 else []
    groups = grouped(
        ((k, n if n in alone and stage else -1), n)
        for k, bucket in enumerate(buckets)
        for n in (learnt[member] for member in bucket.members)
    ) | grouped(
        ((frozenset(units[n]), w.dtype, w.device, w.requires_grad, n if n in alone else -1), n)
        for n, w in enumerate(weights if stage == 3 else ())
    )
    parts = []
    for (k, *_), members in groups.items():
        own = [weights[n] for n in members]
        bucket = () if stage else (buckets[k].kind, buckets[k].start, buckets[k].stop)
        count = Flat(own, ranks, 0).length if stage else buckets[k].stop - buckets[k].start
        size = count * (compute_dtype or own[0].dtype).itemsize
        every = frozenset().union(*(units[n] for n in members))
        shared = any(len(units[n]) > 1 for n in members)
        parts.append(Part((*members,), every, shared, own[0].requires_grad, size, *bucket))
    return parts


def with_replicas(
    order: Schedule,
    steps: int,
    replicas: int,
    stages: "Mapping[int, torch.nn.Module]",
    bucket_bytes: int = BUCKET_BYTES,
    *,
    zero: int = 0,
    strategy: Buckets = Buckets(),
    overlap: bool = True,
    all_reduce: Callable | None = None,
    slices: int = 1,
    compute_dtype: "torch.dtype | None" = None,
    ahead: int = 1,
    inside: Mapping = {},
    alone: bool = False,
) -> Plan:
    """Return the plan of replicas on Mesh(dp=replicas, pp=ranks of the order, tp=slices).

    stages      pipeline stage -> its module of one slice, on meta or not
    zero        stage of ZeRO; 0 is data parallel. At 3 each pipeline stage is a unit
    all_reduce  such as ring_all_reduce; without it the strategy's
    ahead       how many uses ahead stage 3 gathers the weights
    inside      collectives that actions call, as a Cost has them
    alone       one replica, with messages: of several that are alike it stands for all
    """
    mesh = Mesh(dp=replicas, pp=order.ranks, tp=slices)
    plan = lower(order, steps).placed(mesh, "pp")
    if replicas == 1 and not alone:
        return plan
    lanes = {}
    for (rank, _), ops in plan.lanes.items():
        parts = parts_of(
            *weights_of(stages, order, mesh.coords(rank)["pp"]),
            zero,
            replicas,
            bucket_bytes,
            strategy=strategy,
            compute_dtype=compute_dtype,
        )
        peers, cycles = mesh.peers(rank, "dp"), zero == 0 and bool(strategy.every_ticks)
        rules = Rules(parts, zero, peers, ahead=ahead, overlap=overlap, cycles=cycles)
        average = partial(messages, parts, rank, peers, all_reduce or strategy.all_reduce)
        program = partial(strategy.program, parts, bucket_bytes, peers, average)
        lanes[rank, "compute"], lanes[rank, LANE] = both_lanes(ops, rules, average, program, inside)
    return Plan(lanes, mesh.size, steps)


def weights_of(
    stages: "Mapping[int, torch.nn.Module]", order: Schedule, place: int
) -> "tuple[list[torch.Tensor], list[set[int]]]":
    """Return the weights of the pipeline stages at a place, and the stages that use each weight. A
    module that stands for several stages counts once for each."""
    own, found = [at for at in sorted(stages) if order.rank_of(at, 0) == place], {}
    for n, at in enumerate(own):
        again = sum(stages[other] is stages[at] for other in own[:n])
        for p in stages[at].parameters():
            found.setdefault((p, again), set()).add(at)
    return [p for p, _ in found], [*found.values()]


def both_lanes(
    ops: Sequence, rules: Rules, average: Callable, program: Callable, inside: Mapping
) -> tuple[tuple, tuple]:
    """Return a rank's two lanes: its actions with the launches and waits of the rules between them,
    and the collectives. Each collective posts "<label> done", which the compute lane waits for."""
    compute, lane, under_way = [], [], set()
    around = rules.program([op.step for op in ops if isinstance(op, Compute)])
    for op in ops:
        before, after = around[op.step] if isinstance(op, Compute) else ((), ())
        for each in (*before, op, *after):
            match each:
                case Launch(label):
                    compute.append(each)
                    under_way.add(label)
                    call = rules.calls[label]
                    if not rules.cycles:
                        sent = [call.op] if rules.stage else average(call.batch, [call.part])
                        lane += Wait(label), *sent, Launch(f"{label} done")
                case Wait(label):
                    compute.append(Wait(f"{label} done"))
                    if rules.cycles:
                        under_way.clear()
                        lane += *program(rules.calls[label].batch), Launch(f"{label} done")
                    under_way.discard(label)
                case Compute():
                    each = each._replace(beside=bool(under_way))
                    cut, calls = in_parts(each, called(each.step, inside), rules.ranks)
                    compute += cut
                    lane += calls
                case Drop():
                    pass
                case _:
                    compute.append(each)
    return (*compute,), (*lane,)


def messages(
    parts: Sequence[Part],
    rank: int,
    peers: tuple[int, ...],
    all_reduce: Callable,
    batch: int,
    numbers: Sequence[int],
) -> list:
    """Return the operations by which a rank and its peers average these parts."""
    first, label = parts[numbers[0]], name(numbers, batch)
    tensor = parts[numbers[-1]].stop - first.start, first.kind[0].itemsize
    place, ranks = peers.index(rank), len(peers)
    if all_reduce is ring_all_reduce:
        return [
            moved(part.op, peers) for part in chain(*pipelined_ring(place, ranks, *tensor, label))
        ]
    if all_reduce is push_pull:
        plan = lower_collective(OneServerARank(ranks), *tensor, label)
        return [moved(op, peers) for op in plan.lanes[place, "compute"]]
    return [Together(label, "all_reduce", tensor[0] * tensor[1], peers)]
