"""The update of mixed precision: from scaled half gradients to float32 masters, and back to half
weights.

    g = float32(half gradient) / S
    any g not finite       nothing moves, S <- S / 2, streak <- 0
    else                   clip the g's to one norm, step once, weight <- half(master), and
                           S <- 2 S after growth_interval good steps

Gradients are small multiples of powers of two, which half holds at every scale here, so a move is
known to rounding; clip / norm and torch's clip / (norm + 1e-6) are both right. Source:
Micikevicius et al. 2018 (arXiv:1710.03740), sections 3.1 and 3.2.
"""

import math
from itertools import chain, product

from ...trainings import by_step
from .bench import SHAPES

NAME, NEAR = "master-weights", 3e-4
FORBIDS = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler")
SIZES, INF, NAN = [math.prod(shape) for shape in SHAPES], math.inf, math.nan


def scenes(draw):
    scale, n = 2.0 ** draw.randint(8, 12), draw.randint(3, 4)
    told = f"scale {scale:,g}"

    def step(start=None, broken=None, place=-1, clip=1e30, fill=None, unit=2.0**-6, idle=False):
        """`start`: scale and streak. `clip`: of the gradients' norm. `fill`: all gradients."""
        gradients = [
            [draw.choice((-1, 1)) * draw.randint(1, 8) * unit for _ in range(size)]
            if fill is None
            else [fill] * size
            for size in SIZES
        ]
        if idle:
            gradients[1] = None
        norm = math.hypot(*chain(*filter(None, gradients)))
        if broken is not None:
            gradients[place][place] = broken
        return {"gradients": gradients, "start": start, "clip": clip * norm or clip}

    def good(times=1, first=scale, **options):
        """Good steps, from this scale on."""
        return [step(None if at else (first, 0), **options) for at in range(times)]

    def scene(name, steps, wide=1, **options):
        return name, {
            "masters": [[wide * draw.gauss(0, 1) for _ in range(size)] for size in SIZES],
            "steps": steps,
            **options,
        }

    interval, least, momentum = {"interval": n}, max(scale, 1024.0), {"momentum": 0.5}
    for name, steps, more in (
        (f"one good step, {told}", good(), {}),
        (
            f"a gradient of 2^-26, which fp16 does not hold, scale {least:,g}",
            good(first=least, fill=2.0**-26),
            {"wide": 0},
        ),
        (
            "one good step, a scale of 2^25, whose inverse fp16 does not hold",
            good(first=2.0**25, unit=2.0**-20),
            {"wide": 0},
        ),
        (
            f"two good steps, scales {scale:,g} and {2 * scale:,g}",
            good() + good(first=2 * scale),
            {},
        ),
        *(
            (
                f"a norm of {1 / share:.3g} times the norm allowed, {told}",
                good(clip=share, unit=2.0**-3),
                {},
            )
            for share in (0.125, 0.8, 1.5, 4.0)
        ),
        (
            f"two good steps, a weight without a gradient, {told}",
            good(2, clip=0.5, idle=True),
            momentum,
        ),
        (
            f"a weight that takes part in every other step, weight decay, {told}",
            [*good(clip=0.5), step(clip=0.5, idle=True), step(clip=0.5), step(idle=True)],
            momentum | {"decay": 0.125},
        ),
        (
            f"gradients that are all 0 after a good step, {told}",
            [*good(), step(fill=0.0), step()],
            momentum,
        ),
        *(
            (
                f"a good step, one with {broken} in a gradient, a good one, {told}",
                [*good(), step(None, broken, place), step()],
                momentum,
            )
            for broken, place in product((INF, NAN, -INF), (-1, 0, 1))
        ),
        (f"half gradients of 60,000, {told}", good(fill=60_000 / scale), {}),
        (f"{2 * n + 1} good steps, growth_interval={n}, {told}", good(2 * n + 1), interval),
        (
            f"a skipped step just before the scale would double, growth_interval={n}, {told}",
            [*good(n - 1), step(None, INF), *good(n + 2)[1:]],
            interval,
        ),
        (
            f"streak={n - 1} and growth_interval={n}, {told}",
            [step((scale, n - 1)), step()],
            interval,
        ),
        (
            "7 skipped steps, then a good one, scale 4",
            [step((4.0, 0), NAN), *(step(None, INF) for _ in range(6)), step()],
            {},
        ),
        (
            "6 good steps, growth_interval=1, scale 16,384",
            good(6, first=16384.0, unit=2.0**-14),
            {"interval": 1},
        ),
    ):
        yield scene(name, steps, **more)
    for _ in range(4):
        first, n = draw.choice((1.0, 1024.0, 65536.0)), draw.randint(1, 4)
        idle = draw.random() < 0.5
        steps = [
            step(
                None if at else (first, 0),
                draw.choice((INF, NAN, -INF)) if draw.random() < 0.3 else None,
                draw.randint(-1, 0),
                clip=draw.choice((0.5, 2.0)),
                unit=2.0**-3 if first == 1 else 2.0**-10,
                idle=idle,
            )
            for at in range(8)
        ]
        yield scene(
            f"8 steps drawn, clipped by half or not, growth_interval={n}, scale {first:,g}",
            steps,
            momentum=0.5,
            interval=n,
        )


def shown(inputs: dict, came: list[dict]) -> dict:
    return by_step(came)
