"""Name what is wrong with a run: three steps of three pipelines that average their gradients, as
`simulate` predicts them, with a fault planted in the order or in the cost."""

from dataclasses import replace

from bigtrain_lab.core import Cost, Mesh
from bigtrain_lab.order.plan import Compute, Launch, Plan, Together, Wait, lower
from bigtrain_lab.order.schedule import Action, Schedule
from bigtrain_lab.order.simulate import simulate

NAME = "name-the-bug"
STEPS = REPLICAS = 3
GROUPS = {
    "times": ("straggler", "few micro-batches"),
    "all-reduces": ("early all-reduce", "late all-reduce", "missing all-reduce"),
    "work, messages and memory": ("double backward", "wide gradients", "growing memory"),
}


class Case(dict):
    """What an answer is given; the `fault` stays out here."""


def scenes(draw):
    for group, faults in GROUPS.items():
        cases = [(fault, first) for fault in (*faults, "nothing") for first in (True, False)]
        draw.shuffle(cases)
        for number, (fault, first) in enumerate(cases, 1):
            case = Case(run=run(draw, fault, first))
            case.fault = fault
            yield f"{group}, run {number}", case


def shown(inputs: Case, came: str) -> dict:
    return {"fault": came, "as it was planted": came == inputs.fault}


def run(draw, fault: str, first: bool) -> dict:
    """Events as plain data; the fault is on rank 0 in the first step, or in another pipeline in
    the last."""
    few = fault == "few micro-batches"  # by their number first, then beside a slow all-reduce
    stages = draw.randint(2 + (few and not first), 4)
    m = stages // 2 if few and first else stages * (4 if few else draw.randint(3, 4))
    mesh, name = Mesh(dp=REPLICAS, pp=stages), draw.choice(("gpipe", "1f1b"))
    at = (0, 0) if first else (draw.randrange(stages, mesh.size), STEPS - 1)
    pipelines = lower(Schedule.named(name)(stages, m), STEPS).placed(mesh, "pp")
    again = Action("W", at[0] % stages, at[1] * m + draw.randrange(max(m - 1, 1)))
    lanes = {}
    for rank in range(mesh.size):
        planted = fault if rank == at[0] and (first or fault != "early all-reduce") else ""
        lanes[rank, "compute"] = tuple(
            computed(pipelines.lanes[rank, "compute"], m, planted, at[1], again)
        )
        lanes[rank, "comm"] = tuple(summed(mesh, rank, fault, at))
    plan, costs = Plan(lanes, mesh.size, STEPS), cost(draw, lanes, m, fault, at)
    trace = simulate(plan, costs)
    while few and (short := ticks_short(trace, mesh.size)) >= 0:  # until just below 60%
        slower = costs.durations["all_reduce"] + 1 + short // (STEPS * costs.ticks_per_unit)
        costs = replace(costs, durations={**costs.durations, "all_reduce": slower})
        trace = simulate(plan, costs)
    spans = [told(span, m) for span in trace.spans()]
    for span in spans:
        if span["kind"] == "all_reduce" and (span["rank"], span["step"]) == at:
            span["start"] += fault == "late all-reduce"
            span["start"] -= fault == "early all-reduce" and not first
    messages = [[t.src, t.rank, t.kind, t.bytes] for t in trace.transfers()]
    if fault == "wide gradients":
        backwards = [each for each in messages if each[2] == "B"]
        wide = [each for each in backwards if at[0] in each[:2]][0 if first else -1]
        wide[-1] = wide[-1] * draw.choice((5, 6, 8)) // 4
        for each in backwards if not first else ():  # the others have less, and all have no more
            each[-1] //= 1 if each is wide else 2
    return {
        "stages": stages,
        "micro_batches": m,
        "spans": spans,
        "transfers": [dict(zip(("src", "dst", "kind", "bytes"), each)) for each in messages],
        "memory": [
            {"rank": rank, "time": time, "bytes": level}
            for rank in range(mesh.size)
            for time, level in trace.levels(rank)
        ],
    }


def ticks_short(trace, ranks: int) -> int:
    """By how much a run is too short to be filled to 60%; below 0 where it is filled less."""
    busy = sum(span.end - span.start for span in trace.spans() if span.kind in "FBU")
    return 5 * busy // (3 * ranks) - max(span.end for span in trace.spans())


def computed(ops, m: int, planted: str, at: int, again: Action):
    """A rank's operations: gradients are launched after the last backward, and awaited before the
    update. A backward is done `again` after the last of its step."""
    for op in ops:
        if not isinstance(op, Compute):
            yield op
            continue
        kind, _, micro_batch = op.step[0]
        step, last = micro_batch // m, kind == "B" and micro_batch % m == m - 1
        early = planted == "early all-reduce" and step == at
        if kind == "U":
            yield Wait(f"summed {step}")
        if last and early:
            yield Launch(f"gradients {step}")
        yield op
        if last and planted == "double backward" and step == at:
            yield Compute((again,))
        if last and not early:
            yield Launch(f"gradients {step}")


def summed(mesh: Mesh, rank: int, fault: str, at: tuple[int, int]):
    """What a rank's communication does: one all-reduce a step with the replicas of its stage."""
    for step in range(STEPS):
        peers = mesh.peers(rank, "dp")
        if fault == "missing all-reduce" and step == at[1]:
            peers = tuple(peer for peer in peers if peer != at[0])
        yield Wait(f"gradients {step}")
        if rank in peers:
            yield Together(f"sum {step}", "all_reduce", 4096, peers)
        yield Launch(f"summed {step}")


def cost(draw, lanes: dict, m: int, fault: str, at: tuple[int, int]) -> Cost:
    """Ranks that differ by up to a tenth; the first update makes the optimizer's state. Activations
    grow with the steps, and on one rank a step leaves some: neither is what grows in each step."""
    summing = 20 if fault == "few micro-batches" and m <= 2 else 2
    ranks, width, kept = sorted({rank for rank, _ in lanes}), 2 ** draw.randint(6, 9), {}
    slowdown = {rank: 1 + draw.randint(0, 100) / 1000 for rank in ranks}
    if fault == "straggler":  # just so, or far beyond
        slowdown[at[0]] = max(slowdown.values()) * (draw.randint(18, 25) / 10 if at[1] else 1.53)
    if fault == "nothing" and not at[1]:  # as unlike as ranks are without a fault
        slowdown = dict.fromkeys(ranks, 1.0) | {at[0]: 1.1}
    for rank in ranks:
        for op in lanes[rank, "compute"]:
            if isinstance(op, Compute):
                kind, _, micro_batch = op.step[0]
                step = micro_batch // m
                leaks = fault == "growing memory" or step == max(at[1], 1)
                left = width * (leaks and rank == at[0] and micro_batch % m == 0)
                taken = (4 + step) * width
                size = {"F": taken, "B": left - taken, "U": 8 * width * (step == 0), "W": 0}
                kept[rank, op.step[0]] = (("activations", size[kind]),)
    return Cost(
        durations={"F": 2, "B": 4, "W": 4, "U": 1, "all_reduce": summing},
        messages={"F": width, "B": width},
        changes=kept,
        resident=dict.fromkeys(ranks, (("weights", 8 * width),)),
        slowdown=slowdown,
    )


def told(span, m: int) -> dict:
    """A span as an answer reads it."""
    if span.kind == "all_reduce":
        step, micro_batch = int(span.name.split()[1]), None
    else:
        micro_batch = Action.parse(span.name).micro_batch
        step = micro_batch // m
    return {
        "rank": span.rank,
        "kind": span.kind.replace("W", "B"),
        "step": step,
        "micro_batch": micro_batch,
        "start": span.start,
        "end": span.end,
    }
