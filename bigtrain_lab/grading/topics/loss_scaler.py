"""A dynamic loss scaler, as a class with torch's methods.

    scale(loss) = S loss     unscale_: p.grad / S     step: skipped where a gradient is not finite
    update: S x backoff_factor after a skipped step, S x growth_factor after growth_interval good ones

Powers of two are divided exactly, so every number is compared bit for bit. Source: torch.amp.GradScaler.
"""

import math

import torch
from torch import nn

from ..likeness import Scene, Topic, Wrong

RIGHT = """
import math, torch

class answer:
    def __init__(self, init_scale, growth_factor, backoff_factor, growth_interval):
        self.value, self.up, self.down, self.interval = init_scale, growth_factor, backoff_factor, growth_interval
        self.streak, self.found = 0, {}

    def scale(self, loss):
        return loss * self.value

    def unscale_(self, optimizer):
        bad = False
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad /= self.value
                    bad = bad or not p.grad.isfinite().all()
        self.found[optimizer] = bad

    def step(self, optimizer):
        if optimizer not in self.found:
            self.unscale_(optimizer)
        if not self.found[optimizer]:
            optimizer.step()

    def update(self):
        if any(self.found.values()):
            self.value, self.streak = self.value * self.down, 0
        else:
            self.streak += 1
            if self.streak == self.interval:
                self.value, self.streak = self.value * self.up, 0
        self.found = {}

    def get_scale(self):
        return self.value

    def state_dict(self):
        return {"value": self.value, "streak": self.streak}

    def load_state_dict(self, state):
        self.value, self.streak = state["value"], state["streak"]
"""
TORCHS = """
import torch

def answer(**rule):
    return torch.amp.GradScaler("cpu", **rule)
"""
DIVIDE, FINITE = "p.grad /= self.value", "bad = bad or not p.grad.isfinite().all()"
PRESENT = "if p.grad is not None:"
STEP, SKIPS, UNSCALED = (
    "            optimizer.step()\n",
    "if not self.found[optimizer]:",
    "if optimizer not in self.found:",
)
BACKOFF, GROW = (
    "self.value, self.streak = self.value * self.down, 0",
    "self.value, self.streak = self.value * self.up, 0",
)
COUNT, REACHED = "            self.streak += 1\n", "self.streak == self.interval"
FORGET, ANY = "        self.found = {}\n\n    def get", "if any(self.found.values()):"
SAVED, LOADED = (
    '{"value": self.value, "streak": self.streak}',
    'self.value, self.streak = state["value"], state["streak"]',
)

ONCE = "step divided again after unscale_: remember, for each optimizer, that it was unscaled."
FORGETS = "What was unscaled in one step still counts in the next: forget it in update()."
EVERY = "One weight was divided and another was not: divide every parameter of every group of optimizer.param_groups."
LOOK = "A gradient that is not finite was stepped on: look for inf, -inf and nan, in every number of every parameter."
CALLED = "optimizer.step() was called in a skipped step: momentum and counts move without gradients, so do not call it."
GROWTH = "The scale grew at the wrong step: multiply it by growth_factor after growth_interval good steps, and count anew."
BACKS = "A skipped step changed the scale by another factor: multiply it by backoff_factor, once."
STREAK = "A skipped step did not reset the growth count: set it to 0."
LIMITS = "Very large or small scales are treated differently: let the scale grow and shrink freely, as torch's rule does."
STATE = "A scaler that was saved and loaded goes on differently: save and load copies of the scale and the growth count."


def after_step(*lines: str) -> str:
    return STEP + "".join(f"{line}\n" for line in lines)


class LossScaler(Topic):
    name = "loss-scaler"
    forbids = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler")
    hints = (
        "Which of its methods divides, which one decides, and which one changes the scale?",
        "Two optimizers share one scale. What must be kept for each of them, and until when?",
        "Keep {optimizer: was it bad}. unscale_ fills it, step reads it, update reads all of it and empties it.",
    )
    right = {
        "each optimizer's verdict in a dictionary": RIGHT,
        "torch's": TORCHS,
        "new gradients": RIGHT.replace(DIVIDE, "p.grad = p.grad / self.value"),
        "the inverse": RIGHT.replace(DIVIDE, "p.grad.mul_(1 / self.value)"),
        "the scale as a tensor": RIGHT.replace(
            "= init_scale, growth", "= torch.tensor(float(init_scale)), growth"
        ),
        "looks first": RIGHT.replace(
            f"{DIVIDE}\n                    {FINITE}", f"{FINITE}\n                    {DIVIDE}"
        ),
    }
    wrong = {
        "does not scale": Wrong(
            "scale(loss) gave the loss itself: multiply it by the scale.",
            (("return loss * self.value", "return loss"),),
        ),
        "a scale of its own": Wrong(
            "Your scale is not init_scale: begin with the one that is given.",
            (("= init_scale, growth", "= 65536.0, growth"),),
        ),
        "never divides": Wrong(
            "The gradient is exactly the scale times too large: divide it before optimizer.step().",
            ((DIVIDE, "pass"),),
        ),
        "divides when asked alone": Wrong(
            "The gradient is exactly the scale times too large: let step divide it where unscale_ was not called.",
            (
                (
                    f"        {UNSCALED}\n            self.unscale_(optimizer)\n        {SKIPS}",
                    "        if True:",
                ),
            ),
        ),
        "divides twice": Wrong(ONCE, ((UNSCALED, "if True:"),)),
        "multiplies": Wrong(
            "The gradient was multiplied by the scale once more: divide it instead.",
            ((DIVIDE, "p.grad *= self.value"),),
        ),
        "divides in half": Wrong(
            "Dividing in fp16 sends the small gradients back to zero: convert to float32 first, then divide.",
            ((DIVIDE, "p.grad.copy_((p.grad.half() / self.value).float())"),),
        ),
        "the first parameter": Wrong(
            EVERY,
            ((PRESENT, "if p.grad is not None and p is optimizer.param_groups[0]['params'][0]:"),),
        ),
        "expects gradients": Wrong(
            "A parameter without a gradient stopped your scaler: leave out those whose .grad is None.",
            ((PRESENT, "if True:"), (DIVIDE, "p.grad.div_(self.value)")),
        ),
        "remembers": Wrong(FORGETS, ((FORGET, "\n    def get"),)),
        "never steps": Wrong(
            "A good step moved nothing: call optimizer.step() where all gradients are finite.",
            ((STEP, "            pass\n"),),
        ),
        "never skips": Wrong(LOOK, ((SKIPS, "if True:"),)),
        "cuts the graph": Wrong(
            "What scale() returns has no graph, so no gradient comes back: multiply the loss itself.",
            (("return loss * self.value", "return loss.detach() * self.value"),),
        ),
        "in place": Wrong(
            "scale() changed the loss itself: return a new tensor.",
            (("return loss * self.value", "loss *= self.value; return loss"),),
        ),
        "divides in bfloat16": Wrong(
            "Dividing in 16 bits rounds the gradients: stay in float32.",
            ((DIVIDE, "p.grad.copy_((p.grad.bfloat16() / self.value).float())"),),
        ),
        "any finite": Wrong(LOOK, ((FINITE, "bad = bad or not p.grad.isfinite().any()"),)),
        "the sum": Wrong(
            "Finite gradients were skipped, though only their sum or norm is not finite: look at each number.",
            (
                (
                    f"{DIVIDE}\n                    {FINITE}",
                    f"bad = bad or not p.grad.sum().isfinite()\n                    {DIVIDE}",
                ),
            ),
        ),
        "one for all scalers": Wrong(
            "Two scalers share what each should keep for itself: set it in __init__, not in the class.",
            (
                ("self.streak, self.found = 0, {}", "type(self).streak, self.found = 0, {}"),
                (COUNT, "            type(self).streak += 1\n"),
                (BACKOFF, "self.value, type(self).streak = self.value * self.down, 0"),
                (GROW, "self.value, type(self).streak = self.value * self.up, 0"),
            ),
        ),
        "clears gradients": Wrong(
            "The gradients are gone after the step: leave them to the caller's zero_grad.",
            ((STEP, after_step("            optimizer.zero_grad()")),),
        ),
        "one verdict for all scalers": Wrong(
            "Two scalers share what each should keep for itself: set it in __init__, not in the class.",
            (
                ("self.streak, self.found = 0, {}", "self.streak = 0"),
                ("class answer:\n", "class answer:\n    found = {}\n\n"),
                (FORGET, "        self.found.clear()\n\n    def get"),
            ),
        ),
        "an alias": Wrong(
            "The loaded state changes with the scaler, or the scaler with it: copy the numbers.",
            (
                (
                    "self.streak, self.found = 0, {}",
                    "self.s, self.found = {'value': init_scale, 'streak': 0}, {}",
                ),
                ("return loss * self.value", "return loss * self.s['value']"),
                (DIVIDE, "p.grad /= self.s['value']"),
                (BACKOFF, "self.s['value'] *= self.down; self.s['streak'] = 0"),
                (COUNT, "            self.s['streak'] += 1\n"),
                (REACHED, "self.s['streak'] == self.interval"),
                (GROW, "self.s['value'] *= self.up; self.s['streak'] = 0"),
                ("return self.value", "return self.s['value']"),
                (SAVED, "dict(self.s)"),
                (LOADED, "self.s = state"),
            ),
        ),
        "skips nan alone": Wrong(
            "A gradient of inf was stepped on: test for both inf and nan.",
            ((FINITE, "bad = bad or p.grad.isnan().any()"),),
        ),
        "skips inf alone": Wrong(
            "A gradient of nan was stepped on: test for both inf and nan.",
            ((FINITE, "bad = bad or p.grad.isinf().any()"),),
        ),
        "skips no -inf": Wrong(
            "A gradient of -inf was stepped on: test for it too.",
            ((FINITE, "bad = bad or (p.grad.isnan() | (p.grad == math.inf)).any()"),),
        ),
        "the last parameter": Wrong(LOOK, ((FINITE, "bad = not p.grad.isfinite().all()"),)),
        "a limit of its own": Wrong(
            "A large finite gradient was skipped: float32 holds it, so skip for inf and nan alone.",
            ((FINITE, "bad = bad or not p.grad.abs().mean() < 999"),),
        ),
        "zeroes inf": Wrong(
            "A gradient that is not finite was changed and stepped on: skip the whole step.",
            ((FINITE, "p.grad.nan_to_num_(0, 0, 0)"),),
        ),
        "steps with zeros": Wrong(
            CALLED,
            (
                (
                    STEP,
                    after_step(
                        "        else:",
                        "            for p in (p for g in optimizer.param_groups for p in g['params']):",
                        "                p.grad = torch.zeros_like(p)",
                        "            optimizer.step()",
                    ),
                ),
            ),
        ),
        "steps with None": Wrong(
            CALLED,
            (
                (
                    STEP,
                    after_step(
                        "        else:", "            optimizer.zero_grad(); optimizer.step()"
                    ),
                ),
            ),
        ),
        "skips for ever": Wrong(
            "After one skipped step all others were skipped: forget, in update(), what was found.",
            (
                (
                    SKIPS,
                    "self.stopped = getattr(self, 'stopped', False) or self.found[optimizer]\n        if not self.stopped:",
                ),
            ),
        ),
        "no backoff": Wrong(
            "A skipped step left the scale as it was: multiply it by backoff_factor.",
            ((BACKOFF, "self.streak = 0"),),
        ),
        "never grows": Wrong(
            "The scale did not grow when it should: multiply it by growth_factor after growth_interval good steps.",
            ((GROW, "pass"),),
        ),
        "grows early": Wrong(GROWTH, ((REACHED, "self.streak == self.interval - 1"),)),
        "grows on and on": Wrong(
            GROWTH, ((REACHED, "self.streak >= self.interval"), (GROW, "self.value *= self.up"))
        ),
        "doubles": Wrong(
            "The scale was doubled: multiply it by growth_factor, not by a number of your own.",
            ((GROW, "self.value, self.streak = self.value * 2, 0"),),
        ),
        "halves": Wrong(
            "The scale was halved: multiply it by backoff_factor, not by a number of your own.",
            ((BACKOFF, "self.value, self.streak = self.value * 0.5, 0"),),
        ),
        "backs off by 1 / growth": Wrong(
            BACKS, ((BACKOFF, "self.value, self.streak = self.value / self.up, 0"),)
        ),
        "keeps the streak": Wrong(STREAK, ((BACKOFF, "self.value *= self.down"),)),
        "counts in step": Wrong(
            "Two optimizers were counted as two steps: count in update(), once for all.",
            ((COUNT, ""), (STEP, STEP + "            self.streak += 1\n")),
        ),
        "at most 65,536": Wrong(
            LIMITS, ((GROW, "self.value, self.streak = min(self.value * self.up, 65536.0), 0"),)
        ),
        "at least 1": Wrong(
            LIMITS, ((BACKOFF, "self.value, self.streak = max(self.value * self.down, 1.0), 0"),)
        ),
        "one verdict": Wrong(
            "One optimizer's inf stopped another whose gradients were finite: keep what you found for each optimizer.",
            ((SKIPS, "if not any(self.found.values()):"),),
        ),
        "the last verdict": Wrong(
            "One of two optimizers skipped and the scale did not back off: look at all verdicts in update().",
            ((ANY, "if list(self.found.values())[-1]:"),),
        ),
        "backs off in step": Wrong(
            "One optimizer's inf changed the scale before another was divided by it: change the scale in update().",
            (
                (ANY, "if False:"),
                (
                    STEP,
                    after_step(
                        "        else:",
                        "            self.value, self.streak = self.value * self.down, -1",
                    ),
                ),
            ),
        ),
        "backs off twice": Wrong(
            "Two optimizers skipped and the scale backed off twice: once a step is enough.",
            (
                (
                    BACKOFF,
                    "self.value, self.streak = self.value * self.down ** sum(map(bool, self.found.values())), 0",
                ),
            ),
        ),
        "forgets the scale": Wrong(STATE, ((SAVED, '{"value": 65536.0, "streak": self.streak}'),)),
        "forgets the streak": Wrong(STATE, ((SAVED, '{"value": self.value, "streak": 0}'),)),
        "loads nothing": Wrong(STATE, ((LOADED, "pass"),)),
        "saves itself": Wrong(
            STATE, ((SAVED, "self.__dict__"), (LOADED, "self.__dict__.update(state)"))
        ),
        "steps below fp16": Wrong(
            LIMITS, ((SKIPS, "if not self.found[optimizer] and self.value >= 1:"),)
        ),
    }

    @staticmethod
    def probe(answer, draw):
        factors = draw.choice(((4.0, 0.125), (8.0, 0.25), (16.0, 0.125)))
        rule = {
            "init_scale": 2.0 ** draw.randint(8, 13),
            "growth_interval": draw.randint(2, 4),
            "growth_factor": factors[0],
            "backoff_factor": factors[1],
        }
        slope, n = (
            draw.randrange(2**20 + 1, 2**22, 2) / 2**25,
            rule["growth_interval"],
        )  # more digits than 16 bits hold
        three, huge = draw.choice((3.0, 5.0, 7.0)), 2.0**127 / rule["init_scale"]
        told = worded(rule)

        def scene(name, *steps, **options):
            return Scene(
                f"{name}, {told}", lambda: Bench(answer, rule, **options).played(steps), 0.0
            )

        yield Scene(
            f"scale(tensor({three:g})), {told}",
            lambda: scaled(answer(**rule), torch.tensor(three)),
            0.0,
        )
        yield scene("one step", Step(slope), idle=False)
        yield scene("one step, one parameter without a gradient", Step(slope))
        yield scene("one step after unscale_", Step(slope, unscale=True))
        yield scene("a gradient that fp16 does not hold", Step(2.0**-30))
        for ways in ((1, 1), (1, 0), (0, 1), (0, 0)):
            yield scene(
                f"two steps, unscale_ called in {sum(ways)}",
                *(Step(slope, unscale=bool(way)) for way in ways),
            )
        for broken, place, unscale in (
            (b, p, u)
            for b in (math.inf, math.nan, -math.inf)
            for p in (-1, 0)
            for u in (False, True)
        ):
            yield scene(
                f"a gradient with {broken} after a good step{', unscaled' * unscale}, then a good one",
                Step(slope),
                Step(broken, place=place, unscale=unscale, rest=slope),
                Step(slope),
                momentum=0.5,
            )
        yield scene("a gradient of 1,000", Step(1000.0))
        yield scene("gradients whose sum float32 does not hold", Step(huge))
        yield scene(f"{2 * n + 1} good steps", *[Step(slope)] * (2 * n + 1))
        yield scene(
            f"{2 * n + 1} good steps of two optimizers", *[Step(slope, slope)] * (2 * n + 1)
        )
        yield scene(
            "a skipped step just before the scale would grow",
            *[Step(slope)] * (n - 1),
            Step(math.inf),
            *[Step(slope)] * n,
        )
        for pair in ((math.inf, slope), (slope, math.inf), (math.inf, math.nan)):
            yield scene(
                f"two optimizers with gradients {pair[0]:g} and {pair[1]:g}",
                Step(*pair, rest=slope),
                Step(slope, slope),
            )
        yield scene("many skipped steps", *[Step(math.inf)] * 9, Step(slope))
        yield scene("many good steps", *[Step(slope)] * 6 * n)
        yield Scene(f"two scalers in turns, {told}", lambda: in_turns(answer, rule, slope), 0.0)
        yield Scene(f"two scalers at once, {told}", lambda: at_once(answer, rule, slope), 0.0)
        yield Scene(
            f"what a good step leaves behind, {told}", lambda: left_behind(answer, rule, slope), 0.0
        )
        yield Scene(
            f"a scaler saved after 1 skipped and 1 good step, {told}",
            lambda: resumed(answer, rule, slope),
            0.0,
        )
        for number in range(4):
            other = rule | {
                "growth_interval": 1 + number,
                "init_scale": draw.choice((1.0, 1024.0, 65536.0)),
            }
            steps = [
                Step(
                    *draw.choices((slope, -slope, math.inf, math.nan), (4, 4, 1, 1), k=2),
                    rest=slope,
                    place=draw.randint(-1, 0),
                    unscale=draw.random() < 0.5,
                )
                for _ in range(8)
            ]
            yield Scene(
                f"8 steps drawn, {worded(other)}",
                lambda other=other, steps=steps: Bench(answer, other, momentum=0.5).played(steps),
                0.0,
            )


class Step:
    """Gradients of one step, one number an optimizer; of one that is not finite, the others are `rest`."""

    def __init__(self, *slopes: float, unscale=False, place=-1, rest=0.125):
        self.slopes, self.unscale, self.place, self.rest = slopes, unscale, place, rest


class Bench:
    """Two optimizers (SGD, rate 1) under one scaler, each of two groups: 2 numbers; 3 numbers and one without a gradient."""

    def __init__(self, make, rule, momentum=0.0, idle=True):
        self.scaler, self.calls = make(**rule), [0, 0]
        self.weights = [[nn.Parameter(torch.zeros(size)) for size in (2, 3)] for _ in range(2)]
        self.optimizers = [
            torch.optim.SGD(
                [
                    {"params": [first]},
                    {"params": [nn.Parameter(torch.zeros(1)), second] if idle else [second]},
                ],
                lr=1.0,
                momentum=momentum,
            )
            for first, second in self.weights
        ]
        for number, optimizer in enumerate(self.optimizers):
            optimizer.register_step_pre_hook(lambda *_, number=number: self.count(number))

    def count(self, number):
        self.calls[number] += 1

    def played(self, steps) -> dict:
        """How far the weights went, how often each optimizer stepped, and the scale, after each step."""
        shown = [self.step(step) for step in steps]
        return {
            "weights moved by": [each[0] for each in shown],
            "calls of optimizer.step()": [each[1] for each in shown],
            "scale": [each[2] for each in shown],
        }

    def step(self, step) -> tuple:
        before = self.begin(step)
        self.end(step)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return (
            [b - torch.cat(pair).detach() for b, pair in zip(before, self.weights)],
            self.calls,
            float(self.scaler.get_scale()),
        )

    def begin(self, step) -> list:
        """Backward, and unscale_ where it is called; the weights as they are."""
        self.calls = [0, 0]
        loss = sum(
            (torch.cat(pair) * five(slope, step)).sum()
            for pair, slope in zip(self.weights, step.slopes)
        )
        self.scaler.scale(loss).backward()
        for optimizer in self.optimizers[: len(step.slopes)] if step.unscale else ():
            self.scaler.unscale_(optimizer)
        return [torch.cat(pair).detach() for pair in self.weights]

    def end(self, step) -> None:
        for optimizer in self.optimizers[: len(step.slopes)]:
            self.scaler.step(optimizer)
        self.scaler.update()


def worded(rule: dict) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in rule.items())


def five(slope: float, step: Step) -> torch.Tensor:
    slopes = torch.full((5,), slope if math.isfinite(slope) else step.rest)
    slopes[step.place] = slope
    return slopes


def scaled(scaler, loss: torch.Tensor) -> dict:
    leaf = loss.clone().requires_grad_()
    given = leaf * 1
    found = scaler.scale(given)
    found.backward()
    return {"scaled": float(found), "loss afterwards": float(given), "gradient": float(leaf.grad)}


def in_turns(make, rule, slope) -> dict:
    """The scales of two scalers that know nothing of each other: one skips, the other does not."""
    good, bad = Bench(make, rule), Bench(make, rule)
    told = [
        (good.step(Step(slope))[2], bad.step(Step(math.inf, rest=slope))[2])
        for _ in range(2 * rule["growth_interval"])
    ]
    return {
        "scale of the one": [one for one, _ in told],
        "scale of the other": [other for _, other in told],
    }


def at_once(make, rule, slope) -> dict:
    """One scaler updates between unscale_ and step of the other."""
    one, other, step = Bench(make, rule), Bench(make, rule), Step(slope, unscale=True)
    for bench in (one, other):
        bench.begin(step)
    for bench in (one, other):
        bench.end(step)
    return {"weights of the one": one.weights[0], "weights of the other": other.weights[0]}


def left_behind(make, rule, slope) -> dict:
    bench = Bench(make, rule)
    bench.begin(Step(slope))
    bench.end(Step(slope))
    return {"gradients after the step": bench.weights[0][0].grad}


def resumed(make, rule, slope) -> dict:
    """Another scaler's state is loaded twice: the scale then, and in the steps that follow."""
    first, second, third = Bench(make, rule), Bench(make, rule), Bench(make, rule)
    first.played([Step(math.inf, rest=slope), Step(slope)])
    state = first.scaler.state_dict()
    first.played([Step(slope)] * 5)
    shown = {}
    for bench, name in ((second, "loaded"), (third, "loaded again")):
        bench.scaler.load_state_dict(state)
        shown[f"scale {name}"] = float(bench.scaler.get_scale())
        shown[f"scale in the steps after, {name}"] = bench.played(
            [Step(slope)] * (rule["growth_interval"] + 1)
        )["scale"]
    return shown
