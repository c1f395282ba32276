"""The update of mixed precision: from scaled half gradients to float32 masters, and back to half weights.

    g = float32(half gradient) / S;   any g not finite: nothing moves, S <- S / 2, streak <- 0;   else
    clip the g's to one norm, step once, weight <- half(master), and S <- 2 S after growth_interval good steps

The truth is torch.amp.GradScaler on the masters. Gradients are small multiples of powers of two, which half
holds at every scale here, so a move is known to rounding; clip / norm and torch's clip / (norm + 1e-6) are
both right. Source: Micikevicius et al. 2018 (arXiv:1710.03740), sections 3.1 and 3.2.
"""

import math

import torch
from torch import nn

from ..fence import Refused
from ..likeness import Scene, Topic, Wrong

RIGHT = """
import math, torch

def answer(weights, masters, optimizer, scale, streak, growth_interval, clip):
    for weight, master in zip(weights, masters):
        master.grad = None if weight.grad is None else weight.grad.float() / scale
        weight.grad = None
    reached = [master for master in masters if master.grad is not None]
    if not all(master.grad.isfinite().all() for master in reached):
        return scale / 2, 0
    torch.nn.utils.clip_grad_norm_(reached, clip)
    optimizer.step()
    for weight, master in zip(weights, masters):
        weight.data.copy_(master.data)
    streak += 1
    return (2 * scale, 0) if streak == growth_interval else (scale, streak)
"""
TORCHS = """
import torch

def answer(weights, masters, optimizer, scale, streak, growth_interval, clip):
    scaler = torch.amp.GradScaler("cpu", init_scale=float(scale), growth_interval=growth_interval)
    scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": int(streak)})
    scaler.scale(torch.zeros(()))
    for weight, master in zip(weights, masters):
        master.grad = None if weight.grad is None else weight.grad.float()
        weight.grad = None
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(masters, clip)
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        for weight, master in zip(weights, masters):
            weight.copy_(master)
    return scaler.get_scale(), scaler.state_dict()["_growth_tracker"]
"""
BY_HAND = """
import math, torch

@torch.no_grad()
def answer(weights, masters, optimizer, scale, streak, growth_interval, clip):
    squares, bad = 0.0, False
    for weight, master in zip(weights, masters):
        if weight.grad is None:
            master.grad = None
            continue
        master.grad = weight.grad.to(torch.float32)
        master.grad *= 1.0 / scale
        weight.grad.zero_()
        total = master.grad.double().square().sum().item()
        if math.isnan(total) or math.isinf(total):
            bad = True
        squares += total
    if bad:
        streak, scale = 0, scale * 0.5
    else:
        norm = math.sqrt(squares)
        if norm > clip:
            for master in masters:
                if master.grad is not None:
                    master.grad.mul_(clip / norm)
        optimizer.step()
        for i in range(len(weights)):
            weights[i].data = masters[i].data.half()
        streak = streak + 1
        if streak >= growth_interval:
            scale, streak = scale * 2, 0
    optimizer.zero_grad()
    return [scale, streak]
"""
TRIES = """
import torch

def answer(weights, masters, optimizer, scale, streak, growth_interval, clip):
    pairs = [(w, m) for w, m in zip(weights, masters) if w.grad is not None]
    optimizer.zero_grad()
    for w, m in pairs:
        m.grad = w.grad.float()
        w.grad = None
    try:
        torch.nn.utils.clip_grad_norm_([m for _, m in pairs], clip * scale, error_if_nonfinite=True)
    except RuntimeError:
        return torch.as_tensor(scale / 2.0), torch.tensor(0)
    torch._foreach_div_([m.grad for _, m in pairs], float(scale))
    optimizer.step()
    torch._foreach_copy_([w.data for w in weights], [m.data for m in masters])
    grown = (int(streak) + 1) % growth_interval == 0
    return torch.as_tensor([2.0 * float(scale) if grown else float(scale), int(streak) + 1])
"""
GRADIENT = "None if weight.grad is None else weight.grad.float() / scale"
DIVIDED, CLEAR, FINITE, SKIP = (
    "weight.grad.float() / scale",
    "        weight.grad = None\n",
    "master.grad.isfinite().all()",
    "return scale / 2, 0",
)
ALL, CLIP, STEP = (
    f"all({FINITE} for master in reached)",
    "torch.nn.utils.clip_grad_norm_(reached, clip)",
    "    optimizer.step()\n",
)
COPY, GROW = (
    "weight.data.copy_(master.data)",
    "return (2 * scale, 0) if streak == growth_interval else (scale, streak)",
)
ADDED = f"master.grad = (0 if master.grad is None else master.grad) + {DIVIDED} if weight.grad is not None else None"
REACHED, SIGNATURE, COUNT = (
    "reached = [master for master in masters if master.grad is not None]",
    "growth_interval, clip):",
    "    streak += 1\n",
)

TIMES = "The gradient is exactly the scale times too large: divide it by the scale."
TOO_SMALL = "The gradient is too small by the scale: divide it once."
HALVES = "Dividing in fp16 sends the small gradients back to zero: convert to float32 first, then divide."
GIVEN = "Divide by the scale that you are given: the gradients came with it, and it changes after."
FOLLOW = "The half weights did not follow their masters: after every optimizer.step(), copy each master straight into its weight."
TYPES = "A weight or a master has another type than before: write into it with .copy_(), which keeps its type."
WRONG_WAY = (
    "The masters were rounded to half precision: copy from the master to the weight, never back."
)
LEFT = (
    "A step began with the half gradients of an earlier one: set weight.grad = None in every step."
)
SKIPPED = "After a skipped step the next is lost too: set .grad = None also where you skip. Multiplying by 0 clears nothing, since inf * 0 is nan."
MASTERS_LEFT = "A step began with the masters' gradients of an earlier one: assign master.grad anew in every step."
UNCLIPPED = "Gradients above the norm allowed were not clipped to it: clip all masters together by their norm."
SCALED = "You clipped the scaled gradient: the true norm becomes clip / scale. Divide by the scale first."
TOGETHER = "You clipped by another norm: take that of all masters together, the root of the sum of all squares."
SMALLER = "Gradients below the norm allowed were changed by clipping: change only those whose norm exceeds it."
ONCE = "optimizer.step() ran more than once in a good step: call it once, after all masters have their gradients."
CALLED = "optimizer.step() was called in a skipped step: do not call it, since momentum and counts move even with zeros."
EVERY = "A step was made although a gradient is not finite: look at every number of every weight, and skip the whole step."
STATE = "The optimizer's momentum was lost: leave its state alone, and let a skip change only the scale and the streak."
FINITES = "A large finite gradient was skipped: float32 holds it. Convert first, then skip for inf and nan alone."
SIZE = "After a skipped step the scale is not half of what it was: halve it."
STREAK = "A skipped step left a wrong growth count: set it to 0."
GROWTH = "The scale doubled at the wrong step: double it when the streak reaches growth_interval, and then count from 0."
NEVER = "The scale never doubled: count good steps, and double it after growth_interval of them."
LIMITS = "Very large or small scales are treated differently: let the scale grow and shrink freely."
UNREACHED = "A weight without a gradient stopped your update: leave out those whose .grad is None."
KEEPS = "The count does not go on from the streak that you are given: start from it, and keep nothing between calls."
RUINS = "A skipped step changed the half weights: leave weights and masters as they are."


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        text = text.replace(old, new)
    return text


class MasterWeights(Topic):
    name = "master-weights"
    forbids = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler")
    hints = (
        "Which comes first: dividing, looking for inf, or clipping? What would each find in the other order?",
        "Do three passes over the pairs: gradients to the masters, then one decision for all, then masters to the weights.",
        "First pass: master.grad = weight.grad.float() / scale, weight.grad = None. Not finite: return half the scale and 0. Else clip the "
        "masters, step once, copy each master into its weight, and count.",
    )
    right = {
        "in three passes": RIGHT,
        "torch's": TORCHS,
        "by hand": BY_HAND,
        "torch looks for inf, and returns tensors": TRIES,
        "clips by hand": changed(
            RIGHT,
            (
                CLIP,
                "norm = torch.stack([(m.grad ** 2).sum() for m in reached]).sum().sqrt(); [m.grad.mul_(min(1, clip / norm)) for m in reached]",
            ),
        ),
        "clips by hand with torch's 1e-6": changed(
            RIGHT,
            (
                CLIP,
                "norm = torch.cat([m.grad.flatten() for m in reached]).norm(); [m.grad.mul_((clip / (norm + 1e-6)).clamp(max=1)) for m in reached]",
            ),
        ),
        "divides in float64": changed(RIGHT, (DIVIDED, "(weight.grad.double() / scale).float()")),
        "adds to master.grad and clears it": changed(
            RIGHT,
            (f"master.grad = {GRADIENT}", ADDED),
            (SKIP, f"optimizer.zero_grad(); {SKIP}"),
            (STEP, f"{STEP}    optimizer.zero_grad()\n"),
        ),
        "looks at the norm": changed(
            RIGHT, (ALL, "torch.cat([m.grad.flatten() for m in reached]).norm().isfinite()")
        ),
        "replaces .data": changed(RIGHT, (COPY, "weight.data = master.data.half()")),
        "counts by the remainder": changed(
            RIGHT, (GROW, "return (2 * scale if streak % growth_interval == 0 else scale), streak")
        ),
    }
    wrong = {
        "does nothing": Wrong(
            "The masters did not move: put their gradients in master.grad and call optimizer.step().",
            ((STEP, ""),),
        ),
        "clears before the step": Wrong(
            "optimizer.step() moved no master: put the gradients in master.grad, and clear them only after the step.",
            ((STEP, "    optimizer.zero_grad()\n" + STEP),),
        ),
        "never divides": Wrong(TIMES, ((DIVIDED, "weight.grad.float()"),)),
        "multiplies": Wrong(
            "The gradient was multiplied by the scale once more: divide it instead.",
            ((DIVIDED, "weight.grad.float() * scale"),),
        ),
        "divides in half": Wrong(HALVES, ((DIVIDED, "(weight.grad / scale).float()"),)),
        "divides twice": Wrong(
            TOO_SMALL, ((CLIP, "[master.grad.div_(scale) for master in reached]; " + CLIP),)
        ),
        "divides by a number of its own": Wrong(GIVEN, ((DIVIDED, "weight.grad.float() / 1024"),)),
        "divides by the first scale": Wrong(
            GIVEN,
            (
                (SIGNATURE, "growth_interval, clip, first=[]):\n    first.append(scale)"),
                (DIVIDED, "weight.grad.float() / first[0]"),
            ),
        ),
        "divides by the next scale": Wrong(
            GIVEN,
            (
                (
                    DIVIDED,
                    "weight.grad.float() / (2 * scale if streak + 1 == growth_interval else scale)",
                ),
            ),
        ),
        "climbs": Wrong(
            "The masters went uphill: the optimizer subtracts, so leave the gradient's sign.",
            ((CLIP, CLIP + "; [m.grad.neg_() for m in reached]"),),
        ),
        "copies up": Wrong(WRONG_WAY, ((COPY, COPY + "; master.data.copy_(weight.data)"),)),
        "copies up first": Wrong(
            WRONG_WAY,
            (
                (
                    "    for weight, master in zip(weights, masters):\n        master.grad",
                    "    for weight, master in zip(weights, masters):\n        master.data.copy_(weight.data)\n        master.grad",
                ),
            ),
        ),
        "copies up alone": Wrong(WRONG_WAY, ((COPY, "master.data.copy_(weight.data)"),)),
        "never copies": Wrong(FOLLOW, ((COPY, "pass"),)),
        "copies the first": Wrong(FOLLOW, ((COPY, COPY + "; break"),)),
        "copies at streak 0": Wrong(
            FOLLOW, ((COPY, "weight.data.copy_(master.data if streak == 0 else weight.data)"),)
        ),
        "copies through bfloat16": Wrong(
            FOLLOW, ((COPY, "weight.data.copy_(master.data.bfloat16())"),)
        ),
        "subtracts in half": Wrong(
            FOLLOW, ((COPY, "weight.data -= master.grad.half() if master.grad is not None else 0"),)
        ),
        "makes weights float32": Wrong(TYPES, ((COPY, "weight.data = master.data"),)),
        "makes masters half": Wrong(TYPES, ((COPY, COPY + "; master.data = master.data.half()"),)),
        "ruins weights where it skips": Wrong(
            RUINS, ((SKIP, "[weight.data.zero_() for weight in weights]; " + SKIP),)
        ),
        "leaves weight.grad": Wrong(LEFT, ((CLEAR, ""),)),
        "clears weight.grad of finite ones": Wrong(
            SKIPPED,
            (
                (
                    CLEAR,
                    "        weight.grad = None if weight.grad is None or weight.grad.isfinite().all() else weight.grad\n",
                ),
            ),
        ),
        "adds to master.grad": Wrong(MASTERS_LEFT, ((f"master.grad = {GRADIENT}", ADDED),)),
        "keeps the first master.grad": Wrong(
            "Every step took the first one's gradient: assign master.grad anew in every step.",
            (
                (
                    f"master.grad = {GRADIENT}",
                    f"master.grad = ({GRADIENT}) if master.grad is None else master.grad",
                ),
            ),
        ),
        "expects gradients": Wrong(UNREACHED, ((GRADIENT, DIVIDED),)),
        "returns at a weight without": Wrong(
            "A weight without a gradient made you skip the step: leave it out, and step for the others.",
            (
                (
                    REACHED,
                    REACHED + "\n    if len(reached) < len(masters):\n        return scale, streak",
                ),
            ),
        ),
        "backs off at a weight without": Wrong(
            "A weight without a gradient made you skip the step: leave it out, and step for the others.",
            (
                (
                    REACHED,
                    REACHED + "\n    if len(reached) < len(masters):\n        return scale / 2, 0",
                ),
            ),
        ),
        "stops at a weight without": Wrong(
            "Weights after one without a gradient were forgotten: go on with the next weight.",
            (
                (
                    f"master.grad = {GRADIENT}",
                    f"master.grad = {GRADIENT}\n        if weight.grad is None:\n            break",
                ),
            ),
        ),
        "never clips": Wrong(UNCLIPPED, ((CLIP, "pass"),)),
        "clips each number": Wrong(
            UNCLIPPED, ((CLIP, "torch.nn.utils.clip_grad_value_(reached, clip)"),)
        ),
        "clips to 1": Wrong(
            "You clipped to a norm of your own: use the clip that you are given.",
            ((CLIP, CLIP.replace("clip)", "1.0)")),),
        ),
        "clips the scaled": Wrong(
            SCALED,
            (
                (DIVIDED, "weight.grad.float()"),
                (CLIP, CLIP + "; [m.grad.div_(scale) for m in reached]"),
            ),
        ),
        "clips each alone": Wrong(
            TOGETHER, ((CLIP, "[torch.nn.utils.clip_grad_norm_(each, clip) for each in reached]"),)
        ),
        "clips the last alone": Wrong(
            TOGETHER, ((CLIP, "torch.nn.utils.clip_grad_norm_(reached[-1], clip)"),)
        ),
        "clips the first alone": Wrong(
            TOGETHER, ((CLIP, "torch.nn.utils.clip_grad_norm_(reached[0], clip)"),)
        ),
        "clips the sum of norms": Wrong(
            TOGETHER,
            (
                (
                    CLIP,
                    "t = sum(m.grad.norm() for m in reached); [m.grad.mul_(min(1, clip / t)) for m in reached]",
                ),
            ),
        ),
        "clips the mean of norms": Wrong(
            TOGETHER,
            (
                (
                    CLIP,
                    "t = sum(m.grad.norm() for m in reached) / len(reached); [m.grad.mul_(min(1, clip / t)) for m in reached]",
                ),
            ),
        ),
        "clips a norm in half": Wrong(
            "A norm in half is inf above 65,504: convert to float32 first, then take the norm.",
            (
                (
                    "    for weight, master in zip(weights, masters):\n        master.grad",
                    "    t = sum(w.grad.norm() ** 2 for w in weights if w.grad is not None) ** 0.5 / scale\n    for weight, master in zip(weights, masters):\n        master.grad",
                ),
                (CLIP, "[m.grad.mul_(min(1, clip / float(t))) for m in reached]"),
            ),
        ),
        "clips the largest norm": Wrong(
            TOGETHER,
            (
                (
                    CLIP,
                    "t = max(m.grad.norm() for m in reached); [m.grad.mul_(min(1, clip / t)) for m in reached]",
                ),
            ),
        ),
        "clips the mean square": Wrong(
            TOGETHER,
            (
                (
                    CLIP,
                    "t = torch.cat([m.grad.flatten() for m in reached]).square().mean().sqrt(); [m.grad.mul_(min(1, clip / t)) for m in reached]",
                ),
            ),
        ),
        "clips the sum of squares": Wrong(
            TOGETHER,
            (
                (
                    CLIP,
                    "t = sum(m.grad.square().sum() for m in reached); [m.grad.mul_(min(1, clip / t)) for m in reached]",
                ),
            ),
        ),
        "clips by the largest number": Wrong(
            TOGETHER, ((CLIP, CLIP.replace("clip)", "clip, norm_type=math.inf)")),)
        ),
        "clips by the sum of numbers": Wrong(
            TOGETHER, ((CLIP, CLIP.replace("clip)", "clip, norm_type=1)")),)
        ),
        "makes small ones larger": Wrong(
            SMALLER,
            (
                (
                    CLIP,
                    "t = torch.cat([m.grad.flatten() for m in reached]).norm(); [m.grad.mul_(clip / t) for m in reached]",
                ),
            ),
        ),
        "clips to half": Wrong(SMALLER, ((CLIP, CLIP.replace("clip)", "clip / 2)")),)),
        "skips above the norm": Wrong(
            "Gradients above the norm allowed were thrown away: make them smaller, and step.",
            (
                (
                    CLIP,
                    f"if torch.cat([m.grad.flatten() for m in reached]).norm() > clip:\n        {SKIP}",
                ),
            ),
        ),
        "moves masters itself": Wrong(
            "The masters moved without optimizer.step(): it knows the rule and the momentum, so call it.",
            ((STEP, "    for m in reached: m.data -= m.grad\n"),),
        ),
        "steps in the loop": Wrong(ONCE, ((STEP, ""), (COPY, "optimizer.step(); " + COPY))),
        "steps twice": Wrong(ONCE, ((STEP, 2 * STEP),)),
        "breaks off the loop": Wrong(
            "Not every master got its gradient: give it to all of them before the one optimizer.step().",
            ((CLEAR, CLEAR + "        break\n"),),
        ),
        "keeps no momentum": Wrong(STATE, ((STEP, STEP + "    optimizer.state.clear()\n"),)),
        "forgets momentum where it skips": Wrong(
            STATE, ((SKIP, "optimizer.state.clear(); " + SKIP),)
        ),
        "never skips": Wrong(EVERY, ((ALL, "True"),)),
        "steps, then looks": Wrong(
            "The masters moved before you looked: look at all gradients before optimizer.step().",
            ((STEP, ""), (f"    if not {ALL}", f"{STEP}    if not {ALL}")),
        ),
        "skips nan alone": Wrong(
            "A gradient of inf was stepped on: test for both inf and nan.",
            ((FINITE, "(not master.grad.isnan().any())"),),
        ),
        "skips inf alone": Wrong(
            "A gradient of nan was stepped on: test for both inf and nan.",
            ((FINITE, "(not master.grad.isinf().any())"),),
        ),
        "skips no -inf": Wrong(
            "A gradient of -inf was stepped on: test for it too.",
            ((FINITE, "(not (master.grad.isnan() | (master.grad == math.inf)).any())"),),
        ),
        "looks at the last number": Wrong(
            EVERY, ((FINITE, "master.grad.view(-1)[-1].isfinite()"),)
        ),
        "skips a weight at a time": Wrong(
            "One weight's gradient was not finite and others moved: skip the whole step.",
            (
                (
                    SKIP,
                    "\n        for m in reached: m.grad = m.grad if m.grad.isfinite().all() else None",
                ),
            ),
        ),
        "sets inf to 0": Wrong(
            "A gradient that is not finite was changed and stepped on: skip the whole step.",
            ((DIVIDED, f"({DIVIDED}).nan_to_num(0, 0, 0)"),),
        ),
        "sets inf to the largest": Wrong(
            "A gradient that is not finite was changed and stepped on: skip the whole step.",
            ((DIVIDED, f"({DIVIDED}).nan_to_num()"),),
        ),
        "looks after the step, and puts back": Wrong(
            "The optimizer had stepped before you looked, so its momentum is lost: look at the gradients first.",
            (
                (
                    f"    if not {ALL}:\n        {SKIP}\n",
                    "    saved = [m.detach().clone() for m in masters]\n",
                ),
                (
                    STEP,
                    f"{STEP}    if not all(m.isfinite().all() for m in masters):\n        [m.data.copy_(old) for m, old in zip(masters, saved)]\n        {SKIP}\n",
                ),
            ),
        ),
        "steps with zeros": Wrong(
            CALLED, ((SKIP, "[m.grad.zero_() for m in reached]; optimizer.step(); " + SKIP),)
        ),
        "zeros for none": Wrong(
            "A weight that took no part was moved by momentum or decay: give its master no gradient, not one of zeros.",
            (
                (
                    f"master.grad = {GRADIENT}",
                    "master.grad = torch.zeros_like(master) if weight.grad is None else weight.grad.float() / scale",
                ),
            ),
        ),
        "the old one for none": Wrong(
            "A weight that took no part was moved by its last gradient: set its master's .grad to None.",
            (
                (
                    f"master.grad = {GRADIENT}",
                    "master.grad = master.grad if weight.grad is None else weight.grad.float() / scale",
                ),
            ),
        ),
        "zeros overflow": Wrong(
            "Gradients that are all 0 were skipped: they are finite, so make the step.",
            (("if not all(", "if not any(m.grad.any() for m in reached) or not all("),),
        ),
        "zeros and a norm": Wrong(
            "Gradients that are all 0 broke your clipping: divide by the norm only where it exceeds the limit.",
            (
                (
                    "torch.nn.utils.clip_grad_norm_(reached, clip)",
                    "norm = torch.cat([m.grad.flatten() for m in reached]).norm().item(); k = min(1.0, clip / norm)\n"
                    "    for m in reached: m.grad.mul_(k)",
                ),
            ),
        ),
        "zeros and nan": Wrong(
            "Gradients that are all 0 broke your clipping: divide by the norm only where it exceeds the limit.",
            (
                (
                    "torch.nn.utils.clip_grad_norm_(reached, clip)",
                    "norm = torch.cat([m.grad.flatten() for m in reached]).norm()\n"
                    "    for m in reached: m.grad.mul_(((0 * norm + clip) / norm * norm / norm).clamp(max=1))",
                ),
            ),
        ),
        "by shape": Wrong(
            "Two weights of one shape were taken for each other: pair weights and masters by their places.",
            ((COPY, "weight.data.copy_({m.shape: m for m in masters}[weight.shape].data)"),),
        ),
        "switches off": Wrong(
            "A weight needs no gradient any more: copy under torch.no_grad() instead.",
            ((COPY, "weight.requires_grad_(False).copy_(master.detach())"),),
        ),
        "empties the lists": Wrong(
            "The lists that were given are empty afterwards: leave them as they are.",
            ((COPY, COPY + "\n    weights.clear()"),),
        ),
        "steps with None": Wrong(
            CALLED,
            ((SKIP, "[setattr(m, 'grad', None) for m in masters]; optimizer.step(); " + SKIP),),
        ),
        "sums in half": Wrong(
            FINITES,
            (
                (
                    CLEAR,
                    f"        if weight.grad is not None and not weight.grad.sum().isfinite(): master.grad.fill_(math.nan)\n{CLEAR}",
                ),
            ),
        ),
        "norm in half": Wrong(
            FINITES,
            (
                (
                    CLEAR,
                    f"        if weight.grad is not None and not (weight.grad * weight.grad).sum().isfinite(): master.grad.fill_(math.nan)\n{CLEAR}",
                ),
            ),
        ),
        "skips above 65,536": Wrong(LIMITS, ((ALL, f"{ALL} or scale > 65536"),)),
        "does not back off": Wrong(SIZE, ((SKIP, "return scale, 0"),)),
        "backs off by 4": Wrong(SIZE, ((SKIP, "return scale / 4, 0"),)),
        "grows where it skips": Wrong(SIZE, ((SKIP, "return scale * 2, 0"),)),
        "backs off to 1": Wrong(SIZE, ((SKIP, "return 1.0, 0"),)),
        "counts a skip": Wrong(STREAK, ((SKIP, "return scale / 2, streak + 1"),)),
        "keeps the streak": Wrong(STREAK, ((SKIP, "return scale / 2, streak"),)),
        "one less where it skips": Wrong(STREAK, ((SKIP, "return scale / 2, max(streak - 1, 0)"),)),
        "begins at 1 after a skip": Wrong(STREAK, ((SKIP, "return scale / 2, 1"),)),
        "begins at -1 after a skip": Wrong(STREAK, ((SKIP, "return scale / 2, -1"),)),
        "never grows": Wrong(NEVER, ((GROW, "return scale, streak"),)),
        "grows late": Wrong(GROWTH, ((GROW, GROW.replace("streak ==", "streak >")),)),
        "grows early": Wrong(GROWTH, ((GROW, GROW.replace("streak ==", "streak + 1 >=")),)),
        "grows once": Wrong(GROWTH, ((GROW, GROW.replace("scale, 0)", "scale, streak)")),)),
        "grows and counts on": Wrong(
            GROWTH,
            (
                (
                    GROW,
                    "return (2 * scale, streak) if streak >= growth_interval else (scale, streak)",
                ),
            ),
        ),
        "begins at 1 after growth": Wrong(
            GROWTH, ((GROW, GROW.replace("scale, 0)", "scale, 1)")),)
        ),
        "grows at once": Wrong(
            "The scale changed after one good step: it doubles after growth_interval of them.",
            ((GROW, "return 2 * scale, 0"),),
        ),
        "grows by 4": Wrong(
            "The scale grew, but not to twice what it was: double it.",
            ((GROW, GROW.replace("2 * scale", "4 * scale")),),
        ),
        "adds 1 to the scale": Wrong(
            "The scale grew, but not to twice what it was: double it.",
            ((GROW, GROW.replace("2 * scale", "scale + 1")),),
        ),
        "at most 65,536": Wrong(
            LIMITS, ((GROW, GROW.replace("2 * scale", "min(2 * scale, 65536.0)")),)
        ),
        "at least 1": Wrong(LIMITS, ((SKIP, "return max(scale / 2, 1.0), 0"),)),
        "at least 128": Wrong(LIMITS, ((SKIP, "return max(scale / 2, 128.0), 0"),)),
        "whole numbers": Wrong(LIMITS, ((SKIP, "return scale // 2, 0"),)),
        "counts by itself": Wrong(
            KEEPS,
            (
                (SIGNATURE, "growth_interval, clip, count=[0]):"),
                (COUNT, "    streak = count[0] = 1 + (count[0] if streak else 0)\n"),
            ),
        ),
        "returns the streak first": Wrong(
            "The scale comes first, then the streak: return (scale, streak).",
            ((GROW, "return streak, scale"),),
        ),
    }

    @staticmethod
    def probe(answer, draw):
        scale, n, seed = 2.0 ** draw.randint(8, 12), draw.randint(3, 4), draw.randrange(10**6)
        told = f"scale {scale:,g}"

        def scene(name, *steps, near=1e-5, **options):
            return Scene(name, lambda: Bench(answer, seed, **options).played(steps), near)

        good = Step(scale)
        yield scene(f"one good step, {told}", good)
        yield Scene(
            f"a gradient of 2^-26, which fp16 does not hold, {told}",
            lambda: Bench(answer, seed).smallest(max(scale, 1024.0)),
            1e-3,
        )
        yield scene(f"two good steps, scales {scale:,g} and {2 * scale:,g}", good, Step(2 * scale))
        for share in (0.125, 0.8, 1.5, 4.0):
            yield scene(
                f"a norm of {1 / share:.3g} times the norm allowed, {told}",
                Step(scale, clip=share, unit=2.0**-3),
                near=1e-4,
            )
        yield scene(
            f"two good steps, a weight without a gradient, {told}",
            Step(scale, clip=0.5),
            Step(scale, clip=0.5),
            idle=True,
            momentum=0.5,
            near=1e-4,
        )
        yield scene(
            f"a weight that takes part in every other step, weight decay, {told}",
            Step(scale, clip=0.5),
            Step(None, clip=0.5, idle=True),
            Step(None, clip=0.5),
            Step(None, idle=True),
            momentum=0.5,
            decay=0.125,
            near=1e-4,
        )
        yield scene(
            f"gradients that are all 0 after a good step, {told}",
            good,
            Step(None, fill=0.0),
            Step(None),
            momentum=0.5,
        )
        for broken, place in (
            (broken, place) for broken in (math.inf, math.nan, -math.inf) for place in (-1, 0, 1)
        ):
            yield scene(
                f"a good step, one with {broken} in a gradient, a good one, {told}",
                good,
                Step(None, broken, place),
                Step(None),
                momentum=0.5,
            )
        yield scene(f"half gradients of 60,000, {told}", Step(scale, fill=60_000 / scale))
        yield scene(
            f"{2 * n + 1} good steps, growth_interval={n}, {told}",
            good,
            *[Step(None)] * 2 * n,
            interval=n,
        )
        yield scene(
            f"a skipped step just before the scale would double, growth_interval={n}, {told}",
            good,
            *[Step(None)] * (n - 2),
            Step(None, math.inf),
            *[Step(None)] * (n + 1),
            interval=n,
        )
        yield scene(
            f"streak={n - 1} and growth_interval={n}, {told}",
            Step(scale, streak=n - 1),
            Step(None),
            interval=n,
        )
        yield scene(
            "7 skipped steps, then a good one, scale 4",
            Step(4.0, math.nan),
            *[Step(None, math.inf)] * 6,
            Step(None),
            near=1e-4,
        )
        yield scene(
            "6 good steps, growth_interval=1, scale 16,384",
            Step(16384.0, unit=2.0**-14),
            *[Step(None, unit=2.0**-14)] * 5,
            interval=1,
            near=1e-4,
        )
        for _ in range(4):
            first, interval = draw.choice((1.0, 1024.0, 65536.0)), draw.randint(1, 4)
            steps = [
                Step(
                    None if i else first,
                    draw.choice((math.inf, math.nan, -math.inf)) if draw.random() < 0.3 else None,
                    draw.randint(-1, 0),
                    clip=draw.choice((0.5, 2.0)),
                    unit=2.0**-3 if first == 1 else 2.0**-10,
                )
                for i in range(8)
            ]
            yield scene(
                f"8 steps drawn, clipped by half or not, growth_interval={interval}, scale {first:,g}",
                *steps,
                near=3e-4,
                interval=interval,
                momentum=0.5,
                idle=draw.random() < 0.5,
            )


class Step:
    """One backward and one update. `scale` None: what the answer returned. `clip`: of the gradients' norm."""

    def __init__(
        self, scale, broken=None, place=-1, streak=0, clip=1e30, fill=None, unit=2.0**-6, idle=False
    ):
        self.scale, self.broken, self.place, self.streak, self.idle = (
            scale,
            broken,
            place,
            streak,
            idle,
        )
        self.clip, self.fill, self.unit = clip, fill, unit


class Bench:
    """What an update works on: half weights, their float32 masters, and SGD of rate 1 on the masters."""

    def __init__(self, update, seed, momentum=0.0, decay=0.0, interval=10**6, idle=False):
        self.update, self.interval, self.idle, self.draw = (
            update,
            interval,
            idle,
            torch.Generator().manual_seed(seed),
        )
        self.masters = [
            nn.Parameter(torch.randn(shape, generator=self.draw))
            for shape in ((3, 2), (4,), (2, 2), (4,))
        ]
        self.masters[0].data.view(-1)[0] = 0.0  # where the smallest step is seen
        self.weights = [nn.Parameter(master.detach().half()) for master in self.masters]
        self.optimizer = torch.optim.SGD(
            self.masters, lr=1.0, momentum=momentum, weight_decay=decay
        )
        self.optimizer.register_step_pre_hook(self.count)
        self.calls = 0

    def count(self, *_):
        self.calls += 1

    def played(self, steps) -> dict:
        """What each step showed; the scale and the streak go on as the answer returned them."""
        shown, scale, streak = [], None, 0
        for step in steps:
            if step.scale is not None:
                scale, streak = step.scale, step.streak
            before, self.calls = [master.detach().clone() for master in self.masters], 0
            scale, streak = self.step(step, scale, streak)
            differ = sum(
                int((weight.detach() != master.detach().half()).sum())
                for weight, master in zip(self.weights, self.masters)
            )
            moved = [(b - m.detach()).flatten() for b, m in zip(before, self.masters)]
            shown.append((moved, self.calls, differ, float(scale)))
        types = [
            [str(t.dtype).removeprefix("torch.") for t in tensors]
            for tensors in (self.weights, self.masters)
        ]
        moved, calls, differ, scales = zip(*shown)
        return {
            "types": types,
            "masters moved by": moved,
            "calls of optimizer.step()": calls,
            "numbers of weights that are not their master's, rounded": differ,
            "scale": scales,
        }

    def step(self, step, scale, streak) -> tuple:
        gradients = [
            torch.randint(1, 9, master.shape, generator=self.draw) * step.unit
            for master in self.masters
        ]
        signs = [
            torch.randint(0, 2, master.shape, generator=self.draw) * 2 - 1
            for master in self.masters
        ]
        gradients = [
            gradient * sign if step.fill is None else torch.full_like(gradient, step.fill)
            for gradient, sign in zip(gradients, signs)
        ]
        if self.idle or step.idle:
            gradients[1] = self.weights[1].grad = None
        clip = (
            step.clip * torch.cat([g.flatten() for g in gradients if g is not None]).norm().item()
            or step.clip
        )
        if step.broken is not None:
            gradients[step.place].view(-1)[step.place] = step.broken
        return self.backward_and_update(gradients, scale, streak, clip)

    def backward_and_update(self, gradients, scale, streak, clip) -> tuple:
        """Gradients of the scaled loss, added to what is there as autograd does, and one update."""
        for weight, gradient in zip(self.weights, gradients):
            if gradient is not None:
                scaled = (gradient * float(scale)).half()
                weight.grad = scaled if weight.grad is None else weight.grad + scaled
        given = list(self.weights), list(self.masters)
        told = self.update(*given, self.optimizer, scale, streak, self.interval, clip)
        if not all(map(same_things, given, (self.weights, self.masters))):
            raise Refused(
                "Your function changed the lists that it was given: leave them as they are."
            )
        if not all(each.requires_grad for each in (*self.weights, *self.masters)):
            raise Refused(
                "After your function a weight or a master needs no gradient any more: copy under torch.no_grad() instead."
            )
        try:
            scale, streak = told
            float(scale), float(streak)
        except (TypeError, ValueError, RuntimeError):
            raise Refused(
                f"Your function returned {str(told)[:60]}: return the pair (scale, streak) for the next "
                "step, also where you skip."
            ) from None
        return scale, streak

    def smallest(self, scale) -> dict:
        gradients = [torch.full_like(master.detach(), 0.125) for master in self.masters]
        gradients[0].view(-1)[0] = 2.0**-26
        self.backward_and_update(gradients, scale, 0, 1e30)
        return {"its master moved by": -self.masters[0].detach().view(-1)[0]}


def same_things(ours: list, theirs: list) -> bool:
    return len(ours) == len(theirs) and all(a is b for a, b in zip(ours, theirs))
