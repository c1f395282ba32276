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


def refuse_rows(outputs: Sequence, rows: Sequence[int]) -> None:
    """`rows`: of each part's input."""
    per_row = {
        len(output) / n if isinstance(output, Tensor) and output.dim() else 0.5
        for output, n in zip(outputs, rows)
    }
    refuse_any(
        (
            len(per_row) > 1 or per_row.pop() % 1,
            "The output is no tensor of as many rows for each row of the input, so parts of it do "
            "not make the whole: let the module return that, and take a mean or sum outside.",
        )
    )
