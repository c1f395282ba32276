"""Name the bug: the answer reads the events of a run, and names its fault."""

from ...trainings import refuse

FAULTS = (
    "straggler",
    "few micro-batches",
    "early all-reduce",
    "late all-reduce",
    "missing all-reduce",
    "double backward",
    "wide gradients",
    "growing memory",
    "nothing",
)


def play(answer, run: dict) -> str:
    named = answer(run)
    refuse(
        (named not in FAULTS, f"Your function gave {named!r}: return one of {', '.join(FAULTS)}.")
    )
    return named
