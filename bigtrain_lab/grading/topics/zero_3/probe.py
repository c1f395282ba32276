"""Stage 3 for a stack of layers: a rank keeps a part of each, and has it whole while it uses it.

    forward    all_gather a layer's parts, the layer, let go                (N-1)/N psi sent
    backward   all_gather again, its backward, reduce_scatter, let go     2 (N-1)/N psi sent

The truth is torch's own gradient of the mean over the ranks, with whole layers in one process.
Source: Rajbhandari et al. 2019, ZeRO (arXiv:1910.02054), sections 5.3 and 7.2.
"""

import math

import torch

from ...trainings import drawn, off, tensor
from .bench import RATE, computed, part, some, weights

NAME, FEW = "zero-3", 4
MANY = 96
# Right answers grow by 59 MB, and by 35 until the forward has ended; those that keep every layer's
# by 108 and 86, every fourth by 60 and 48.
ROOM_BYTES, FORWARD_BYTES = 84e6, 44e6


def scenes(draw):
    """(name, what all ranks are given, what each is given)."""
    for name, ranks, layers, widths, steps, small in (
        ("2 ranks, 2 layers", 2, 2, (6, 8), 2, None),
        ("3 ranks, 3 layers, with padding", 3, 3, (5, 7), 1, None),
        # 9 and 12 numbers, which padding makes equally many
        ("4 ranks, 5 layers, a slow lane", 4, 5, (3,), 1, None),
        ("2 ranks, 4 layers", 2, 4, (6, 7), 1, None),
        ("3 ranks, a layer of one number", 3, 4, (5, 7), 1, 1),
        ("1 rank", 1, 3, (5, 6), 1, None),
        ("2 ranks, 6 layers, twice", 2, 6, (6, 7), 2, None),
        ("3 ranks, the last layer of one number", 3, 4, (5, 7), 1, 3),
        ("3 ranks, 4 layers, twice", 3, 4, (5, 7), 2, None),
        (f"3 ranks, {MANY} large layers", 3, MANY, (254, 258), 1, None),
    ):
        width = draw.choice(widths)
        numels = [1 if at == small else width * (width + at % 2) for at in range(layers)]
        first, *data = (
            {"seed": draw.randrange(2**31), "shapes": shapes}
            for shapes in ([[n] for n in numels], *[[[2, width]] * 2 * steps] * ranks)
        )
        yield name, {"first": first, "slow": "slow" in name}, [{"data": each} for each in data]


def shown(common: dict, own: list[dict], came: list[dict], played) -> dict:
    """Outputs and gradients beside torch's, layers alive beyond two, and how often psi was sent."""
    ranks, row = len(own), {}
    found = [[[tensor(each) for each in step] for step in rank["steps"]] for rank in came]
    for at, right in enumerate(truth(common, own)):
        for what, of_ranks in enumerate(right):
            name = f"layer {what - 1}'s gradient, a rank" if what else "output"
            row[f"wrong numbers of step {at + 1}'s {name}"] = [
                off(each[at][what], number) for each, number in zip(found, of_ranks)
            ]
    for name, what in (("output", slice(1)), ("gradients", slice(1, None))):
        row[f"first numbers of the {name}"] = [
            [each[:FEW] for each in rank[0][what]] for rank in found
        ]
    numels = [n for (n,) in common["first"]["shapes"]]
    lengths = [-(-n // ranks) for n in numels]
    largest = max(n - length for n, length in zip(numels, lengths)) or 1
    for what in (
        "parameters alive in the forward",
        "parameters alive after it",
        "parameters alive in the backward",
        "whole gradients alive in the backward",
    ):
        most = max(each["most"].get(what.replace("alive ", ""), 0) for each in came)
        row[f"layers' {what} beyond two"] = max(0, math.ceil(most / largest) - 2)
    row["saved in earlier steps, and still there"] = [each["kept"] for each in came]
    row["megabytes of a process beyond those of a few layers"] = [
        max(0, round((peak - ROOM_BYTES) / 1e6)) for peak in played.peaks
    ]
    row["megabytes of it when the forward has ended"] = [
        max(0, round((min(each["grown"], peak) - FORWARD_BYTES) / 1e6))
        for each, peak in zip(came, played.peaks)
    ]
    if ranks > 1:
        row |= traffic(played.seen, 8 * sum(lengths) * ranks * len(found[0]))
    return row


def truth(common: dict, own: list[dict]):
    """Of each step: each rank's output, then, of each layer, each rank's part of the gradient."""
    whole, ranks = [p.requires_grad_() for p in weights(common["first"])], range(len(own))
    numbers = [drawn(each["data"]) for each in own]
    for at in range(0, len(numbers[0]), 2):
        outputs = [each[at] for each in numbers]
        for p in whole:
            outputs = [computed(p, x) for x in outputs]
        grads = torch.autograd.grad(outputs, whole, [each[at + 1] / len(own) for each in numbers])
        yield [
            [tensor(some(y.detach())) for y in outputs],
            *([tensor(some(part(g, rank, len(own)))) for rank in ranks] for g in grads),
        ]
        whole = [(p - RATE * g).detach().requires_grad_() for p, g in zip(whole, grads)]


def traffic(seen: list, psi: int) -> dict:
    """How often psi was sent in a step, rounded up: in units of (N-1)/N psi, padded."""
    row, ranks = (
        {"times psi sent in a step, 3 or more": [], "times psi by all-reduces": []},
        len(seen),
    )
    weighs = {"all_reduce": 2, "isend": ranks / (ranks - 1)}
    for calls in seen:
        sent = sum(weighs.get(what, 1) * size for what, _, size in calls)
        reduced = sum(2 * size for what, _, size in calls if what == "all_reduce")
        for times, numbers in zip(row.values(), (max(sent, 3 * psi), reduced)):
            times.append(math.ceil(numbers / psi - 1e-9))
    return row
