"""The executor of a plan on real ranks: each lane of the rank on a thread of its own, operation by
operation, by the simulator's rules.

    Compute        a span around work.compute(action)
    Send           the tensor of work.send(message)
    Recv           work.receive(message, tensor)
    Launch, Wait   a signal between lanes
    Together       work.together(operation, group)
    Cycle          an all-reduce of how many signals have come, and the operations that follow
    Serve          work.request(place, number, tensor); answers with work.answer(place, number)

Messages, spans and clocks are those that `simulate` predicts, event for event, whatever the tensors
hold.
"""

from collections.abc import Sequence

import torch

from ...core import refuse
from ...order.plan import (
    Action,
    Compute,
    Cycle,
    Launch,
    Message,
    Plan,
    Recv,
    Send,
    Serve,
    Together,
    Turns,
    Wait,
)
from .group import Group
from .lanes import Signal


class Work:
    """What a plan's operations do with tensors on one rank. This one computes nothing and sends
    zeros of the bytes that are stated."""

    def compute(self, action: Action) -> None:
        """What the action computes, inside its span."""

    def send(self, message: Action | Message) -> torch.Tensor:
        """The tensor that the message carries."""
        return torch.zeros(message.bytes or 0, dtype=torch.uint8)

    def receive(self, message: Action | Message, tensor: torch.Tensor) -> None:
        """Take what has arrived."""

    def request(self, place: int, number: int, tensor: torch.Tensor) -> None:
        """What a server does with a request, inside its span."""

    def answer(self, place: int, number: int) -> torch.Tensor | None:
        """What a server answers; None: zeros of the bytes that are stated."""

    def together(self, op: Together, group: Group) -> None:
        """Call the collective on a group of its ranks, by its name."""
        whole = torch.zeros(op.bytes, dtype=torch.uint8)
        match op.kind:
            case "all_gather":
                part = whole.tensor_split(group.size)[group.rank].clone()
                group.all_gather(part, whole, name=op.name)
            case "broadcast":
                group.broadcast(whole, sorted(op.ranks).index(op.ranks[0]), name=op.name)
            case "barrier":
                group.barrier(op.name)
            case _:
                getattr(group, op.kind)(whole, name=op.name)


def execute(plan: Plan, rank, work: Work | None = None) -> None:
    """Run this rank's lanes of the plan; returns when all are done and what they sent is taken.
    Every rank calls it with the same plan.

    Impossible where the plan is for another number of ranks, or waits for what no lane of this rank
    launches.
    """
    own = {lane: ops for (index, lane), ops in plan.lanes.items() if index == rank.index}
    every = [(lane, op) for lane, ops in own.items() for op in ops]
    signals = {op.label: Signal(lane) for lane, op in every if isinstance(op, Launch)}
    waits = [op.label for _, op in every if isinstance(op, Wait) and op.label not in signals]
    refuse(
        (
            plan.ranks != rank.size,
            f"The plan is for {plan.ranks} ranks and there are {rank.size}: launch as many.",
        ),
        (
            any(isinstance(op, Compute) and op.part is not None for _, op in every),
            "This plan has actions that call collectives inside: "
            "run the recipe whose layers call them.",
        ),
        (
            waits,
            f"Rank {rank.index} waits for {''.join(waits[:1])}, which none of its lanes launches: "
            "launch it before.",
        ),
    )
    names = sorted({lane for _, lane in plan.lanes} - {"compute"})
    lanes = {lane: rank.lane(None, lane) for lane in names}
    groups = {lane: runner.group for lane, runner in lanes.items()} | {"compute": rank.group()}
    some = {
        (lane, tuple(sorted(op.ranks)))
        for (_, lane), ops in plan.lanes.items()
        for op in ops
        if isinstance(op, (Together, Cycle))
    }
    together = {
        (lane, ranks): groups[lane] if len(ranks) == rank.size else rank.among(ranks, lane)
        for lane, ranks in sorted(some)
        if rank.index in ranks
    }
    work = work or Work()

    def part(lane: str):
        run(own.get(lane, ()), groups[lane], work, signals, together)

    launched = [
        lanes[lane].launch(lambda _, lane=lane: part(lane), "its part of the plan", timed=False)
        for lane in names
    ]
    part("compute")
    for each in launched:
        each.wait()


def run(
    ops: Sequence, group: Group, work: Work, signals: dict[str, Signal], together: dict
) -> None:
    """One lane's operations, in order; `together`: the group of each (lane, ranks)."""
    left = [*reversed(ops)]
    while left:
        match op := left.pop():
            case Compute(step, version, beside, None):
                with group.span(step, version, beside):
                    for action in step:
                        work.compute(action)
            case Send(dst, message):
                group.isend(work.send(message), dst, name=message)
            case Recv(src, message):
                work.receive(message, group.recv(src, name=message))
            case Launch(label):
                signals[label].post(group.post(label))
            case Wait(label):
                group.after(label, signals[label].by, signals[label].arrived)
            case Together(_, _, _, ranks):
                work.together(op, together[group.name, tuple(sorted(ranks))])
            case Cycle():
                least = agreed(op, together[group.name, tuple(sorted(op.ranks))], signals)
                left += reversed(op.then(least))
            case Serve():
                serve(op, group, work)
    group.finish()


def agreed(op: Cycle, group: Group, signals: dict[str, Signal]) -> int:
    """How many of the labels all ranks have seen. It needs a modelled clock: what has come by now
    is a matter of virtual time, never of the wall's."""
    now, times, asked = group.post(op.name), [], []

    def until() -> int:
        while not asked:
            times.append(signals[op.labels[len(times)]].arrived())
            asked.extend(op.asks(now, times) or ())
        return asked[0]

    group.after(op.labels[-1], "compute", until)
    return int(group.all_reduce(torch.tensor([asked[1]]), "min", op.name))


def serve(op: Serve, group: Group, work: Work) -> None:
    """Answer until all sources have left. Without a modelled clock they take turns, request by
    request."""
    turns, asked = Turns(op), {}
    while not turns.over:
        if (place := turns.wanted()) is not None:
            number = turns.made[place]
            asked[place] = group.irecv(None, op.sources[place], name=op.ask(place, number))
            issue = asked[place].arrive()
            turns.has(place, number if issue is None else issue)
            continue
        place, number = turns.take()
        tensor = asked.pop(place).wait()
        with group.span((Action("S", place, number),)):
            work.request(place, number, tensor)
        for place, number in turns.due():
            message, dst = op.answer(place, number), op.sources[place]
            answer = work.answer(place, number)
            group.isend(work.send(message) if answer is None else answer, dst, name=message)
            arrives = group.reaches(dst)
            turns.answered(place, number + 1 if arrives is None else arrives)
