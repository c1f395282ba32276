"""The collectives that a product needs, from the names of its dimensions. mesh_tensor.py, which has
the rule, calls them; the simulator reads them without tensors."""

from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import NamedTuple

from ..core.cost import port_share
from .guards import mesh_tensor as guard

Terms = tuple[tuple[str, ...], ...]  # the dimensions of each factor, and last those of the result


class Needed(NamedTuple):
    """All-reduce of a rank's part of the `result`, along an axis of `ranks`. `bytes`: of that part.
    `sent_bytes`: what each rank sends in a ring."""

    result: str
    axis: str
    ranks: int
    bytes: int

    @property
    def name(self) -> str:
        return f"sum of {self.result} along {self.axis}"

    @property
    def sent_bytes(self) -> int:
        return ceil(port_share("all_reduce", self.ranks) * self.bytes)


def terms(equation: str) -> Terms:
    """Split "n d, d f -> n f" into (("n", "d"), ("d", "f"), ("n", "f")). Impossible for no such
    equation."""
    guard.refuse_equation(equation)
    return tuple(tuple(each.split()) for each in equation.replace("->", ",").split(","))


def gradient(product: Terms, at: int) -> Terms:
    """Return the product that is the gradient of input `at`. Its factors: the result's gradient,
    the other inputs, then ones for dimensions that only this input has."""
    *inputs, result = product
    factors = [result, *inputs[:at], *inputs[at + 1 :]]
    alone = tuple(dim for dim in inputs[at] if not any(dim in each for each in factors))
    return *factors, *([alone] if alone else []), inputs[at]


def products(equation: str, names: Sequence[str] = ()) -> list[tuple[str, Terms]]:
    """Return the product itself and each input's gradient, with their names."""
    whole = terms(equation)
    inputs = range(len(whole) - 1)
    names = names or ("the result", *(f"gradient {at}" for at in inputs))
    return list(zip(names, [whole, *(gradient(whole, at) for at in inputs)]))


def part_shape(dims, sizes: Mapping[str, int], layout, axes) -> tuple[int, ...]:
    """Return the shape of a rank's part of a tensor. `sizes`: of whole dimensions."""
    return tuple(sizes[dim] // axes.get(layout.get(dim), 1) for dim in dims)


def sums(name: str, product: Terms, sizes, layout, axes, itemsize: int) -> list[Needed]:
    """Return the all-reduces of one product, whose result is called `name`."""
    *factors, result = product
    summed = dict.fromkeys(dim for each in factors for dim in each if dim not in result)
    own_bytes = itemsize * prod(part_shape(result, sizes, layout, axes))
    return [
        Needed(name, axis, axes[axis], own_bytes)
        for axis in map(layout.get, summed)
        if axes.get(axis, 1) > 1
    ]


def collectives(
    equation: str,
    sizes: Mapping[str, int],
    layout: Mapping[str, str],
    axes: Mapping[str, int],
    itemsize: int = 4,
    names: Sequence[str] = (),
):
    """Return the all-reduces of a product, then those of each input's gradient, in order.

    sizes   dimension -> its whole size         axes   mesh axis -> its ranks
    layout  dimension -> the axis that cuts it  names  of the result and of the gradients

    Impossible if a tensor is cut twice along one axis, or an axis does not divide a size.
    """
    guard.refuse(terms(equation), sizes, layout, axes)
    return [
        each
        for name, product in products(equation, names)
        for each in sums(name, product, sizes, layout, axes, itemsize)
    ]
