"""What ranks do that share the optimizer's state, the gradients or the weights, as a plan.

    stages 1, 2   compute   [2B0] [1B0] [0B0] .............. [0U0] ......... [next batch
                  comm:dp         [scatter 0 ][  scatter 1 ]       [ gather ]
    stage 3       compute   ... [0F0] [1F0]  [1B0] [0B0] ................... [0U0]
                  comm:dp   [0 ][ 1 ]       [1 ][ 0 ]  [scatter 1][scatter 0]

Stage 1 scatters each bucket of a batch once; stage 2 does so in every backward. Stage 3 gathers a
layer's weights before each forward and backward of it, one ahead, and scatters its gradients then.

Cost: with m micro-batches a rank sends (N-1)/N times the parameters' bytes, and their padding, 2,
m + 1 and 3 m times a step. Stage 3 holds the weights of two layers at once.
Source: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 5 and 7.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ..core import Mesh
from ..order.plan import Compute, Launch, Plan, Together, Wait, called, in_parts, lower
from ..order.schedule import Action, Schedule
from .bucket_plan import LANE, whole
from .reducers import name
from .shards import Flat
from .zero import shards_of


def with_shards(
    zero: int,
    order: Schedule,
    steps: int,
    replicas: int,
    stages: Mapping[int, nn.Module],
    bucket_bytes: int,
    *,
    slices: int = 1,
    compute_dtype: torch.dtype | None = None,
    inside: Mapping = {},
) -> Plan:
    """The plan of so many replicas on Mesh(dp=replicas, pp=ranks of the order, tp=slices) at stage
    1, 2 or 3 of ZeRO; at 3 each stage of the order is a unit. `stages`: stage -> its module, on
    meta or not, of one slice. `compute_dtype`: the format that stage 3 gathers and scatters, where
    it is not the weights'. `inside`: collectives that actions call, as a Cost has them."""
    mesh = Mesh(dp=replicas, pp=order.ranks, tp=slices)
    plan = lower(order, steps).placed(mesh, "pp")
    if replicas == 1:
        return plan
    lanes = {}
    for (rank, _), ops in plan.lanes.items():
        peers, place = mesh.peers(rank, "dp"), mesh.coords(rank)["pp"]
        own = {
            stage: module
            for stage, module in sorted(stages.items())
            if order.rank_of(stage, 0) == place
        }
        if zero == 3:
            both = Units(peers, own, inside, compute_dtype)
        else:
            both = ScatteredBuckets(
                peers, own, inside, bucket_bytes, order.micro_batches, each_backward=zero == 2
            )
        both.follow(ops)
        lanes[rank, "compute"], lanes[rank, LANE] = tuple(both.compute), tuple(both.lane)
    return Plan(lanes, mesh.size, steps)


class BothLanes:
    """Of one of the ranks `peers`: the second does what the first launches, in its order."""

    def __init__(self, peers: tuple[int, ...], inside: Mapping):
        self.peers, self.inside, self.compute, self.lane = peers, inside, [], []
        self.under_way: set[str] = set()  # what will be posted, and was not waited for

    def launch(
        self, label: str, calls: Sequence[tuple[str, str, int]], end: str, last: bool = True
    ) -> None:
        """`calls`: name, kind and bytes of collectives. `end` is posted after the `last` of what is
        launched for it."""
        self.compute.append(Launch(label))
        self.lane += Wait(label), *(Together(*call, self.peers) for call in calls)
        self.lane += [Launch(end)] * last
        self.under_way.add(end)

    def wait(self, end: str) -> None:
        self.compute.append(Wait(end))
        self.under_way.discard(end)

    def act(self, op: Compute) -> None:
        calls = called(op.step, self.inside)
        cut, lane = in_parts(op._replace(beside=bool(self.under_way)), calls, self.peers)
        self.compute += cut
        self.lane += lane


class ScatteredBuckets(BothLanes):
    """Stages 1 and 2: buckets of the gradient of each batch, or of each backward."""

    def __init__(
        self,
        peers,
        stages: Mapping[int, nn.Module],
        inside,
        bucket_bytes: int,
        micro_batches: int,
        each_backward: bool,
    ):
        super().__init__(peers, inside)
        learnt = [
            (stage, p)
            for stage, module in stages.items()
            for p in module.parameters()
            if p.requires_grad
        ][::-1]
        shards = shards_of([p for _, p in learnt], bucket_bytes, len(peers), 0)
        self.sizes = [shard.layout.length * shard.kind[0].itemsize for shard in shards]
        self.homes = [{learnt[member][0] for member in shard.members} for shard in shards]
        self.stages, self.micro_batches = len(stages), micro_batches
        self.backwards = 1 if each_backward else micro_batches  # of a gradient
        self.sent = Counter()  # gradient -> its buckets that are on their way

    def follow(self, ops: Sequence) -> None:
        done, updates = Counter(), 0
        for op in ops:
            if not isinstance(op, Compute) or not self.sizes:
                self.compute.append(op)
                continue
            batch = op.step[0].micro_batch // self.micro_batches
            updated = [action for action in op.step if action.kind == "U"]
            if updated and not updates:
                self.finish(batch)
            self.act(op)
            for kind, stage, micro_batch in op.step:
                if kind in "BW":
                    done[stage, number := micro_batch // self.backwards] += 1
                    while self.sent[number] < len(self.sizes) and all(
                        done[home, number] == self.backwards
                        for home in self.homes[self.sent[number]]
                    ):
                        self.scatter(number)
            updates += len(updated)
            if updates == self.stages:
                updates = 0
                self.gather(batch)

    def scatter(self, number: int) -> None:
        """The next bucket of this gradient."""
        bucket, label = self.sent[number], name([self.sent[number]], number)
        self.sent[number] += 1
        self.launch(
            label,
            [(label, "reduce_scatter", self.sizes[bucket])],
            whole(number),
            last=self.sent[number] == len(self.sizes),
        )

    def finish(self, batch: int) -> None:
        """Before the first update: all of the batch's gradient has arrived."""
        each = self.micro_batches // self.backwards
        for number in range(batch * each, (batch + 1) * each):
            while self.sent[number] < len(self.sizes):
                self.scatter(number)
            self.wait(whole(number))

    def gather(self, batch: int) -> None:
        """After the last update: the parameters, of which each rank has stepped its part."""
        label = f"parameters of batch {batch}"
        calls = [
            (f"parameters of bucket {bucket} of batch {batch}", "all_gather", size_bytes)
            for bucket, size_bytes in enumerate(self.sizes)
        ]
        self.launch(label, calls, f"{label} done")
        self.wait(f"{label} done")


class Units(BothLanes):
    """Stage 3: one unit is gathered while another is at work."""

    def __init__(
        self, peers, stages: Mapping[int, nn.Module], inside, compute_dtype: torch.dtype | None
    ):
        super().__init__(peers, inside)
        self.sizes = {}
        for stage, module in stages.items():
            flat = Flat(parameters := [*module.parameters()], len(peers), 0)
            self.sizes[stage] = flat.length * (compute_dtype or parameters[0].dtype).itemsize
        self.last = ""  # gradients that were launched last

    def follow(self, ops: Sequence[Compute]) -> None:
        for at, op in enumerate(ops):
            (action,) = op.step
            if action.kind == "U":
                self.settle()
                self.act(op)
                continue
            if at == 0 or ops[at - 1].step[0].kind == "U":
                self.travel("parameters", action)
            after = ops[at + 1].step[0]  # of the batch: an update ends it
            self.wait(f"parameters of {action} done")
            if after.kind != "U" and after.stage != action.stage:
                self.travel("parameters", after)
            self.act(op)
            if after.kind != "U" and after.stage == action.stage:
                self.travel("parameters", after)
            if action.kind == "B":
                self.settle()
                self.last = self.travel("gradients", action)

    def travel(self, what: str, action: Action) -> str:
        label = f"{what} of {action}"
        kind = "all_gather" if what == "parameters" else "reduce_scatter"
        self.launch(label, [(label, kind, self.sizes[action.stage])], end := f"{label} done")
        return end

    def settle(self) -> None:
        """The last gradients have arrived."""
        if self.last:
            self.wait(self.last)
            self.last = ""
