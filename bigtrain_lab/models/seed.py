"""A seed is a value: the same names give the same random numbers, whatever ran before.

    seed = first 63 bits of SHA-256(names)

A generator's history depends on the order of events, and a pipeline changes the order of events. So
no generator here is ever used twice: each draw makes its own, seeded by what the draw is for.
"""

import hashlib
import math

from ..core.later import torch


def stable_seed(*names) -> int:
    """63 bits that depend on the names only: not on the process, the machine or Python's hash
    seed."""
    digest = hashlib.sha256("\n".join(map(repr, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*names, device="cpu") -> "torch.Generator | None":
    """On meta there is nothing to draw: None."""
    return (
        None
        if torch.device(device).type == "meta"
        else torch.Generator(device).manual_seed(stable_seed(*names))
    )


def normal(weight: "torch.Tensor", *names) -> "torch.Tensor":
    """N(0, 1) in float64, in the shape of a weight; on meta the weight itself."""
    return (
        weight
        if weight.is_meta
        else torch.randn(weight.shape, dtype=torch.float64, generator=generator(*names))
    )


def fill(module: "torch.nn.Module", seed: int) -> None:
    """Fill every matrix of a module: N(0, 1 / inputs) from (seed, its name)."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.copy_(normal(weight, seed, name) / math.sqrt(weight.shape[1]))
