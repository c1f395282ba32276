"""What cannot be recomputed or undone, or did not do the same when it ran again: refused in one
sentence."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from ...core import Impossible
from . import refuse

AGAIN = "Let it depend on its arguments and torch's random state only."
INSTEAD = "or checkpoint the blocks in place of reversing them."


# -- checkpoint(fn, ...) ------------------------------------------------------------------------


def refuse_result(
    fn, result, leaves: Sequence, before: Sequence, args: tuple, kwargs: dict
) -> None:
    for at, (leaf, version) in enumerate(zip(leaves, before)):
        if version is not None and leaf._version != version:
            raise Impossible(
                f"{called(fn)} changed {argument(at, args, kwargs)} in place, so its "
                "recompute would start from other values: write the result to a new "
                "tensor."
            )
    refuse(
        (
            result is None,
            f"{called(fn)} returned nothing, so no gradient can reach what it "
            "computed: return the result.",
        )
    )


def called(fn) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)


def argument(at: int, args: tuple, kwargs: dict) -> str:
    """How the caller would name it: args[0], or kwargs['mask']."""
    (which, *inside), _ = tree_flatten_with_path((args, kwargs))[0][at]
    return ("args", "kwargs")[which.idx] + keystr(tuple(inside))


# -- checkpoint_sequential ----------------------------------------------------------------------


def refuse_order(swept: Sequence[int], layers: int) -> None:
    """`swept`: the layers that the plan's forward runs."""
    refuse(
        (
            list(swept) != list(range(layers)),
            (
                "The plan runs a layer a second time before the last one has run: let its forward"
                " run each layer once, in order."
            ),
        )
    )


def refuse_in_place(layer: int, x: Iterable[Tensor], before: list[int]) -> None:
    refuse(
        (
            before != [t._version for t in x],
            (
                f"Layer {layer} changed its input in place, so it could not run again: let it write"
                " its result to a new tensor."
            ),
        )
    )


# -- a function that runs again -----------------------------------------------------------------


def refuse_moved(noted: Iterable[tuple[Tensor, int]], name: str) -> None:
    """Impossible where one of them was changed in place since the forward."""
    for tensor, before in noted:
        if tensor._version != before:
            weight = tensor.is_leaf and tensor.requires_grad
            what, instead = (
                ("weight", "call backward before the optimizer's step")
                if weight
                else ("tensor", "write the result to a new tensor")
            )
            raise Impossible(
                f"A {what} of shape {tuple(tensor.shape)} was changed in place "
                f"between the forward of {name} and its backward: {instead}."
            )


def refuse_other(name: str, number: int, slot, now: tuple, of: Tensor) -> None:
    """`of`: whose memory the tensor is that the rerun saves."""
    if slot.signature != now:
        raise Impossible(
            f"{name} did not do the same when it ran again: tensor {number} that "
            f"autograd saves was {described(slot.signature)}, and is now {described(now)}. {AGAIN}"
        )
    weight = slot.weight
    same = (
        not isinstance(of, nn.Parameter)
        if weight is None  # none, or one of torch.func.functional_call's
        else of is weight or of.data_ptr() == weight.data_ptr()
    )
    if not same:
        raise Impossible(
            f"{name} used another weight of shape {tuple(now[0])} when it ran "
            "again: give checkpoint the module that has the weight, or pass the "
            "weight as an argument."
        )


def refuse_fewer(name: str, saved: int, wanted: int, before: int) -> None:
    refuse(
        (
            saved < wanted,
            f"{name} saved {saved} tensors when it ran again, and {before} before: {AGAIN}",
        )
    )


def refuse_written(name: str, tensor: Tensor, version: int) -> None:
    """A tensor that fn saves and then changes: autograd's own check is off where hooks pack."""
    if tensor._version != version:
        raise Impossible(
            f"{name} changed a {described((tensor.shape, tensor.dtype, tensor.device))} in place "
            "which its backward needs: write the result to a new tensor."
        )


def described(signature: tuple) -> str:
    shape, dtype, device = signature
    return f"{str(dtype).removeprefix('torch.')} of shape {tuple(shape)} on {device}"


# -- reversible sequences ------------------------------------------------------------------------


def refuse_streams(x1: Tensor, x2: Tensor) -> None:
    refuse(
        (
            x1.shape != x2.shape,
            (
                f"The streams have the shapes {tuple(x1.shape)} and {tuple(x2.shape)}: give both"
                " the same, such as x.chunk(2, -1)."
            ),
        ),
        (
            x1.dtype != x2.dtype,
            (
                f"The streams are {str(x1.dtype)[6:]} and {str(x2.dtype)[6:]}, and sums of both"
                " could not be undone: give both one type."
            ),
        ),
    )


def checked(fn: Callable, x: Tensor) -> Tensor:
    """fn(x), which can be undone."""
    version, y = x._version, fn(x)
    found = "nothing" if y is None else f"a {type(y).__name__}"
    refuse(
        (
            x._version != version,
            (
                f"{called(fn)} changed its input in place, so it cannot be undone: let it write its"
                " result to a new tensor."
            ),
        ),
        (
            not isinstance(y, Tensor),
            (
                f"{called(fn)} returned {found}: F and G are added to a stream, so let each return"
                " one tensor."
            ),
        ),
    )
    refuse(
        (
            y.shape != x.shape,
            (
                f"{called(fn)} made shape {tuple(y.shape)} of shape {tuple(x.shape)}: F and G must "
                "keep the shape, or the sum cannot be undone."
            ),
        )
    )
    return y


def refuse_backward() -> None:
    refuse(
        (
            not torch.autograd._is_checkpoint_valid(),
            (
                "A reversible sequence's weights gather their gradients in .grad while its"
                " backward runs, so torch.autograd.grad and backward(inputs=) cannot have them:"
                f" call loss.backward(), {INSTEAD}"
            ),
        ),
        (
            torch.is_grad_enabled(),
            (
                "A reversible sequence's backward leaves no graph, so create_graph cannot have"
                f" one: call loss.backward() without it, {INSTEAD}"
            ),
        ),
    )
