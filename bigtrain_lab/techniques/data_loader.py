"""A data loader: workers load the next micro-batches while the rank computes.

    compute   [F0 B0 U0][F1 B1 U1] ...          takes each micro-batch, and waits where it is not
                                                there
    load 0    [D0 C0]   [D2 C2] ...             D: read from the disk, C: copy to the device
    load 1    [D1 C1]      [D3 C3] ...          worker w of W loads micro-batches w, w + W, ...

A loaded micro-batch is like a message from a lane of the rank's own. The rank asks for W x P of
them at once, and for one more whenever it takes one. In the long run a micro-batch costs

    max(compute, (D + C) / W)           pinned host memory: copies run beside the compute
    max(compute + C, D / W)             else: the rank copies
    compute + D + C                     no workers

So workers hide a slow disk; prefetching hides only that some micro-batches take longer than others.
Memory: W x P micro-batches on the host. Workers are threads here. The disk's and the bus's
bandwidth that they share is not modelled. Source: torch.utils.data.DataLoader: num_workers,
prefetch_factor, pin_memory.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from ..core.later import later
from ..order.plan import Compute, Launch, Plan, Wait
from ..order.schedule import Action
from .guards import data_loader as guard

with later():
    import torch

    from . import one_process


@dataclass(frozen=True)
class Loading:
    """Settings of the workers. `prefetch`: micro-batches that a worker has ready or loads, at most;
    `slow_s`: seconds that the disk takes for each; `pinned`: copies run beside the compute."""

    workers: int = 0
    prefetch: int = 2
    slow_s: float = 0.0
    pinned: bool = True

    def __post_init__(self):
        guard.refuse(self)

    @property
    def ahead(self) -> int:
        return self.workers * self.prefetch

    @property
    def lanes(self) -> list[str]:
        return [f"load {worker}" for worker in range(self.workers)]

    @property
    def beside(self) -> str:
        """Kinds of actions of a worker."""
        return ("DC" if self.pinned else "D") if self.workers else ""

    @property
    def alone(self) -> str:
        """Kinds of actions of the rank itself."""
        return "DC".removeprefix(self.beside)


class Loader:
    """The `data` of a Recipe on one rank, which takes the micro-batches of its `windows` in order.
    One that is not its own is made at once: others only ask how many tokens it has."""

    def __init__(
        self,
        data: Callable[[int], Sequence],
        windows: Sequence[Sequence[int]],
        loading: Loading,
        rank,
    ):
        self.data, self.loading, self.rank = data, loading, rank
        self.own, self.firsts = [*chain(*windows)], {window[0] for window in windows if window}
        self.places = {number: place for place, number in enumerate(self.own)}
        self.lanes = [rank.lane(None, name) for name in loading.lanes]
        self.asked: int | None = None  # the next place that a worker is asked for
        self.loads, self.taken = {}, {}  # place -> its launch; number -> sample, of this window

    def __call__(self, number: int) -> Sequence:
        if number in self.taken or number not in self.places:
            return self.taken[number] if number in self.taken else self.data(number)
        place = self.places[number]
        if number in self.firsts:
            self.taken = {}
        if self.asked is None:  # a run begins, or goes on, here
            self.asked = place
            self.ask(self.loading.ahead)
        sample = self.loads.pop(place).wait() if self.lanes else None
        self.taken[number] = self.load(self.rank, self.loading.alone, place, sample)
        self.ask(min(self.loading.ahead, 1))
        return self.taken[number]

    def ask(self, count: int) -> None:
        for place in range(self.asked, min(self.asked + count, len(self.own))):
            lane, self.asked = self.lanes[place % len(self.lanes)], place + 1
            self.loads[place] = lane.launch(
                lambda group, place=place: self.load(group, self.loading.beside, place),
                f"micro-batch {place}",
            )

    def load(self, lane, kinds: str, place: int, sample: Sequence | None = None) -> Sequence:
        """On a worker's lane, or the rank's own."""
        for kind in kinds:
            with lane.span(Action(kind, 0, place)):
                if kind == "C":
                    sample = copied(sample, self.rank.device, self.loading.pinned)
                else:
                    time.sleep(self.loading.slow_s)
                    sample = self.data(self.own[place])
        return sample


def copied(sample: Sequence, device, pinned: bool) -> "one_process.Sample":
    """Copy the micro-batch to the device."""
    inputs, targets, *context = sample

    def copy(part):
        if not isinstance(part, torch.Tensor):
            return part
        ready = part.pin_memory() if pinned and device.type == "cuda" else part
        return ready.to(device, non_blocking=pinned)

    return one_process.Sample(
        copy(inputs), copy(targets), tuple(map(copy, context[0] if context else ()))
    )


def with_loads(plan: Plan, loading: Loading, windows: Sequence[Sequence[int]]) -> Plan:
    """Add loads to the plan: each rank takes the micro-batches of a window before its first action,
    all of one loading. `windows`: the numbers of a rank's micro-batches, as in its actions."""
    lanes, places, ahead = dict(plan.lanes), [*chain(*windows)], loading.ahead
    takes = {window[0]: window for window in windows}
    for rank in range(plan.ranks):
        ops, begun = [Launch(f"ask for {place}") for place in places[:ahead]], set()
        for op in plan.lanes[rank, "compute"]:
            first = isinstance(op, Compute) and op.step[0].kind == "F" and op.step[0].micro_batch
            for place in takes.get(first, ()) if first is not False and first not in begun else ():
                begun.add(place)
                ops += [Wait(f"loaded {place}")] if ahead else []
                ops += [Compute((Action(kind, 0, place),)) for kind in loading.alone]
                ops += (
                    [Launch(f"ask for {place + ahead}")]
                    if ahead and place + ahead in places
                    else []
                )
            ops.append(op)
        lanes[rank, "compute"] = tuple(ops)
        for worker, lane in enumerate(loading.lanes):
            lanes[rank, lane] = tuple(
                op
                for place in places[worker :: loading.workers]
                for op in (
                    Wait(f"ask for {place}"),
                    *(Compute((Action(kind, 0, place),)) for kind in loading.beside),
                    Launch(f"loaded {place}"),
                )
            )
    return Plan(lanes, plan.ranks, plan.steps)
