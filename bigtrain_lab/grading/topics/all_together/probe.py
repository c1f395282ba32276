"""Clip on Mesh(dp, pp, tp): one norm of one gradient, of which each rank has some numbers.

    |g|^2 = sum over pp and tp of the squares of own slices, of duplicates and tied weights once
    g <- g min(1, c / (|g| + 1e-6))       after the mean over dp and the sum of tied gradients

The truth is torch's own clipping of the whole gradient in one process. Norms are about 10^7, as of
a scaled loss, so that the 1e-6 does not matter.
Source: Narayanan et al. 2021 (arXiv:2104.04473), section 3; torch.nn.utils.clip_grad_norm_.
"""

import torch

from ....core import Mesh
from ...trainings import off, tensor
from .bench import AXES, DUPLICATES, gradients, is_tied

NAME, NEAR, FEW = "all-together", 1e-12, 3


def scenes(draw):
    """(name, what all ranks are given, the seeds of each). The norm does not follow from
    max_norm."""
    for (dp, pp, tp), share in (
        ((3, 1, 1), 0.5),
        ((1, 1, 3), 0.85),  # and the norm of each rank below it
        ((1, 2, 1), 0.85),
        ((2, 2, 2), 0.5),
        ((2, 2, 2), 1.15),  # and the norms of replicas above it
        ((1, 3, 2), 0.1),
        ((1, 1, 1), 0.5),
    ):
        model = {"shape": [dp, pp, tp], "h": draw.choice((6, 12))}
        seeds = [(draw.randrange(2**31), draw.randrange(2**31)) for _ in range(dp * pp * tp)]
        own = [
            {"seed": each, "duplicates": seeds[rank - rank % tp][1]}  # of tp rank 0
            for rank, (each, _) in enumerate(seeds)
        ]
        name = f"{dp} x {pp} x {tp} ranks" + ", a norm below max_norm" * (share > 1)
        max_norm = draw.uniform(0.9, 1.1) * share * truth(**model, max_norm=1.0, own=own)[0]
        yield name, model | {"max_norm": max_norm}, own


def truth(shape, h, max_norm, own) -> tuple[float, list[dict]]:
    """Torch's norm of the whole gradient, and what it leaves on each rank: name -> gradient."""
    weights, held, mesh = {}, [], Mesh(**dict(zip(AXES, shape)))
    for rank, seeds in enumerate(own):
        at = mesh.coords(rank)
        held.append({})
        for name, gradient in gradients(shape, h, at["pp"], **seeds).items():
            stage = 0 if is_tied(name, shape) else at["pp"]
            place = name, stage, 0 if name in DUPLICATES else at["tp"]
            new = torch.nn.Parameter(torch.zeros_like(gradient))
            held[rank][name] = p = weights.setdefault(place, new)
            if name not in DUPLICATES or at["tp"] == 0:
                p.grad = gradient / shape[0] + (0 if p.grad is None else p.grad)
    return torch.nn.utils.clip_grad_norm_(weights.values(), max_norm).item(), held


def shown(common: dict, own: list[dict], came: list[dict], ranks) -> dict:
    """Norms and gradients beside torch's, what else changed, and how often a gradient was sent."""
    _, right = truth(**common, own=own)
    row = {"norm returned by each rank": [each["norm"] for each in came]}
    row |= {
        f"first numbers of {told}, on each rank": [
            each["gradients"][name][:FEW] for each in came if name in each["gradients"]
        ]
        for name, told in (
            ("norm", "a layer norm's gradient"),
            ("A", "a slice's gradient"),
            ("words", "the embedding's gradient"),
        )
    }
    row["how many numbers of each rank's gradient are not torch's own"] = [
        sum(
            off(tensor(each["gradients"][name]), p.grad.flatten(), NEAR) for name, p in held.items()
        )
        for each, held in zip(came, right)
    ]
    row["how many frozen ones have a gradient"] = sum(
        "frozen" in each["gradients"] for each in came
    )
    row["how many ranks' weights changed"] = sum(each["moved"] for each in came)
    for axis in AXES:
        sent = [
            (came[rank]["gradients"].values(), sum(size for *_, size in seen) / 8)
            for (name, members), each in ranks.axes.items()
            if name == axis and len(members) > 1
            for rank, seen in zip(members, each.seen)
        ]
        row[f"how often a gradient travels over {axis}"] = [
            round(count / sum(map(len, own))) for own, count in sent
        ]
        row[f"how many numbers beyond one a parameter travel over {axis}"] = [
            max(0, count - len(own)) * (axis == "tp") for own, count in sent
        ]
    return row
