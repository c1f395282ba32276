"""The numbers of lesson 03 on the storyboards' model: what 16 and 8 bits lose of T1's gradients,
and which steps do not move its weights.

T1 as in benchmarks/accumulate.py: trained in float32 for 300 steps, then one more batch. Activation
gradients are those of the outputs of each Linear and block, as in the lab `precision`; shares are
of the nonzero ones. All of it is deterministic on one machine.
"""

from types import SimpleNamespace

import torch

from bigtrain_lab.core.formats import Exponents
from bigtrain_lab.experiments.precision import seen_gradients
from bigtrain_lab.models import cross_entropy
from bigtrain_lab.runtime.record.exponents import exponents
from bigtrain_lab.techniques.precision_limits import (
    adam_first_step,
    gradient_of,
    running_sum,
    tanh_gelu,
    unmoved,
)

from .accumulate import STEPS, trained
from .measure import row

SCALES = (0, 3, 7, 16, 20)  # powers of two
SMALLEST = {"steps": 1}


def rows(steps: int = STEPS):
    return [*gradients(steps), *limits()]


def gradients(steps: int):
    *_, (model, (inputs, targets)) = trained(steps)
    seen: list[Exponents] = []
    with seen_gradients(
        model, SimpleNamespace(histogram=lambda name, gradient: seen.append(exponents(gradient)))
    ):
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
    activations = Exponents.merged(seen)
    weights = Exponents.merged(exponents(p.grad) for p in model.parameters())
    yield row(f"T1 after {steps} steps: loss", loss.item(), "")
    for name, found in (("weight gradients", weights), ("activation gradients", activations)):
        yield row(f"{name}", found.nonzero, "nonzero")
        for scale in SCALES:
            share = found.shares("fp16", scale)
            for fate in ("zero", "subnormal", "overflow"):
                yield row(
                    f"{name} times {2**scale:,} in fp16: {fate}", 100 * getattr(share, fate), "%"
                )
        for format in ("bf16", "fp8 e5m2", "fp8 e4m3"):
            yield row(f"{name} in {format}: zero", 100 * found.shares(format).zero, "%")
    for step in (1e-4, 1e-5):
        for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
            yield row(
                f"weights that a step of {step:g} does not move in {name}",
                100 * unmoved(model.parameters(), step, dtype),
                "%",
            )


def limits():
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        yield row(f"1 + 1 + ... stalls at, in {name}", running_sum(1.0, 4096, dtype)[-1].item(), "")
    yield row(
        "0.001 added 10,000 times in fp16", running_sum(0.001, 10_000, torch.float16)[-1].item(), ""
    )
    yield row("Adam's eps of 1e-9 in fp16", torch.tensor(1e-9, dtype=torch.float16).item(), "")
    yield row(
        "Adam's first step in fp16 at eps 1e-9 and a gradient of 1e-2, lr 1",
        adam_first_step(1e-2, torch.float16),
        "",
    )
    x = torch.tensor([-300.0], dtype=torch.float16)
    yield row("tanh-GELU of -300 in fp16", tanh_gelu(x).item(), "")
    yield row(
        "its gradient is no number (1: so it is)",
        float(gradient_of(tanh_gelu, x).isnan().item()),
        "",
        at_least=1,
    )
