"""Named layouts: name the dimensions of tensors, say which are cut along which axis of the ranks,
and the collectives of a product follow from the names.

    y = einsum("n d, d f -> n f", x, w, layout=layout, groups=groups)

    layout                     what it is                      what is summed
    {"n": "dp"}                data parallel                   dW
    {"f": "tp"}                columns of W                    dX
    {"d": "tp"}                rows of W                       Y
    {"n": "dp", "f": "tp"}     both                            dW along dp, dX along tp

A product sums over each dimension that its result does not name. Where such a dimension is cut,
each rank has summed over its own part: an all-reduce along that axis adds up the parts. The
gradient of an input is a product too, of the result's gradient with the other inputs: the same rule
holds.

Memory: a tensor is divided by the ranks of each axis that cuts it, and duplicated along the others.
Bytes sent a rank: 2 (N - 1) / N of its part of the result, for each axis of N ranks that is summed.
Source: Shazeer et al. 2018, Mesh-TensorFlow (arXiv:1811.02084), sections 3 and 4.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..core.cost import port_share
from ..runtime.talk.group import Group
from .guards import mesh_tensor as guard
from .tensor_parallel import gather_slices, split_to_slices

Terms = tuple[tuple[str, ...], ...]  # the dimensions of each factor, and last those of the result


class Needed(NamedTuple):
    """An all-reduce of what a rank holds of the `result`, along an axis of so many `ranks`. `bytes`
    of that part; `sent_bytes` leave each rank, in a ring."""

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
    """ "n d, d f -> n f" as (("n", "d"), ("d", "f"), ("n", "f")); Impossible where it is none."""
    guard.refuse_equation(equation)
    return tuple(tuple(each.split()) for each in equation.replace("->", ",").split(","))


def gradient(product: Terms, at: int) -> Terms:
    """The product that is the gradient of input `at`: the result's gradient, then the other inputs,
    then ones for dimensions that only this input has."""
    *inputs, result = product
    factors = [result, *inputs[:at], *inputs[at + 1 :]]
    alone = tuple(dim for dim in inputs[at] if not any(dim in each for each in factors))
    return *factors, *([alone] if alone else []), inputs[at]


def products(equation: str, names: Sequence[str] = ()) -> list[tuple[str, Terms]]:
    """The product itself, and each input's gradient, by name."""
    whole = terms(equation)
    inputs = range(len(whole) - 1)
    names = names or ("the result", *(f"gradient {at}" for at in inputs))
    return list(zip(names, [whole, *(gradient(whole, at) for at in inputs)]))


def part_shape(dims, sizes: Mapping[str, int], layout, axes) -> tuple[int, ...]:
    """What a rank holds of a tensor whose whole dimensions have these sizes."""
    return tuple(sizes[dim] // axes.get(layout.get(dim), 1) for dim in dims)


def sums(name: str, product: Terms, sizes, layout, axes, itemsize: int) -> list[Needed]:
    """The all-reduces of one product, whose result is called `name`."""
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
    """All that a product needs, and then each input's gradient, in their order.

    sizes   dimension -> its whole size         axes   mesh axis -> its ranks
    layout  dimension -> the axis that cuts it  names  of the result and of the gradients

    Impossible where a tensor would be cut twice along one axis, or a size does not divide.
    """
    guard.refuse(terms(equation), sizes, layout, axes)
    return [
        each
        for name, product in products(equation, names)
        for each in sums(name, product, sizes, layout, axes, itemsize)
    ]


def einsum(
    equation: str,
    *parts: Tensor,
    layout: Mapping[str, str],
    groups: Mapping[str, Group],
    names: Sequence[str] = (),
    multiply: Callable = torch.einsum,
) -> Tensor:
    """This rank's part of a product, from its parts of the inputs.

    layout    dimension -> mesh axis; dimensions of other products may be in it
    groups    mesh axis -> the ranks along it: a Group, a ProcessGroup, None
    names     of the result and of each input's gradient, for the names of the collectives
    multiply  (equation in letters, *factors) -> the product on one rank

    Ranks that hold the same part of the result give it the same gradient. Impossible as in
    `collectives`, and where the parts' shapes do not fit.
    """
    groups = {axis: Group.of(group) for axis, group in groups.items()}
    axes = {axis: group.size for axis, group in groups.items()}
    every = terms(equation)
    layout = {dim: axis for dim, axis in layout.items() if any(dim in each for each in every)}
    sizes = guard.sizes(every, parts, layout, axes)
    guard.refuse(every, sizes, layout, axes)
    known = partial(multiplied, {"sizes": sizes, "layout": layout, "axes": axes}, groups, multiply)
    return Product.apply(known, products(equation, names), *parts)


class Product(torch.autograd.Function):
    """A product whose gradients are products."""

    @staticmethod
    def forward(ctx, multiplied, products, *parts):
        ctx.multiplied, (first, *ctx.gradients) = multiplied, products
        ctx.save_for_backward(*parts)
        return multiplied(*first, *parts)

    @staticmethod
    @once_differentiable
    def backward(ctx, of_result):
        parts, found = ctx.saved_tensors, []
        for at, wanted in enumerate(ctx.needs_input_grad[2:]):
            factors = of_result, *parts[:at], *parts[at + 1 :]
            found.append(ctx.multiplied(*ctx.gradients[at], *factors) if wanted else None)
        return None, None, *found


def multiplied(known, groups, multiply, name: str, product: Terms, *parts: Tensor) -> Tensor:
    """The product of this rank's parts, summed along the axes that cut what it sums over."""
    if len(parts) < len(product) - 1:  # dimensions that only the result has
        parts = *parts, parts[0].new_ones(part_shape(product[-2], **known))
    letters = {dim: chr(ord("a") + number) for number, dim in enumerate(known["sizes"])}
    *factors, whole = ("".join(map(letters.get, each)) for each in product)
    own = multiply(f"{','.join(factors)}->{whole}", *parts).contiguous()
    for each in sums(name, product, **known, itemsize=own.itemsize):
        groups[each.axis].all_reduce(own, name=each.name)
    return own


# -- from one layout to another -------------------------------------------------------------------


def laid_out(
    part: Tensor,
    dims: str,
    old: Mapping[str, str],
    new: Mapping[str, str],
    groups: Mapping[str, Group],
) -> Tensor:
    """The tensor's part by the layout `new`, from that by `old`; {} is the whole tensor. What is no
    longer cut is all-gathered; what is cut now is a slice, whose gradient is all-gathered."""
    groups = {axis: Group.of(group) for axis, group in groups.items()}
    dims = tuple(dims.split())
    guard.refuse_relaid(part, dims, old, new, groups)
    for before, after, moved in ((old, new, gather_slices), (new, old, split_to_slices)):
        for at, dim in enumerate(dims):
            if dim in before and before[dim] != after.get(dim):
                part = moved(part, groups[before[dim]], dim=at)
    return part
