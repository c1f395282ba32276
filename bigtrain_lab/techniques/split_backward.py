"""Split backward: first the input's gradient (I), later the weights' (W).

    y = x w^T + b     I   dL/dx = dL/dy w                               and (x, dL/dy) into a queue
                      W   dL/dw = dL/dy^T x,   dL/db = sum of dL/dy     from the queue

The stage before waits for I. Only the update needs W, half of a linear layer's backward, so
zero-bubble schedules run it in the bubbles. I frees the graph with all that it saved. The queue
keeps x and dL/dy of each Linear and Embedding. Other parameters (layer norms, a position table) get
their gradients in I. W ends in autograd's own accumulation, once a weight, so hooks run as in a
whole backward.
Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism (arXiv:2401.10241), section 2.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..core import grouped
from ..runtime.memory.saved import replaced
from .guards.pipeline import refuse_aside

TOGETHER = 8  # weights per call of autograd, which costs about one product


class Left(NamedTuple):
    """Product that I leaves to W: dL/dweight = gradient(*of), where `of` is (dL/dy, x)."""

    weight: Tensor
    gradient: Callable[..., Tensor]
    of: tuple[Tensor, ...]


class WeightGradientsLater(TorchFunctionMode):
    """Mode of a forward whose backward is I: it puts products of Linears and Embeddings into
    `queue`. `run()` is W: it adds dL/dw to each weight's `.grad`."""

    def __init__(self):
        super().__init__()
        self.queue: list[Left] = []
        self.postponed: list[Tensor] = []  # weights that the forward used
        self.anchor = torch.empty(0, requires_grad=True)  # autograd records a node where x has none
        self.is_i = False  # whether the backward that runs is I

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = keywords or {}
        # products of a tensor's subclasses may be others
        if function in LATER and torch.is_grad_enabled() and {*types} <= {Tensor}:
            return LATER[function](self, *arguments, **keywords)
        return function(*arguments, **keywords)

    def tensors(self) -> dict[str, Tensor]:
        """Return the queue's tensors, numbered in W's order. Ids are left out: they are the stage's
        own input."""
        return {
            f"{what} {number}": tensor
            for number, left in enumerate(self.queue)
            for what, tensor in zip(("output gradient", "input"), left.of)
            if tensor.is_floating_point()
        }

    def backward(self, edge, dy: Tensor | None) -> None:
        """Run I, from where the forward ended. Other backwards through its products are refused:
        their gradients of weights would come in W."""
        with replaced(self, "is_i", lambda _: True):
            torch.autograd.backward(edge, dy)

    def run(self) -> None:
        """Run W, the products that I left, a few weights at a time. Weights that are computed from
        parameters, such as casts, go all together, since two may come from one parameter."""
        self.postponed.clear()
        terms, self.queue = grouped((left.weight, left) for left in self.queue), []
        weights = list(terms)
        together = TOGETHER if all(weight.is_leaf for weight in weights) else len(weights)
        for at in range(0, len(weights), together):
            lefts = [left for weight in weights[at : at + together] for left in terms.pop(weight)]
            with torch.no_grad():
                gradients = [left.gradient(*left.of).to(left.weight.dtype) for left in lefts]
            torch.autograd.backward([left.weight for left in lefts], gradients)


class _Linear(torch.autograd.Function):
    """Linear whose weight is no input of the node. A policy may compute y in fewer bits than x."""

    @staticmethod
    def forward(ctx, anchor, x, unseen):
        _, weight, bias = ctx.unseen = unseen
        y = functional.linear(x, weight, bias)
        ctx.save_for_backward(x.to(y.dtype))
        return y

    @staticmethod
    def backward(ctx, dy):
        (x,), (later, weight, bias) = ctx.saved_tensors, ctx.unseen
        refuse_aside(later)
        if weight.requires_grad:
            later.queue.append(
                Left(weight, lambda dy, x: rows(dy).T @ rows(x).conj(), (dy, x.detach()))
            )
        if bias is not None and bias.requires_grad:
            later.queue.append(Left(bias, lambda dy: rows(dy).sum(0), (dy,)))
        return (
            None,
            dy @ weight.detach().to(dy.dtype).conj() if ctx.needs_input_grad[1] else None,
            None,
        )


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, ids, unseen):
        ctx.unseen = unseen
        ctx.save_for_backward(ids)
        return functional.embedding(ids, unseen[1])

    @staticmethod
    def backward(ctx, dy):
        (ids,), (later, weight) = ctx.saved_tensors, ctx.unseen
        refuse_aside(later)

        def gradient(dy, ids):
            return torch.ops.aten.embedding_dense_backward(dy, ids, len(weight), -1, False)

        later.queue.append(Left(weight, gradient, (dy, ids)))
        return None, None, None


def _linear(mode, input, weight, bias=None):
    if learnt := [each for each in (weight, bias) if each is not None and each.requires_grad]:
        mode.postponed += learnt
        return _Linear.apply(mode.anchor, input, (mode, weight, bias))
    return functional.linear(input, weight, bias)


def _embedding(mode, input, weight, padding_idx=None, max_norm=None, norm_type=2.0, *rare, **named):
    is_plain = padding_idx is None and max_norm is None and not any((*rare, *named.values()))
    if weight.requires_grad and is_plain:
        mode.postponed.append(weight)
        return _Embedding.apply(mode.anchor, input, (mode, weight))
    return functional.embedding(input, weight, padding_idx, max_norm, norm_type, *rare, **named)


def rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


LATER = {functional.linear: _linear, functional.embedding: _embedding}
