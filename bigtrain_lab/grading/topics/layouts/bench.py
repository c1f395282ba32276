"""Layouts: the answer names the sums of a product, once or several times in a row."""

import copy
from collections.abc import Mapping

from ...trainings import Refused


def play(answer, calls: list) -> dict:
    """Of the last call the rows (tensor, axis, bytes), and whether what was given stayed."""
    for equation, *settings in calls:
        given = copy.deepcopy(settings)
        rows = listed(answer(equation, *given))
    return {"rows": rows, "given": "as it was" if given == settings else "changed"}


def listed(found) -> list:
    rows = [(*key, value) for key, value in found.items()] if isinstance(found, Mapping) else found
    try:
        rows = [(str(name), str(axis), float(size)) for name, axis, size in rows]
    except (TypeError, ValueError):
        raise Refused(
            "Your answer is no list of (tensor, axis, bytes): return one, such as "
            "[('Y', 'rows', 96)], or an empty one."
        ) from None
    if unknown := [name for name, *_ in rows if name not in ("Y", "dX", "dW")]:
        raise Refused(f"Your answer sums {unknown[0]!r}: call the tensors 'Y', 'dX' and 'dW'.")
    return rows
