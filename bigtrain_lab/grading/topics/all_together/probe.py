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
from .bench import AXES, cut, cuts, gradients, is_tied

NAME, NEAR, FEW = "all-together", 1e-12, 3


def scenes(draw):
    """(name, what all ranks are given, nothing for each)."""
    for (dp, pp, tp), share in (
        ((3, 1, 1), 0.5),
        ((1, 1, 3), 0.5),
        ((1, 2, 1), 0.5),
        ((2, 2, 2), 0.5),
        ((1, 2, 2), 2.0),
        ((2, 3, 1), 0.1),
        ((1, 1, 1), 0.5),
    ):
        model = {"shape": [dp, pp, tp], "h": draw.choice((6, 12)), "seed": draw.randrange(2**31)}
        name = f"{dp} x {pp} x {tp} ranks" + ", a norm below max_norm" * (share > 1)
        max_norm = share * truth(**model, max_norm=1.0)[0]
        yield name, model | {"max_norm": max_norm}, [{}] * (dp * pp * tp)


def truth(shape, h, seed, max_norm) -> tuple[float, dict]:
    """Torch's norm of the whole gradient, and what it leaves: (stage, name) -> gradient."""
    weights = {}
    for replica in range(shape[0]):
        for stage in range(shape[1]):
            for name, gradient in gradients(shape, h, seed, replica, stage).items():
                place = 0 if is_tied(name, shape) else stage, name
                p = weights.setdefault(place, torch.nn.Parameter(torch.zeros_like(gradient)))
                p.grad = gradient / shape[0] + (0 if p.grad is None else p.grad)
    norm = torch.nn.utils.clip_grad_norm_(weights.values(), max_norm).item()
    return norm, {place: p.grad for place, p in weights.items()}


def shown(common: dict, own: list[dict], came: list[dict], ranks) -> dict:
    """Norms and gradients beside torch's, what else changed, and how often a gradient was sent."""
    shape, h = common["shape"], common["h"]
    mesh, (_, right) = Mesh(**dict(zip(AXES, shape))), truth(**common)
    row = {"norm returned by each rank": [each["norm"] for each in came]}
    for name, told in (
        ("norm", "a layer norm's gradient"),
        ("A", "a slice's gradient"),
        ("words", "the embedding's gradient"),
    ):
        row[f"first numbers of {told}, on each rank"] = [
            each["gradients"][name][:FEW] for each in came if name in each["gradients"]
        ]
    wrong = row["numbers of each rank's gradient that are not torch's own"] = []
    for rank, each in enumerate(came):
        at, count = mesh.coords(rank), 0
        for name, (_, dim) in cuts(shape[1], at["pp"], h).items():
            whole = right[0 if is_tied(name, shape) else at["pp"], name]
            piece = cut(whole, dim, shape[2], at["tp"]).flatten()
            count += off(tensor(each["gradients"][name]), piece, NEAR)
        wrong.append(count)
    row["frozen parameters with a gradient"] = sum("frozen" in each["gradients"] for each in came)
    row["ranks whose weights changed"] = sum(each["moved"] for each in came)
    for axis in AXES:
        row[f"times that a gradient travels over {axis}"] = [
            round(sum(size for *_, size in seen) / bytes_of(came[rank]))
            for (name, members), each in ranks.axes.items()
            if name == axis and len(members) > 1
            for rank, seen in zip(members, each.seen)
        ]
    return row


def bytes_of(came: dict) -> int:
    return 8 * sum(map(len, came["gradients"].values()))
