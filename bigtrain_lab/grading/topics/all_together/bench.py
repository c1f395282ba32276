"""Clipping on Mesh(dp, pp, tp): what a rank has of the model's gradient, given to the answer."""

import torch

from ....core import Mesh
from ...trainings import Refused, drawn

AXES = "dp", "pp", "tp"


def cuts(stages: int, stage: int, h: int) -> dict[str, tuple]:
    """Of each weight of a stage: its shape, and the dimension that slices share."""
    words = {"words": ([2 * h, h], 0)} if stage in (0, stages - 1) else {}
    return words | {
        "norm": ([h], None),
        "A": ([4 * h, h], 0),
        "a": ([4 * h], 0),
        "B": ([h, 4 * h], 1),
        "b": ([h], None),
    }


def gradients(shape: list[int], h: int, seed: int, replica: int, stage: int) -> dict:
    """Those of whole weights, as large as a scaled loss makes them."""
    own = cuts(shape[1], stage, h)
    numbers = {
        "seed": seed + replica * shape[1] + stage,
        "shapes": [size for size, _ in own.values()],
    }
    return {name: 1e6 * gradient for name, gradient in zip(own, drawn(numbers))}


def is_tied(name: str, shape: list[int]) -> bool:
    return name == "words" and shape[1] < 3


def cut(whole: torch.Tensor, dim: int | None, slices: int, at: int) -> torch.Tensor:
    return whole if dim is None else whole.chunk(slices, dim)[at]


def play(answer, group, shape, h, seed, max_norm) -> dict:
    """The norm that the answer returned, and the gradients that it left."""
    mesh = Mesh(**dict(zip(AXES, shape)))
    at, params = mesh.coords(group.rank), {}
    own = cuts(shape[1], at["pp"], h)
    for name, whole in gradients(shape, h, seed, at["dp"], at["pp"]).items():
        dim = own[name][1]
        gradient = cut(whole, dim, shape[2], at["tp"])
        params[name] = p = torch.nn.Parameter(torch.ones_like(gradient))
        p.grad, p.sliced, p.tied = gradient.clone(), dim is not None, is_tied(name, shape)
    params["frozen"] = p = torch.nn.Parameter(torch.ones(h).double(), requires_grad=False)
    p.sliced = p.tied = False
    axes = [group.among(axis, tuple(mesh.peers(group.rank, axis))) for axis in AXES]
    norm = answer([*params.values()], max_norm, *axes)
    try:
        norm = float(norm)
    except (TypeError, ValueError):
        raise Refused(
            f"You returned a {type(norm).__name__}: return the norm before clipping."
        ) from None
    return {
        "norm": norm,
        "gradients": {
            name: p.grad.flatten().tolist() for name, p in params.items() if p.grad is not None
        },
        "moved": any(bool((p != 1).any()) for p in params.values()),
    }
