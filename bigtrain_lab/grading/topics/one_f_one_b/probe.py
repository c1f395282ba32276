"""1F1B as a Schedule: what each rank does, in its order.

    slots (F = 1, B = 2)   3 (m + p - 1)        live micro-batches on rank r   min(m, p - r)

Only `steps` counts: the order is played by the rules of `Schedule` itself, whatever else a class
says. Source: Narayanan et al. 2021 (arXiv:2006.09503), section 3.2.
"""

from bigtrain_lab.core import Impossible
from bigtrain_lab.order.schedule import Schedule, name_of
from bigtrain_lab.order.simulate import simulate

NAME, ALLOWS = "1f1b", ("bigtrain_lab.order.schedule", "bigtrain_lab.core")


def scenes(draw):
    even = draw.randint(3, 6)
    yield from (
        (f"p = {p}, m = {m}", {"ranks": p, "micro_batches": m})
        for p, m in (
            (4, 8),
            (even, even),
            (even, even - 1),
            (draw.randint(9, 11), draw.randint(13, 17)),
            (3, draw.choice((4, 5, 7))),
            (draw.randint(5, 8), draw.randint(3, 4)),
            (2, draw.randint(4, 6)),
            (4, 2),
            (draw.randint(2, 5), 1),
            (1, 8),
        )
    )


def shown(inputs: dict, came: dict) -> dict:
    """Whether each rank does all of its own, and once; if so, when it updates, and the schedule
    played."""
    m, order = inputs["micro_batches"], came["order"]
    own = [
        [(kind, batch) for kind, stage, batch in work if kind in "FB" and stage == rank]
        for rank, work in enumerate(order)
    ]
    whole = {(kind, batch) for kind in "FB" for batch in range(m)}
    row = {
        "what else your class changes": came["changed"],
        "forwards on each rank": [[kind for kind, _ in work].count("F") for work in own],
        "backwards on each rank": [[kind for kind, _ in work].count("B") for work in own],
        "those asked for, and different, on each rank": [len(whole & {*work}) for work in own],
        "actions of no stage or micro-batch there": [
            sum(kind != "U" for kind, _, _ in work) - sum(each in whole for each in mine)
            for work, mine in zip(order, own)
        ],
    }
    if all(set(work) == whole and len(work) == 2 * m for work in own):
        row["updates before a rank's last backward, or of another name"] = [
            early(work, m) for work in order
        ]
        trace = simulate(Schedule.of(*map(text, order)), {"F": 1, "B": 2})
        row["slots"] = float(trace.makespan)
        row["micro-batches alive on each rank"] = [*map(trace.peak_live, range(len(order)))]
    return row


def replay(inputs: dict, came: dict) -> tuple | None:
    """The answer's schedule played, and when its first action begins that 1F1B has otherwise
    there; None where it cannot be played."""
    right = Schedule.named("1f1b")(inputs["ranks"], inputs["micro_batches"])
    return replayed(came["order"], [[*map(name_of, right.steps(r))] for r in range(right.ranks)])


def replayed(order: list[list], *rights: list[list[str]]) -> tuple | None:
    """Beside that right order which it follows longest."""
    try:
        trace = simulate(Schedule.of(*map(text, order)), {"F": 1, "B": 2})
    except Impossible:  # which the finding tells
        return None
    wrong = [
        [
            s.start
            for r in range(trace.ranks)
            for s, name in zip(trace.spans(r), right[r])
            if s.name != name
        ]
        for right in rights
    ]
    return (trace, max(map(min, wrong))) if all(wrong) else None


def early(work: list, m: int) -> int:
    """Updates that come before the last backward, or are not called U(m - 1)."""
    last = max(at for at, (kind, _, _) in enumerate(work) if kind == "B")
    return sum(
        kind == "U" and (at < last or batch != m - 1) for at, (kind, _, batch) in enumerate(work)
    )


def text(work: list) -> str:
    """As `Schedule.of` reads an order: "0F0 0B0"."""
    return " ".join(f"{stage}{kind}{batch}" for kind, stage, batch in work)
