"""The check of an update in mixed precision: silent on right ones, however written, and on each known mistake the sentence that names it."""

import pytest
import torch

from bigtrain_lab.checks import update_findings
from bigtrain_lab.techniques.mixed_precision import DynamicLossScaler

RIGHT = """
def update(weights, masters, optimizer, scale, streak, growth_interval, clip):
    for weight, master in zip(weights, masters):
        master.grad = weight.grad.float() / scale
        weight.grad = None
    if not all(master.grad.isfinite().all() for master in masters):
        return scale / 2, 0
    torch.nn.utils.clip_grad_norm_(masters, clip)
    optimizer.step()
    for weight, master in zip(weights, masters):
        weight.data.copy_(master.data)
    streak += 1
    return (2 * scale, 0) if streak == growth_interval else (scale, streak)
"""
DIVIDE, CLEAR, FINITE, SKIP = "weight.grad.float() / scale", "        weight.grad = None\n", "master.grad.isfinite().all()", "return scale / 2, 0"
CLIP, STEP, COPY, GROW = ("torch.nn.utils.clip_grad_norm_(masters, clip)", "    optimizer.step()\n", "weight.data.copy_(master.data)",
                          "return (2 * scale, 0) if streak == growth_interval else (scale, streak)")


def changed(*changes: tuple[str, str]):
    """The right update with these pieces of its text replaced."""
    text = RIGHT
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    names = {"torch": torch}
    exec(text, names)
    return names["update"]


MISTAKES = {
    # the division
    "never divides": ("exactly 1,024 times too large", (DIVIDE, "weight.grad.float()")),
    "divides in half": ("fp16 sends the small gradients back to zero", (DIVIDE, "(weight.grad / scale).float()")),
    "divides twice": ("1,024 times too small", (CLIP, "[master.grad.div_(scale) for master in masters]; " + CLIP)),
    "divides by a number of its own": ("divide by the scale that you are given", (DIVIDE, "weight.grad.float() / 1024")),
    "divides by the next scale": ("In good step 3, with growth_interval=3, a gradient of 0.125 moved a master by 0.0625",
                                  (DIVIDE, "weight.grad.float() / (2 * scale if streak + 1 == growth_interval else scale)")),
    "climbs": ("moved a master by -0.125: it must move by exactly that", (CLIP, CLIP + "; [m.grad.neg_() for m in masters]")),
    "goes half as far later": ("In the second step a gradient of 0.375 moved a master by 0.1875", (DIVIDE, DIVIDE + " / (2 if streak else 1)")),
    # the weights
    "copies up": ("you copy the wrong way", (COPY, COPY + "; master.data.copy_(weight.data)")),
    "never copies": ("did not follow their masters in the first step", (COPY, "pass")),
    "binds a name": ("did not follow their masters in the first step", (COPY, "weight = master.half()")),
    "copies at streak 0": ("did not follow their masters in the second step", (COPY, "weight.data.copy_(master.data if streak == 0 else weight.data)")),
    "copies through bfloat16": ("did not follow their masters in the first step", (COPY, "weight.data.copy_(master.data.bfloat16())")),
    "copies through bfloat16 later": ("did not follow their masters in the second step",
                                      (COPY, "weight.data.copy_(master.data.bfloat16() if streak else master.data)")),
    "subtracts in half": ("did not follow their masters", (COPY, "weight.data -= master.grad.half()")),
    "makes weights float32": ("A weight was float16 and is float32 now", (COPY, "weight.data = master.data")),
    "makes masters half": ("A master was float32 and is float16 now", (COPY, COPY + "; master.data = master.data.half()")),
    "ruins weights where it skips": ("the half weights are not their masters any more", (SKIP, "[weight.data.zero_() for weight in weights]; " + SKIP)),
    "ruins weights on a long streak": ("The half weights are not their masters, rounded, in step", (COPY, COPY + "; weight.data += 0.25 * (scale < 500)")),
    # gradients left over
    "leaves weight.grad": ("the half gradients of the first were still there. Set weight.grad = None", (CLEAR, "")),
    "adds to master.grad": ("Assign to master.grad", (f"master.grad = {DIVIDE}", f"master.grad = {DIVIDE} + (0 if master.grad is None else master.grad)")),
    "keeps the first master.grad": ("took the first's gradient again", (f"master.grad = {DIVIDE}", f"master.grad = {DIVIDE} if master.grad is None else master.grad")),
    "leaves weight.grad where it skips": ("the next one is lost too: set weight.grad = None also",
                                          (CLEAR, ""), (COPY, COPY + "; weight.grad = None")),
    "leaves one weight.grad where it skips": ("the next one is lost too: set weight.grad = None also",
                                              (CLEAR, f"        if not {FINITE}: weight.grad = None; {SKIP}\n        weight.grad = None\n")),
    "leaves master.grad where it skips": ("the next one is lost too: set master.grad = None also",
                                          (f"master.grad = {DIVIDE}", f"master.grad = {DIVIDE} + (0 if master.grad is None else master.grad)"),
                                          (COPY, COPY + "; master.grad = None")),
    # clipping
    "never clips": ("were not clipped", (CLIP, "pass")),
    "clips each number": ("were not clipped", (CLIP, "torch.nn.utils.clip_grad_value_(masters, clip)")),
    "clips the scaled": ("You clipped the scaled gradient", (DIVIDE, "weight.grad.float()"), (CLIP, CLIP + "; [m.grad.div_(scale) for m in masters]")),
    "clips each alone": ("one master went 0.2976 of its gradient and another 0.461", (CLIP, "[torch.nn.utils.clip_grad_norm_(each, clip) for each in masters]")),
    "clips the last alone": ("one master went 1 of its gradient", (CLIP, "torch.nn.utils.clip_grad_norm_(master, clip)")),
    "clips the sum of norms": ("the root of the sum of all squares",
                               (CLIP, "t = sum(m.grad.norm() for m in masters); [m.grad.mul_(min(1, clip / t)) for m in masters]")),
    "makes small ones larger": ("multiply by min(1, clip / norm)",
                                (CLIP, "t = torch.cat([m.grad.flatten() for m in masters]).norm(); [m.grad.mul_(clip / t) for m in masters]")),
    # the optimizer
    "moves masters itself": ("without optimizer.step()", (STEP, "    for m in masters: m.data -= m.grad\n")),
    "steps in the loop": ("was called 2 times in one step", (STEP, ""), (COPY, "optimizer.step(); " + COPY)),
    "steps twice": ("was called 2 times in one step", (STEP, 2 * STEP)),
    "breaks off the loop": ("masters[1] did not move", (CLEAR, CLEAR + "        break\n"), ("for master in masters)", "for master in masters[:1])")),
    "keeps no momentum": ("keep the optimizer's state", (STEP, STEP + "    optimizer.state.clear()\n")),
    "forgets momentum where it skips": ("let a skip change the scale and the streak alone", (SKIP, "optimizer.state.clear(); " + SKIP)),
    # skipping
    "never skips": ("A gradient was inf and the masters moved: skip", (FINITE, "True")),
    "skips nan alone": ("inf as well as nan", (FINITE, "(not master.grad.isnan().any())")),
    "skips inf alone": ("A gradient was nan and the masters moved", (FINITE, "(not master.grad.isinf().any())")),
    "skips no -inf": ("A gradient was -inf and the masters moved: skip", (FINITE, "(not (master.grad.isnan() | (master.grad == float('inf'))).any())")),
    "looks at the first number": ("any gradient of any weight", (FINITE, "master.grad.view(-1)[0].isfinite()")),
    "looks at the last weight": ("any gradient of any weight", (f"all({FINITE} for master in masters)", FINITE)),
    "looks at the first weight": ("any gradient of any weight", (f"all({FINITE} for master in masters)", "masters[0].grad.isfinite().all()")),
    "skips a weight at a time": ("any gradient of any weight", (SKIP, "\n        for m in masters: m.grad = m.grad if m.grad.isfinite().all() else None")),
    "sets inf to 0": ("any gradient of any weight", (DIVIDE, "(" + DIVIDE + ").nan_to_num(0, 0, 0)")),
    "steps with zeros": ("optimizer.step() was called with zeros", (SKIP, "[m.grad.zero_() for m in masters]; optimizer.step(); " + SKIP)),
    "steps with None": ("do not call it where you skip", (SKIP, "[setattr(m, 'grad', None) for m in masters]; optimizer.step(); " + SKIP)),
    "sums in half": ("60,000, which is finite", (CLEAR, f"        if not weight.grad.sum().isfinite(): weight.grad = None; master.grad.fill_(float('nan'))\n{CLEAR}")),
    "skips the large": ("60,000, which is finite", (FINITE, "(master.grad.abs() * scale < 3e4).all()")),
    "skips above 65,536": ("was called 0 times in step 4 of sequence 5 (good, growth_interval=1), where torch calls it once", (FINITE, FINITE + " and scale <= 65536")),
    # the scale and the streak
    "does not back off": ("halve it", (SKIP, "return scale, 0")),
    "backs off by 4": ("went from 1,024 to 256: halve it", (SKIP, "return scale / 4, 0")),
    "counts a skip": ("must set the growth count to 0", (SKIP, "return scale / 2, streak")),
    "never grows": ("6 good steps and the scale did not double", (GROW, "return scale, streak")),
    "grows late": ("with growth_interval=3 it must be 2,048", (GROW, GROW.replace("streak ==", "streak >"))),
    "grows and counts on": ("and begin to count anew", (GROW, "return (2 * scale, streak) if streak >= growth_interval else (scale, streak)")),
    "grows at once": ("After one good step the scale went from 1,024 to 2,048", (GROW, "return 2 * scale, 0")),
    "grows to 65,536 at most": ("and torch's 131,072", (GROW, GROW.replace("2 * scale", "min(2 * scale, 65536.0)"))),
    "backs off to 1 at least": ("The scale is 1 and torch's 0.5", (SKIP, "return max(scale / 2, 1.0), 0")),
    "counts by itself": ("count from the streak that you are given", ("clip):", "clip, count=[0]):"),
                         ("    streak += 1\n", "    streak = count[0] = 1 + (count[0] if streak else 0)\n")),
    # what is returned
    "returns the scale alone": ("return the pair (scale, streak)", (GROW, "return scale")),
    "returns the scale alone where it skips": ("returned 512.0: return the pair (scale, streak) for the next step, also where you skip", (SKIP, "return scale / 2")),
    "returns the streak first": ("the scale comes first", (GROW, "return streak, scale")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name):
    sentence, *changes = MISTAKES[name]
    finding, = update_findings(changed(*changes))
    assert sentence in finding


HAND = "norm = torch.stack([(m.grad ** 2).sum() for m in masters]).sum().sqrt()"
OTHERWISE = {
    "as it stands": (),
    "clips by hand": ((CLIP, f"{HAND}; [m.grad.mul_(min(1, clip / norm)) for m in masters]"),),
    "clips by hand with torch's 1e-6": ((CLIP, f"{HAND}; [m.grad.mul_((clip / (norm + 1e-6)).clamp(max=1)) for m in masters]"),),
    "clips in float64": ((CLIP, "norm = torch.cat([m.grad.double().flatten() for m in masters]).norm().item()\n"
                                "    if norm > clip:\n        for m in masters: m.grad *= clip / norm"),),
    "clips the scaled to a scaled norm": ((DIVIDE, "weight.grad.float()"),
                                          (CLIP, "torch.nn.utils.clip_grad_norm_(masters, clip * scale); [m.grad.div_(scale) for m in masters]")),
    "multiplies by the inverse": ((DIVIDE, "weight.grad.float() * (1 / scale)"),),
    "divides in float64": ((DIVIDE, "(weight.grad.double() / scale).float()"),),
    "zeroes weight.grad": ((CLEAR, "        weight.grad.zero_()\n"),),  # not by * 0: inf * 0 is nan
    "zeroes master.grad": ((COPY, COPY + "; master.grad.zero_()"),),
    "clears by the optimizer": ((STEP, STEP + "    optimizer.zero_grad()\n"),),
    "adds to master.grad and clears it": ((f"master.grad = {DIVIDE}", f"master.grad = (0 if master.grad is None else master.grad) + {DIVIDE}"),
                                          (SKIP, "optimizer.zero_grad(); " + SKIP), (STEP, STEP + "    optimizer.zero_grad()\n")),
    "replaces .data": ((COPY, "weight.data = master.data.half()"),),
    "copies under no_grad": ((COPY, "torch.no_grad().__enter__(); weight.copy_(master); torch.set_grad_enabled(True)"),),
    "copies all at once": ((f"for weight, master in zip(weights, masters):\n        {COPY}", "torch._foreach_copy_([w.data for w in weights], [m.data for m in masters])"),),
    "looks at the norm": ((f"all({FINITE} for master in masters)", "torch.cat([m.grad.flatten() for m in masters]).norm().isfinite()"),),
    "lets torch look at the norm": ((f"    if not all({FINITE} for master in masters):\n        {SKIP}\n    {CLIP}",
                                     f"    try:\n        {CLIP[:-1]}, error_if_nonfinite=True)\n    except RuntimeError:\n        {SKIP}"),),
    "returns lists": ((SKIP, "return [scale / 2, 0]"), (GROW, "return [2 * scale, 0] if streak == growth_interval else [scale, streak]")),
    "returns tensors": ((SKIP, "return torch.as_tensor(scale / 2), torch.tensor(0)"), (GROW, "return torch.tensor([2.0 * scale, 0] if streak == growth_interval else [float(scale), float(streak)])")),
    "counts by the remainder": ((GROW, "return (2 * scale if streak % growth_interval == 0 else scale), streak"),),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_right_update_has_no_findings(name):
    assert update_findings(changed(*OTHERWISE[name])) == []


def test_the_library_has_no_findings():
    """An update by the library's scaler, told the scale and the streak."""
    def update(weights, masters, optimizer, scale, streak, growth_interval, clip):
        scaler = DynamicLossScaler(scale, growth_interval=growth_interval)
        scaler.load_state_dict(scaler.state_dict() | {"_growth_tracker": streak})
        scaler.scale(torch.ones(()))  # the check brings gradients of a scaled loss
        for weight, master in zip(weights, masters):
            master.grad, weight.grad = weight.grad.float(), None
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(masters, clip)
        scaler.step(optimizer)
        scaler.update()
        for weight, master in zip(weights, masters):
            weight.data.copy_(master.data)
        return scaler.get_scale(), scaler.state_dict()["_growth_tracker"]

    assert update_findings(update) == []


@pytest.mark.parametrize("update, sentence", [
    (lambda *given: 1 / 0, "raised ZeroDivisionError"),
    (lambda *given: None, "returned None: return the pair"),
    (lambda weights, masters, optimizer, scale, streak, *rest: (scale, streak), "The masters did not move"),
])
def test_what_is_no_update_is_told(update, sentence):
    finding, = update_findings(update)
    assert sentence in finding
