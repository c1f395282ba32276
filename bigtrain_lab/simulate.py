"""The simulator: run a plan on virtual clocks, without processes, tensors or bytes.

Each lane runs until it waits for a message or a signal that is not there yet; what it then posts wakes others. Lanes
share nothing else, so they are a Kahn network: the result does not depend on the order in which lanes are visited,
and the real ranks, which obey the same rules, reach the same times. Cost: linear in the number of operations.
Source: Kahn 1974, The Semantics of a Simple Language for Parallel Programming; the clock's rules are core/lane.py.
"""

from collections import defaultdict, deque

from .core import MEMORY_KINDS, Cost, Impossible, Lane, Memory, Span, Trace, Transfer
from .plan import Compute, Recv, Send, Wait, collector_paused, lower
from .schedule import Schedule, kind_of, name_of


@collector_paused()
def simulate(plan, cost, steps: int = 1) -> Trace:
    """Predict a trace. `plan`: a Schedule (over `steps` training steps) or a Plan; `cost`: a Cost or {"F": 1, "B": 2}.

    Impossible where the plan deadlocks, or repeats or forgets an action; the sentence names rank and action.
    """
    settings = {}
    if isinstance(plan, Schedule):
        name = getattr(plan, "name", type(plan).__name__)
        settings = {"schedule": name, "ranks": plan.ranks, "micro_batches": plan.micro_batches}
    plan, cost = lower(plan, steps), Cost.of(cost)
    lanes = {key: Lane() for key in plan.lanes}
    at = dict.fromkeys(plan.lanes, 0)
    posted: dict = {}  # message or signal -> its time
    waiting: dict = defaultdict(list)  # message or signal -> the lanes that wait for it
    held: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    events: list = []

    def change_memory(rank, lane_name, name, changes, now):
        change: dict[str, int] = defaultdict(int)  # in all: what one action of a step takes another may free
        for kind, size in changes:
            change[kind] += size
        for kind in sorted(filter(change.get, change), key=MEMORY_KINDS.index):
            held[rank][kind] += change[kind]
            events.append(Memory(rank, lane_name, kind, name, now, held[rank][kind]))

    for rank in range(plan.ranks):
        change_memory(rank, "compute", "start", cost.resident.get(rank, ()), 0)

    ready = deque(plan.lanes)
    while ready:
        key = ready.popleft()
        (rank, lane_name), lane, ops = key, lanes[key], plan.lanes[key]
        for position in range(at[key], len(ops)):
            op = ops[position]
            kind = type(op)
            if kind is Compute:
                step = op.step
                start, end = lane.compute(cost.duration(step, rank))
                name = name_of(step)
                events.append(Span(rank, lane_name, kind_of(step), name, start, end, op.version))
                if cost.changes:
                    change_memory(rank, lane_name, name, [c for a in step for c in cost.memory(a)], end)
                continue
            if kind is Recv:
                message = (op.action, rank)
                if message not in posted:
                    break
                stamp, size = posted[message]
                arrived = lane.receive(stamp, cost.link(op.src, rank), size)
                events.append(Transfer(rank, lane_name, op.action.kind, str(op.action), stamp, arrived, op.src, size))
                continue
            if kind is Wait:
                message = (op.label, rank)
                if message not in posted:
                    break
                lane.now = max(lane.now, posted[message])
                continue
            if kind is Send:
                message = (op.action, op.dst)
                size = cost.message_bytes(op.action)
                time = lane.send(cost.link(rank, op.dst), size)[1], size
            else:  # Launch
                message, time = (op.label, rank), lane.now
            if message in posted:
                raise Impossible(f"Rank {rank} sends or launches {message[0]} twice: give each message a name of its own.")
            posted[message] = time
            if message in waiting:
                ready += waiting.pop(message)
        else:
            position = len(ops)
        at[key] = position
        if position < len(ops):
            waiting[message].append(key)
    stuck = {key: plan.lanes[key][i] for key, i in at.items() if i < len(plan.lanes[key])}
    if stuck:
        raise Impossible(deadlock(stuck))
    return Trace.of(events, "predicted", unit=cost.unit, ticks_per_unit=cost.ticks_per_unit, ranks=plan.ranks, steps=plan.steps,
                    settings=settings)


def deadlock(stuck: dict) -> str:
    """Who waits for whom: the cycle of waits where there is one, else the first wait that nobody answers."""
    waits = {rank: op for (rank, _), op in stuck.items() if isinstance(op, Recv)}
    path = [next(iter(waits))] if waits else []
    while path and (next_rank := waits[path[-1]].src) in waits and next_rank not in path:
        path.append(next_rank)
    if path and (last := waits[path[-1]].src) in path:
        path = path[path.index(last):]
    tell = [f"rank {rank} waits for {waits[rank].action} from rank {waits[rank].src}" for rank in path]
    tell = tell or [f"rank {rank} waits on lane {lane} for {op.label}, which nobody launches before" for (rank, lane), op in stuck.items()]
    return f"This plan deadlocks: {'; '.join(tell)}. Change the order so that one of them can go first."
