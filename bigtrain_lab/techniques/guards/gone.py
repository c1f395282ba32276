"""Gradients that not everything may read: one that is elsewhere has a stand-in, and one that other
ranks have the rest of refuses what looks across its elements."""

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ...core import Impossible


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
    strides = (0,) * parameter.dim()
    found = parameter.detach().as_strided(parameter.shape, strides).as_subclass(Gone)
    found.told = told
    return found


def is_gone(gradient: Tensor | None) -> bool:
    return isinstance(gradient, Gone)


def real(gradient: Tensor | None) -> Tensor | None:
    """The gradient; None of a stand-in."""
    return None if is_gone(gradient) else gradient


# what torch's clip_grad_norm_ and GradScaler call, and norms that a script may clip by
ACROSS = {
    torch.norm,
    torch.linalg.norm,
    torch.linalg.vector_norm,
    torch._foreach_norm,
    torch._amp_foreach_non_finite_check_and_unscale_,
    Tensor.norm,
}


class Piece(Tensor):
    """This rank's elements of a gradient, of a piece or a slice. torch's clip_grad_norm_ and
    GradScaler take them for the whole gradient, so each rank would scale, or skip, by itself."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in ACROSS:
            raise Impossible(
                f"{function.__name__} was called on gradients of which other ranks have the rest: "
                "take clip_grad_norm_() of the FullyShardedDataParallel or the ZeroOptimizer, or "
                "techniques.clip.clip_grad_norm with the group of the slices, and a "
                "DynamicLossScaler(group=...), which ask all ranks."
            )
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs or {})

    def __deepcopy__(self, memo):
        return self.clone()  # a plain tensor


def as_piece(parameter: Tensor) -> None:
    """Make a Piece of the gradient, as a hook of a parameter that is a slice."""
    parameter.grad = parameter.grad.as_subclass(Piece)
