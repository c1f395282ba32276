"""A data loader: workers load the next micro-batches while the rank computes.

    compute   [F0 B0 U0][F1 B1 U1] ...          takes each micro-batch, waits until it is loaded
    load 0    [D0 C0]   [D2 C2] ...             D: read from the disk, C: copy to the device
    load 1    [D1 C1]      [D3 C3] ...          worker w of W loads micro-batches w, w + W, ...

A worker is a lane of the rank, and a loaded micro-batch its message. The rank first asks for W x P
micro-batches (P: prefetch). Each time it takes one, it asks for one more. In the long run a
micro-batch costs

    max(compute, (D + C) / W)           pinned host memory: copies run beside the compute
    max(compute + C, D / W)             else: the rank copies
    compute + D + C                     no workers

So workers hide a slow disk. Prefetching only hides that some micro-batches take longer than others.
Memory: W x P micro-batches on the host. Workers are threads here. They share the bandwidth of disk
and bus; that is not modelled.
Source: torch.utils.data.DataLoader: num_workers, prefetch_factor, pin_memory.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from ..core.later import later, torch
from ..order.plan import Compute, Launch, Plan, Wait
from ..order.schedule import Action
from .guards import data_loader as guard, refuse_settings

with later():
    from . import one_process


@dataclass(frozen=True)
class Loading:
    """Settings of the workers.

    prefetch  the most micro-batches that a worker loads ahead
    slow_s    seconds that the disk takes for each
    pinned    copies run beside the compute
    """

    workers: int = 0
    prefetch: int = 2
    slow_s: float = 0.0
    pinned: bool = True

    def __post_init__(self):
        refuse_settings(guard.LOADING, vars(self))

    @property
    def ahead(self) -> int:
        return self.workers * self.prefetch

    @property
    def lanes(self) -> list[str]:
        return [f"load {worker}" for worker in range(self.workers)]

    @property
    def beside(self) -> str:
        """Return the kinds of a worker's actions."""
        return ("DC" if self.pinned else "D") if self.workers else ""

    @property
    def alone(self) -> str:
        """Return the kinds of the rank's own actions of loading."""
        return "DC".removeprefix(self.beside)


class Loader:
    """Data of a Recipe on one rank, which takes the micro-batches of its `windows` in order.

    A micro-batch of another rank is built without workers: only its token count is asked."""

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
        self.asked: int | None = None  # the next place to ask a worker for
        # place -> launch of its load; number -> sample, of this window
        self.loads, self.taken = {}, {}

    def __call__(self, number: int) -> Sequence:
        if number not in self.places:
            return self.data(number)
        if number not in self.taken:
            place = self.places[number]
            if number in self.firsts:
                self.taken = {}
            if self.asked is None:  # a run begins here, or resumes
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
        """Run actions of loading on a worker's lane, or the rank's own."""
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
    """Add loads to the plan. Each rank takes all micro-batches of a window before its first forward
    of it. `windows`: the numbers of a rank's micro-batches, as in its actions."""
    lanes, places, ahead = dict(plan.lanes), [*chain(*windows)], loading.ahead
    for rank in range(plan.ranks):
        windows_to_take = {window[0]: window for window in windows}
        ops = [Launch(f"ask for {place}") for place in places[:ahead]]
        for op in plan.lanes[rank, "compute"]:
            is_forward = isinstance(op, Compute) and op.step[0].kind == "F"
            number = op.step[0].micro_batch if is_forward else None
            for place in windows_to_take.pop(number, ()):
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
