"""ZeRO-1: what is drawn, and what a scene shows beside torch's own optimizer in one process."""

import math

import torch

from ...trainings import flat, held, mean, off, parameters, push, tensor, travelled
from .bench import halves

NAME, FEW = "zero-1", 6
# Numbers whose copies show in a process, and how many it may keep after a step: right answers keep
# 4.1 to 4.4, a buffer makes it 5.4, and the whole state 6.1, wherever it lies.
MANY, MOST = 5 * 10**5, 5.6
STEEP = 30


def scenes(draw):
    """(name, what all ranks are given, what each is given), in the order in which mistakes are
    told."""
    lr, decay = draw.choice((0.01, 0.02, 0.05)), draw.choice((0.02, 0.1))
    moving = {"lr": lr, "momentum": draw.choice((0.8, 0.9))}
    sgd, momentum, adam = ("SGD", {"lr": lr}), ("SGD", moving), ("Adam", {"lr": lr})
    amsgrad = "Adam", {"lr": lr, "amsgrad": True}
    adamw = "AdamW", {"lr": lr, "weight_decay": decay}
    adagrad = "Adagrad", {"lr": lr}  # whose state is there before a step
    other = draw.choice((adam, ("RMSprop", moving)))
    two = [{"weight_decay": decay}, {"lr": 3 * lr, "momentum": 0.5}]
    even, many = [[4, 4], [6], [2, 3]], [[4, 8], [16], [4, 4], [8]]
    odd = [[draw.choice((5, 7)), 3], [draw.choice((11, 13))], [3, 3]]
    large, tiny = [[17, 19], [5], [draw.choice((3, 6))]], [[1], [2], [1]]
    for name, ranks, shapes, rule, more in (
        ("2 ranks, even sizes, SGD", 2, even, sgd, {"steps": 1}),
        ("2 ranks, even sizes, momentum, 3 steps", 2, even, momentum, {}),
        (f"4 ranks, even sizes, {other[0]}", 4, many, other, {}),
        ("3 ranks, odd sizes, Adam", 3, odd, adam, {}),
        ("4 ranks, one large parameter, Adagrad", 4, large, adagrad, {}),
        ("5 ranks, 4 numbers in all", 5, tiny, momentum, {}),
        ("2 ranks, a frozen parameter, AdamW", 2, odd, adamw, {"frozen": 1}),
        ("3 ranks, two groups", 3, odd, momentum, {"groups": two}),
        (
            "2 ranks, a frozen parameter in the second group",
            2,
            odd,
            momentum,
            {"groups": two, "frozen": 2},
        ),
        ("3 ranks, clipped", 3, odd, momentum, {"clip": 0.3}),
        ("2 ranks, two groups, clipped", 2, odd, momentum, {"groups": two, "clip": 0.3}),
        ("5 ranks, a norm below max_norm", 5, tiny, momentum, {"clip": 3.0}),
        ("2 ranks, max_norm 0", 2, large[:1], adamw, {"clip": 0.0}),
        ("1 rank, clipped", 1, odd, momentum, {"clip": 0.3}),
        ("4 ranks, 500,000 numbers", 4, [[500, 1000]], amsgrad, {"steps": 1, "every": 1009}),
    ):
        first, *targets = [
            {"seed": draw.randrange(2**31), "shapes": shapes} for _ in range(1 + ranks)
        ]
        yield name, given(first, targets, *rule, **more), [{"targets": each} for each in targets]


def given(
    first, targets, optimizer, settings, clip=None, frozen=None, groups=(), steps=3, every=1
) -> dict:
    """clip: max_norm as a share of the first gradient's norm; gradients are then about 10^-2, and
    rates so much larger, so that torch's 1e-6 beside the norm shows; SGD's steps are then about
    1, so that a norm in float32 shows too."""
    scale = 1.0 if clip is None else 1e-2
    rate = 1 / scale if clip is None or optimizer != "SGD" else STEEP / scale
    slower = [
        dict(each, lr=each["lr"] * rate) if "lr" in each else dict(each)
        for each in (settings, *groups)
    ]
    norm = 0.0
    if clip is not None:
        push(params := parameters(first, frozen), mean(targets), scale)
        norm = float(flat(p.grad for p in params if p.requires_grad).norm())
    return {
        "first": first,
        "frozen": frozen,
        "optimizer": optimizer,
        "settings": slower[0],
        "groups": slower[1:],
        "clip": clip if clip is None else clip * norm,
        "scale": scale,
        "steps": steps,
        "every": every,
    }


def shown(common: dict, own: list[dict], came: list[dict], played) -> dict:
    """A scene's row: what came out on each rank, and what the ranks that played sent, beside
    the truth."""
    params, right = parameters(common["first"], common["frozen"]), []
    inner = getattr(torch.optim, common["optimizer"])(
        halves(params, common["groups"]), **common["settings"]
    )
    targets = mean([each["targets"] for each in own])
    for _ in range(common["steps"]):
        push(params, targets, common["scale"])
        if common["clip"] is not None:
            torch.nn.utils.clip_grad_norm_(params, common["clip"])
        inner.step()
        right.append(flat(params)[:: common["every"]])
    psi, ranks = sum(p.numel() for p in params if p.requires_grad), len(own)
    ours = [[tensor(each) for each in rank["weights"]] for rank in came]
    row = {
        f"wrong numbers after step {at + 1}": [off(each[at], truth) for each in ours]
        for at, truth in enumerate(right)
    }
    row["first weights"] = [each[-1][:FEW] for each in ours]
    room = held([inner]) / psi * (psi / ranks + len(params))
    for name, key in (("after a step", "kept"), ("at the highest moment", "most")):
        row[f"numbers of state beyond 1/{ranks}, {name}"] = [
            max(0, math.ceil(each[key] - room - 1e-9)) for each in came
        ]
    room = (ranks - 1) / ranks * (psi + ranks * len(params)) + 2 * len(params)
    sent = [
        [numbers / common["steps"] for numbers in travelled(each, ranks)] for each in played.seen
    ]
    for at, when in enumerate(("before the optimizer's step", "after it")):
        row[f"numbers sent a step {when} beyond psi"] = [
            max(0, round(each[at] - room)) for each in sent
        ]
    if psi >= MANY:
        row["ranks whose process keeps the state of others, wherever it lies"] = sum(
            kept > MOST * 8 * psi for kept in played.kept
        )
    return row
