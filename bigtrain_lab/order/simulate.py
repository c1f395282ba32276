"""The simulator: run a plan on virtual clocks, without processes, tensors or bytes.

Each lane runs until it waits for a message or a signal that is not there yet; what it then posts
wakes others. Lanes share nothing else, so they are a Kahn network: the result does not depend on
the order in which lanes are visited, and the real ranks, which obey the same rules, reach the same
times. Cost: linear in the number of operations. Source: Kahn 1974, The Semantics of a Simple
Language for Parallel Programming; the clock's rules are core/lane.py.
"""

from collections import defaultdict, deque
from dataclasses import replace
from itertools import takewhile

from ..core import MEMORY_KINDS, Cost, Impossible, Lane, Memory, Span, Trace, Transfer
from ..core.overtaken import go_on
from .collective import Collective
from .plan import (
    Compute,
    Cycle,
    Launch,
    Plan,
    Recv,
    Send,
    Serve,
    Together,
    Turns,
    Wait,
    collector_paused,
    lower,
)
from .schedule import Action, Schedule, kind_of, name_of


@collector_paused()
def simulate(plan, cost, steps: int = 1) -> Trace:
    """Predict a trace. `plan`: a Schedule (over `steps` training steps), a Collective or a Plan;
    `cost`: a Cost or {"F": 1, "B": 2}.

    Impossible where the plan deadlocks, or repeats or forgets an action; the sentence names rank
    and action.
    """
    settings = {}
    if isinstance(plan, Schedule):
        settings = {
            "schedule": getattr(plan, "name", type(plan).__name__),
            "ranks": plan.ranks,
            "micro_batches": plan.micro_batches,
        }
    elif isinstance(plan, Collective):
        settings = {"collective": getattr(plan, "name", type(plan).__name__), "ranks": plan.ranks}
    plan, cost = lower(plan, steps), Cost.of(cost)
    lanes, programs = {key: Lane() for key in plan.lanes}, dict(plan.lanes)
    at = dict.fromkeys(plan.lanes, 0)
    posted: dict = {}  # message or signal -> its time
    waiting: dict = defaultdict(list)  # message or signal -> the lanes that wait for it
    serving: dict = {}  # lane -> the Serve that it is at, and whose turn it is
    begun: dict = {}  # lane -> when the step began of which it has done some parts
    counts: dict = defaultdict(dict)  # cycle -> rank -> how many labels the rank has seen
    held: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    events: list = []

    def change_memory(rank, lane_name, name, changes, now):
        change: dict[str, int] = defaultdict(
            int
        )  # in all: what one action of a step takes another may free
        for kind, size in changes:
            change[kind] += size
        for kind in sorted(filter(change.get, change), key=MEMORY_KINDS.index):
            held[rank][kind] += change[kind]
            events.append(Memory(rank, lane_name, kind, name, now, held[rank][kind]))

    for rank in range(plan.ranks):
        change_memory(rank, "compute", "start", cost.resident.get(rank, ()), 0)

    def post(what, time):
        if what in posted:
            raise Impossible(
                f"Rank {key[0]} sends or launches {what[0]} twice: "
                "give each message a name of its own."
            )
        posted[what] = time
        if what in waiting:
            ready.extend(waiting.pop(what))

    ready = deque(plan.lanes)
    while ready:
        go_on()
        key = ready.popleft()
        (rank, lane_name), lane, ops = key, lanes[key], programs[key]
        for position in range(at[key], len(ops)):
            op = ops[position]
            kind = type(op)
            if kind is Compute:
                step = op.step
                if op.part is None:
                    start, end = lane.compute(cost.duration(step, rank, op.beside))
                else:
                    parts = cost.parts(step, rank, op.beside)
                    start, end = lane.compute(parts[op.part])
                    start = begun.setdefault(key, start)
                    if op.part + 1 < len(parts):
                        continue
                    del begun[key]
                name = name_of(step)
                events.append(Span(rank, lane_name, kind_of(step), name, start, end, op.version))
                if cost.changes:
                    change_memory(
                        rank, lane_name, name, [c for a in step for c in cost.memory(a, rank)], end
                    )
                continue
            if kind is Recv:
                what = (op.message, op.src, rank, lane_name)
                if what not in posted:
                    break
                _, stamp, size = posted[what]
                arrived = lane.receive(stamp, cost.link(op.src, rank, lane_name), size)
                about = op.message.kind, op.message.name
                events.append(Transfer(rank, lane_name, *about, stamp, arrived, op.src, size))
                continue
            if kind is Wait:
                what = (op.label, rank)
                if what not in posted:
                    break
                lane.wait(posted[what])
                continue
            if kind is Together:
                if len(op.ranks) == 1 and not cost.collective(op.kind, op.bytes, op.ranks):
                    continue
                what = (op, lane_name)
                issues = posted.setdefault(what, {})
                if rank in issues and issues[rank] is None:
                    raise Impossible(
                        f"Rank {rank} calls {op.name} twice: "
                        "give each collective a name of its own."
                    )
                issues.setdefault(rank, lane.now)
                if len(issues) < len(op.ranks):
                    break
                if what in waiting:  # the last one has come: all know the latest issue
                    posted[what, "latest"] = max(issues.values())
                    ready += waiting.pop(what)
                latest = posted.setdefault((what, "latest"), issues[rank])
                start, issues[rank] = issues[rank], None
                lane.now = latest + cost.collective(op.kind, op.bytes, op.ranks, lane_name)
                events.append(Span(rank, lane_name, op.kind, op.name, start, lane.now))
                if len(op.ranks) > 1 and (arriving := op.arriving(rank)):
                    about = op.kind, op.name
                    events.append(Transfer(rank, lane_name, *about, latest, lane.now, *arriving))
                continue
            if kind is Cycle:
                told = counts[op.name, op.ranks]
                if rank in told:  # and all others: the request has ended
                    following = op.then(min(told.values()))
                else:
                    posts = (posted.get((label, rank)) for label in op.labels)
                    times = [*takewhile(lambda time: time is not None, posts)]
                    if (asked := op.asks(lane.now, times)) is None:
                        what = (op.labels[len(times)], rank)
                        break
                    lane.wait(asked[0])
                    told[rank] = asked[1]
                    following = op.request, op
                programs[key], position = (*following, *ops[position + 1 :]), 0
                ready.append(key)
                break
            if kind is Serve:
                turns, place = serving.setdefault(key, (op, Turns(op)))[1], None
                while not turns.over:
                    if (place := turns.wanted()) is not None:
                        message = op.ask(place, turns.made[place])
                        what = (message, op.sources[place], rank, lane_name)
                        if what not in posted:
                            break
                        turns.has(place, posted[what][0])
                        continue
                    place, number = turns.take()
                    message, src = op.ask(place, number), op.sources[place]
                    _, stamp, size = posted[message, src, rank, lane_name]
                    arrived = lane.receive(stamp, cost.link(src, rank, lane_name), size)
                    about = message.kind, message.name
                    events.append(Transfer(rank, lane_name, *about, stamp, arrived, src, size))
                    step = (Action("S", place, number),)
                    start, end = lane.compute(cost.duration(step, rank))
                    events.append(Span(rank, lane_name, "S", name_of(step), start, end))
                    for place, number in turns.due():
                        message, dst = op.answer(place, number), op.sources[place]
                        link, size = cost.link(rank, dst, lane_name), cost.message_bytes(message)
                        post((message, rank, dst, lane_name), (*lane.send(link, size), size))
                        turns.answered(place, lane.outgoing + link.alpha)
                if not turns.over:
                    break
                del serving[key]
            elif kind is Send:
                link, size = cost.link(rank, op.dst, lane_name), cost.message_bytes(op.message)
                post((op.message, rank, op.dst, lane_name), (*lane.send(link, size), size))
            else:  # Launch
                post((op.label, rank), lane.now)
        else:
            position = len(ops)
        at[key] = position
        if position < len(ops) and programs[key] is ops:
            waiting[what].append(key)
    if any(position < len(programs[key]) for key, position in at.items()):
        asked = {key: op.sources[turns.wanted()] for key, (op, turns) in serving.items()}
        raise Impossible(deadlock(replace(plan, lanes=programs), at, asked))
    return Trace.of(
        events,
        "predicted",
        unit=cost.unit,
        ticks_per_unit=cost.ticks_per_unit,
        ranks=plan.ranks,
        steps=plan.steps,
        settings=settings,
    )


def deadlock(plan: Plan, at: dict, asked: dict) -> str:
    """Who waits for whom, lane by lane: the cycle of waits where there is one, else up to a wait
    that nobody answers. `asked`: the rank whose request each server waits for."""
    stuck = {key: plan.lanes[key][i] for key, i in at.items() if i < len(plan.lanes[key])}

    def holder(key) -> tuple[int, str] | None:
        """The lane that has yet to do what this one waits for."""
        (rank, lane), op = key, stuck[key]
        if isinstance(op, Recv):
            return op.src, lane
        if isinstance(op, Serve):
            return asked[key], lane
        if isinstance(op, Together):
            return next((other, lane) for other in op.ranks if stuck.get((other, lane)) != op)
        return next(
            (
                k
                for k in stuck
                if k[0] == rank
                for each in plan.lanes[k][at[k] :]
                if isinstance(each, Launch) and each.label == op.label
            ),
            None,
        )

    path = [min(stuck, key=lambda key: isinstance(stuck[key], Wait))]  # one that waits for a rank
    while (following := holder(path[-1])) in stuck and following not in path:
        path.append(following)
    said = []
    for rank, lane in path[path.index(following) :] if following in path else path:
        op, on = stuck[rank, lane], holder((rank, lane))
        where = "" if lane == "compute" and not isinstance(op, Wait) else f" on lane {lane}"
        match op:
            case Recv(src, message):
                what = f"{message} from rank {src}"
            case Together():
                what = f"rank {on[0]} in {op.name}"
            case Serve():
                what = f"a request of rank {on[0]} to {op.name}"
            case Wait() | Cycle():
                what = op.label + ("" if on else ", which nobody launches before")
        said.append(f"rank {rank} waits{where} for {what}")
    return (
        f"This plan deadlocks: {'; '.join(said)}. "
        "Change the order so that one of them can go first."
    )
