"""Split backward: what the stage before waits for now (I), what only the optimizer waits for later (W).

    y = x w^T + b          I   dL/dx = dL/dy w
                           W   dL/dw = dL/dy^T x,   dL/db = sum of dL/dy        from (x, dL/dy), which I put in a queue

Half of a linear layer's backward is W, and nobody but the update needs it: zero-bubble schedules run it in the bubbles.
I frees the graph with all that it saved; the queue keeps x and dL/dy of each Linear and Embedding. Parameters that reach
the loss in another way (layer norms, a position table) get their gradients in I.
Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism (arXiv:2401.10241), section 2.
"""

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class WeightGradientsLater(TorchFunctionMode):
    """While a forward runs in this mode, its Linears and Embeddings leave their weights' gradients in `queue`.

    The backward of that forward fills the queue; `run()` adds dL/dw to each weight's `.grad` and empties it.
    """

    def __init__(self):
        super().__init__()
        self.queue: list[tuple] = []

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = keywords or {}
        if function in LATER:
            return LATER[function](self.queue, *arguments, **keywords)
        return function(*arguments, **keywords)

    def tensors(self) -> dict[str, Tensor]:
        """What the queue keeps alive, numbered as W will take them; ids are the stage's own input, which lives anyway."""
        return {f"{what} {number}": tensor for number, (x, dy, _) in enumerate(self.queue)
                for what, tensor in (("input", x), ("output gradient", dy)) if tensor.is_floating_point()}

    @torch.no_grad()
    def run(self) -> None:
        """W: the products that I left out."""
        while self.queue:
            x, dy, add = self.queue.pop(0)
            add(x, dy)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queue, x, weight, bias):
        ctx.save_for_backward(x)
        ctx.queue, ctx.weight, ctx.bias = queue, weight, bias  # the leaves themselves: W writes their .grad
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        weight, bias = ctx.weight, ctx.bias

        def add(x, dy):
            rows = dy.flatten(0, -2)
            accumulate(weight, lambda: rows.T @ x.flatten(0, -2))
            if bias is not None:
                accumulate(bias, lambda: rows.sum(0))
        ctx.queue.append((x.detach(), dy, add))
        return None, dy @ weight if ctx.needs_input_grad[1] else None, None, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queue, ids, weight):
        ctx.save_for_backward(ids)
        ctx.queue, ctx.weight = queue, weight
        return functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx, dy):
        (ids,), weight = ctx.saved_tensors, ctx.weight
        ctx.queue.append((ids, dy, lambda ids, dy: accumulate(
            weight, lambda: torch.ops.aten.embedding_dense_backward(dy, ids, len(weight), -1, False))))
        return None, None, None


def accumulate(weight: Tensor, gradient) -> None:
    if weight.requires_grad:
        weight.grad = gradient() if weight.grad is None else weight.grad.add_(gradient())


def _linear(queue, input, weight, bias=None):
    return _Linear.apply(queue, input, weight, bias)


def _embedding(queue, input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    if padding_idx is None and max_norm is None and not scale_grad_by_freq and not sparse:
        return _Embedding.apply(queue, input, weight)
    return functional.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)


LATER = {functional.linear: _linear, functional.embedding: _embedding}
