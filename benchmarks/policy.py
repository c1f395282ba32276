"""Our operator policy beside torch.autocast, and our loss scaler beside torch's: the same bf16
steps, the same fp16 gradients.

Both policies run on the CPU here, one thread; autocast's tables for the CPU differ from ours (a
softmax stays in bf16 there), so the step's ratio compares whole recipes, and the time of one cheap
operator what a policy itself costs (1.3 us of ours are torch's own price of a function mode). Ten
seconds.
"""

from contextlib import nullcontext

import torch

from bigtrain_lab.models import GPT, GPTConfig, cross_entropy
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler, MixedPrecision, Policy

from .measure import alternating, row

OPERATORS, ROUNDS, WIDTHS = 2000, 21, (64, 256)
SMALLEST = {"OPERATORS": 1, "ROUNDS": 1, "WIDTHS": (8,)}


def rows():
    torch.set_num_threads(1)
    return [*operators(), *steps(), *scalers()]


def operators():
    """The time of an addition of two small tensors inside each context."""
    x = torch.ones(8)

    def many(context):
        with context:
            for _ in range(OPERATORS):
                x + x

    times = alternating(
        ROUNDS,
        plain=lambda: many(nullcontext()),
        ours=lambda: many(Policy(torch.bfloat16)),
        autocast=lambda: many(torch.autocast("cpu", torch.bfloat16)),
    )
    each = {name: taken / OPERATORS * 1e6 for name, taken in times.items()}
    return [
        row(
            "an operator that no table names: ours adds",
            each["ours"] - each["plain"],
            "us",
            at_most=2.5,
        ),
        row("torch.autocast adds", each["autocast"] - each["plain"], "us"),
    ]


def steps():
    """Forward and backward of a transformer in bf16: weights rounded once a step by us, once a use
    (and then kept) by autocast."""
    found = []
    for width in WIDTHS:
        config = GPTConfig(vocabulary=256, sequence=64, width=width, heads=4, layers=2)
        ids = torch.randint(256, (8, 64), generator=torch.Generator().manual_seed(0))

        def step(model, mp, context, ids=ids):
            with context:
                loss = cross_entropy(model(ids), ids)
            mp.backward(loss)
            for parameter in mp.parameters():
                parameter.grad = None

        contenders = {}
        for name, level in (("ours", "bf16"), ("autocast", "fp32"), ("fp32", "fp32")):
            mp = MixedPrecision(level)
            model = mp.prepare(GPT(config))
            context = torch.autocast("cpu", torch.bfloat16) if name == "autocast" else mp
            contenders[name] = lambda model=model, mp=mp, context=context: step(model, mp, context)
        for run in contenders.values():
            run()
        times = alternating(ROUNDS, **contenders)
        found += [
            row(
                f"forward and backward at width {width}: ours over autocast",
                times["ours"] / times["autocast"],
                "times",
                at_most=1.25,
            ),
            row(
                f"forward and backward at width {width}: ours over fp32 on this CPU",
                times["ours"] / times["fp32"],
                "times",
            ),
        ]
    return found


def scalers():
    """Unscale, look for inf and nan, and update 10 million weights in 40 tensors by SGD. torch's
    kernel looks and divides in one pass."""

    def contender(scaler):
        weights = [torch.nn.Parameter(torch.zeros(500, 500)) for _ in range(40)]
        optimizer = torch.optim.SGD(weights, lr=1e-3)
        scaler.scale(torch.ones(()))
        for weight in weights:
            weight.grad = torch.ones_like(weight)

        def step():
            scaler.step(optimizer)
            scaler.update()

        return step

    times = alternating(
        ROUNDS, ours=contender(DynamicLossScaler()), torchs=contender(torch.amp.GradScaler("cpu"))
    )
    return [
        row(
            "scaler's step on 10 M weights: ours over torch's",
            times["ours"] / times["torchs"],
            "times",
            at_most=2,
        )
    ]
