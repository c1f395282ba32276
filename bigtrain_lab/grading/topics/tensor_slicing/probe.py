"""A layer over t ranks: the MLP cut by columns, then by rows; a loss without whole rows of logits.

    drop(drop(gelu(x A + a)) B + b)    one all-reduce of b s h numbers forward, and one backward
    log sum_v exp(z_v) - z_target      three all-reduces of b s numbers

The truth is torch's own of whole matrices, with the dropout masks that the ranks drew.
Source: Shoeybi et al. 2019, Megatron-LM (arXiv:1909.08053), section 3.
"""

import torch
from torch.nn.functional import cross_entropy, gelu

from ...trainings import drawn, off, tensor
from .bench import backward, leaves

NAME, NEAR, FEW = "tensor-slicing", 1e-12, 6
COPIES = "xb"  # whose gradients are whole on each rank


def scenes(draw):
    """(name, what all ranks are given, the logits of each)."""
    for t, share, forward in (
        (2, 0, True),
        (2, 0, False),
        (4, 0, False),
        (3, 0, False),
        (draw.choice((2, 3, 4)), 0.3, False),
        (1, 0, False),
    ):
        s, h = draw.choice((13, 17, 19)), draw.choice((12, 24))
        shapes = [[2, s, h], [h, 4 * h], [4 * h], [4 * h, h], [h]]
        numbers = drawn({"seed": draw.randrange(2**31), "shapes": shapes})
        whole = {name: each.tolist() for name, each in zip("xAaBb", numbers)}
        yield scene("the mlp", t, whole, forward, share=share)
    for t, more, forward, used in (
        (2, 0, True, 1.0),
        (2, 0, False, 1.0),
        (3, 0, False, 0.3),  # no target on two ranks
        (4, 0, False, 1.0),
        (1, 1000, False, 1.0),
        (3, 1000, False, 1.0),
        (1, 0, False, 1.0),
    ):
        s, width = draw.choice((13, 17, 19)), draw.choice((12, 24))
        shapes, seed = [[2, s, t * width]], draw.randrange(2**31)
        logits = 3 * drawn({"seed": seed, "shapes": shapes})[0]
        each = torch.tensor([draw.random() for _ in range(2 * s * t)]).double().view(2, s, t)
        each += 1
        each[:, ::2] *= -1  # too small for exp on all ranks; elsewhere too large
        logits += more * each.repeat_interleave(width, -1)
        targets = [[draw.randrange(int(used * t * width)) for _ in range(s)] for _ in range(2)]
        for row, place in zip(targets, (0, width - 1) * (used == 1)):  # first, last of each slice
            row[:t] = [slice * width + place for slice in range(t)]
        yield scene("the loss", t, {}, forward, targets, more, logits=logits)


def scene(what, t, whole, forward, targets=None, more=0, share=0, logits=None):
    name = f"{what} on {t} rank{'s' * (t > 1)}"
    name += ", dropout" * bool(share) + ", large logits" * bool(more)
    common = {"whole": whole, "share": share, "targets": targets, "forward": forward}
    parts = [None] * t if logits is None else logits.chunk(t, -1)
    return name, common, [{"logits": part if part is None else part.tolist()} for part in parts]


def shown(common: dict, own: list[dict], came: list[dict], ranks) -> dict:
    """What came out, the masks and the traffic, then all numbers beside torch's."""
    returned = [tensor(each["returned"]) for each in came]
    row = {"first numbers returned [rank] [index]": [each.flatten()[:FEW] for each in returned]}
    if common["forward"]:
        return row
    drops, is_mlp = [each["drops"] for each in came], common["targets"] is None
    given = leaves(common["whole"] or {"logits": joined(each["logits"] for each in own).tolist()})
    grads = {name: [each["gradients"][name] for each in came] for name in given}
    whole = (
        {"logits": [joined(grads["logits"])]}
        if not is_mlp
        else {
            name: [*map(tensor, each)] if name in COPIES else [sum(map(tensor, each))]
            for name, each in grads.items()
        }
    )
    row |= {
        f"first numbers of {name}'s gradient{' [rank] [index]' * (name in COPIES)}": [
            grad.flatten()[:FEW] for grad in each
        ]
        for name, each in whole.items()
    } | {
        f"share of {name} that a rank uses [rank]": [(tensor(g) != 0).double().mean() for g in each]
        for name, each in grads.items()
        if name in "AaB"
    }
    if common["share"]:
        row = {}  # as their own masks make it
    if is_mlp:
        row["calls of drop [rank]"] = [*map(len, drops)]
        row["hidden units of a rank [rank]"] = [
            tensor(each[0]["of"]).shape[-1] for each in drops if each
        ]
        for at, where in ((0, "hidden units, one a rank"), (-1, "y, one for all")):
            row[f"different masks of {where}"] = len({each[at]["seed"] for each in drops if each})
    if len(came) > 1:
        row |= traffic(next(iter(given.values())), came, ranks.seen, is_mlp)
    row["how many tensors given to a rank it changed [rank]"] = [each["changed"] for each in came]
    if is_mlp and any(len(each) != 2 for each in drops):
        return row
    backward(right := truth(given, common["targets"], drops), given)
    row["how many numbers returned are wrong [rank]"] = [
        off(each, right, NEAR) for each in returned
    ]
    return row | {
        f"how many numbers of {name}'s gradient are wrong{' [rank]' * (name in COPIES)}": [
            off(grad, given[name].grad, NEAR) for grad in each
        ]
        for name, each in whole.items()
    }


def joined(parts) -> torch.Tensor:
    return torch.cat([*map(tensor, parts)], -1)


def traffic(first: torch.Tensor, came: list[dict], seen, is_mlp: bool) -> dict:
    """`first`: x, or the whole logits."""
    tokens, wide = first[..., 0].numel(), first.shape[-1] * (4 if is_mlp else 1)
    wider = sum(each["widest"] >= wide for each in came)
    row = {"ranks with rows of the whole width": wider * (len(came) > 2)}
    begins, calls, backwards = (
        [[what for what, *_ in each].index(mark) for each in seen]
        for mark in ("begin", "another call", "backward")
    )
    for way, parts, most in (
        (
            "forward",
            [each[a + 1 : b] for each, a, b in zip(seen, begins, calls)],
            1 if is_mlp else 3,
        ),
        ("backward", [each[cut + 1 :] for each, cut in zip(seen, backwards)], int(is_mlp)),
    ):
        sizes = [[size / 8 / tokens for *_, size in part] for part in parts]
        row[f"numbers moved {way}, a token [rank]"] = [*map(sum, sizes)]
        row[f"collectives {way} beyond {most} [rank]"] = [
            max(0, len(each) - most) for each in sizes
        ]
    return row


def truth(given: dict, targets, drops: list[list[dict]]) -> torch.Tensor:
    """Torch's own; a rank's hidden units are told by their numbers."""
    if targets is not None:
        return cross_entropy(given["logits"].flatten(0, 1), torch.tensor(targets).flatten())
    x, A, a, B, b = given.values()
    hidden = gelu(x @ A + a)
    inside, units = torch.ones_like(hidden), hidden.detach().flatten(0, 1).T
    for first, _ in drops:
        at = torch.cdist(tensor(first["of"]).flatten(0, -2).T, units).argmin(1)
        inside[..., at] = tensor(first["mask"]).view(*x.shape[:-1], -1)
    return (hidden * inside @ B + b) * tensor(drops[0][1]["mask"]).view(x.shape)
