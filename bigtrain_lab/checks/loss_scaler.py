"""What is wrong with a loss scaler of one's own: the mistake, then the mend.

It is fed gradients that are known exactly, so each mistake leaves its own number: S times too far, 1/S of it, nothing at all. Each
optimizer has two groups, a parameter without a gradient, and momentum; a broken gradient is broken in one number. The optimizers'
calls are counted. At last random sequences of good and broken gradients are compared with torch.amp.GradScaler, bit for bit, since
a division by a power of two is exact.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from .findings import Wrong, first_finding

SCALE, INTERVAL, SEQUENCES, LENGTH = 1024.0, 3, 40, 8
FACTORS = ((2.0, 0.5), (4.0, 0.25))  # growth and backoff
BROKEN = (math.inf, math.nan, -math.inf)
SLOPE, MOMENTUM = 0.125, 0.5
SMALL = 2.0**-30  # a float32 gradient that fp16 does not hold


def scaler_findings(make: Callable) -> list[str]:
    """Sentences about `make(init_scale=, growth_factor=, backoff_factor=, growth_interval=)`, a class with torch's .scale,
    .unscale_, .step, .update, .get_scale, .state_dict and .load_state_dict; empty when right."""
    checks = (dividing, again, skipping, changing, sharing, resuming, parity)
    return first_finding((partial(check, make) for check in checks), "Your scaler", "Call it alone, with one weight and one optimizer.")


class Bench:
    """Two optimizers (SGD, rate 1) under one scaler, each with two groups: a weight of 2 numbers; one without a gradient and one of 3."""

    def __init__(self, make: Callable, factors=FACTORS[0], interval: int = INTERVAL, scale: float = SCALE, momentum: float = 0.0, idle: bool = True):
        self.scaler = make(init_scale=scale, growth_factor=factors[0], backoff_factor=factors[1], growth_interval=interval)
        self.weights = [[nn.Parameter(torch.zeros(size)) for size in (2, 3)] for _ in range(2)]
        groups = [([first], [nn.Parameter(torch.zeros(1)), second] if idle else [second]) for first, second in self.weights]
        self.optimizers = [torch.optim.SGD([{"params": group} for group in pair], lr=1.0, momentum=momentum) for pair in groups]
        self.steps = [0, 0]  # calls of each optimizer.step() in the last step
        for number, optimizer in enumerate(self.optimizers):
            optimizer.register_step_pre_hook(lambda *given, number=number: self.count(number))

    def count(self, number: int) -> None:
        self.steps[number] += 1

    def step(self, *slopes: float, unscale: bool = False, place: int = -1) -> tuple[Tensor, ...]:
        """A step of the first len(slopes) optimizers, whose weights have these gradients; how far the 5 numbers of each went.
        A slope that is not finite is that of one number, at this place, and the others' is SLOPE."""
        before = [torch.cat(pair).detach() for pair in self.weights]
        self.steps = [0, 0]
        self.scaler.scale(sum((torch.cat(pair) * five(slope, place)).sum() for pair, slope in zip(self.weights, slopes))).backward()
        taking_part = self.optimizers[:len(slopes)]
        for optimizer in taking_part if unscale else ():
            self.scaler.unscale_(optimizer)
        for optimizer in taking_part:
            self.scaler.step(optimizer)
        self.scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return tuple(b - torch.cat(pair).detach() for b, pair in zip(before, self.weights))

    @property
    def scale(self) -> float:
        return float(self.scaler.get_scale())


def five(slope: float, place: int = -1) -> Tensor:
    slopes = torch.full((5,), slope if math.isfinite(slope) else SLOPE)
    slopes[place] = slope
    return slopes


def dividing(make: Callable) -> None:
    bench = Bench(make)
    if (three := float(bench.scaler.scale(torch.tensor(3.0)))) != 3 * SCALE:
        raise Wrong(f"scale(loss) must be the loss times the scale: of 3 it gave {three:g}, not {3 * SCALE:g}.")
    Bench(make, idle=False).step(SLOPE)
    try:
        moved, by_hand = Bench(make).step(SLOPE)[0], Bench(make).step(SLOPE, unscale=True)[0]
    except Exception as error:
        raise Wrong(f"With a parameter that has no gradient your scaler raised {type(error).__name__}: {error}. Leave out those with p.grad None.") from error
    for went in (moved, by_hand):
        if len(set(went.tolist())) > 1:
            raise Wrong(f"Gradients of {SLOPE} moved the parameters of one optimizer by {' and '.join(f'{far:g}' for far in sorted(set(went.tolist())))}: "
                        "divide in every group of optimizer.param_groups, every parameter.")
    moved, by_hand = moved[0].item(), by_hand[0].item()
    if moved == SCALE * SLOPE:
        raise Wrong(f"The first gradient is exactly {SCALE:,.0f} times too large: let step divide it where unscale_ was not called.")
    if moved == 0:
        raise Wrong("A good step moved nothing: call optimizer.step() where all gradients are finite.")
    if by_hand == SLOPE / SCALE:
        raise Wrong(f"After unscale_ the step was 1/{SCALE:,.0f} of the gradient: step divided again. Remember, for each optimizer, that it was unscaled.")
    if Bench(make).step(SMALL)[0][0] == 0:
        raise Wrong("Dividing in fp16 sends the small gradients back to zero: convert to float32 first, then divide.")
    if (moved, by_hand) != (SLOPE, SLOPE):
        raise Wrong(f"A gradient of {SLOPE} moved its weight by {moved:g} and, after unscale_, by {by_hand:g}: at learning rate 1 it must be {SLOPE} both times.")


def again(make: Callable) -> None:
    """A second step is as the first, whether unscale_ is called or not."""
    for ways in ((True, True), (True, False), (False, True), (False, False)):
        bench = Bench(make)
        bench.step(SLOPE, unscale=ways[0])
        try:
            moved = bench.step(SLOPE, unscale=ways[1])[0][0].item()
        except Exception as error:
            raise Wrong(f"In the second step your scaler raised {type(error).__name__}: {error}. Forget, in update(), which optimizers were unscaled.") from error
        if moved != SLOPE:
            raise Wrong(f"In the second step a gradient of {SLOPE} moved its weight by {moved:g}: forget, in update(), which optimizers were unscaled.")


def skipping(make: Callable) -> None:
    """After a good step, so that there is momentum."""
    for broken, unscale, place in ((broken, unscale, place) for broken in BROKEN for unscale in (False, True) for place in (-1, 0)):
        bench = Bench(make, momentum=MOMENTUM)
        bench.step(SLOPE)
        moved = bench.step(broken, unscale=unscale, place=place)[0]
        if bench.steps[0] and (moved == MOMENTUM * SLOPE).all():
            raise Wrong(f"After a gradient of {broken} optimizer.step() was called with zeros: its momentum moves the weights all the same. Do not call it "
                        "where you skip.")
        if moved.isnan().any() or moved.any():
            now = "hold nan" if moved.isnan().any() else "hold inf" if moved.isinf().any() else "moved"
            raise Wrong(f"The weights {now} after a gradient of {broken}: skip the step when any gradient is not finite, {broken} as well as "
                        f"{'inf' if broken != math.inf else 'nan'}{', also after unscale_' if unscale else ''}. Look at every number of every parameter.")
        if bench.steps[0]:
            raise Wrong(f"After a gradient of {broken} optimizer.step() was called: an optimizer may move or count without gradients, so do not call it "
                        "where you skip.")
        if bench.scale != SCALE / 2:
            raise Wrong(f"After a gradient of {broken} the scale went from {SCALE:,g} to {bench.scale:,g}: multiply it by backoff_factor.")
        if not (moved := bench.step(SLOPE)[0]).equal(five((1 + MOMENTUM) * SLOPE)):
            raise Wrong(f"After a skipped step a gradient of {SLOPE} moved its weight by {moved[0].item():g}, with its momentum, and not by "
                        f"{(1 + MOMENTUM) * SLOPE:g}: forget, in update(), what was found, and keep the optimizer's state.")
    if Bench(make).step(1000.0)[0][0] != 1000:
        raise Wrong(f"A scaled gradient of {1000 * SCALE:,.0f} was no good step: float32 holds it, so skip for inf and nan alone.")


def changing(make: Callable) -> None:
    for factors in FACTORS:
        (growth, backoff), right = factors, [1.0] * (INTERVAL - 1) + [factors[0]] * INTERVAL + [factors[0] ** 2]
        for slopes in ((SLOPE,), (SLOPE, SLOPE)):
            bench, seen = Bench(make, factors), []
            for _ in right:
                bench.step(*slopes)
                seen.append(bench.scale / SCALE)
            if len(slopes) == 1 and set(seen) == {1.0}:
                raise Wrong(f"{len(right)} good steps and the scale did not grow: multiply it by growth_factor after every {INTERVAL} (growth_interval).")
            if seen != right:
                mend = ("count in update(), once for all optimizers" if len(slopes) > 1 else "multiply it by growth_factor, not by a number of your own"
                        if factors != FACTORS[0] else "multiply it when the count reaches growth_interval, and begin to count anew")
                raise Wrong(f"Over {len(right)} good steps of {('one optimizer', 'two optimizers')[len(slopes) - 1]} the scale was {seen} times its first and "
                            f"must be {right} with growth_interval={INTERVAL} and growth_factor={growth:g}: {mend}.")
        bench = Bench(make, factors)
        for slope in [SLOPE] * (INTERVAL - 1) + [math.inf]:
            bench.step(slope)
        if bench.scale != SCALE * backoff:
            raise Wrong(f"With backoff_factor={backoff:g} a skipped step took the scale from {SCALE:,g} to {bench.scale:,g}: multiply it by backoff_factor.")
        bench.step(SLOPE)
        if bench.scale != SCALE * backoff:
            raise Wrong("A skipped step must set the growth count to 0.")


def sharing(make: Callable) -> None:
    for slopes, unscale in ((slopes, unscale) for slopes in ((math.inf, SLOPE), (SLOPE, math.inf), (math.inf, math.nan)) for unscale in (False, True)):
        bench = Bench(make)
        for slope, moved in zip(slopes, bench.step(*slopes, unscale=unscale)):
            if slope == SLOPE and (moved == 2 * SLOPE).all():
                raise Wrong("One optimizer's inf changed the scale before another was divided by it: change the scale in update(), not before.")
            if not moved.equal(five(SLOPE) if slope == SLOPE else torch.zeros(5)):
                raise Wrong("One optimizer's inf stopped another whose gradients were finite, or was stepped on: keep what you found for each optimizer.")
        if bench.scale != SCALE / 2:
            raise Wrong(f"{'One' if SLOPE in slopes else 'Both'} of two optimizers skipped and the scale is {bench.scale:,g}: update() backs off once, to "
                        f"{SCALE / 2:,g}.")


def resuming(make: Callable) -> None:
    """Saved after a backoff and one good step; the run that was saved goes on."""
    first, loaded = Bench(make), Bench(make)
    first.step(math.inf), first.step(SLOPE)
    state = first.scaler.state_dict()
    first.step(SLOPE), first.step(SLOPE), first.step(SLOPE)
    loaded.scaler.load_state_dict(state)
    if loaded.scale != SCALE / 2:
        raise Wrong(f"Saved at a scale of {SCALE / 2:,g} and loaded, the scale is {loaded.scale:,g}: keep the scale in the state dict, as a number of its own.")
    seen = []
    for _ in range(INTERVAL):
        loaded.step(SLOPE)
        seen.append(loaded.scale)
    if seen != (right := [SCALE / 2] * (INTERVAL - 2) + [SCALE] * 2):
        raise Wrong(f"Saved after 1 good step and loaded, the scale was {seen} in the next {INTERVAL}, and must be {right}: keep the growth count in the "
                    "state dict.")


def parity(make: Callable) -> None:
    draw = torch.Generator().manual_seed(1)
    for number in range(SEQUENCES):
        given = dict(factors=FACTORS[number % 2], interval=1 + number % 4, scale=(SCALE, 65536.0, 1.0)[number % 3], momentum=MOMENTUM)
        mine, torchs = Bench(make, **given), Bench(lambda **rule: torch.amp.GradScaler("cpu", **rule), **given)
        for step in range(LENGTH):
            fates = torch.rand(1 + int(torch.randint(2, (), generator=draw)), generator=draw).tolist()
            slopes = [BROKEN[int(30 * fate) % 3] if fate < 0.2 else fate for fate in fates]
            how = dict(unscale=bool(torch.rand((), generator=draw) < 0.5), place=int(torch.randint(5, (), generator=draw)))
            same = all(map(torch.equal, mine.step(*slopes, **how), torchs.step(*slopes, **how))) and mine.steps == torchs.steps
            if not same or mine.scale != torchs.scale:
                raise Wrong(f"Sequence {number + 1}, step {step + 1}, gradients {slopes}: the scale is {mine.scale:,g} and torch's {torchs.scale:,g}, the weights "
                            f"went {'as far' if same else 'elsewhere'}. Compare your rule with techniques/loss_scaler.py.")
