"""Named layouts: the names of tensors' dimensions say which collectives a product needs.

A layout says which dimension is cut along which axis of the ranks.

    y = einsum("n d, d f -> n f", x, w, layout=layout, groups=groups)

    layout                     what it is                      what is summed
    {"n": "dp"}                data parallel                   dW
    {"f": "tp"}                columns of W                    dX
    {"d": "tp"}                rows of W                       Y
    {"n": "dp", "f": "tp"}     both                            dW along dp, dX along tp

A product sums over each dimension that its result does not name. If that is cut, each rank sums
over its own part, and an all-reduce along the axis adds the parts. The gradient of an input is a
product too, of the result's gradient and the other inputs. So the same rule holds.

Memory: a tensor is divided by the ranks of each axis that cuts it, and duplicated along the others.
Bytes sent a rank: 2 (N - 1) / N of its part of the result, along each axis of N ranks in the sum.
Source: Shazeer et al. 2018, Mesh-TensorFlow (arXiv:1811.02084).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..runtime.talk.group import Group
from .guards import mesh_tensor as guard
from .layout_plan import Terms, collectives, gradient, part_shape, products, sums, terms
from .tensor_parallel import gather_slices, split_to_slices

__all__ = [
    "Product",
    "collectives",
    "einsum",
    "gradient",
    "laid_out",
    "multiplied",
    "sums",
    "terms",
]


def einsum(
    equation: str,
    *parts: Tensor,
    layout: Mapping[str, str],
    groups: Mapping[str, Group],
    names: Sequence[str] = (),
    multiply: Callable = torch.einsum,
) -> Tensor:
    """Return this rank's part of a product, from its parts of the inputs.

    layout    dimension -> mesh axis; dimensions of other products may be in it
    groups    mesh axis -> the ranks along it: a Group, a ProcessGroup, None
    names     of the result and of each input's gradient, for the names of the collectives
    multiply  (equation in letters, *factors) -> the product on one rank

    In the backward, ranks with the same part of the result must have the same gradient of it.
    Impossible as in `collectives`, and if the parts' shapes do not fit.
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
    """Product whose gradients are products."""

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
    """Multiply this rank's parts, then sum along each axis that cuts a dimension of the sum."""
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
    """Return the tensor's part in the layout `new`, from that in `old`; in {} it is whole.

    A dimension that is cut no longer is all-gathered. A dimension that is cut now is sliced, and
    its gradient all-gathered."""
    groups = {axis: Group.of(group) for axis, group in groups.items()}
    dims = tuple(dims.split())
    guard.refuse_relaid(part, dims, old, new, groups)
    for before, after, moved in ((old, new, gather_slices), (new, old, split_to_slices)):
        for at, dim in enumerate(dims):
            if dim in before and before[dim] != after.get(dim):
                part = moved(part, groups[before[dim]], dim=at)
    return part
