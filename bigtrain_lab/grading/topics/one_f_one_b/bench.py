"""1F1B: the order of each rank that the answer's schedule gives."""

from bigtrain_lab.order.schedule import Action, Schedule

from ...trainings import Refused, refuse

ONLY_STEPS = (
    "needs rank_of version over stages chunks update_size asynchronous lengthened halved _order"
    " _checked ranks micro_batches"
).split()


def play(answer, ranks, micro_batches) -> dict:
    changed = [
        name
        for name in ONLY_STEPS
        if isinstance(answer, type)
        and getattr(answer, name, None) is not getattr(Schedule, name, None)
    ]
    return {"changed": changed, "order": orders(answer(ranks, micro_batches), ranks, micro_batches)}


def orders(schedule, ranks: int, micro_batches: int) -> list[list]:
    """Each rank's [kind, stage, micro-batch], asked in turn and back; Refused where `steps` gives
    something else, or another order the second time."""
    there, back = (
        {rank: list(actions(schedule.steps(rank), rank)) for rank in asked}
        for asked in (range(ranks), reversed(range(ranks)))
    )
    changes = [rank for rank in range(ranks) if there[rank] != back[rank]]
    refuse(
        (
            changes or (schedule.ranks, schedule.micro_batches) != (ranks, micro_batches),
            f"steps({changes[0] if changes else ranks - 1}) does not give the same order each time,"
            " or changes the schedule: let it compute from the rank and the two sizes alone.",
        )
    )
    return [there[rank] for rank in range(ranks)]


def actions(steps, rank: int):
    refuse(
        (
            steps is None,
            f"steps({rank}) gave nothing: return a list of actions, such as [F({rank}, 0),"
            f" B({rank}, 0)].",
        )
    )
    for step in steps:
        if not isinstance(step, Action) and len(tuple(step)) > 1:
            raise Refused(
                f"steps({rank}) has a step of {len(step)} actions, whose results leave only at its"
                " end: write one action a step."
            )
        for action in (step,) if isinstance(step, Action) else step:
            refuse(
                (
                    not isinstance(action, Action),
                    f"steps({rank}) holds {step!r}, which is no action: write F({rank}, 0) or"
                    f" B({rank}, 0).",
                )
            )
            refuse(
                (
                    any(number != int(number) for number in action[1:]),
                    f"steps({rank}) holds {action.kind}({action.stage}, {action.micro_batch}):"
                    " count with whole numbers, from 0.",
                )
            )
            yield [action.kind, int(action.stage), int(action.micro_batch)]
