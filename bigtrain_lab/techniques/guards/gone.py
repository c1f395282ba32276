"""Gradients that not everything may read: one that is elsewhere has a stand-in, and one that other
ranks have the rest of refuses what looks across its elements."""

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ...core import Impossible
from . import refuse


class Gone(Tensor):
    """The stand-in in a `.grad` that is elsewhere: any torch function on it raises."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise Impossible(
            next(each.told for each in tree_leaves((args, kwargs)) if isinstance(each, cls))
        )

    __tensor_flatten__ = staticmethod(lambda: ([], None))  # it has no bytes of its own


def gone(parameter: Tensor, told: str) -> Gone:
    """Make a stand-in. All its elements lie in one place, so that nothing can be added to it."""
    found = parameter.detach().as_strided(parameter.shape, (0,) * parameter.dim()).as_subclass(Gone)
    found.told = told
    return found


def is_gone(gradient: Tensor | None) -> bool:
    return isinstance(gradient, Gone)


def real(gradient: Tensor | None) -> Tensor | None:
    """The gradient; None of a stand-in."""
    return None if is_gone(gradient) else gradient


ACROSS = {  # what torch's clip_grad_norm_ and GradScaler call
    torch._foreach_norm,
    torch._foreach_max,
    torch._amp_foreach_non_finite_check_and_unscale_,
}
TOLD = (
    "{} was called on {} of which other ranks have the rest: take clip_grad_norm_() of the "
    "FullyShardedDataParallel or the ZeroOptimizer, or techniques.clip.clip_grad_norm with the "
    "group of the slices, a DynamicLossScaler(group=...), or full_state_dict(), which ask all "
    "ranks, or .as_subclass(torch.Tensor) for a number of this rank's elements."
)


class Piece(Tensor):
    """This rank's elements of a gradient, of a piece or a slice. A norm, or another number of its
    elements, would be taken for the whole gradient's, so each rank would scale, or skip, by itself.
    What is computed element by element from a piece is one."""

    what, copies = "gradients", ("_like",)  # functions that make plain tensors

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = function.__name__
        refuse((function in ACROSS, TOLD.format(name, cls.what)))
        with torch._C.DisableTorchFunctionSubclass():
            found = function(*args, **kwargs or {})
        if function is Tensor.as_subclass or not isinstance(found, (Tensor, tuple, list)):
            return found
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        size = max(each.numel() for each in given if isinstance(each, cls))

        made = name.startswith("new_") or name.endswith(cls.copies)

        def own(result):
            if type(result) is not Tensor or made or any(result is each for each in given):
                return result
            fewer = result.numel() < size and result._base is None  # and no view of some
            refuse((fewer and not name.startswith("_foreach"), TOLD.format(name, cls.what)))
            return result.as_subclass(cls)

        return tree_map(own, found)

    def __deepcopy__(self, memo):
        return self.as_subclass(Tensor).clone()


class WeightPiece(Piece, nn.Parameter):
    """This rank's elements of a weight, but within its optimizer's step, which has a plain
    parameter. torch counts what is written to its `.data` too."""

    what, copies = "weights", ("_like", "clone")

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        function = Tensor.detach if function == Tensor.data.__get__ else function
        return super().__torch_function__(function, types, args, kwargs)

    def __deepcopy__(self, memo):
        return nn.Parameter(super().__deepcopy__(memo), self.requires_grad)


def as_piece(parameter: Tensor) -> None:
    """Make a Piece of the gradient, as a hook of a parameter that is a slice."""
    parameter.grad = parameter.grad.as_subclass(Piece)
