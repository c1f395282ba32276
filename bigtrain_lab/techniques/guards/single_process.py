"""What one process cannot split over its devices: refused in one sentence."""

from collections.abc import Sequence

from . import refuse as refuse_any


def refuse(devices: Sequence, rows: set[int] = frozenset((1,))) -> None:
    refuse_any(
        (not devices, "There is no device to run on: name at least one."),
        (not rows, "No input is a tensor with rows: give the batch as a tensor."),
        (
            len(rows) > 1,
            (
                f"The inputs have {' and '.join(map(str, sorted(rows)))} rows: give all as "
                "many, since they are split along the first dimension."
            ),
        ),
    )
