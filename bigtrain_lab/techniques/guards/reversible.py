"""What a reversible sequence cannot undo, or has no gradient for: refused in one sentence."""

from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch import Tensor

from ...core import Impossible
from . import refuse

INSTEAD = "or checkpoint the blocks in place of reversing them."


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


@contextmanager
def own_graph(fn: Callable):
    """Around the backward of fn: Impossible where it reaches a graph that another has freed."""
    try:
        yield
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise Impossible(
            f"{called(fn)} uses a tensor beside its input that has a graph of its "
            "own, and another backward has freed that graph: detach that tensor, or "
            "checkpoint the block in place of reversing it."
        ) from error


def called(fn: Callable) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)
