"""Name what is wrong with a run: three steps of three pipelines that share their gradients, as
`simulate` predicts them, with a fault planted in the order or in the cost."""

from bigtrain_lab.core import Cost, Mesh
from bigtrain_lab.order.plan import Compute, Launch, Plan, Together, Wait, lower
from bigtrain_lab.order.schedule import Action, Schedule
from bigtrain_lab.order.simulate import simulate

NAME, ALLOWS = "name-the-bug", ()
STEPS, REPLICAS = 3, 3
GROUPS = {
    "times": ("straggler", "few micro-batches"),
    "all-reduces": ("early all-reduce", "late all-reduce", "missing all-reduce"),
    "work, messages and memory": ("double backward", "wide gradients", "growing memory"),
}


class Case(dict):
    """What an answer is given; the attribute `fault` stays outside."""


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
    """Events as plain data. The fault is on rank 0 in the first step, or on another in the last."""
    stages = draw.randint(2, 4)
    m = stages // 2 if fault == "few micro-batches" else stages * draw.randint(3, 4)
    mesh = Mesh(dp=REPLICAS, pp=stages)
    where = (0, 0) if first else (draw.randrange(1, mesh.size), STEPS - 1)
    schedule = Schedule.named(draw.choice(("gpipe", "1f1b")))(stages, m)
    pipelines = lower(schedule, STEPS).placed(mesh, "pp")
    twice = draw.randrange(m) if fault == "double backward" else None
    lanes = {}
    for rank in range(mesh.size):
        lanes[rank, "compute"] = computes(pipelines.lanes[rank, "compute"], rank, m, fault, where, twice)
        lanes[rank, "comm"] = sums(mesh, rank, fault, where)
    trace = simulate(Plan(lanes, mesh.size, STEPS), cost(draw, mesh, m, fault, where[0]))
    return {
        "ranks": mesh.size,
        "stages": stages,
        "micro_batches": m,
        "steps": STEPS,
        "spans": [told(span, m) for span in trace.spans() if span.kind != "barrier"],
        "transfers": [
            {"src": t.src, "dst": t.rank, "kind": t.kind, "bytes": t.bytes, "start": t.start, "end": t.end}
            for t in trace.transfers()
        ],
        "memory": [
            {"rank": rank, "time": time, "bytes": level}
            for rank in range(mesh.size)
            for time, level in trace.levels(rank)
        ],
    }
