"""What 16 bits lose, each loss alone and on real tensors: what the safeguards of mixed_precision.py
are against.

    unmoved     w + step = w     where |step| < ulp(w)/2, and ulp(w) = 2^(floor(log2 |w|) - M), M =
                                 10 (fp16), 7 (bf16)
    stalled     s + 1 = s        from s = 2^(M+1) on: 2,048 in fp16, 256 in bf16
    underflow   g -> 0           below 2^-25 in fp16; Adam squares g, and adds an eps that may be 0
                                 itself
    overflow    x^2 -> inf       above 255.9 in fp16; a value may hide it (tanh(inf) = 1) while the
                                 gradient is 0 * inf = nan

Source: Micikevicius et al. 2018 (arXiv:1710.03740), sections 3.1 (updates), 3.2 (underflow) and 3.3
(long sums).
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..runtime.record.exponents import exponents

__all__ = ["adam_first_step", "exponents", "gradient_of", "running_sum", "tanh_gelu", "unmoved"]


def unmoved(weights: Iterable[Tensor], step: float | Tensor, dtype: torch.dtype) -> float:
    """Return the share of weights that stay unchanged in `dtype` when `step` is added to each (a
    tensor: to one tensor of weights).

    The sum is taken exactly and then rounded, as hardware adds; Adam's steps are about as large as
    its learning rate.
    """
    still = count = 0
    for weight in weights:
        rounded = weight.detach().to(dtype)
        still += (((rounded.double() + step).to(dtype)) == rounded).sum().item()
        count += weight.numel()
    return still / count


def running_sum(value: float, count: int, dtype: torch.dtype) -> Tensor:
    """Return the partial sums of value + value + ..., each rounded to `dtype`: shape (count,). One
    addition after the other, as a loop or one accumulator does; torch's own `sum` adds in float32
    inside, also for half tensors."""
    term, total, sums = torch.tensor(value, dtype=dtype), torch.zeros((), dtype=dtype), []
    for _ in range(count):
        total = total + term
        sums.append(total)
    return torch.stack(sums)


def tanh_gelu(x: Tensor) -> Tensor:
    """Compute GELU's tanh approximation as one would write it, each operator rounding to x's type.
    torch's own, F.gelu(x, approximate="tanh"), computes in float32 inside and rounds once: its
    gradient at -300 is right."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * (x * x))
    return 0.5 * x * (1 + torch.tanh(inner))


def gradient_of(function, x: Tensor) -> Tensor:
    """Return d function(x) / dx for a function of each value, in x's type."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


def adam_first_step(gradient: float, dtype: torch.dtype, eps: float = 1e-9) -> float:
    """Return how far torch's Adam with lr 1 moves a weight of `dtype` that is 0 by this gradient:
    -g / (|g| + eps), so about 1 in size, unless its square or eps is 0 in `dtype`. Adam's state has
    its weight's type."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
    weight.grad = torch.full_like(weight, gradient)
    torch.optim.Adam([weight], lr=1.0, eps=eps).step()
    return weight.item()
