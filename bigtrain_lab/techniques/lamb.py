"""LAMB: Adam's direction; the step's length is lr times the norm of the layer's weights.

A layer here is one parameter tensor. One learning rate fits all layers, and a large batch may take
long steps.

    m <- b1 m + (1 - b1) g        mh = m / (1 - b1^t)
    v <- b2 v + (1 - b2) g^2      vh = v / (1 - b2^t)
    u  = mh / (sqrt(vh) + eps) + lambda x              decay is decoupled, and inside the norm
    x <- x - lr r u,   r = phi(|x|) / |u|              the trust ratio; 1 where |x| or |u| is 0

The norms are those of a whole layer, also where ranks have pieces of it. `NaiveLAMB` is a plain
loop. `LAMB` makes u by torch's fused Adam, of all layers together (layerwise.py).

Time: Adam's, two norms and a second pass over x and u. Memory: Adam's m and v.
Source: You et al. 2019 (arXiv:1904.00962), Algorithm 2. Variants in use:

    pytorch-lamb                    no bias correction, as in the paper's first version, and
                                    phi(z) = min(z, 10), as in NaiveLAMB
    NVIDIA's BERT                   gradients are first clipped by their global norm
    the paper's code for BERT       no decay and no ratio for biases and norms
"""

from collections.abc import Callable
from math import inf

import torch
from torch import Tensor
from torch.optim.adam import adam

from .layerwise import Batch, LayerWise


class NaiveLAMB:
    """LAMB layer by layer, with phi(z) = min(z, clip_norm). `pieces[n]`: each rank of the group has
    a piece of parameter n, no duplicate. The ranks have gradients of the same parameters."""

    def __init__(self, parameters, pieces, group, lr, betas, eps, weight_decay, clip_norm=10.0):
        self.parameters, self.pieces, self.group, self.clip = parameters, pieces, group, clip_norm
        self.lr, (self.b1, self.b2), self.eps, self.decay = lr, betas, eps, weight_decay
        self.m = [torch.zeros_like(p) for p in parameters]
        self.v = [torch.zeros_like(p) for p in parameters]
        self.t = [0] * len(parameters)

    @torch.no_grad()
    def step(self):
        learnt, squares = [], []
        for n, (p, m, v, piece) in enumerate(zip(self.parameters, self.m, self.v, self.pieces)):
            if p.grad is None:
                continue
            g = p.grad
            self.t[n] += 1
            m.copy_(self.b1 * m + (1 - self.b1) * g)
            v.copy_(self.b2 * v + (1 - self.b2) * g**2)
            c1, c2 = 1 - self.b1 ** self.t[n], 1 - self.b2 ** self.t[n]
            adam_step = m / c1 / ((v / c2).sqrt() + self.eps)
            u = adam_step + self.decay * p
            counts = piece or self.group.rank == 0
            squares += [p.square().sum() * counts, u.square().sum() * counts]
            learnt.append((p, u))
        norms = self.group.all_reduce(torch.tensor(squares, dtype=torch.float64)).sqrt()
        for (p, u), x_norm, u_norm in zip(learnt, norms[::2], norms[1::2]):
            ratio = min(x_norm, self.clip) / u_norm if x_norm > 0 and u_norm > 0 else 1.0
            p -= self.lr * ratio * u


class LAMB(LayerWise):
    """Optimizer of torch. Biases and norms usually form a parameter group with the options
    {"weight_decay": 0.0, "trust_ratio": False}.

    lr               a number, or a tensor
    weight_decay     lambda
    group            ranks that have pieces of the same parameters; None: parameters are whole
    bias_correction  False: mh = m and vh = v
    clip_norm        phi(z) = min(z, clip_norm); None: phi(z) = z
    max_grad_norm    gradients are divided by max(1, |g| / max_grad_norm), |g| over all parameters
    pieces           parameter -> True if this rank has a piece of it, False if all of it. None:
                     what tensor slicing cut is a piece
    """

    state_names = "exp_avg", "exp_avg_sq"

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.01,
        *,
        group=None,
        bias_correction: bool = True,
        clip_norm: float | None = None,
        max_grad_norm: float | None = None,
        pieces: Callable[[Tensor], bool] | None = None,
    ):
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "bias_correction": bias_correction,
                "clip_norm": clip_norm,
            },
            group,
            pieces,
            max_grad_norm,
        )

    def direction(self, batch: Batch) -> list[Tensor]:
        """Return u. torch's kernel subtracts lr m/c1 / (sqrt(v/c2) + eps). With lr = -1 it adds
        Adam's direction to lambda x."""
        (m, v), (b1, b2), options = batch.state, batch.options["betas"], batch.options
        g = (
            batch.g
            if self.gradient_divisor is None
            else torch._foreach_div(batch.g, self.gradient_divisor)
        )
        if not options["bias_correction"]:  # after infinitely many steps c1 = c2 = 1
            torch._foreach_add_(batch.steps, inf)
        u = torch._foreach_mul(batch.x, options["weight_decay"])
        adam(
            u,
            g,
            m,
            v,
            [],
            batch.steps,
            fused=True,
            lr=-1.0,
            beta1=b1,
            beta2=b2,
            eps=options["eps"],
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )
        return u

    def ratio(self, x_norm: Tensor, u_norm: Tensor, options: dict) -> Tensor:
        phi = x_norm if options["clip_norm"] is None else x_norm.clamp(max=options["clip_norm"])
        return torch.where(x_norm * u_norm > 0, phi / u_norm, 1.0)

    def apply(self, batch: Batch, u: list[Tensor], rates: list[Tensor]) -> None:
        torch._foreach_addcmul_(batch.x, u, rates, value=-1)
