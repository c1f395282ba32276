"""Reversible layers: the backward computes each block's input from its output, so no block keeps
anything.

    y1 = x1 + F(x2)     x2 = y2 - G(y1)     two streams of one shape; F and G are any functions:
    y2 = x2 + G(y1)     x1 = y1 - F(x2)     they are only added, and so can be subtracted

    x --block 0-- block 1 -- ... -- block n-1--> y     forward: nothing is kept but y
    x <----------------------------------------- y     backward: undo a block, record its F and G,
                                                       take their gradients, go on

Activations: the two streams at the end and one block's record, whatever the depth; where F or G
draws random numbers, the state to draw them again, 5 kB each, which a ledger does not see
(checkpoint/conditions.py). Time: F and G run twice, as under recompute: with F:B = 1:2 a third
more. The price is rounding: (x1 + F) - F is not x1 in floating point, and each block passes the
error on to the one before it (`rounding_by_depth`). In float64 a gradient is right to 1e-12; in
bfloat16 watch it. The sequence is one node of the graph, and runs backwards inside its own, by
which weights gather their gradients. So
    torch.autograd.grad    asks for gradients in another place than .grad, and a backward of a
                           backward for a graph of this: refused
    a tensor with a graph  that F or G uses beside its input is reached by each inner backward, and
                           the first one frees its graph: refused at the second; `checkpoint`, whose
                           graph is the plain one, has no such limit
    hooks of a weight      that several functions share run once a use, where one backward runs them
                           once with the sum
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
    """F and G, modules or functions that keep the shape. Alone it is a ReversibleSequence of
    one."""

    def __init__(self, f: Callable, g: Callable):
        super().__init__()
        self.f, self.g = f, g

    def forward(self, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        return reversible([self], x1, x2)

    def couple(self, x1: Tensor, x2: Tensor, call=lambda fn, x: fn(x)) -> tuple[Tensor, Tensor]:
        """Compute the block as plain operations, which autograd records: every block keeps what it
        saves."""
        y1 = x1 + call(self.f, x2)
        return y1, x2 + call(self.g, y1)

    def inverse(self, y1: Tensor, y2: Tensor) -> tuple[Tensor, Tensor]:
        x2 = y2 - self.g(y1)
        return y1 - self.f(x2), x2


class ReversibleSequence(nn.Module):
    """Blocks one after the other, of which only the last one's output is kept. It runs each block's
    F and G, and not the block itself: hooks on F and G run (in the forward and again in the
    backward), hooks on a ReversibleBlock do not.
    """

    def __init__(self, blocks: Iterable[ReversibleBlock]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        return reversible(self.blocks, x1, x2)


def reversible(blocks: Iterable[ReversibleBlock], x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    """Return (y1, y2). Weights gather gradients as the backward runs: call loss.backward() once."""
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
    """All blocks as one node of the graph. `token` has a gradient, so that the node is there even
    where x has none."""

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
    """Return (fn(x), dL/dx), with the weights of fn gathering theirs. None is the gradient of what
    no loss depends on."""
    x = x.detach().requires_grad_()
    with torch.set_grad_enabled(dy is not None), conditions.restored():
        y = fn(x)
    if y.requires_grad and dy is not None:
        with guard.own_graph(fn):
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
    """Return |x rebuilt - x| / |x|, x both streams, after undoing 1, 2, ... of the blocks from the
    end; blocks that draw no random numbers.

    Each number format has a copy of the sequence, and compares with its own forward: what is seen
    is the inverse's error alone.
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
