"""Numbers of which no learning rate can be made."""

from numbers import Real

from . import refuse as refuse_any


def refuse(**numbers: float) -> None:
    refuse_any(
        *(
            (
                not (isinstance(value, Real) and 0 < value < float("inf")),
                f"{name} is {value!r}: give a number above 0.",
            )
            for name, value in numbers.items()
        )
    )
