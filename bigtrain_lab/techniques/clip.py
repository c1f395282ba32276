"""Clipping by the global norm where a model's parameters lie on several ranks: one norm for all.

    |g|^2 = sum over ranks of (sum over own parameters of |g_w|^2)     one number a rank, added up
    g_w <- g_w min(1, c / (|g| + 1e-6))                                one factor, as in one process

Were each rank to clip by its own norm, the gradient would turn: stages with small gradients would
gain on those with large ones. A weight that several ranks hold, as a tied one or one that slicing
leaves whole, counts once: COPIES names it on the ranks that do not count it. It knows the weights
of `sliced` models and of the sliced layers; any other that several ranks hold counts on each.
Cost: two passes over the gradients and 8 bytes a rank.
Source: Pascanu et al. 2013 (arXiv:1211.5063), section 3.2; 1e-6 as torch.nn.utils.clip_grad_norm_.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ..runtime.talk.group import Group
from .guards.replicas import refuse_clip
from .shards import COPIES, Home


@torch.no_grad()
def clip_grad_norm(parameters: Iterable[Tensor | Home], max_norm: float, group=None) -> float:
    """Scale the gradients of this rank's parameters, or of what is stepped in their place, so that
    the norm over all ranks' is at most `max_norm`; returns the norm before. Every rank of the group
    calls it, one without gradients too."""
    group = Group.of(group)
    counts = {}  # what is stepped and has a gradient -> whether it counts in the norm
    for each in [parameters] if isinstance(parameters, Tensor) else parameters:
        home = each if isinstance(each, Home) else Home("", each, each)
        if home.stepped.grad is not None:
            counts[home.stepped] = home.weight not in COPIES and home.stepped not in COPIES
    refuse_clip(counts, max_norm, group)
    device = next((p.device for p in counts), group.device)
    square = torch.zeros((), dtype=torch.float64, device=device)
    for p, once in counts.items():
        if once:
            square += (
                torch.linalg.vector_norm(p.grad.as_subclass(Tensor)).to(device, torch.float64) ** 2
            )
    norm = group.all_reduce(square, name="gradient norm").sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for p in counts:
        p.grad.mul_(factor.to(p.device, p.grad.dtype))
    return float(norm)
