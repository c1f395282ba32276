"""The idea in ten lines: one node of the graph whose forward records nothing and whose backward
runs the forward again.

    forward    y = fn(x) without a graph; keep x
    backward   y = fn(x) with a graph; dx = vjp of that graph; let it go

What an autograd Function cannot do, and `checkpoint` (region.py) can: stop as soon as the last
needed tensor is there, for it sees only whole calls of fn; serve inputs that need no gradient, for
autograd then leaves the node out of the graph and the weights inside fn get no gradient at all;
answer torch.autograd.grad, for the weights are not its inputs. Nor does it see that a weight was
changed in between.
"""

import torch

from .conditions import Conditions


def checkpoint_by_function(fn, *inputs):
    """fn(*inputs), tensors to tensors, which is run again in the backward."""
    return _Again.apply(fn, *inputs)


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *inputs):  # autograd turns gradients off here
        ctx.fn, ctx.conditions = fn, Conditions.now(inputs, fn=fn)
        ctx.save_for_backward(*inputs)
        return fn(*inputs)

    @staticmethod
    def backward(ctx, *gradients):
        inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.enable_grad(), ctx.conditions.restored():
            outputs = ctx.fn(*inputs)
        torch.autograd.backward(outputs, gradients)
        return None, *(x.grad for x in inputs)
