"""Clipping on Mesh(dp, pp, tp): what a rank has of the model's gradient, given to the answer."""

import torch

from ....core import Mesh
from ...trainings import drawn, number

AXES = "dp", "pp", "tp"
DUPLICATES, TIED = ("norm", "b", "positions"), ("words", "positions", "frozen")


def gradients(shape: list[int], h: int, stage: int, seed: int, duplicates: int) -> dict:
    """Those of a rank's weights, as large as a scaled loss makes them: slices are of its own seed,
    and what all of tp hold of that of `duplicates`. The second of three stages has no slices."""
    n = h // shape[2]
    sizes = {"words": [2 * n, h], "A": [4 * n, h], "a": [4 * n], "B": [h, 4 * n]}
    if stage not in (0, shape[1] - 1):
        sizes = {}
    sizes |= {"norm": [h], "b": [h], "positions": [3, h]}
    draws = [
        iter(drawn({"seed": each, "shapes": [*sizes.values()]})) for each in (seed, duplicates)
    ]
    return {name: 1e6 * both[name in DUPLICATES] for name, *both in zip(sizes, *draws)}


def is_tied(name: str, shape: list[int]) -> bool:
    return name in TIED and shape[1] < 3


def play(answer, group, shape, h, max_norm, seed, duplicates) -> dict:
    """The norm that the answer returned, and the gradients that it left."""
    mesh = Mesh(**dict(zip(AXES, shape)))
    at, params = mesh.coords(group.rank), {}
    for name, gradient in gradients(shape, h, at["pp"], seed, duplicates).items():
        params[name] = p = torch.nn.Parameter(torch.ones_like(gradient))
        p.grad, p.sliced, p.tied = gradient, name not in DUPLICATES, is_tied(name, shape)
    params["frozen"] = p = torch.nn.Parameter(torch.ones(h).double(), requires_grad=False)
    p.sliced, p.tied = False, is_tied("frozen", shape)
    axes = [group.among(axis, tuple(mesh.peers(group.rank, axis))) for axis in AXES]
    norm = answer([*params.values()], max_norm, *axes)
    none = f"You returned a {type(norm).__name__}: return the norm before clipping."
    return {
        "norm": number(norm, none),
        "gradients": {
            name: p.grad.flatten().tolist() for name, p in params.items() if p.grad is not None
        },
        "moved": any(bool((p != 1).any()) for p in params.values()),
    }
