"""Fusion: the groups that an answer gives, and the bytes that it tells."""

from ...trainings import Refused


def play(answer, operators, sizes, outputs) -> dict:
    found = answer(
        [(name, list(reads), pointwise) for name, reads, pointwise in operators],
        dict(sizes),
        list(outputs),
    )
    try:
        groups, told = found
        return {"groups": [[str(name) for name in group] for group in groups], "told": float(told)}
    except (TypeError, ValueError):
        raise Refused(
            "Your answer gave no groups with their bytes: return the groups and the bytes that"
            " they move, as in ([['a', 'b'], ['c']], 24)."
        ) from None
