"""What is wrong with an update of one's own in mixed precision: the mistake, then the mend.

The check hands over half weights with scaled half gradients that it made itself, so it knows what must come out, exactly:

    g = float32(half gradient) / S;   any g inf or nan: nothing moves, S <- S/2, streak <- 0;   else
    clip the g's to one norm, master <- master - lr g, weight <- half(master), and S <- 2 S after `growth_interval` good steps in a row

Each known mistake leaves another number: S times too far is a gradient never divided, 1/S of it one clipped before, a 0 where g
is 2^-26 one divided in half. At last random sequences of finite, inf and nan gradients are compared with torch.amp.GradScaler.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

SCALE, INTERVAL, SEQUENCES, LENGTH = 1024.0, 3, 60, 10
SMALL = 2.0**-26  # 0 in fp16, and 2^-16 times SCALE is not
LARGE = 1e30  # a norm that clips nothing
FOREVER = 10**6


class State(NamedTuple):
    """What an update works on: half weights, their float32 masters, and the optimizer of the masters (plain SGD, rate 1)."""

    weights: list[nn.Parameter]
    masters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer

    def fill(self, gradients: list[torch.Tensor], scale: float) -> None:
        """What a backward of the scaled loss leaves; added to what is there, as autograd does."""
        for weight, gradient in zip(self.weights, gradients):
            scaled = (gradient * scale).half()
            weight.grad = scaled if weight.grad is None else weight.grad + scaled


def start() -> State:
    draw = torch.Generator().manual_seed(0)
    masters = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in ((3, 4), (5,))]
    return State([nn.Parameter(m.detach().half()) for m in masters], masters, torch.optim.SGD(masters, lr=1.0))


def plain_gradients(state: State) -> list[torch.Tensor]:
    """Eighths, exact in every format at every scale here, and one number that only float32 holds."""
    gradients = [torch.full_like(m, 0.125).detach() for m in state.masters]
    gradients[0][0, 0] = SMALL
    return gradients


def update_findings(update: Callable) -> list[str]:
    """Sentences about `update(weights, masters, optimizer, scale, streak, growth_interval, clip) -> (scale, streak)`; empty when right.

    It is called after the backward of the scaled loss, once a step; `clip` is the largest norm of all gradients together.
    """
    try:
        return one_step(update) or clipping(update) or skipping(update) or growing(update) or parity(update)
    except Exception as error:  # a student's code: whatever it raises is a finding
        return [f"Your function raised {type(error).__name__}: {error}. Call it alone, with one weight and its master."]


def one_step(update: Callable) -> list[str]:
    state = start()
    before, gradients = [m.detach().clone() for m in state.masters], plain_gradients(state)
    before[0][0, 0] = state.masters[0].data[0, 0] = 0.0  # where a step of 2^-26 is seen
    state.fill(gradients, SCALE)
    told = update(*state, SCALE, 0, FOREVER, LARGE)
    if not (isinstance(told, tuple) and len(told) == 2):
        return [f"Your function returned {told!r}: return the pair (scale, streak) for the next step."]
    moved = [(b - m.detach()) for b, m in zip(before, state.masters)]
    if not any(step.any() for step in moved):
        return ["The masters did not move: call optimizer.step() with their gradients in master.grad."]
    if torch.allclose(moved[1], SCALE * gradients[1]):
        return [f"The first gradient is exactly {SCALE:,.0f} times too large: divide by the scale."]
    if all(torch.equal(m, m.half().float()) for m in state.masters):
        return ["Masters equal float(half weights) after a step: you copy the wrong way. Round the master to the weight."]
    if moved[0][0, 0] == 0:
        return ["Dividing in fp16 sends the small gradients back to zero: convert to float32 first, then divide."]
    if not all(torch.allclose(step, g, rtol=1e-6) for step, g in zip(moved, gradients)):
        return [f"A gradient of 0.125 moved a master by {moved[1][0].item():.4g}: it must move by exactly that at learning rate 1."]
    if not all(torch.equal(w, m.half()) for w, m in zip(state.weights, state.masters)):
        return ["The half weights did not follow their masters: after the optimizer's step, copy each master to its weight."]
    state.fill(gradients, SCALE)
    middle = state.masters[1].detach().clone()
    update(*state, SCALE, 1, FOREVER, LARGE)
    if torch.allclose(middle - state.masters[1].detach(), 2 * gradients[1]):
        return ["The second step was twice too large: the half gradients of the first were still there. Set weight.grad = None."]
    return []


def clipping(update: Callable) -> list[str]:
    state = start()
    before, gradients = state.masters[1].detach().clone(), plain_gradients(state)
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    state.fill(gradients, SCALE)
    update(*state, SCALE, 0, FOREVER, norm.item() / 4)
    ratio = ((before - state.masters[1].detach()) / gradients[1]).mean().item()
    if abs(ratio - 1) < 1e-3:
        return ["The gradients were four times the norm allowed, and were not clipped: clip the masters' gradients, all together."]
    if abs(ratio * SCALE - 0.25) < 0.01:
        return [f"You clipped the scaled gradient: the true norm becomes 1/{SCALE:,.0f} of what is allowed. Divide by the scale first."]
    return [] if abs(ratio - 0.25) < 1e-3 else [f"Clipped to a quarter, a step was {ratio:.4g} of the gradient: clip the norm of all masters together."]


def skipping(update: Callable) -> list[str]:
    for broken, name in ((float("inf"), "inf"), (float("nan"), "nan")):
        state = start()
        before, gradients = [m.detach().clone() for m in state.masters], plain_gradients(state)
        gradients[1][2] = broken
        state.fill(gradients, SCALE)
        scale, streak = update(*state, SCALE, 1, FOREVER, LARGE)
        if not all(m.isfinite().all() for m in state.masters) or not all(map(torch.equal, before, state.masters)):
            other = "nan" if name == "inf" else "inf"
            return [f"A gradient was {name} and the masters moved: skip the step when any gradient is not finite, {name} as well as {other}."]
        if scale != SCALE / 2:
            return [f"After {name} the scale went from {SCALE:,.0f} to {scale:,.0f}: halve it."]
        if streak != 0:
            return ["A skipped step must set the growth count to 0."]
        state.fill(plain_gradients(state), SCALE)
        update(*state, scale, streak, FOREVER, LARGE)
        if not all(m.isfinite().all() for m in state.masters) or all(map(torch.equal, before, state.masters)):
            return ["After a skipped step the next one is lost too: set weight.grad = None also where you skip."]
    return []


def growing(update: Callable) -> list[str]:
    state, scale, streak, seen = start(), SCALE, 0, []
    for _ in range(2 * INTERVAL):
        state.fill(plain_gradients(state), scale)
        scale, streak = update(*state, scale, streak, INTERVAL, LARGE)
        seen.append(scale)
    right = [SCALE] * (INTERVAL - 1) + [2 * SCALE] * INTERVAL + [4 * SCALE]
    if seen == right:
        return []
    if set(seen) == {SCALE}:
        return [f"{2 * INTERVAL} good steps and the scale did not double: double it after every {INTERVAL} (growth_interval)."]
    first = next(i for i, (a, b) in enumerate(zip(seen, right)) if a != b)
    return [f"After {first + 1} good steps in a row the scale was {seen[first]:,.0f}, with growth_interval={INTERVAL} it must be {right[first]:,.0f}: double it "
            "when the count reaches growth_interval, and begin to count anew."]


def parity(update: Callable) -> list[str]:
    """Random sequences, scale by scale and weight by weight as with torch.amp.GradScaler on the masters."""
    draw = torch.Generator().manual_seed(1)
    for number in range(SEQUENCES):
        mine, scale, streak = start(), SCALE, 0
        theirs = start()
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=INTERVAL)
        scaler.scale(torch.zeros(()))  # it makes its scale when it is first used
        for step in range(LENGTH):
            gradients = [torch.randn(m.shape, generator=draw) / 8 for m in mine.masters]
            if (fate := int(torch.randint(6, (), generator=draw))) < 2:
                gradients[fate][0] = float("inf") if torch.rand((), generator=draw) < 0.5 else float("nan")
            mine.fill(gradients, scale)
            for master, gradient in zip(theirs.masters, gradients):
                master.grad = (gradient * scaler.get_scale()).half().float()
            scaler.unscale_(theirs.optimizer)
            torch.nn.utils.clip_grad_norm_(theirs.masters, 0.5)
            scaler.step(theirs.optimizer)
            scaler.update()
            scale, streak = update(*mine, scale, streak, INTERVAL, 0.5)
            if scale != scaler.get_scale() or not all(map(torch.equal, mine.masters, theirs.masters)):
                return [f"Sequence {number}, step {step}: the scale is {scale:,.0f} and torch's {scaler.get_scale():,.0f}, the masters are "
                        f"{'equal' if all(map(torch.equal, mine.masters, theirs.masters)) else 'not equal'}: compare your rule with DynamicLossScaler.update."]
    return []
