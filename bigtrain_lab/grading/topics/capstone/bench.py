"""Capstone: the answer gives the settings of a training for some devices and their memory."""

from collections.abc import Mapping

from ...trainings import refuse

OFFERED = {
    "replicas": (1, 2, 4, 8),
    "pipeline": (1, 2, 4, 8),
    "slices": (1, 2, 4, 8),
    "micro_batches": (8, 16, 32),
    "schedule": ("1f1b", "gpipe"),
    "zero": (0, 1),
    "recompute": (False, True),
}


def play(answer, devices, memory_bytes) -> dict:
    """The settings, each as it is offered."""
    plan = answer(devices, memory_bytes)
    refuse(
        (
            not isinstance(plan, Mapping) or plan.keys() != OFFERED.keys(),
            f"Your plan is {plan!r}: return a dict of {', '.join(OFFERED)}.",
        )
    )
    for name, value in plan.items():
        choices = ", ".join(map(repr, OFFERED[name]))
        refuse(
            (
                value not in OFFERED[name],
                f"Your plan has {name} = {value!r}: take one of {choices}.",
            )
        )
    return {name: offered[offered.index(plan[name])] for name, offered in OFFERED.items()}
