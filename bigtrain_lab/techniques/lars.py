"""LARS: each layer's step is the same share of its weights' norm, for a gradient of any size.

    r = eta |x| / (|g| + beta |x| + eps)      the trust ratio; 1 where |x| or |g| is 0
    v <- mu v + lr r (g + beta x)             beta: weight decay, in the norm of neither
    x <- x - v

Without decay the step is lr eta |x| long. Small gradients give no small steps, so the rate must
fall by a schedule. The rate is inside v, as in the paper: when it changes, past steps keep theirs.
`naive_lars` is a plain loop; `LARS` takes all layers together: layerwise.py.

Time: SGD's, and two norms before it. Memory: v.
Source: You, Gitman and Ginsburg 2017 (arXiv:1708.03888), section 4 and Algorithm 1. Variants in
use: eps in the ratio's denominator, Nesterov's momentum, biases and norms without decay and ratio.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .layerwise import Batch, LayerWise


@torch.no_grad()
def naive_lars(parameters, velocities, lr, momentum, weight_decay, trust_coefficient, eps=0.0):
    """Step each layer in place by its `.grad`; `velocities`, one a layer, begin as zeros."""
    for x, v in zip(parameters, velocities):
        x_norm, g_norm = x.norm(), x.grad.norm()
        size = g_norm + weight_decay * x_norm + eps
        ratio = trust_coefficient * x_norm / size if x_norm > 0 and g_norm > 0 else 1.0
        v.copy_(momentum * v + lr * ratio * (x.grad + weight_decay * x))
        x -= v


class LARS(LayerWise):
    """Optimizer of torch. A parameter group with the options {"weight_decay": 0.0, "trust_ratio":
    False} takes SGD's step, with the rate lr.

    trust_coefficient   eta
    nesterov            x <- x - (mu v + lr r (g + beta x)), of the new v
    group, pieces       as for LAMB
    """

    state_names = ("momentum_buffer",)

    def __init__(
        self,
        params,
        lr=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        trust_coefficient=1e-3,
        eps=0.0,
        *,
        nesterov: bool = False,
        group=None,
        pieces: Callable[[Tensor], bool] | None = None,
    ):
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "weight_decay": weight_decay,
                "trust_coefficient": trust_coefficient,
                "eps": eps,
                "nesterov": nesterov,
            },
            group,
            pieces,
        )

    def direction(self, batch: Batch) -> list[Tensor]:
        return batch.g

    def ratio(self, x_norm: Tensor, g_norm: Tensor, options: dict) -> Tensor:
        size = g_norm + options["weight_decay"] * x_norm + options["eps"]
        return torch.where(x_norm * g_norm > 0, options["trust_coefficient"] * x_norm / size, 1.0)

    def apply(self, batch: Batch, g: list[Tensor], rates: list[Tensor]) -> None:
        (v,), options = batch.state, batch.options
        step = torch._foreach_add(g, batch.x, alpha=options["weight_decay"])
        torch._foreach_mul_(step, rates)
        torch._foreach_mul_(v, options["momentum"])
        torch._foreach_add_(v, step)
        if options["nesterov"]:
            torch._foreach_add_(step, v, alpha=options["momentum"])
        torch._foreach_sub_(batch.x, step if options["nesterov"] else v)
