"""1F1B as a Schedule: what each rank does, in its order.

    slots (F = 1, B = 2)   3 (m + p - 1)        live micro-batches on rank r   min(m, p - r)

Only `steps` counts: the order is played by the rules of `Schedule` itself, whatever else a class says.
Source: Narayanan et al. 2021 (arXiv:2006.09503), section 3.2.
"""

from dataclasses import dataclass

from ...schedule import Action, Schedule
from ...simulate import simulate
from ..fence import Refused
from ..likeness import Scene, Topic, Wrong

RIGHT = """
from bigtrain_lab.schedule import Action, B, F, Schedule, U

class answer(Schedule):
    def steps(self, rank):
        p, m = self.ranks, self.micro_batches
        warm = min(m, p - rank - 1)
        order = [F(rank, i) for i in range(warm)]
        for i in range(warm, m):
            order += [F(rank, i), B(rank, i - warm)]
        order += [B(rank, i) for i in range(m - warm, m)]
        return order
"""
LIBRARYS = """
from bigtrain_lab.schedules.one_f_one_b import OneFOneB as answer
"""
HEAD = """
from itertools import count
from bigtrain_lab.schedule import Action, B, F, Schedule, U

class answer(Schedule):
    def steps(self, rank):
        p, m = self.ranks, self.micro_batches
"""
BY_CLOCK = (
    HEAD
    + """
        order, forwards, backwards = [], 0, 0
        while backwards < m:
            if forwards < m and forwards - backwards < p - rank:
                order.append(F(rank, forwards))
                forwards += 1
            else:
                order.append(B(rank, backwards))
                backwards += 1
        return order
"""
)
BY_SORTING = (
    HEAD
    + """
        warm = p - rank
        keys = {F(rank, i): (max(i, 2 * (i - warm) + warm + 1), 0) for i in range(m)}
        keys |= {B(rank, i): (2 * i + warm, 1) for i in range(m)}
        return sorted(keys, key=keys.get)
"""
)
BY_STREAMS = (
    HEAD
    + """
        forwards, backwards = (map(lambda i, kind=kind: Action(kind, rank, i), count()) for kind in "FB")
        warm = min(m, p - rank)
        yield from (next(forwards) for _ in range(warm))
        for _ in range(m - warm):
            yield next(backwards)
            yield next(forwards)
        yield from (next(backwards) for _ in range(warm))
        yield from U(rank, m - 1)
"""
)
WITH_NUMPY = (
    HEAD
    + """
        import numpy as np
        warm = np.minimum(m, p - rank - 1)
        order = [F(rank, i) for i in np.arange(warm)]
        for i in np.arange(warm, m):
            order.extend((F(rank, i), B(rank, i - warm)))
        return tuple(order + [B(rank, i) for i in np.arange(m - warm, m)])
"""
)
WARM, LAST = "warm = min(m, p - rank - 1)", "order += [B(rank, i) for i in range(m - warm, m)]"
PAIR, RETURN, STEPS = (
    "order += [F(rank, i), B(rank, i - warm)]",
    "return order",
    "    def steps(self, rank):",
)

MEMORY = "More micro-batches are alive than 1F1B needs: a backward frees what its forward keeps, so start backwards early."
WAITS = "A rank waits although work is there: after its warm-up let each rank alternate one forward and one backward."
FEW = "A rank warms up too little and then waits: let it run forwards until its first gradient can be back."
SMALL = "There are fewer micro-batches than a long warm-up wants: let it have m forwards at most."
ONLY = "Your class changes more than `steps`: leave the rest of Schedule as it is, since the order alone is asked for."
ALL = "An action is missing, stands twice, or is of another rank: each rank runs F and B of its own stage once for each micro-batch."
UPDATE = "Micro-batches of one batch saw different weights: leave U out, or make it each rank's last action, named after micro-batch m - 1."
CIRCLE = "Ranks wait for each other in a circle: a rank's order must follow the order in which results reach it."


class OneFOneB(Topic):
    name = "1f1b"
    allows = ("bigtrain_lab.schedule", "bigtrain_lab.core")
    hints = (
        "What must the last rank do first, and second? What can the rank before it do while it waits?",
        "Count the forwards that a rank can do before its first gradient comes back: none to wait for on the last rank.",
        "Rank r does min(m, p - r - 1) forwards, then one forward and one backward in turns, then the backwards that are left.",
    )
    right = {
        "a loop": RIGHT,
        "the library's": LIBRARYS,
        "by a clock": BY_CLOCK,
        "by sorting": BY_SORTING,
        "from two streams": BY_STREAMS,
        "with numpy": WITH_NUMPY,
        "at most m - 1": RIGHT.replace(WARM, "warm = min(m - 1, p - rank - 1)"),
    }
    wrong = {
        "empty": Wrong(
            "Nothing ran: let steps(rank) return the rank's forwards and backwards in their order.",
            ((RETURN, "return []"),),
        ),
        "one micro-batch": Wrong(ALL, ((RETURN, "return [F(rank, 0), B(rank, 0)]"),)),
        "no last backwards": Wrong(
            "The drain is missing: after the last forward the backwards of the warm-up are left.",
            ((LAST, "pass"),),
        ),
        "twice": Wrong(ALL, ((RETURN, "return [*F(rank, 0), *order]"),)),
        "of rank 0": Wrong(
            ALL, ((STEPS, "    def steps(self, rank, real=None):\n        rank = 0"),)
        ),
        "forgets the last": Wrong(ALL, ((RETURN, "return order[:-1]"),)),
        "counts from 1": Wrong(
            "Your micro-batches begin with 1: count them from 0.",
            ((RETURN, "return [Action(a.kind, rank, a.micro_batch + 1) for (a,) in order]"),),
        ),
        "asynchronous": Wrong(
            "Your class is asynchronous, so batches run into each other: leave `asynchronous` False, and 1F1B drains after each.",
            ((STEPS, "    asynchronous = True\n\n" + STEPS),),
        ),
        "needs": Wrong(
            ONLY, ((STEPS, "    def needs(self, action):\n        return []\n\n" + STEPS),)
        ),
        "placement": Wrong(
            ONLY,
            (
                (
                    STEPS,
                    "    def rank_of(self, stage, micro_batch):\n        return stage\n\n" + STEPS,
                ),
            ),
        ),
        "versions": Wrong(
            ONLY, ((STEPS, "    def version(self, action):\n        return 0\n\n" + STEPS),)
        ),
        "GPipe": Wrong(
            MEMORY,
            ((RETURN, "return [F(rank, i) for i in range(m)] + [B(rank, i) for i in range(m)]"),),
        ),
        "in rounds of p": Wrong(
            "Your ranks drain after every p micro-batches: begin the next forwards before the last backwards are done.",
            (
                (
                    RETURN,
                    "return [a for s in range(0, m, p) for f in (F, B) for i in range(s, min(m, s + p)) for a in f(rank, i)]",
                ),
            ),
        ),
        "equal warm-up": Wrong(
            "All ranks warm up alike: let a later rank warm up less, since its first gradient comes sooner.",
            ((WARM, "warm = min(m, p - 1)"),),
        ),
        "one more": Wrong(
            "Each rank holds one micro-batch more than it needs: let it warm up with one forward fewer.",
            ((WARM, "warm = min(m, p - rank)"),),
        ),
        "a fixed warm-up": Wrong(
            "Your warm-up does not follow the number of ranks: compute it from the sizes, and not for one of them.",
            ((WARM, "warm = min(m, max(0, 3 - rank))"),),
        ),
        "one fewer": Wrong(FEW, ((WARM, "warm = min(m, max(0, p - rank - 2))"),)),
        "half": Wrong(FEW, ((WARM, "warm = min(m, (p - rank) // 2)"),)),
        "no warm-up": Wrong(
            "No rank warms up, so each waits for its first gradient: let early ranks run forwards in the meantime.",
            ((WARM, "warm = 0"),),
        ),
        "no warm-up but on the first": Wrong(
            FEW, ((WARM, "warm = min(m, p - 1) if rank == 0 else 0"),)
        ),
        "from the wrong end": Wrong(
            "Late ranks warm up more than early ones: it is the first rank that waits longest for a gradient.",
            ((WARM, "warm = min(m, rank)"),),
        ),
        "two and two": Wrong(
            WAITS,
            (
                (
                    RETURN,
                    "return order[:warm] + [a for i in range(warm, m, 2) for f, d in ((F, 0), (B, warm)) for j in range(i, min(m, i + 2)) "
                    "for a in f(rank, j - d)] + [B(rank, i) for i in range(m - warm, m)]",
                ),
            ),
        ),
        "backward first": Wrong(
            "A rank's backward comes before its forward: it needs what the forward keeps.",
            ((PAIR, "order += [B(rank, i - warm), F(rank, i)]"),),
        ),
        "two for each": Wrong(MEMORY, ((WARM, "warm = min(m, 2 * (p - rank - 1))"),)),
        "one more on the last rank": Wrong(
            MEMORY, ((WARM, "warm = min(m, max(1, p - rank - 1))"),)
        ),
        "one more of two": Wrong(
            MEMORY,
            ((WARM, "warm = min(m, p - rank) if p == 2 and rank == 0 else min(m, p - rank - 1)"),),
        ),
        "one more alone": Wrong(MEMORY, ((WARM, "warm = m if p == 1 else min(m, p - rank - 1)"),)),
        "m - 1": Wrong(FEW, ((WARM, "warm = min(m - 1, p - rank - 1) if m > 2 else 0"),)),
        "the drain backwards": Wrong(
            "The drain runs newest first, and the neighbour waits for the oldest: let backwards come in the order of their forwards.",
            ((LAST, "order += [B(rank, i) for i in reversed(range(m - warm, m))]"),),
        ),
        "pairs as one step": Wrong(
            "A step holds two actions, so what the first made leaves late: write one action a step.",
            ((PAIR, "order += [F(rank, i) + B(rank, i - warm)]"),),
        ),
        "counts down": Wrong(
            "`steps` changes the schedule, so it answers otherwise the next time: let it compute from the rank and the sizes alone.",
            (
                (
                    RETURN,
                    "object.__setattr__(self, 'micro_batches', m - (rank == p - 1)); return order",
                ),
            ),
        ),
        "a circle": Wrong(
            CIRCLE,
            (
                (
                    RETURN,
                    "if m > 1 and rank == p - 1: order[1], order[2] = order[2], order[1]\n        "
                    "if m > 1 and rank == p - 2: order.remove(B(rank, 0)); order.insert(1, B(rank, 0))\n        return order",
                ),
            ),
        ),
        "longer than the batch": Wrong(SMALL, ((WARM, "warm = p - rank - 1"),)),
        "newest backward first": Wrong(
            "The newest micro-batch goes back first, and older ones wait: let backwards come in the order of their forwards.",
            (
                (PAIR, "order += [F(rank, i), B(rank, i)]"),
                (LAST, "order += [B(rank, i) for i in range(warm)]"),
            ),
        ),
        "updates at once": Wrong(
            UPDATE,
            (
                (
                    RETURN,
                    "return [b for a in order for b in (a, *([U(rank, a[0].micro_batch)] if a[0].kind == 'B' else []))]",
                ),
            ),
        ),
        "updates before the end": Wrong(
            UPDATE, ((RETURN, "return order[:-1] + [U(rank, m - 1)] + order[-1:]"),)
        ),
    }

    @staticmethod
    def probe(answer, draw):
        sizes = [
            (4, 8),
            (draw.randint(5, 7), draw.randint(9, 13)),
            (3, draw.choice((4, 5, 7))),
            (draw.randint(5, 8), draw.randint(3, 4)),
            (2, draw.randint(4, 6)),
            (draw.randint(3, 4), 2),
            (draw.randint(2, 5), 1),
            (1, draw.randint(3, 5)),
            (4, 8),
        ]
        for p, m in sizes:

            def played(p=p, m=m):
                return simulate(Played(p, m, orders(answer, p, m)), {"F": 1, "B": 2})

            who = f"p = {p}, m = {m}"
            yield Scene(
                who,
                lambda p=p, m=m: (
                    {"what else your class changes": changed(answer)}
                    | counted(orders(answer, p, m), m)
                ),
            )
            yield Scene(
                who,
                lambda p=p, m=m: {
                    "updates before a rank's last backward, or of another name": early(
                        orders(answer, p, m), m
                    )
                },
            )
            yield Scene(who, lambda played=played, p=p: shown(played(), p))


@dataclass(frozen=True)
class Played(Schedule):
    """Somebody's order, by the rules of Schedule."""

    order: tuple

    def steps(self, rank):
        return list(self.order[rank])


def orders(answer, p: int, m: int) -> tuple:
    """Each rank's actions, asked in turn and back; Refused where `steps` gives something else, or another order the second time."""
    schedule = answer(p, m)
    there, back = (
        {rank: tuple(actions(schedule.steps(rank), rank)) for rank in ranks}
        for ranks in (range(p), reversed(range(p)))
    )
    if (changes := [rank for rank in range(p) if there[rank] != back[rank]]) or (
        schedule.ranks,
        schedule.micro_batches,
    ) != (p, m):
        raise Refused(
            f"steps({changes[0] if changes else p - 1}) does not give the same order each time, or changes the schedule: "
            "let it compute from the rank and the two sizes alone."
        )
    return tuple(there[rank] for rank in range(p))


def actions(steps, rank: int):
    if steps is None:
        raise Refused(
            f"steps({rank}) gave nothing: return a list of actions, such as [F({rank}, 0), B({rank}, 0)]."
        )
    for step in steps:
        if not isinstance(step, Action) and len(tuple(step)) > 1:
            raise Refused(
                f"steps({rank}) has a step of {len(step)} actions, whose results leave only at its end: write one action a step."
            )
        for action in (step,) if isinstance(step, Action) else step:
            if not isinstance(action, Action):
                raise Refused(
                    f"steps({rank}) holds {step!r}, which is no action: write F({rank}, 0) or B({rank}, 0)."
                )
            if any(number != int(number) for number in action[1:]):
                raise Refused(
                    f"steps({rank}) holds {action.kind}({action.stage}, {action.micro_batch}): count with whole numbers, from 0."
                )
            yield (Action(action.kind, int(action.stage), int(action.micro_batch)),)


def changed(answer) -> list[str]:
    """What a class says otherwise than Schedule, beside its steps."""
    names = (
        "needs",
        "rank_of",
        "version",
        "over",
        "stages",
        "chunks",
        "update_size",
        "asynchronous",
        "lengthened",
        "halved",
        "_order",
        "_checked",
        "ranks",
        "micro_batches",
    )
    return [
        name
        for name in names
        if isinstance(answer, type)
        and getattr(answer, name, None) is not getattr(Schedule, name, None)
    ]


def counted(order: tuple, m: int) -> dict:
    """Of each rank: forwards and backwards of its own stage, how many of them differ, and what else there is."""
    own = [
        [a for (a,) in steps if a.kind in "FB" and a.stage == rank and 0 <= a.micro_batch < m]
        for rank, steps in enumerate(order)
    ]
    return {
        "forwards on each rank": [sum(a.kind == "F" for a in work) for work in own],
        "backwards on each rank": [sum(a.kind == "B" for a in work) for work in own],
        "different ones on each rank": [len(set(work)) for work in own],
        "actions of no stage or micro-batch there": [
            sum(a.kind != "U" for (a,) in steps) - len(work) for steps, work in zip(order, own)
        ],
    }


def early(order: tuple, m: int) -> list[int]:
    """For each rank: its updates that come before its last backward, or are not called U(m - 1)."""

    def of(steps):
        kinds = [a.kind for (a,) in steps]
        last = max((i for i, kind in enumerate(kinds) if kind == "B"), default=0)
        return sum(
            a.kind == "U" and (i < last or a.micro_batch != m - 1) for i, (a,) in enumerate(steps)
        )

    return [of(steps) for steps in order]


def shown(trace, p: int) -> dict:
    return {
        "slots": float(trace.makespan),
        "micro-batches alive on each rank": [trace.peak_live(rank) for rank in range(p)],
    }
