"""Reversible layers: the backward computes each block's input from its output.

So no block keeps anything.

    forward             backward
    y1 = x1 + F(x2)     x2 = y2 - G(y1)     x1, x2: two streams of one shape. F and G are any
    y2 = x2 + G(y1)     x1 = y1 - F(x2)     functions: they are added, and so can be subtracted

    x --block 0-- block 1 -- ... -- block n-1--> y     forward: only y is kept
    x <----------------------------------------- y     backward, block by block: compute its input;
                                                       run F and G recorded, for their gradients

Activations: the two streams at the end and one block's record, for any depth. And for
each run of F and G that draws a random state of 5 kB, which a ledger does not count.
Time: F and G run twice, as under recompute: with F:B = 1:2 a third more.
Rounding: (x1 + F) - F is not x1 in floating point. Each block passes its error to the one before
(`rounding_by_depth`). In float64 a gradient is right to 1e-12. In bfloat16 check it.

The sequence is one autograd node. Its backward calls torch.autograd.backward once for each F and G,
so weights get their .grad directly. Hence:

    torch.autograd.grad     is refused: it wants gradients elsewhere than in .grad
    create_graph            is refused: this backward leaves no graph
    a tensor with a graph   that F or G uses beside its input: each inner backward reaches its
                            graph, and the first frees it. torch refuses the second. `checkpoint`,
                            whose graph is the plain one, has no such limit
    hooks of a weight       that several functions share run once for each, not once for the sum

Sources: Gomez et al. 2017, RevNet (arXiv:1707.04585), section 3; Kitaev et al. 2020, Reformer
(arXiv:2001.04451), section 3.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy

import torch
from torch import Tensor, nn

from .checkpoint.conditions import Conditions, learns
from .guards import checkpoint as guard


class ReversibleBlock(nn.Module):
    """Block of F and G, modules or functions that keep the shape. Called alone, it is a
    ReversibleSequence of one."""

    def __init__(self, f: Callable, g: Callable):
        super().__init__()
        self.f, self.g = f, g

    def forward(self, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        return reversible([self], x1, x2)

    def couple(self, x1: Tensor, x2: Tensor, call=lambda fn, x: fn(x)) -> tuple[Tensor, Tensor]:
        """Compute the block by plain operations: if autograd records, it keeps what they save."""
        y1 = x1 + call(self.f, x2)
        return y1, x2 + call(self.g, y1)

    def inverse(self, y1: Tensor, y2: Tensor) -> tuple[Tensor, Tensor]:
        x2 = y2 - self.g(y1)
        return y1 - self.f(x2), x2


class ReversibleSequence(nn.Module):
    """Blocks one after the other, of which only the last one's output is kept.

    It calls each block's F and G, not the block. Hooks on F and G run in the forward, and again in
    the backward. Hooks on a ReversibleBlock do not run.
    """

    def __init__(self, blocks: Iterable[ReversibleBlock]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        return reversible(self.blocks, x1, x2)


def reversible(blocks: Iterable[ReversibleBlock], x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    """Return (y1, y2). Call loss.backward(): weights get their .grad while it runs."""
    guard.refuse_streams(x1, x2)
    blocks = list(blocks)
    if not torch.is_grad_enabled() or not learns(
        [fn for block in blocks for fn in (block.f, block.g)], (x1, x2)
    ):
        for block in blocks:
            x1, x2 = block.couple(x1, x2, guard.checked)
        return x1, x2
    return _Reversible.apply(blocks, torch.empty(0, requires_grad=True), x1, x2)


class _Reversible(torch.autograd.Function):
    """All blocks as one node of the graph. `token` requires a gradient, so there is a node even if
    x requires none."""

    @staticmethod
    def forward(ctx, blocks, token, *x):  # autograd turns gradients off here
        ctx.set_materialize_grads(False)
        ctx.blocks, ctx.conditions = blocks, []

        def called(fn, x):
            ctx.conditions.append(Conditions([x], fn, guard.called(fn)))
            y = guard.checked(fn, x)
            ctx.conditions[-1].ran()
            return y

        for block in blocks:
            x = block.couple(*x, called)
        ctx.save_for_backward(*x)
        return x

    @staticmethod
    def backward(ctx, dy1, dy2):
        guard.refuse_backward()
        y1, y2 = ctx.saved_tensors
        conditions = iter(reversed(ctx.conditions))
        for block in reversed(ctx.blocks):
            g_y1, through_g = recorded(block.g, y1, dy2, next(conditions))
            dx1 = total(dy1, through_g)  # y1 reaches the loss by itself and through G
            x2 = y2 - g_y1
            f_x2, through_f = recorded(block.f, x2, dx1, next(conditions))
            y1, y2, dy1, dy2 = y1 - f_x2, x2, dx1, total(dy2, through_f)
        return None, None, dy1, dy2


def recorded(
    fn: Callable, x: Tensor, dy: Tensor | None, conditions: Conditions
) -> tuple[Tensor, Tensor | None]:
    """Return (fn(x), dL/dx), and add the gradients of fn's weights to their .grad. A gradient is
    None if no loss depends on the tensor."""
    x = x.detach().requires_grad_()
    with torch.set_grad_enabled(dy is not None), conditions.restored():
        y = fn(x)
    if y.requires_grad and dy is not None:
        torch.autograd.backward(y, dy.to(y.dtype))
    return y.detach(), x.grad


def total(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


# -- the price -------------------------------------------------------------------------------------


def rounding_by_depth(
    sequence: ReversibleSequence,
    x1: Tensor,
    x2: Tensor,
    dtypes=(torch.float64, torch.float32, torch.bfloat16),
) -> dict[torch.dtype, list[float]]:
    """Return |x rebuilt - x| / |x| over both streams, after undoing the last 1, 2, ... blocks. The
    blocks must draw no random numbers.

    Each number format has a copy of the sequence, and is compared with its own forward. So this is
    the inverse's error alone.
    """
    return {
        dtype: rounding(deepcopy(sequence).to(dtype), x1.to(dtype), x2.to(dtype))
        for dtype in dtypes
    }


@torch.no_grad()
def rounding(sequence: ReversibleSequence, x1: Tensor, x2: Tensor) -> list[float]:
    states = [(x1, x2)]
    for block in sequence.blocks:
        states.append(block.couple(*states[-1]))
    rebuilt, errors = states.pop(), []
    for block in reversed(sequence.blocks):
        rebuilt, right = block.inverse(*rebuilt), torch.cat(states.pop()).double()
        errors.append(float((torch.cat(rebuilt).double() - right).norm() / right.norm()))
    return errors
