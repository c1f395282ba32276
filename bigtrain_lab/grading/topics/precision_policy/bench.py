"""An operator policy: operators called inside its with block, or after it."""

from contextlib import nullcontext, suppress
from operator import ipow

import torch
from torch.nn import functional as F


def failed(operator, *given) -> None:
    with suppress(RuntimeError):
        operator(*given)


# Looked up when called, as a policy may stand in their place.
PRODUCTS = {
    "x @ y": lambda x, y: x @ y,
    "x @ y, after one that failed": lambda x, y: (failed(torch.mm, x, y[:1]), x @ y)[-1],
    # what was cast once may have changed since
    "torch.mm, again once y has changed": lambda x, y: (
        torch.mm(x, y),
        y.data.neg_(),
        torch.mm(x, y),
    )[-1],
    "torch.bmm": lambda x, y: torch.bmm(x[None], y[None]),
    "torch.matmul of x * 1": lambda x, y: torch.matmul(x * 1, y),
    "torch.addmm": lambda x, y: torch.addmm(y, x, y),
    "torch.baddbmm": lambda x, y: torch.baddbmm(y[None], x[None], y[None]),
    "torch.einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "F.linear": lambda x, y: F.linear(x, y, y[0]),
    "F.linear with bias=": lambda x, y: F.linear(x, y, bias=y[0]),
    # a query's product with the first key alone is 1, or 0 in 16 bits
    "F.scaled_dot_product_attention": lambda x, y: F.scaled_dot_product_attention(
        x[None], y.triu()[None], y.triu()[None]
    )[0],
    "F.conv1d": lambda x, y: F.conv1d(x[None], y[None], y[0, :1]),
    "F.conv2d": lambda x, y: F.conv2d(x[None, None], y[None, None], y[0, :1]),
}
DELICATE = {
    "x.exp()": lambda x: x.exp(),
    "torch.exp": lambda x: torch.exp(x),
    "F.softmax": lambda x: F.softmax(x, -1),
    "x.softmax": lambda x: x.softmax(-1),
    "torch.softmax": lambda x: torch.softmax(x, -1),
    "F.log_softmax": lambda x: F.log_softmax(x, -1),
    "torch.log": lambda x: torch.log(x),
    "x.log()": lambda x: x.log(),
    "x ** 2": lambda x: x**2,
    "1.2 ** x": lambda x: 1.2**x,
    "torch.pow of 1.2 and x": lambda x: torch.pow(1.2, x),
    "x.sum() under torch.no_grad()": lambda x: torch.no_grad()(torch.sum)(x),
    "torch.pow": lambda x: torch.pow(x, 2),
    "x.sum()": lambda x: x.sum(),
    "torch.sum": lambda x: torch.sum(x),
    "x.mean()": lambda x: x.mean(),
    "torch.mean": lambda x: torch.mean(x),
    "x.var()": lambda x: x.var(),
    "torch.var": lambda x: torch.var(x, -1),
    "torch.std": lambda x: torch.std(x, -1),
    "x.norm()": lambda x: x.norm(),
    "F.layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "F.cross_entropy": lambda x: F.cross_entropy(x, torch.arange(len(x))),
    "torch.exp with input=, one number": lambda x: torch.exp(input=x[0, 1]),
    "F.mse_loss of x * 1": lambda x: F.mse_loss(x * 1, torch.zeros_like(x)),
}
OTHERS = {
    "x + y": lambda x, y: x + y,
    "x * y": lambda x, y: x * y,
    "torch.add with alpha=": lambda x, y: torch.add(x, y, alpha=2),
    "x / y": lambda x, y: x / y,
    "torch.log1p": lambda x, y: torch.log1p(x),
    "x.exp_()": lambda x, y: (less := x * 0.01, less.exp_())[0],
    "x.pow_()": lambda x, y: (less := x * 0.01, less.pow_(2))[0],
    "x **= y": lambda x, y: ipow(x * 0.01, y * 0.01),
    "torch.norm_except_dim": lambda x, y: torch.norm_except_dim(x, 2, 0),  # begins like norm
    # whose names hold those of others
    "torch.cummax": lambda x, y: torch.cummax(x, 0).values,
    "F.bilinear": lambda x, y: F.bilinear(x, y, torch.stack([x, y]).diag_embed() / 300),
    "F.relu": lambda x, y: F.relu(x),
    "F.gelu": lambda x, y: F.gelu(x),
    "F.embedding": lambda x, y: F.embedding(torch.tensor([1]), torch.stack([x, y])),
}
OPERATORS = PRODUCTS | DELICATE | OTHERS
INSIDE, BETWEEN, AFTER = (
    "inside the block",
    "in the outer block after the inner ones",
    "after the block",
)


class OfTheBlock(Exception):
    """An error inside the with block."""


def play(answer, dtype, calls, places=(INSIDE,), outer=None, fails=False) -> dict:
    """Calls are [operator, tensors], and of a tensor [numbers, type]. `outer`: the type of a block
    around two of this one. `fails`: the block raises."""
    came, went_on = {}, False

    def call(place: str) -> None:
        if place in places:
            given = [(OPERATORS[name], *map(tensor, tensors)) for name, *tensors in calls]
            came[place] = [(operator(*tensors), tensors) for operator, *tensors in given]

    with answer(getattr(torch, outer)) if outer else nullcontext():
        with answer(getattr(torch, dtype)) if outer else nullcontext(), suppress(OfTheBlock):
            with answer(getattr(torch, dtype)):
                call(INSIDE)
                if fails:
                    raise OfTheBlock
            went_on = True
        call(BETWEEN)
    call(AFTER)
    return {
        "the block kept its error from the caller": fails and went_on,
        "found": {place: [shown(*each) for each in some] for place, some in came.items()},
    }


def tensor(of: list) -> torch.Tensor:
    numbers, dtype = of
    made = torch.tensor(numbers, dtype=getattr(torch, dtype))
    return torch.nn.Parameter(made) if made.is_floating_point() else made


def shown(result: torch.Tensor, tensors: list) -> dict:
    """The type and the last numbers of a result, and those of the gradients that arrive at what it
    was made of, in its type, for a gradient from 0.5 to 1.5."""
    row = {"type": str(result.dtype).removeprefix("torch."), "last results": last(result)}
    wanted = [each for each in tensors if each.requires_grad]
    if wanted:
        arrived = [None] * len(wanted)
        if result.requires_grad:
            slope = torch.linspace(0.5, 1.5, result.numel()).to(result.dtype).view(result.shape)
            arrived = torch.autograd.grad(result, wanted, slope, allow_unused=True)
        row["gradients"] = [None if each is None else last(each) for each in arrived]
    return row


def last(of: torch.Tensor) -> list[float]:
    return of.detach().double().flatten()[-4:].tolist()
