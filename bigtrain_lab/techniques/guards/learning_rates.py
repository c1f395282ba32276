"""Numbers of which no learning rate can be made."""

from numbers import Real

from ...core import Impossible


def refuse(**numbers: float) -> None:
    for name, value in numbers.items():
        if not (isinstance(value, Real) and 0 < value < float("inf")):
            raise Impossible(f"{name} is {value!r}: give a number above 0.")
