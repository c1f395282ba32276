"""What a schedule holds: bytes by kind at every action boundary of every rank, from the order alone.

    F  + saved activations            U  - gradients, + optimizer state at the first one,
    B  - saved activations,              and the old weights stay as a stashed version
       + gradients at the first B        while an action still to come uses them
    I  - saved activations, + queued, + the gradients it makes;    W  - queued, + the other gradients

A weight version lives from the update that makes it until its last use, or until the next update if that is later.
"""

from collections import Counter, defaultdict
from typing import NamedTuple

from .schedule import Action, Schedule


class StageBytes(NamedTuple):
    """Bytes of one stage: weights, their gradients, optimizer state, and activations saved for one micro-batch.

    Where a backward is split: what is queued between I and W for one micro-batch, and the gradients that I makes.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    queued: int = 0
    early_gradients: int = 0


def uses_of_versions(schedule: Schedule, order: list) -> Counter:
    """(stage, version) -> how many actions of this rank's order compute with that version."""
    return Counter((a.stage, schedule.version(a)) for step in order for a in step if a.kind in "FBI")


def footprint(schedule: Schedule, stages: list[StageBytes], steps: int = 1) -> tuple[dict, dict]:
    """(changes, resident) for a Cost: action -> ((kind, change), ...), and rank -> what is there at the start."""
    changes: dict[Action, tuple] = {}
    resident: dict[int, tuple] = defaultdict(tuple)
    for stage, sizes in enumerate(stages):
        resident[schedule.rank_of(stage, 0)] += (("weights", sizes.weights),)
    for order in schedule.over(steps):
        uses = uses_of_versions(schedule, order)
        version: Counter = Counter()  # stage -> its newest version
        gradients: Counter = Counter()  # stage -> bytes that it holds
        has_state = set()
        for action in (a for step in order for a in step):
            kind, stage, _ = action
            sizes, change = stages[stage], []
            if kind in "FBI":
                used = (stage, schedule.version(action))
                uses[used] -= 1
                if not uses[used] and used[1] != version[stage] and holds_copies(schedule):
                    change.append(("stashed", -sizes.weights))
            if kind == "F":
                change.append(("activations", sizes.activations))
            if kind in "BI":
                change.append(("activations", -sizes.activations))
            if kind in "IW":
                change.append(("queued", sizes.queued if kind == "I" else -sizes.queued))
            if kind in "BIW":
                made = sizes.early_gradients if kind == "I" else sizes.gradients
                if made > gradients[stage]:
                    change.append(("gradients", made - gradients[stage]))
                    gradients[stage] = made
            if kind == "U":
                change.append(("gradients", -gradients.pop(stage)))
                if stage not in has_state:
                    has_state.add(stage)
                    change.append(("optimizer", sizes.optimizer))
                if uses[stage, version[stage]] and holds_copies(schedule):
                    change.append(("stashed", sizes.weights))
                version[stage] += 1
            changes[action] = tuple((k, b) for k, b in change if b)
    return changes, dict(resident)


def holds_copies(schedule: Schedule) -> bool:
    """Whether an update makes a new value and keeps the old one; without stashing it overwrites it in place."""
    return getattr(schedule, "stashing", True)
