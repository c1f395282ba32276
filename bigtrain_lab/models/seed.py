"""A seed is a value: the same names give the same random numbers, whatever ran before.

    seed = first 63 bits of SHA-256(names)

A generator's history depends on the order of events, and a pipeline changes the order of events. So no
generator here is ever used twice: each draw makes its own, seeded by what the draw is for.
"""

import hashlib

import torch


def stable_seed(*names) -> int:
    """63 bits that depend on the names only: not on the process, the machine or Python's hash seed."""
    digest = hashlib.sha256("\n".join(map(repr, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*names, device="cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(stable_seed(*names))
