"""What is wrong with an update of one's own in mixed precision: the mistake, then the mend.

The check hands over half weights with scaled half gradients that it made itself, so it knows what must come out:

    g = float32(half gradient) / S;   any g not finite: nothing moves, S <- S/2, streak <- 0;   else
    clip the g's to one norm, the optimizer steps once, weight <- half(master), and S <- 2 S after `growth_interval` good steps in a row

Each known mistake leaves another number: S times too far is a gradient never divided, 1/S of it one clipped before, a 0 where g
is 2^-26 one divided in half. The optimizer's calls are counted, and after each step the weights must be their masters, rounded.
At last random sequences of good and broken gradients are compared with torch.amp.GradScaler, with momentum, up to the rounding of
float32: torch clips by clip / (norm + 1e-6), a hand by clip / norm, which differ by less than 1e-6.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from .findings import Wrong, first_finding

SCALE, INTERVAL, SEQUENCES, LENGTH = 1024.0, 3, 60, 10
BROKEN = (math.inf, math.nan, -math.inf)
SLOPE, MOMENTUM, CLIP = 0.125, 0.5, 0.5
SMALL = 2.0**-26  # 0 in fp16, and 2^-16 times SCALE is not
LARGE = 1e30  # a norm that clips nothing
FOREVER = 10**6
CLOSE = 1e-6  # of a step from masters below 8, whose unit in the last place is 2^-21 at most
STEP_ERROR = 3e-6  # a step of a sequence: 1e-6 of the two ways to clip, twice that with momentum 1/2, and rounding


class Bench:
    """What an update works on: half weights, their float32 masters, and the optimizer of the masters (SGD, rate 1)."""

    def __init__(self, momentum: float = 0.0):
        draw = torch.Generator().manual_seed(0)
        self.masters = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in ((3, 4), (5,))]
        for master in self.masters:
            master.data.view(-1)[0] = 0.0  # where a step of 2^-26 is seen
        self.weights = [nn.Parameter(master.detach().half()) for master in self.masters]
        self.optimizer = torch.optim.SGD(self.masters, lr=1.0, momentum=momentum)
        self.optimizer.register_step_pre_hook(self.count)
        self.steps, self.moved = 0, []  # in the last step: calls of optimizer.step(), and how far each master went

    def count(self, *given) -> None:
        self.steps += 1

    def step(self, update: Callable, gradients: list[torch.Tensor], scale, streak, growth_interval=FOREVER, clip=LARGE) -> tuple:
        """One backward of the scaled loss, whose gradients are added to what is there as autograd does, and one update; (scale, streak)."""
        for weight, gradient in zip(self.weights, gradients):
            scaled = (gradient * float(scale)).half()
            weight.grad = scaled if weight.grad is None else weight.grad + scaled
        before, self.steps = [master.detach().clone() for master in self.masters], 0
        told = update(list(self.weights), list(self.masters), self.optimizer, scale, streak, growth_interval, clip)
        for kind, tensors, dtype in (("weight", self.weights, torch.float16), ("master", self.masters, torch.float32)):
            if changed := [t.dtype for t in tensors if t.dtype != dtype]:
                raise Wrong(f"A {kind} was {str(dtype)[6:]} and is {str(changed[0])[6:]} now: write into it with {kind}.data.copy_(...), "
                            "which keeps its type.")
        self.moved = [b - master.detach() for b, master in zip(before, self.masters)]
        try:
            scale, streak = told
            float(scale), float(streak)
        except (TypeError, ValueError):
            raise Wrong(f"Your function returned {told!r}: return the pair (scale, streak) for the next step, also where you skip.") from None
        return scale, streak

    @property
    def follows(self) -> bool:
        """Whether each weight is its master, rounded."""
        return all(map(torch.equal, self.weights, (master.half() for master in self.masters)))

    def good(self, where: str) -> None:
        """What each step that is not skipped must show."""
        if self.steps != 1:
            raise Wrong(f"optimizer.step() was called {self.steps} times {where}: call it once, after the gradients of all masters are there."
                        if self.steps else "The masters moved without optimizer.step(): it knows the rule and the momentum, so put the gradients in "
                        "master.grad and call it.")
        if not self.follows:
            raise Wrong(f"The half weights did not follow their masters {where}: after every optimizer.step(), copy each master to its weight.")


def filled(value: float) -> list[torch.Tensor]:
    return [torch.full(shape, value) for shape in ((3, 4), (5,))]


def close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-6, atol=CLOSE) for a, b in zip(found, expected))


def ratios(found: list[torch.Tensor], expected: list[torch.Tensor]) -> list[float]:
    return [((a * b).sum() / (b * b).sum()).item() for a, b in zip(found, expected)]


def update_findings(update: Callable) -> list[str]:
    """Sentences about `update(weights, masters, optimizer, scale, streak, growth_interval, clip) -> (scale, streak)`; empty when right.

    It is called after the backward of the scaled loss, once a step; `clip` is the largest norm of all gradients together.
    """
    checks = (one_step, next_step, clipping, skipping, large, growing, parity)
    return first_finding((partial(check, update) for check in checks), "Your function", "Call it alone, with one weight and its master.")


def one_step(update: Callable) -> None:
    bench, gradients = Bench(), filled(SLOPE)
    gradients[0][0, 0] = SMALL  # eighths are exact in every format at every scale here; this one only in float32
    scale, streak = bench.step(update, gradients, SCALE, 0)
    if not any(moved.any() for moved in bench.moved):
        raise Wrong("The masters did not move: call optimizer.step() with their gradients in master.grad.")
    if idle := [i for i, moved in enumerate(bench.moved) if not moved.any()]:
        raise Wrong(f"masters[{idle[0]}] did not move and another did: give every master its gradient before the one optimizer.step(), "
                    "and mind a return inside the loop.")
    first, last = ratios(bench.moved, gradients)
    if abs(last / SCALE - 1) < CLOSE:
        raise Wrong(f"The first gradient is exactly {SCALE:,.0f} times too large: divide by the scale.")
    if abs(last * SCALE - 1) < 1e-3:
        raise Wrong(f"The first gradient is {SCALE:,.0f} times too small: you divided by the scale twice.")
    if last > 1e6:
        raise Wrong("Gradients below the norm allowed were made larger: multiply by min(1, clip / norm).")
    if all(torch.equal(master, master.half().float()) for master in bench.masters):
        raise Wrong("Masters equal float(half weights) after a step: you copy the wrong way. Round the master to the weight.")
    if bench.moved[0][0, 0] == 0:
        raise Wrong("Dividing in fp16 sends the small gradients back to zero: convert to float32 first, then divide.")
    if bench.steps > 1:
        bench.good("in one step")
    if not close(bench.moved, gradients):
        off = first if abs(first - 1) > abs(last - 1) else last
        raise Wrong(f"A gradient of {SLOPE} moved a master by {SLOPE * off:.4g}: it must move by exactly that at learning rate 1.")
    bench.good("in the first step")
    if float(streak) == SCALE:
        raise Wrong(f"You returned {(scale, streak)}: the scale comes first, then the streak.")
    if scale != SCALE:
        raise Wrong(f"After one good step the scale went from {SCALE:,g} to {float(scale):,g}: it changes after a skip, and after growth_interval good steps.")


def next_step(update: Callable) -> None:
    """Another gradient at another scale: what is left of the first step shows."""
    bench, first, second = Bench(), filled(SLOPE), filled(3 * SLOPE)
    _, streak = bench.step(update, first, SCALE, 0)
    left = "weight" if any(w.grad is not None and w.grad.any() for w in bench.weights) else "master"
    bench.step(update, second, 2 * SCALE, streak)
    if not close(bench.moved, second):
        last = ratios(bench.moved, second)[1]
        if left == "weight":
            raise Wrong("The second step was too large: the half gradients of the first were still there. Set weight.grad = None.")
        if close(bench.moved, filled(4 * SLOPE)):
            raise Wrong("The second step was the sum of both: the masters' gradients of the first were still there. Assign to master.grad, "
                        "or set it to None after the step.")
        if close(bench.moved, first):
            raise Wrong("The second step took the first's gradient again: assign master.grad anew in every step.")
        if abs(last - 2) < 1e-3:
            raise Wrong("With twice the scale a step was twice as large: divide by the scale that you are given, not by a number of your own.")
        raise Wrong(f"In the second step a gradient of {3 * SLOPE} moved a master by {3 * SLOPE * last:.4g}: keep nothing of the first but scale and streak.")
    bench.good("in the second step")


def clipping(update: Callable) -> None:
    bench, gradients = Bench(), filled(SLOPE)
    bench.step(update, gradients, SCALE, 0, clip=torch.cat([g.flatten() for g in gradients]).norm().item() / 4)
    first, last = ratios(bench.moved, gradients)
    if max(abs(first - 1), abs(last - 1)) < 1e-3:
        raise Wrong("The gradients were four times the norm allowed, and were not clipped: clip the masters' gradients, all together.")
    if abs(last * SCALE - 0.25) < 0.01:
        raise Wrong(f"You clipped the scaled gradient: the true norm becomes 1/{SCALE:,.0f} of what is allowed. Divide by the scale first.")
    if abs(first - last) > 1e-3:
        raise Wrong(f"Clipped to a quarter, one master went {first:.4g} of its gradient and another {last:.4g}: clip all masters together, by one norm.")
    if abs(last - 0.25) > 1e-3:
        raise Wrong(f"Clipped to a quarter, a step was {last:.4g} of the gradient: clip the norm of all masters together, "
                    "the root of the sum of all squares.")
    bench.good("in a step that was clipped")


def skipping(update: Callable) -> None:
    """After a good step, so that there is momentum; the broken number is the last of either gradient."""
    for broken, place in ((broken, place) for broken in BROKEN for place in (1, 0)):
        bench, good, gradients = Bench(MOMENTUM), filled(SLOPE), filled(SLOPE)
        gradients[place].view(-1)[-1] = broken
        _, streak = bench.step(update, good, SCALE, 0)
        scale, streak = bench.step(update, gradients, SCALE, streak)
        if bench.steps and close(bench.moved, filled(MOMENTUM * SLOPE)):
            raise Wrong(f"A gradient was {broken} and optimizer.step() was called with zeros: its momentum moves the masters all the same. "
                        "Do not call it where you skip.")
        if any(moved.isnan().any() or moved.any() for moved in bench.moved):
            raise Wrong(f"A gradient was {broken} and the masters moved: skip the step when any gradient of any weight is not finite, "
                        f"{broken} as well as {'inf' if broken != math.inf else 'nan'}.")
        if bench.steps:
            raise Wrong(f"A gradient was {broken} and optimizer.step() was called: an optimizer may move or count without gradients, "
                        "so do not call it where you skip.")
        if not bench.follows:
            raise Wrong(f"A gradient was {broken} and the half weights are not their masters any more: a skipped step leaves both as they are.")
        if scale != SCALE / 2:
            raise Wrong(f"After {broken} the scale went from {SCALE:,g} to {float(scale):,g}: halve it.")
        if streak != 0:
            raise Wrong("A skipped step must set the growth count to 0.")
        left = "weight" if any(w.grad is not None and (w.grad != 0).any() for w in bench.weights) else "master"
        bench.step(update, good, scale, streak)
        if not close(bench.moved, filled((1 + MOMENTUM) * SLOPE)):
            if left == "weight" or not bench.steps or not all(moved.isfinite().all() for moved in bench.moved):
                raise Wrong(f"After a skipped step the next one is lost too: set {left}.grad = None also where you skip.")
            raise Wrong(f"After a skipped step a gradient of {SLOPE} moved a master by {ratios(bench.moved, good)[1] * SLOPE:.4g}, with its momentum, and not by "
                        f"{(1 + MOMENTUM) * SLOPE:.4g}: keep the optimizer's state, and let a skip change the scale and the streak alone.")
        bench.good("after a skipped step")


def large(update: Callable) -> None:
    bench, gradients = Bench(), filled(60_000 / SCALE)
    bench.step(update, gradients, SCALE, 0)
    if not close(bench.moved, gradients):
        raise Wrong(f"Every half gradient was 60,000, which is finite, and a master moved by {bench.moved[1][1].item():.4g}, not {60_000 / SCALE:.4g}: a sum or a "
                    "norm of them is inf in half. Convert to float32 first, and look at each number.")


def growing(update: Callable) -> None:
    bench, scale, streak, seen = Bench(), SCALE, 0, []
    right = [SCALE] * (INTERVAL - 1) + [2 * SCALE] * INTERVAL + [4 * SCALE]
    for number in range(2 * INTERVAL):
        scale, streak = bench.step(update, filled(SLOPE), scale, streak, INTERVAL)
        seen.append(float(scale))
        if not close(bench.moved, filled(SLOPE)):
            went = SLOPE * ratios(bench.moved, filled(SLOPE))[1]
            raise Wrong(f"In good step {number + 1}, with growth_interval={INTERVAL}, a gradient of {SLOPE} moved a master by {went:.4g}: divide by the scale "
                        "that the gradients came with, and change it after.")
        bench.good(f"in good step {number + 1}")
    if set(seen) == {SCALE}:
        raise Wrong(f"{2 * INTERVAL} good steps and the scale did not double: double it after every {INTERVAL} (growth_interval).")
    if seen != right:
        first = next(i for i, (a, b) in enumerate(zip(seen, right)) if a != b)
        raise Wrong(f"After {first + 1} good steps in a row the scale was {seen[first]:,g}, with growth_interval={INTERVAL} it must be {right[first]:,g}: double it "
                    "when the count reaches growth_interval, and begin to count anew.")
    if Bench().step(update, filled(SLOPE), SCALE, INTERVAL - 1, INTERVAL)[0] != 2 * SCALE:
        raise Wrong(f"A good step with streak={INTERVAL - 1} and growth_interval={INTERVAL} must double the scale: count from the "
                    "streak that you are given, and keep nothing between calls.")


def parity(update: Callable) -> None:
    """Random sequences, scale by scale and weight by weight as with torch.amp.GradScaler on the masters."""
    draw = torch.Generator().manual_seed(1)
    for number in range(SEQUENCES):
        scale, streak, interval = (SCALE, 65536.0, 1.0)[number % 3], 0, 1 + number % 4
        mine, theirs, allowed = Bench(MOMENTUM), Bench(MOMENTUM), 0.0
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
        scaler.scale(torch.zeros(()))  # it makes its scale when it is first used
        for step in range(LENGTH):
            gradients = [torch.randn(master.shape, generator=draw) / 8 for master in mine.masters]
            if torch.rand((), generator=draw) < 1 / 3:
                flat = gradients[int(torch.randint(2, (), generator=draw))].view(-1)
                flat[torch.randint(len(flat), (), generator=draw)] = BROKEN[int(torch.randint(3, (), generator=draw))]
            allowed += STEP_ERROR * max(1, 1 / scaler.get_scale())  # where the scaled norm is clipped its 1e-6 is divided as well
            theirs.step(torchs(scaler), gradients, scaler.get_scale(), 0)
            scale, streak = mine.step(update, gradients, scale, streak, interval, CLIP)
            where = f"in step {step + 1} of sequence {number + 1} ({'good' if theirs.steps else 'skipped'}, growth_interval={interval})"
            if mine.steps != theirs.steps:
                raise Wrong(f"optimizer.step() was called {mine.steps} times {where}, where torch calls it {'once' if theirs.steps else 'never'}: step once "
                            "where every gradient is finite, else not at all.")
            off = max((a - b).detach().abs().max().item() for a, b in zip(mine.masters, theirs.masters))
            same = off <= allowed  # nan is not
            if scale != scaler.get_scale() or not same:
                raise Wrong(f"The scale is {float(scale):,g} and torch's {scaler.get_scale():,g}, the masters are "
                            f"{'equal' if same else f'off by {off:.2g}'} {where}: compare your rule with DynamicLossScaler.update.")
            if not mine.follows:
                raise Wrong(f"The half weights are not their masters, rounded, {where}: copy each master to its weight after optimizer.step(), and "
                            "change nothing where you skip.")


def torchs(scaler: torch.amp.GradScaler) -> Callable:
    """The update of torch's own scaler."""
    def update(weights, masters, optimizer, scale, streak, growth_interval, clip):
        for weight, master in zip(weights, masters):
            master.grad, weight.grad = weight.grad.float(), None
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(masters, CLIP)
        scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale(), streak
    return update
