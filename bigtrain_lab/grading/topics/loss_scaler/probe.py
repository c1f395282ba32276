"""A dynamic loss scaler, as a class with torch's methods.

    scale(loss) = S loss     unscale_: p.grad / S     step: skipped where a gradient is not finite
    update: S x backoff_factor after a skipped step, S x growth_factor after growth_interval good
            ones

Powers of two are divided exactly, so every number is compared bit for bit. Source:
torch.amp.GradScaler.
"""

import math
from itertools import product

from ...trainings import by_step

NAME, NEAR = "loss-scaler", 0.0
FORBIDS = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler")
INF, NAN, LEFT = math.inf, math.nan, "gradients, where they were"


def scenes(draw):
    up, down = draw.choice(((4.0, 0.125), (8.0, 0.25), (16.0, 0.125)))
    n, first = draw.randint(2, 4), 2.0 ** draw.randint(8, 13)
    usual = {
        "init_scale": first,
        "growth_factor": up,
        "backoff_factor": down,
        "growth_interval": n,
    }
    slope = draw.randrange(2**20 + 1, 2**22, 2) / 2**25  # more digits than 16 bits hold
    good, both, bad = step([slope]), step([slope, slope]), step([INF], rest=slope)
    left = step([slope, INF], True)[:1] + [[0, "end", 1]]
    still = step([slope, slope], True)[:1] + [[0, "end", 0]]
    begun, early = step([INF], True, rest=slope)[:1], [[0, "end", 1, True]]
    clipped, broken_late = [[0, "change", -1.0, 1.0]], [[0, "change", NAN, NAN]]
    used = [*bad, [0, "save"], *of_another(good), [1, "load"], *of_another(good) * (n + 1)]
    begins, ends = zip(step([slope], True), of_another(step([slope], True)))
    saved = [*bad, *good, [0, "save"], *good * 5, [0, "save"]]
    loaded = [
        event
        for number in (1, 2)
        for event in ([number, "load"], *of_another(good, number) * (n + 1))
    ]
    for name, events, more in (
        ("one step", good, {"idle": False}),
        ("one step, one parameter without a gradient", good, {}),
        ("one step after unscale_", step([slope], True), {}),
        ("a gradient that fp16 does not hold", step([2.0**-30]), {}),
        *(
            (
                f"two steps, unscale_ called in the first: {one}, in the second: {other}",
                step([slope], one) + step([slope], other),
                {},
            )
            for one, other in product((True, False), repeat=2)
        ),
        *(
            (
                f"a gradient with {broken} after a good step{', unscaled' * unscale}, then a good"
                " one",
                [*good, *step([broken], unscale, place, slope), *good],
                {"momentum": 0.5},
            )
            for broken, place, unscale in product((INF, NAN, -INF), (-1, 2), (False, True))
        ),
        ("a gradient of 1,000, then of 0", step([1000.0]) + step([0.0]), {"momentum": 0.5}),
        ("gradients whose sum float32 does not hold", step([2.0**127 / first]), {}),
        (f"{2 * n + 1} good steps", good * (2 * n + 1), {}),
        (f"{2 * n + 1} good steps of two optimizers", both * (2 * n + 1), {}),
        (
            "a skipped step just before the scale would grow",
            [*good * (n - 1), *bad, *good * n],
            {},
        ),
        *(
            (
                f"two optimizers with gradients {one:g} and {other:g}",
                step([one, other], rest=slope) + both,
                {},
            )
            for one, other in ((INF, slope), (slope, INF), (INF, NAN))
        ),
        ("two optimizers, unscaled, one with an inf and without a step", [*left, *both], {}),
        ("two optimizers, unscaled, and no step", [*still * (n + 1), *both], {}),
        ("many skipped steps", [*bad * 9, *good], {}),
        ("an inf, clipped after unscale_", [*begun, *clipped, [0, "end"], *good], {}),
        ("a nan after unscale_", [*step([slope], True)[:1], *broken_late, [0, "end"]], {}),
        ("an inf, and gradients zeroed before update", [*bad[:1], *early, *good], {}),
        (
            "a scale below 1, saved",
            [*bad * 12, [0, "save"], [1, "load"], *of_another(good)],
            {"trainings": 2},
        ),
        ("many good steps", good * 6 * n, {}),
        ("two scalers in turns", [*good, *of_another(bad)] * 2 * n, {"trainings": 2}),
        ("two scalers at once", [*begins, *ends], {"trainings": 2}),
        ("a scaler saved after 1 skipped and 1 good step", saved + loaded, {"trainings": 3}),
        ("a scaler saved after a skipped step, loaded by one in use", used, {"trainings": 2}),
    ):
        yield scene(name, usual, events, **more)
    one = usual | {"init_scale": 1.0}  # which leaves gradients as large as they were
    yield scene("gradients whose sum float32 does not hold", one, step([2.0**127]))
    high = usual | {"init_scale": 2.0**31, "growth_interval": 1}
    yield scene("a scale that grows past 2^32", high, good * 3)
    for interval in range(1, 5):
        rule = usual | {
            "growth_interval": interval,
            "init_scale": draw.choice((1.0, 1024.0, 65536.0)),
        }
        events = []
        for _ in range(8):
            slopes = draw.choices((slope, -slope, INF, NAN), (4, 4, 1, 1), k=2)
            events += step(slopes, draw.random() < 0.5, draw.randint(-1, 0), slope)
        yield scene("8 steps drawn", rule, events, momentum=0.5)


def scene(name: str, rule: dict, events: list, **options) -> tuple[str, dict]:
    told = ", ".join(f"{each}={value:g}" for each, value in rule.items())
    return f"{name}, {told}", {"rule": rule, "events": events, **options}


def step(slopes, unscale=False, place=-1, rest=0.125) -> list[list]:
    """A step's events. Five equal gradients an optimizer; where not finite, one, and `rest`."""
    gradients = [[slope if math.isfinite(slope) else rest] * 5 for slope in slopes]
    for each, slope in zip(gradients, slopes):
        each[place] = slope
    return [[0, "begin", gradients, unscale], [0, "end"]]


def of_another(events: list, number: int = 1) -> list[list]:
    return [[number, *event[1:]] for event in events]


def shown(inputs: dict, came: list[dict]) -> dict:
    """Each step; its gradients after it, where they are finite."""
    for each in came:
        each[LEFT] = [left for left in each[LEFT] if left is None or all(map(math.isfinite, left))]
    return by_step(came)
