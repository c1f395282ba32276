"""One intermediate form: every order of events lowers to lists of operations, one list for each
lane of each rank.

The simulator and the real executors know only these operations. A schedule says when a rank
computes; the messages between ranks follow from what each action needs, so they are derived here
and never written by hand.
"""

import gc
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import ceil, inf
from typing import NamedTuple

from ..core import Impossible, Mesh, refuse
from ..core.cost import Inside, port_share
from .collective import Collective, check, sizes
from .schedule import KINDS, Action, Schedule, Step, name_of

SLICES = "tp"  # the axis along which layers are sliced: its collectives are called inside actions
INSIDE = SLICES, "dp"  # and those of replicas that share an update, such as for a norm


class Message(NamedTuple):
    """What a Send carries: its name, the kind and stage by which the Cost prices it, and its
    bytes where it states them. An Action is a message too, one that states no bytes."""

    name: str
    kind: str = "message"
    bytes: int | None = None
    stage: int = 0

    def __str__(self) -> str:
        return self.name


class Compute(NamedTuple):
    """Occupy the lane for cost.duration(step); `version` is the weight version of the step's
    first action. `beside`: the plan lets it run while another lane of its rank communicates.
    `part`: which of cost.parts(step) this is, where the step calls collectives; None: all of it.
    The parts are one span of a trace."""

    step: Step
    version: int | None = None
    beside: bool = False
    part: int | None = None


class Send(NamedTuple):
    """Send an Action's result, or a Message, to the lane of the same name on rank `dst`; this
    lane does not wait."""

    dst: int
    message: Action | Message


class Recv(NamedTuple):
    """Wait until the message has arrived from rank `src`."""

    src: int
    message: Action | Message


class Launch(NamedTuple):
    """Post this lane's time under `label`, for other lanes of the same rank: an event recorded on a
    stream."""

    label: str


class Wait(NamedTuple):
    """Do not go on before the time posted under `label`: a stream that waits for an event."""

    label: str


class Together(NamedTuple):
    """A collective of the backend: it ends for all `ranks` at the latest of their issues plus
    its cost. `bytes` is the whole tensor; of a broadcast the first rank is the source. One rank
    alone has nothing to wait for: no event, unless the cost prices it for many that are alike."""

    name: str
    kind: str
    bytes: int
    ranks: tuple[int, ...]

    def arriving(self, rank: int) -> tuple[int, int] | None:
        """(src, bytes) of what reaches the rank if the ranks are a ring in order of their
        numbers; None where nothing does."""
        ring = sorted(self.ranks)
        share = ceil(port_share(self.kind, len(ring)) * self.bytes)
        if not share or len(ring) < 2 or (self.kind == "broadcast" and rank == self.ranks[0]):
            return None
        return ring[ring.index(rank) - 1], share


class Cycle(NamedTuple):
    """Ask all `ranks`, by one all-reduce, how many of `labels` each has seen posted, in their
    order; go on with the operations `then(least)`. A rank asks at a multiple of `every_ticks`: the
    first at which its lane is free and label number `first` is posted."""

    name: str
    labels: tuple[str, ...]
    first: int
    every_ticks: int
    ranks: tuple[int, ...]
    then: Callable[[int], Sequence] = lambda least: ()

    @property
    def label(self) -> str:
        return self.labels[self.first]

    @property
    def request(self) -> Together:
        return Together(self.name, "all_reduce", 8, self.ranks)

    def asks(self, now: int, times: Sequence[int]) -> tuple[int, int] | None:
        """(when a rank asks, how many it has seen); None where the `times` of the first labels do
        not say so yet."""
        if len(times) > self.first:
            at = -(-max(now, times[self.first]) // self.every_ticks) * self.every_ticks
            if times[-1] > at or len(times) == len(self.labels):
                return at, bisect_right(times, at)
        return None


class Serve(NamedTuple):
    """Answer the requests of other ranks by time: next comes that of the smallest (issue, place),
    once none can still come before it. Each source sends `ask(place, number)`, number 0, 1, ...,
    and waits for `answer(place, number)`; its place is that in `sources`.

    requests   how many each source makes; one that made all has left
    bound      an answer waits until each source that has not left has made all but `bound` as
               many requests; None: it never waits
    """

    sources: tuple[int, ...]
    requests: tuple[int, ...]
    ask_bytes: int | None = None
    answer_bytes: int | None = None
    bound: int | None = None
    name: str = "server"

    def ask(self, place: int, number: int) -> Message:
        return Message(f"{self.name} asked {place}.{number}", "ask", self.ask_bytes)

    def answer(self, place: int, number: int) -> Message:
        return Message(f"{self.name} answers {place}.{number}", "answer", self.answer_bytes)


class Turns:
    """Whose turn it is at a server: the same rule for the simulator and the real one. Source:
    Chandy and Misra 1979, Distributed Simulation: a message is safe to take once every other
    sender's clock is known to be past it."""

    def __init__(self, op: Serve):
        self._op = op
        self.made = [0] * len(op.sources)  # requests that were taken, by place
        self._in_hand: dict[int, int] = {}  # place -> the issue of its next request
        self._owed: dict[int, int] = {}  # place -> its request that was not answered yet
        self._not_before = [0] * len(
            op.sources
        )  # no request is issued before the last answer arrives

    @property
    def over(self) -> bool:
        return self.made == list(self._op.requests)

    def wanted(self) -> int | None:
        """The place whose next request must be in hand before any is taken; None where one may
        be."""
        known = self._in_hand.keys() | self._owed.keys()
        live = {p for p, most in enumerate(self._op.requests) if self.made[p] < most} - known
        first = min(self._in_hand.values(), default=None)
        earlier = [
            (self._not_before[p], p) for p in live if first is None or self._not_before[p] <= first
        ]
        return min(earlier)[1] if earlier else None

    def has(self, place: int, issue: int) -> None:
        self._in_hand[place] = issue

    def take(self) -> tuple[int, int]:
        """(place, number) of the next request."""
        place = min(self._in_hand, key=lambda p: (self._in_hand[p], p))
        del self._in_hand[place]
        self._owed[place] = self.made[place]
        self.made[place] += 1
        return place, self._owed[place]

    def due(self) -> list[tuple[int, int]]:
        """(place, number) of the answers that need wait no longer."""
        left = [made for made, most in zip(self.made, self._op.requests) if made < most]
        ahead = inf if self._op.bound is None or not left else min(left) + self._op.bound
        return [(place, number) for place, number in sorted(self._owed.items()) if number < ahead]

    def answered(self, place: int, arrives: int) -> None:
        del self._owed[place]
        self._not_before[place] = arrives


@dataclass(frozen=True)
class Plan:
    """Operations by (rank, lane); `steps` counts the training steps they make."""

    lanes: dict[tuple[int, str], tuple]
    ranks: int
    steps: int = 1

    def placed(self, mesh: Mesh, *axes: str) -> "Plan":
        """The plan along these axes of the mesh, once for each place on the others: one of 2
        ranks on each row of Mesh(dp=2, pp=2) by .placed(mesh, "pp"). Impossible where the axes
        have another number of ranks."""
        rows = {mesh.peers(rank, *axes) for rank in range(mesh.size)}
        refuse(
            (
                (size := mesh.size // len(rows)) != self.ranks,
                f"The plan has {self.ranks} ranks and the mesh has {size} along "
                f"{', '.join(axes) or 'no axis'}: make them equal.",
            )
        )
        lanes = {
            (at[rank], lane): tuple(moved(op, at) for op in ops)
            for at in sorted(rows)
            for (rank, lane), ops in self.lanes.items()
        }
        return Plan(lanes, mesh.size, self.steps)

    def joined(self, *others: "Plan") -> "Plan":
        """These plans as one: each lane does its part of the first, then of the next. Impossible
        where they are of different numbers of steps, or two of them have one name for two
        things."""
        plans, seen, lanes = (self, *others), {}, {}
        refuse(
            (
                len({plan.steps for plan in plans}) > 1,
                f"These plans are of {', '.join(str(plan.steps) for plan in plans)} training steps:"
                " join plans of as many.",
            )
        )
        for number, plan in enumerate(plans):
            for (rank, lane), ops in plan.lanes.items():
                for op in ops:
                    for what in names(op, rank, lane):
                        if seen.setdefault(what, number) != number:
                            raise Impossible(
                                f"Two of the joined plans have {what[-1]} on rank {rank}: "
                                "give it another name in one of them."
                            )
                lanes[rank, lane] = lanes.get((rank, lane), ()) + tuple(ops)
        return Plan(lanes, max(plan.ranks for plan in plans), self.steps)


def with_calls(
    plan: Plan,
    inside: Mapping[tuple[str, int], tuple[Inside, ...]],
    mesh: Mesh,
    before_update: Callable = lambda rank, batch: (),
) -> Plan:
    """The plan of ranks whose actions call collectives of the peers on the axis SLICES: `inside`,
    as a Cost has them. Each is issued on the lane of the axis, and the action goes on when it ends.
    `before_update`: (rank, batch) -> operations before its first update of a batch."""
    lanes, lane = dict(plan.lanes), f"comm:{SLICES}"
    for rank in range(plan.ranks):
        peers, ops, calls = mesh.peers(rank, SLICES), [], []
        batch, was_update = 0, False
        for op in plan.lanes[rank, "compute"]:
            if isinstance(op, Compute):
                if (is_update := op.step[-1].kind == "U") and not was_update:
                    ops += before_update(rank, batch)
                    batch += 1
                was_update = is_update
            cut, collectives = in_parts(
                op, called(op.step, inside) if isinstance(op, Compute) else (), peers
            )
            ops += cut
            calls += collectives
        lanes[rank, "compute"] = tuple(ops)
        if calls:
            lanes[rank, lane] = tuple(calls)
    return Plan(lanes, plan.ranks, plan.steps)


def in_parts(op: Compute, calls: Sequence[Inside], peers: tuple[int, ...]) -> tuple[list, list]:
    """The action, cut where it calls these collectives of its peers; what their lane does."""
    cut, lane = [], []
    for part, call in enumerate(calls):
        name = call_name(op.step, part, call.name)
        cut += Compute(*op[:-1], part), Launch(name), Wait(name + " done")
        lane += Wait(name), Together(name, call.kind, call.bytes, peers), Launch(name + " done")
    return [*cut, Compute(*op[:-1], len(calls)) if calls else op], lane


def called(step: Step, inside: Mapping) -> list[Inside]:
    """The collectives of a step's actions, in order."""
    return [call for action in step for call in inside.get((action.kind, action.stage), ())]


def call_name(step: Step, number: int, name: str) -> str:
    """Of a step's collective number `number`, which the technique calls `name`."""
    return f"{name_of(step)}.{number} {name}"


def moved(op, at: Sequence[int]):
    """The operation with rank r of its plan on rank at[r]."""
    match op:
        case Send(dst, message):
            return Send(at[dst], message)
        case Recv(src, message):
            return Recv(at[src], message)
        case Together(name, kind, size, ranks):
            return Together(name, kind, size, tuple(at[rank] for rank in ranks))
        case Serve():
            return op._replace(sources=tuple(at[rank] for rank in op.sources))
    return op


def names(op, rank: int, lane: str) -> Iterator[tuple]:
    """What an operation calls by a name that a plan may use once, each as a tuple that ends with
    the name."""
    match op:
        case Compute(step, part=None | 0):
            yield from ((rank, action) for action in step)
        case Send(dst, message):
            yield rank, dst, lane, message
        case Launch(label):
            yield rank, "signal", label
        case Together(name, _, _, ranks):
            yield ranks, rank, lane, name
        case Serve():
            yield "server", rank, lane, op.name


def lower(plan, steps: int = 1) -> Plan:
    """A Schedule, over this many training steps, or a Collective, as a Plan; a Plan as it is.
    Impossible where it cannot run."""
    if isinstance(plan, Plan):
        return plan
    refuse(
        (
            not isinstance(steps, int) or steps < 1,
            f"steps is {steps!r}: plan a whole number of training steps, at least 1.",
        )
    )
    if isinstance(plan, Schedule):
        return lower_schedule(plan, steps)
    if isinstance(plan, Collective):
        return lower_collective(plan)
    raise Impossible(
        f"Cannot simulate {plan!r}: give a Schedule such as GPipe(ranks=4, micro_batches=8), "
        "a Collective such as Ring(ranks=4), or a Plan."
    )


@contextmanager
def collector_paused():
    """A plan is hundreds of thousands of small tuples and none is garbage: searching them for
    cycles took a third of the time. Whoever turns the collector off turns it on again, so of
    threads that pause it together the last one leaves it on."""
    was_on = gc.isenabled()
    if was_on:
        gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@collector_paused()
def lower_schedule(schedule: Schedule, steps: int) -> Plan:
    """Messages follow from needs: what an action needs from another rank is received before it and
    sent by its maker.

    Impossible, naming rank and action, unless each action runs once, on the rank of its stage,
    after what it needs there.
    """
    stages, micro_batches = schedule.stages, steps * schedule.micro_batches
    rank_of, needs, version = schedule.rank_of, schedule.needs, schedule.version
    homes: dict[Action, int] = {}
    sends: dict[Action, list[Send]] = {}
    early: list[tuple] = []  # updates that come before a gradient, told when nothing is missing
    lanes: list[
        list
        # per rank, what it receives and computes; what it sends is known when all ranks are seen
    ] = []
    for rank, work in enumerate(schedule.over(steps)):
        lanes.append([])
        for step in work:
            for action in step:
                kind, stage, micro_batch = action
                if kind not in KINDS:
                    raise Impossible(
                        f"Rank {rank} runs {action}, and there is no kind {kind}: use"
                        f" {', '.join(KINDS)}."
                    )
                if not (0 <= stage < stages and 0 <= micro_batch < micro_batches):
                    raise Impossible(
                        f"Rank {rank} runs {action}, but there are only stages 0 to {stages - 1} "
                        f"and micro-batches 0 to {micro_batches - 1}."
                    )
                if (home := rank_of(stage, micro_batch)) != rank:
                    raise Impossible(
                        f"Rank {rank} runs {action}, but stage {stage} lies on rank {home}: move it"
                        " there."
                    )
                if action in homes:
                    raise Impossible(f"Rank {rank} runs {action} twice: each action runs once.")
                homes[action] = rank
                if kind == "U":  # it needs only what its own stage did
                    early += [(rank, action, need) for need in needs(action) if need not in homes]
                    continue
                for need in needs(action):
                    src = rank_of(need.stage, need.micro_batch)
                    if src != rank:
                        lanes[rank].append(Recv(src, need))
                        sends.setdefault(need, []).append(Send(rank, need))
                    elif need not in homes:
                        raise Impossible(
                            f"Rank {rank} runs {action} before {need}, which it needs: swap them."
                        )
            lanes[rank].append(Compute(step, version(step[0])))
    refuse_missing(schedule, homes, micro_batches)
    for rank, update, need in early:
        refuse(
            (
                need not in homes,
                f"Rank {rank} runs {update}, and this schedule updates after every "
                f"{schedule.update_size} micro-batches: call it by the last of them.",
            ),
            (
                True,
                f"Rank {rank} runs {update} before {need}, whose gradient it applies: swap them.",
            ),
        )
    plan = {}
    for rank, received_and_computed in enumerate(lanes):
        ops: list = []
        for op in received_and_computed:
            ops.append(op)
            if type(op) is Compute:
                for action in op.step:
                    ops += sends.get(action, ())
        plan[rank, "compute"] = tuple(ops)
    return Plan(plan, schedule.ranks, steps)


@collector_paused()
def lower_collective(
    collective: Collective,
    elements: int | None = None,
    itemsize: int = 1,
    name: str = "",
    lane: str = "compute",
) -> Plan:
    """The plan of a collective on a tensor of `elements` numbers; without them the Cost prices the
    messages "reduce" and "copy", with the chunk as stage.

    In each round a rank posts its sends, then its receives, in the order of the moves; message
    "round 2 chunk 0" begins with `name`.
    """
    cut = (
        [None] * collective.chunks
        if elements is None
        else [n * itemsize for n in sizes(elements, collective.chunks)]
    )
    lanes: dict[tuple[int, str], list] = {(rank, lane): [] for rank in range(collective.ranks)}
    for number, moves in enumerate(check(collective), 1):
        messages = [
            Message(
                f"{name} round {number} chunk {chunk}".lstrip(),
                "reduce" if reduce else "copy",
                cut[chunk],
                chunk,
            )
            for _, _, chunk, reduce in moves
        ]
        for move, message in zip(moves, messages):
            lanes[move.src, lane].append(Send(move.dst, message))
        for move, message in zip(moves, messages):
            lanes[move.dst, lane].append(Recv(move.src, message))
    return Plan({key: tuple(ops) for key, ops in lanes.items()}, collective.ranks)


def refuse_missing(schedule: Schedule, homes: dict[Action, int], micro_batches: int) -> None:
    """Impossible, naming rank and action, unless every action that there must be is there."""
    halved = {action[1:] for action in homes if action.kind in "IW"}
    for micro_batch, stage in product(range(micro_batches), range(schedule.stages)):
        for kind in ("F", "I", "W") if (stage, micro_batch) in halved else ("F", "B"):
            if (missing := (kind, stage, micro_batch)) not in homes:  # an Action is such a tuple
                nothing = "" if homes else "Nothing runs: "
                raise Impossible(
                    f"{nothing}{Action(*missing)} is missing on rank"
                    f" {schedule.rank_of(stage, micro_batch)}: every stage "
                    "needs the forward and the backward of each micro-batch."
                )
    both = next((each for each in homes if each.kind == "B" and each[1:] in halved), None)
    refuse(
        (
            both,
            f"Rank {homes.get(both)} runs {both} and a half of it too: "
            "run B, or I and W, for a micro-batch of a stage.",
        )
    )
    updates = Counter(a.stage for a in homes if a.kind == "U")
    expected = micro_batches // schedule.update_size
    refuse(
        *(
            (
                updates[stage] != expected,
                f"Rank {schedule.rank_of(stage, 0)} updates stage {stage} {updates[stage]} times in"
                f" {micro_batches} micro-batches; this schedule makes {expected}, each from"
                f" {schedule.update_size}.",
            )
            for stage in range(schedule.stages)
        )
    )
