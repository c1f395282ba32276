"""What a schedule leaves no room for, said without torch."""

from collections.abc import Mapping

from ...order.schedule import Schedule
from . import refuse


def called(schedule: Schedule) -> str:
    """A schedule without a name, which is in no menu, by its class."""
    return getattr(schedule, "name", type(schedule).__name__)


def refuse_order(order: Schedule, given: Mapping[str, object], scaled: bool = False) -> None:
    """Refuse what is `given` of settings that need the gradient of a whole window, and a loss scale
    where it is `scaled`."""
    one = next((name for name, value in given.items() if value), None)
    refuse(
        (
            order.asynchronous and one,
            (
                f"{called(order)} updates each stage at times of its own, with no gradient of "
                f"a whole window for {one}: leave {one} out, or take a synchronous "
                "schedule."
            ),
        )
    )
    whole = {
        "clip": given.get("clip"),
        "a loss scale": scaled,
        "the mean of replicas": given.get("replicas"),
    }
    needs = next((name for name, value in whole.items() if value), None)
    refuse(
        *(
            (
                backward_after_update(steps, range(order.stages)),
                f"{called(order)} updates on rank {rank} before its last backward, and {needs} "
                "needs the whole gradient: put its updates at the end.",
            )
            for rank, steps in enumerate(order.over(1) if needs else ())
        )
    )


def backward_after_update(order: list, stages) -> bool:
    """Whether a backward of any of these stages comes after an update of the rank in a batch."""
    actions = [action for step in order for action in step]
    first = next((at for at, action in enumerate(actions) if action.kind == "U"), len(actions))
    return any(a.kind in "BIW" and a.stage in stages for a in actions[first:])
