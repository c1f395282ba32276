"""What 16 bits lose: each of the losses that mixed_precision.py guards against, alone.

    unmoved     w + step = w     if |step| < ulp(w) / 2, where ulp(w) = 2^(floor(log2 |w|) - M)
    stalled     s + 1 = s        from s = 2^(M+1) on: 2,048 in fp16, 256 in bf16
    underflow   g -> 0           below 2^-25 in fp16; so are Adam's g^2 and a small eps
    overflow    x^2 -> inf       above 255.9 in fp16; tanh(inf) is 1, but its gradient 0 * inf = nan

    M: bits of the mantissa, 10 in fp16 and 7 in bf16

Source: Micikevicius et al. 2018 (arXiv:1710.03740), sections 3.1 (updates), 3.2 (underflow) and 3.3
(long sums).
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor


def unmoved(weights: Iterable[Tensor], step: float | Tensor, dtype: torch.dtype) -> float:
    """Return the share of weights that do not change in `dtype` when `step` is added to each. A
    `step` that is a tensor is for one tensor of weights.

    The sum is exact and then rounded, as hardware adds. Adam's steps are about as large as its
    learning rate.
    """
    still = count = 0
    for weight in weights:
        rounded = weight.detach().to(dtype)
        still += (((rounded.double() + step).to(dtype)) == rounded).sum().item()
        count += weight.numel()
    return still / count


def running_sum(value: float, count: int, dtype: torch.dtype) -> Tensor:
    """Return the partial sums of value + value + ..., each rounded to `dtype`: shape (count,). So
    does one accumulator. torch's own `sum` adds half tensors in float32."""
    term, total, sums = torch.tensor(value, dtype=dtype), torch.zeros((), dtype=dtype), []
    for _ in range(count):
        total = total + term
        sums.append(total)
    return torch.stack(sums)


def tanh_gelu(x: Tensor) -> Tensor:
    """Compute GELU's tanh approximation operator by operator; each rounds to x's type.
    F.gelu(x, approximate="tanh") computes in float32 and rounds once: its gradient at -300 is
    right."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * (x * x))
    return 0.5 * x * (1 + torch.tanh(inner))


def gradient_of(function, x: Tensor) -> Tensor:
    """Return d function(x) / dx for a function of each value, in x's type."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


def adam_first_step(gradient: float, dtype: torch.dtype, eps: float = 1e-9) -> float:
    """Return the first step of torch's Adam with lr 1, from a weight of `dtype` that is 0.

    It is -g / (|g| + eps), about 1 in size, unless g^2 or eps is 0 in `dtype`. Adam's state has the
    weight's type."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
    weight.grad = torch.full_like(weight, gradient)
    torch.optim.Adam([weight], lr=1.0, eps=eps).step()
    return weight.item()
