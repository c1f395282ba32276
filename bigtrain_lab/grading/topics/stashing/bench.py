"""Weight stashing: the answer's order, each action's version, and the versions that stages keep."""

from bigtrain_lab.order.schedule import Action

from ...trainings import Refused, number, refuse
from ..one_f_one_b.bench import orders

HELD = "versions held"


def play(answer, ranks, micro_batches, asked) -> dict:
    """`asked`: what is compared; the versions held are given alone."""
    schedule = answer(ranks, micro_batches)
    order = orders(schedule, ranks, micro_batches)
    if asked == HELD:
        return {
            "order": order,
            "held": [
                [held(schedule, stage, updates) for updates in reversed(range(micro_batches + 1))]
                for stage in range(ranks)
            ],
        }
    for each in (each for work in order for each in reversed(work)):
        schedule.version(Action(*each))  # one that counts its calls is off by then
    return {
        "order": order,
        "asynchronous": bool(schedule.asynchronous),
        "versions": [
            [whole(schedule.version(action), f"version({action})") for action in actions]
            for actions in ([Action(*each) for each in work] for work in order)
        ],
    }


def held(schedule, stage: int, updates: int) -> list[int]:
    refuse(
        (
            not hasattr(schedule, "versions_held"),
            "Your class does not say which versions a stage keeps: write versions_held(stage,"
            " updates), which returns their numbers.",
        )
    )
    call = f"versions_held({stage}, {updates})"
    given = schedule.versions_held(stage, updates)
    refuse(
        (
            isinstance(given, str) or not hasattr(given, "__iter__"),
            f"{call} gave {given!r}: return the numbers of the versions that the stage keeps.",
        )
    )
    return [whole(version, call) for version in given]


def whole(given, call: str) -> int:
    """A version as an answer may give it."""
    none = (
        f"{call} gave {given!r}: a version is a whole number, the updates that its weights have"
        " behind them."
    )
    if not (version := number(given, none)).is_integer():
        raise Refused(none)
    return int(version)
