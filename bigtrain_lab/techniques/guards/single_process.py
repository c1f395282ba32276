"""What one process cannot split over its devices: refused in one sentence."""

from collections.abc import Sequence

from torch import Tensor

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


def refuse_outputs(outputs: Sequence) -> None:
    first = outputs[0]
    refuse_any(
        (
            not isinstance(first, Tensor) or not first.dim(),
            (
                "The module returned"
                f" {'a single number' if isinstance(first, Tensor) else type(first).__name__},"
                " which cannot be gathered: let it return one tensor with a row for each row of"
                " its input, and compute the loss outside."
            ),
        )
    )
