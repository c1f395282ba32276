"""What is wrong with a loss scaler, or with an operator policy, of one's own: the mistake, then the mend.

A scaler is fed gradients that are known exactly, so each mistake leaves its own number: S times too far, 1/S of it, nothing at all.
At last random sequences of finite, inf and nan gradients are compared with torch.amp.GradScaler, two optimizers at a time. A
policy is asked for values that exist in one type only: exp(12) and a sum of 70,000 ones are inf in fp16.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.nn import functional as F

from ..core import Impossible

SCALE, INTERVAL, SEQUENCES, LENGTH = 1024.0, 3, 40, 8
SLOPE = 0.125
SMALL = 2.0**-30  # a float32 gradient that fp16 does not hold


def scaler_findings(make: Callable) -> list[str]:
    """Sentences about `make(init_scale=, growth_factor=, backoff_factor=, growth_interval=)`, a class with torch's .scale,
    .unscale_, .step, .update, .get_scale, .state_dict and .load_state_dict; empty when right."""
    try:
        return dividing(make) or skipping(make) or changing(make) or sharing(make) or resuming(make) or parity(make)
    except Exception as error:  # a student's code: whatever it raises is a finding
        return [f"Your scaler raised {type(error).__name__}: {error}. Call it alone, with one weight and one optimizer."]


class Bench:
    """Two weights at 0 with an optimizer each (plain SGD, rate 1), under one scaler."""

    def __init__(self, make: Callable):
        self.scaler = make(init_scale=SCALE, growth_factor=2.0, backoff_factor=0.5, growth_interval=INTERVAL)
        self.weights = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
        self.optimizers = [torch.optim.SGD([weight], lr=1.0) for weight in self.weights]

    def step(self, *slopes: float, unscale: bool = False) -> tuple[float, ...]:
        """A step of the first len(slopes) optimizers, whose weights have these gradients; how far each went."""
        before = [w.detach().clone() for w in self.weights]
        loss = sum((weight * slope).sum() for weight, slope in zip(self.weights, slopes))
        self.scaler.scale(loss).backward()
        taking_part = self.optimizers[:len(slopes)]
        for optimizer in taking_part if unscale else ():
            self.scaler.unscale_(optimizer)
        for optimizer in taking_part:
            self.scaler.step(optimizer)
        self.scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return tuple((b - w.detach())[0].item() for b, w in zip(before, self.weights))

    @property
    def scale(self) -> float:
        return float(self.scaler.get_scale())


def dividing(make: Callable) -> list[str]:
    bench = Bench(make)
    if float(bench.scaler.scale(torch.tensor(3.0))) != 3 * SCALE:
        return [f"scale(loss) must be the loss times the scale: of 3 it gave {float(bench.scaler.scale(torch.tensor(3.0))):g}, not {3 * SCALE:g}."]
    moved = Bench(make).step(SLOPE)[0]
    if moved == SCALE * SLOPE:
        return [f"The first gradient is exactly {SCALE:,.0f} times too large: let step divide it where unscale_ was not called."]
    if moved == 0:
        return ["A good step moved nothing: call optimizer.step() where all gradients are finite."]
    by_hand = Bench(make).step(SLOPE, unscale=True)[0]
    if by_hand == SLOPE / SCALE:
        return [f"After unscale_ the step was 1/{SCALE:,.0f} of the gradient: step divided again. Remember, for each optimizer, that it was unscaled."]
    if Bench(make).step(SMALL)[0] == 0:
        return ["Dividing in fp16 sends the small gradients back to zero: convert to float32 first, then divide."]
    if (moved, by_hand) != (SLOPE, SLOPE):
        return [f"A gradient of {SLOPE} moved its weight by {moved:g} and, after unscale_, by {by_hand:g}: at learning rate 1 it must be {SLOPE} both times."]
    return []


def skipping(make: Callable) -> list[str]:
    for broken, other in ((math.inf, "nan"), (math.nan, "inf"), (-math.inf, "nan")):
        for unscale in (False, True):
            bench = Bench(make)
            moved = bench.step(broken, unscale=unscale)[0]
            if moved != 0:
                return [f"The weights hold {'nan' if math.isnan(moved) else 'inf'} after a gradient of {broken}: skip the step when any gradient is not finite, "
                        f"{broken} as well as {other}{', also after unscale_' if unscale else ''}."]
            if bench.scale != SCALE / 2:
                return [f"After a gradient of {broken} the scale went from {SCALE:,.0f} to {bench.scale:,.0f}: multiply it by backoff_factor."]
    return []


def changing(make: Callable) -> list[str]:
    bench, seen = Bench(make), []
    for _ in range(2 * INTERVAL):
        bench.step(SLOPE)
        seen.append(bench.scale / SCALE)
    right = [1.0] * (INTERVAL - 1) + [2.0] * INTERVAL + [4.0]
    if set(seen) == {1.0}:
        return [f"{2 * INTERVAL} good steps and the scale did not double: multiply it by growth_factor after every {INTERVAL} (growth_interval)."]
    if seen != right:
        return [f"Over {2 * INTERVAL} good steps the scale was {seen} times its first: with growth_interval={INTERVAL} it must be {right}."]
    bench = Bench(make)
    for slope in [SLOPE] * (INTERVAL - 1) + [math.inf, SLOPE]:
        bench.step(slope)
    return ["A skipped step must set the growth count to 0."] if bench.scale != SCALE / 2 else []


def sharing(make: Callable) -> list[str]:
    bench = Bench(make)
    moved = bench.step(math.inf, SLOPE)
    if moved != (0, SLOPE):
        return ["One optimizer's inf stopped another whose gradients were finite, or was stepped on: keep what you found for each optimizer."]
    return [] if bench.scale == SCALE / 2 else [f"One of two optimizers skipped and the scale is {bench.scale:,.0f}: update() backs off once, to {SCALE / 2:,.0f}."]


def resuming(make: Callable) -> list[str]:
    bench, again = Bench(make), Bench(make)
    for _ in range(INTERVAL - 1):
        bench.step(SLOPE)
    again.scaler.load_state_dict(bench.scaler.state_dict())
    bench.step(SLOPE), again.step(SLOPE)
    return [] if bench.scale == again.scale == 2 * SCALE else [
        f"Saved after {INTERVAL - 1} good steps and loaded, the scale did not double at the next: keep the growth count in the state dict."]


def parity(make: Callable) -> list[str]:
    draw = torch.Generator().manual_seed(1)
    for number in range(SEQUENCES):
        mine, torchs = Bench(make), Bench(lambda **given: torch.amp.GradScaler("cpu", **given))
        for step in range(LENGTH):
            fates = torch.rand(1 + int(torch.randint(2, (), generator=draw)), generator=draw).tolist()
            slopes = [math.inf if fate < 0.1 else math.nan if fate < 0.2 else fate for fate in fates]
            unscale = bool(torch.rand((), generator=draw) < 0.5)
            mine.step(*slopes, unscale=unscale), torchs.step(*slopes, unscale=unscale)
            if mine.scale != torchs.scale or not all(map(torch.equal, mine.weights, torchs.weights)):
                return [f"Sequence {number}, step {step}, gradients {slopes}: the scale is {mine.scale:,.0f} and torch's {torchs.scale:,.0f}. Compare your "
                        "rule with techniques/loss_scaler.py."]
    return []


# -- a policy -------------------------------------------------------------------------------------------------------------


def policy_findings(make: Callable[[torch.dtype], AbstractContextManager]) -> list[str]:
    """Sentences about `make(torch.float16)`, a context in which products are float16 and the rest is as safe as it was."""
    half = torch.ones(4, 4, dtype=torch.float16)
    try:
        with make(torch.float16):
            product, power = (half.float() @ half.float()).dtype, (12 * half).exp()
            soft, total, loss = F.softmax(half, -1).dtype, torch.ones(70_000, dtype=torch.float16).sum(), F.cross_entropy(half, torch.arange(4)).dtype
            norm, mixed, ids = F.layer_norm(half, (4,)).dtype, (half + half.float()).dtype, torch.tensor([2049]).sum()
    except Impossible as error:
        return [str(error)]
    except Exception as error:  # a student's code, or what its casts did to torch's
        return [f"Under your policy torch raised {type(error).__name__}: {error}. Cast floating tensors only, and all of an operator's to one type."]
    if product != torch.float16:
        return [f"A product of float32 matrices stayed in {str(product)[6:]}: nothing is gained. Cast both to float16 first."]
    if not power.isfinite().all() or soft != torch.float32:
        return ["exp above 11.09 is inf in fp16: softmax and long sums in float32."]
    if not total.isfinite():
        return ["A sum of 70,000 ones is inf in fp16, whose largest number is 65,504: softmax and long sums in float32."]
    if (loss, norm) != (torch.float32, torch.float32):
        return [f"A loss came out in {str(loss)[6:]} and a norm in {str(norm)[6:]}: both sum many terms, so compute them in float32."]
    if mixed != torch.float32:
        return ["float16 + float32 came out in float16: take the widest type of an operator's tensors."]
    return [] if ids.dtype == torch.int64 else ["Ids were cast: 2,049 and every odd number above it are not in fp16. Leave integers and bools alone."]
