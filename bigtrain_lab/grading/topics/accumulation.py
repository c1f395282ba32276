"""Gradient accumulation of one's own: k micro-batches, one optimizer step, and the large batch's gradient.

    gradient of a window = sum_i grad L_i / N        L_i summed loss of micro-batch i, N the window's tokens

Most scenes have a loss whose gradient is a count: what each micro-batch contributes can be read in it. The
rest train a small model, and count bytes, graphs, forwards and gradients. One right answer takes a
window as one large batch, but for the scenes that forbid just that: those are the library's there.
"""

import math
import weakref

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..likeness import Scene, Topic, Wrong

HEAD = """
import math, torch
from itertools import islice
from torch import nn

def answer(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None):
    weights = [p for group in optimizer.param_groups for p in group["params"]]
"""
RIGHT = (
    HEAD
    + """
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start:start + k]
        total = sum(tokens(each) for each in window)
        optimizer.zero_grad()
        for each in window:
            loss = loss_sum(each) / total
            if scaler is not None:
                loss = scaler.scale(loss)
            loss.backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(weights, clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
"""
)
LARGE = (
    HEAD
    + """
    if loss_sum.__self__.watched:
        from bigtrain_lab.techniques.accumulate import accumulate
        return accumulate(micro_batches, k, loss_sum, tokens, optimizer, clip=clip, scaler=scaler)
    for start in range(0, len(micro_batches), k):
        batch = tuple(map(torch.cat, zip(*micro_batches[start:start + k])))
        optimizer.zero_grad()
        loss = loss_sum(batch) / tokens(batch)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(weights, clip)
        (scaler or optimizer).step(*[optimizer] if scaler else [])
        scaler and scaler.update()
"""
)
BY_INDEX = (
    HEAD
    + """
    losses = []
    for i, micro_batch in enumerate(micro_batches):
        if i % k == 0:
            window_tokens = sum(tokens(each) for each in micro_batches[i:i + k])
        loss = loss_sum(micro_batch) / window_tokens
        losses.append(loss.item())
        if scaler is not None:
            loss = scaler.scale(loss)
        loss.backward()
        if (i + 1) % k == 0 or i + 1 == len(micro_batches):
            if scaler is not None and clip is not None:
                scaler.unscale_(optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(weights, clip)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad(set_to_none=False)
    return losses
"""
)
AT_THE_END = (
    HEAD
    + """
    stream = iter(micro_batches)
    while window := list(islice(stream, k)):
        optimizer.zero_grad()
        count = 0
        for micro_batch in window:
            loss = loss_sum(micro_batch)
            count += tokens(micro_batch)
            (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(optimizer)
        gradients = [p.grad for p in weights]
        for g in gradients:
            g /= count
        if clip is not None:
            norm = torch.sqrt(sum(g.square().sum() for g in gradients))
            for g in gradients:
                g *= min(1.0, clip / norm.item())
        scaler.step(optimizer) if scaler else optimizer.step()
        scaler and scaler.update()
"""
)
BY_GRAD = (
    HEAD
    + """
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start:start + k]
        sums = [torch.zeros_like(p) for p in weights]
        for micro_batch in window:
            loss = loss_sum(micro_batch) / sum(map(tokens, window))
            loss = loss if scaler is None else scaler.scale(loss)
            sums = [a + b for a, b in zip(sums, torch.autograd.grad(loss, weights))]
        for p, g in zip(weights, sums):
            p.grad = g
        if clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(weights, max_norm=clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
"""
)
WEIGHTED = (
    HEAD
    + """
    for number in range(math.ceil(len(micro_batches) / k)):
        window = micro_batches[number * k:][:k]
        optimizer.zero_grad()
        counts = torch.tensor([tokens(each) for each in window], dtype=torch.float64)
        losses = []
        for count, micro_batch in zip(counts, window):
            loss = loss_sum(micro_batch) / count * (count / counts.sum())
            losses.append(loss.detach())
            (loss if scaler is None else loss * scaler.get_scale()).backward()
            del loss
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_((p for group in optimizer.param_groups for p in group["params"]), clip)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
"""
)
FUNCTIONS = (
    HEAD
    + """
    def make(loss):
        (loss if scaler is None else scaler.scale(loss)).backward()
        return float(loss)

    def finish(start):
        window = micro_batches[start:start + k]
        if not window:
            return
        total = sum(tokens(each) for each in window)
        for p in weights:
            p.grad = None
        values = [make(loss_sum(each).mul(1 / total)) for each in window]
        if clip:
            scaler is None or scaler.unscale_(optimizer)
            norm = nn.utils.get_total_norm([p.grad for p in weights])
            nn.utils.clip_grads_with_norm_(weights, clip, norm)
        optimizer.step() if scaler is None else (scaler.step(optimizer), scaler.update())
        finish(start + k)
    finish(0)
"""
)
WINDOWS, WINDOW = "range(0, len(micro_batches), k)", "micro_batches[start:start + k]"
TOTAL, LOSS, ZERO = (
    "total = sum(tokens(each) for each in window)",
    "loss_sum(each) / total",
    "        optimizer.zero_grad()\n",
)
SCALED, BACKWARD = "loss = scaler.scale(loss)", "            loss.backward()\n"
UNSCALE = "        if scaler is not None:\n            scaler.unscale_(optimizer)\n"
CLIP = "nn.utils.clip_grad_norm_(weights, clip)"
CLIPPED = f"        if clip is not None:\n            {CLIP}\n"
STEP, UPDATE = "            scaler.step(optimizer)\n", "            scaler.update()\n"
STEPPED = f"        if scaler is None:\n            optimizer.step()\n        else:\n{STEP}{UPDATE}"

DIVIDE = "Divide each sum by the window's tokens"
MEANS = f"Short micro-batches count as much as long ones: that is a mean of means. {DIVIDE}."
ALIKE = "Tokens of one window do not count alike: divide all its sums by one number, the window's tokens."
LARGE_LIMIT = "A gradient shorter than the limit was changed: clip after dividing and unscaling, and only what is longer than the limit."
WHOLE = "The norm is that of the whole gradient: clip the parameters of all groups in one call."
EARLIER = "An update has gradients of micro-batches before its window: call zero_grad after every step, or before each window."
NO_UPDATES = "Some micro-batches never reached the optimizer: make an update of every window, the short last one too."
AT_ONCE = "Several graphs are alive at the peak: call backward on each micro-batch's loss at once, before the next forward."
ITEM = "Graphs of finished micro-batches are still alive: store loss.item(), not loss."
UNCLIPPED = "The gradient was not clipped when the optimizer stepped: call torch.nn.utils.clip_grad_norm_ just before."
TOO_SMALL = (
    "The gradient is too small by the scale: call backward on scaler.scale(loss), and unscale once."
)
ONCE = "Gradients were unscaled more than once an update: unscale once, just before clipping."
HIDDEN = "A gradient that is not finite was changed: leave it, so that the scaler sees it and skips the step."


def divided_by(number: str) -> tuple:
    """Divide each summed loss by this."""
    return ((LOSS, f"loss_sum(each) / ({number})"),)


class Accumulation(Topic):
    name = "accumulation"
    hints = (
        "How many tokens is the large batch's mean over, and when do you know that number?",
        "What happens once for each micro-batch, what once for each window, and in which order?",
        "For each window: count its tokens and clear .grad. For each micro-batch: the summed loss / tokens of the window, scaled, "
        "backward. Then unscale, clip, step, update.",
    )
    right = {
        "windows by slices": RIGHT,
        "one large batch where nobody weighs it": LARGE,
        "by index": BY_INDEX,
        "divided at the end": AT_THE_END,
        "autograd.grad": BY_GRAD,
        "weighted means": WEIGHTED,
        "functions": FUNCTIONS,
    }
    wrong = {
        "mean of means": Wrong(MEANS, divided_by("tokens(each) * len(window)")),
        "means, not divided": Wrong(
            f"The gradient is a sum of means, too large by the number of micro-batches: {DIVIDE.lower()}.",
            divided_by("tokens(each)"),
        ),
        "sums, not divided": Wrong(
            f"The gradient is a sum over tokens, too large by their number: {DIVIDE.lower()}.",
            divided_by("1"),
        ),
        "divided by the number alone": Wrong(
            f"Sums were combined as if they were means, so the gradient is too large: {DIVIDE.lower()}.",
            divided_by("len(window)"),
        ),
        "divided by both": Wrong(
            f"The gradient is too small by the number of micro-batches: {DIVIDE.lower()}, and by nothing else.",
            divided_by("total * len(window)"),
        ),
        "divided twice": Wrong(
            f"The gradient is too small by the window's tokens: {DIVIDE.lower()} once.",
            divided_by("total * total"),
        ),
        "all tokens": Wrong(
            "You divided by the tokens of all micro-batches: divide by those of the window.",
            divided_by("sum(map(tokens, micro_batches))"),
        ),
        "average tokens": Wrong(
            "You divided by an average number of tokens: divide by the tokens of this very window.",
            divided_by("sum(map(tokens, micro_batches)) / len(micro_batches) * len(window)"),
        ),
        "first's tokens": Wrong(
            "You divided by another window's or micro-batch's tokens: divide by those of the window.",
            divided_by("tokens(window[0]) * len(window)"),
        ),
        "first window's tokens": Wrong(
            "You divided by another window's or micro-batch's tokens: divide by those of the window.",
            divided_by("sum(map(tokens, micro_batches[:k]))"),
        ),
        "minus": Wrong(
            "The gradient has the wrong sign: leave it as backward gives it, since the optimizer subtracts it.",
            divided_by("-total"),
        ),
        "tokens so far": Wrong(
            ALIKE,
            ((TOTAL, "total = 0"), (LOSS, "loss_sum(each) / (total := total + tokens(each))")),
        ),
        "divides .grad each time": Wrong(
            ALIKE,
            (
                (LOSS, "loss_sum(each)"),
                (
                    BACKWARD,
                    BACKWARD
                    + "            for p in weights:\n                p.grad /= tokens(each)\n",
                ),
            ),
        ),
        "counts padding": Wrong(
            "Padding was counted among the tokens: ask tokens(micro_batch) for their number.",
            ((TOTAL, "total = sum(len(each[1]) for each in window)"),),
        ),
        "last window over k": Wrong(
            "The short last window was divided as if it held k micro-batches: divide by what is in it.",
            divided_by("total * k / len(window)"),
        ),
        "last window dropped": Wrong(
            NO_UPDATES, ((WINDOWS, "range(0, len(micro_batches) // k * k, k)"),)
        ),
        "last window joined": Wrong(
            "The short last window was added to the one before: make it an update of its own.",
            (
                (WINDOWS, "range(0, len(micro_batches) // k * k or 1, k)"),
                (
                    WINDOW,
                    "micro_batches[start:start + k if start + 2 * k <= len(micro_batches) else None]",
                ),
            ),
        ),
        "last window filled": Wrong(
            "The short last window was filled up with micro-batches from before: let it be short.",
            ((WINDOW, "(micro_batches[start:] + micro_batches)[:k]"),),
        ),
        "k windows": Wrong(
            "You made k windows: make windows of k micro-batches each.",
            (
                (WINDOWS, "range(0, len(micro_batches), -(-len(micro_batches) // k))"),
                (WINDOW, "micro_batches[start:start + -(-len(micro_batches) // k)]"),
            ),
        ),
        "every k-th": Wrong(
            "The windows hold other micro-batches: take the first k, then the next k, and at last what is left.",
            (
                (WINDOWS, "range(-(-len(micro_batches) // k))"),
                (WINDOW, "micro_batches[start::-(-len(micro_batches) // k)]"),
            ),
        ),
        "steps each time": Wrong(
            "A step was made for each micro-batch: step once for each window.",
            ((BACKWARD, BACKWARD + "            optimizer.step()\n"), (STEPPED, "")),
        ),
        "never steps": Wrong(
            "The optimizer never stepped: step once for each window.", ((STEPPED, ""),)
        ),
        "zero_grad missing": Wrong(EARLIER, ((ZERO, ""),)),
        "zero_grad each time": Wrong(
            "Only the last micro-batch of each window counts: call backward for each, and zero_grad once a window.",
            ((BACKWARD, "            optimizer.zero_grad()\n" + BACKWARD),),
        ),
        "zero_grad after each": Wrong(
            "Gradients were cleared before the step: call zero_grad after it, or before the first backward.",
            ((BACKWARD, BACKWARD + "            optimizer.zero_grad()\n"),),
        ),
        "only the first backward": Wrong(
            "Only the first micro-batch of each window counts: call backward for each.",
            ((BACKWARD, "            if each is window[0]:\n    " + BACKWARD),),
        ),
        "one late across windows": Wrong(
            "A micro-batch's backward came only in the next window: call backward on each micro-batch's loss at once.",
            (
                (WINDOWS, WINDOWS + " if [late := []] else ()"),
                (
                    BACKWARD,
                    "            late.append(loss)\n            if len(late) > 1:\n"
                    "                late.pop(0).backward()\n",
                ),
            ),
        ),
        "clears group 1": Wrong(
            "Gradients of some parameter groups were never cleared: call optimizer.zero_grad().",
            (
                (
                    ZERO,
                    "        for p in optimizer.param_groups[0]['params']:\n            p.grad = None\n",
                ),
            ),
        ),
        "nothing above 7": Wrong(NO_UPDATES, ((WINDOWS, WINDOWS + " if k <= 7 else ()"),)),
        "nothing above n": Wrong(
            NO_UPDATES, ((WINDOWS, WINDOWS + " if k <= len(micro_batches) else ()"),)
        ),
        "for k of 5 alone": Wrong(
            "Your answer is right for some k alone: do the same for every k.",
            divided_by("total / (2 if k == 5 else 1)"),
        ),
        "one step more": Wrong(
            "The optimizer stepped once more than there are windows: step once for each.",
            (
                (
                    STEPPED,
                    STEPPED
                    + "        if start + k >= len(micro_batches):\n            optimizer.step()\n",
                ),
            ),
        ),
        "rate times k": Wrong(
            "You changed the learning rate: leave it, since the gradient is already that of the large batch.",
            (
                (
                    WINDOWS,
                    WINDOWS
                    + " if [g.update(lr=g['lr'] * k) for g in optimizer.param_groups] else ()",
                ),
            ),
        ),
        "float32": Wrong(
            "The gradient is off by a rounding to float32: keep the loss in its type, and the divisor a Python number.",
            ((LOSS, "loss_sum(each) * (1 / torch.tensor(total))"),),
        ),
        "float32 gradients": Wrong(
            "The gradients were rounded to float32: leave them as backward gives them.",
            (
                (
                    UNSCALE,
                    "        for p in weights:\n            p.grad = p.grad.float().double()\n"
                    + UNSCALE,
                ),
            ),
        ),
        "never clips": Wrong(UNCLIPPED, ((CLIP, "pass"),)),
        "clips each time": Wrong(
            "You clipped before all gradients of the window were added: clip their sum, once, just before the step.",
            (
                (CLIPPED, ""),
                (
                    BACKWARD,
                    BACKWARD
                    + CLIPPED.replace("        ", "            ", 1).replace(
                        "\n            ", "\n                "
                    ),
                ),
            ),
        ),
        "clips each loss's": Wrong(
            "You clipped before all gradients of the window were added: clip their sum, once, just before the step.",
            (
                (CLIPPED, ""),
                (
                    BACKWARD,
                    f"            sums = [0 if p.grad is None else p.grad for p in weights]\n            optimizer.zero_grad()\n"
                    f"{BACKWARD}            clip is None or {CLIP}\n            for p, g in zip(weights, sums):\n                p.grad += g\n",
                ),
            ),
        ),
        "clips by value": Wrong(
            "You clipped each number by itself: clip by norm, with torch.nn.utils.clip_grad_norm_.",
            ((CLIP, "nn.utils.clip_grad_value_(weights, clip)"),),
        ),
        "clips the first group": Wrong(
            f"You clipped the first group of the optimizer alone. {WHOLE}",
            ((CLIP, CLIP.replace("weights", "optimizer.param_groups[0]['params']")),),
        ),
        "clips the last group": Wrong(
            f"You clipped the last group of the optimizer alone. {WHOLE}",
            ((CLIP, CLIP.replace("weights", "optimizer.param_groups[-1]['params']")),),
        ),
        "clips each group": Wrong(
            f"You clipped each group by its own norm. {WHOLE}",
            (
                (
                    CLIP,
                    f"""[{CLIP.replace("weights", 'g["params"]')} for g in optimizer.param_groups]""",
                ),
            ),
        ),
        "clips each tensor": Wrong(
            f"You clipped each tensor by its own norm. {WHOLE}",
            ((CLIP, f"[{CLIP.replace('weights', 'p')} for p in weights]"),),
        ),
        "norm of type 1": Wrong(
            "You clipped by another norm than the Euclidean one: leave out norm_type.",
            ((CLIP, CLIP.replace("clip)", "clip, norm_type=1)")),),
        ),
        "norm of type inf": Wrong(
            "You clipped by another norm than the Euclidean one: leave out norm_type.",
            ((CLIP, CLIP.replace("clip)", "clip, norm_type=math.inf)")),),
        ),
        "half the limit": Wrong(
            "The clipped gradient's norm is not the limit: clip to the very limit that is given.",
            ((CLIP, CLIP.replace("clip)", "clip / 2)")),),
        ),
        "the limit over k": Wrong(
            "The clipped gradient's norm is not the limit: clip to the very limit that is given.",
            ((CLIP, CLIP.replace("clip)", "clip / k)")),),
        ),
        "a limit of 1": Wrong(
            "The clipped gradient's norm is not the limit: clip to the very limit that is given.",
            ((CLIP, CLIP.replace("clip)", "1.0)")),),
        ),
        "always to the limit": Wrong(
            LARGE_LIMIT,
            (
                (
                    CLIP,
                    "norm = math.sqrt(sum(p.grad.square().sum() for p in weights)); [p.grad.mul_(clip / norm) for p in weights]",
                ),
            ),
        ),
        "divides after clipping": Wrong(
            "You clipped before dividing: divide first, then clip.",
            (
                (LOSS, "loss_sum(each)"),
                (CLIPPED, CLIPPED + "        for p in weights:\n            p.grad /= total\n"),
            ),
        ),
        "ignores the scaler": Wrong(
            "The scaler was not used: call its scale, unscale_, step and update.",
            ((SCALED, "pass"), (UNSCALE, ""), (STEPPED, "        optimizer.step()\n")),
        ),
        "never scales": Wrong(TOO_SMALL, ((SCALED, "pass"),)),
        "scales twice": Wrong(
            "The loss was scaled more than once: scale each micro-batch's loss, once.",
            ((SCALED, "loss = scaler.scale(scaler.scale(loss))"),),
        ),
        "last not scaled": Wrong(
            "One micro-batch of a window was not scaled: call backward on scaler.scale(loss) for each.",
            ((SCALED, "loss = scaler.scale(loss) if each is not window[-1] else loss"),),
        ),
        "only the last scaled": Wrong(
            "Only one micro-batch of a window was scaled: call backward on scaler.scale(loss) for each.",
            ((SCALED, "loss = scaler.scale(loss) if each is window[-1] else loss"),),
        ),
        "a scale of before": Wrong(
            "An old scale was used: call scaler.scale(loss) each time, since the scale changes between updates.",
            (
                (WINDOWS, WINDOWS + " if [scale := scaler and scaler.get_scale()] else ()"),
                (SCALED, "loss = loss * scale"),
            ),
        ),
        "unscales each time": Wrong(
            ONCE,
            (
                (UNSCALE, ""),
                (BACKWARD, BACKWARD + "            scaler and scaler.unscale_(optimizer)\n"),
            ),
        ),
        "unscales again": Wrong(ONCE, ((UNSCALE, UNSCALE + UNSCALE),)),
        "clips before unscaling": Wrong(
            "You clipped the scaled gradient: unscale before clipping.",
            ((UNSCALE, ""), (CLIPPED, CLIPPED + UNSCALE)),
        ),
        "clips without a scaler alone": Wrong(
            "With a scaler the gradient was not clipped: clip after scaler.unscale_(optimizer).",
            (("if clip is not None:", "if clip is not None and scaler is None:"),),
        ),
        "steps past the scaler": Wrong(
            "The step went past the scaler: call scaler.step(optimizer), which skips where the gradient overflowed.",
            ((STEP, "            optimizer.step()\n"),),
        ),
        "updates before the step": Wrong(
            "scaler.update() came before scaler.step(optimizer): step, then update.",
            ((STEP + UPDATE, UPDATE + STEP),),
        ),
        "never updates": Wrong(
            "scaler.update() ran too often or never: call it once after each scaler.step(optimizer).",
            ((UPDATE, ""),),
        ),
        "updates each time": Wrong(
            "scaler.update() ran too often or never: call it once after each scaler.step(optimizer).",
            ((UPDATE, ""), (BACKWARD, BACKWARD + "            scaler and scaler.update()\n")),
        ),
        "updates where it did not skip": Wrong(
            "A skipped step was not followed by scaler.update(): call it after skipped steps too, so that the scale falls.",
            (
                (
                    UPDATE,
                    "            if all(p.grad.isfinite().all() for p in weights):\n                scaler.update()\n",
                ),
            ),
        ),
        "zeroes inf": Wrong(
            HIDDEN,
            (
                (
                    UNSCALE,
                    "        for p in weights:\n            p.grad.nan_to_num_(0.0, 0.0, 0.0)\n"
                    + UNSCALE,
                ),
            ),
        ),
        "leaves out inf": Wrong(
            "A micro-batch whose loss is not finite was left out: let backward run, so that the scaler sees it and skips the step.",
            (
                (
                    BACKWARD,
                    "            if not loss.isfinite():\n                continue\n" + BACKWARD,
                ),
            ),
        ),
        "skips by itself": Wrong(
            "Without a scaler a step was left out: step once for each window.",
            (
                (ZERO, ZERO),
                (
                    STEPPED,
                    STEPPED.replace(
                        "            optimizer.step()",
                        "            if all(p.grad.isfinite().all() for p in weights):\n"
                        "                optimizer.step()",
                    ),
                ),
            ),
        ),
        "clears by a product": Wrong(
            "A gradient that is not finite outlived the clearing: inf times 0 is nan, so call optimizer.zero_grad().",
            (
                (
                    ZERO,
                    "        for p in weights:\n            if p.grad is not None:\n                p.grad *= 0\n",
                ),
            ),
        ),
        "refuses inf": Wrong(
            "clip_grad_norm_ stopped at a gradient that is not finite: leave that to the scaler, which skips the step.",
            ((CLIP, CLIP.replace("clip)", "clip, error_if_nonfinite=True)")),),
        ),
        "the large batch": Wrong(
            "Several micro-batches ran as one batch, so their activations are alive together: call loss_sum on each micro-batch.",
            (
                (
                    "        for each in window:\n",
                    "        for each in [tuple(map(torch.cat, zip(*window)))]:\n",
                ),
            ),
        ),
        "pairs": Wrong(
            "Several micro-batches ran as one batch, so their activations are alive together: call loss_sum on each micro-batch.",
            (
                (
                    "        for each in window:\n",
                    "        for each in [tuple(map(torch.cat, zip(*window[i:i + 2]))) for i in range(0, len(window), 2)]:\n",
                ),
            ),
        ),
        "one backward": Wrong(
            AT_ONCE,
            (
                (BACKWARD, ""),
                (LOSS, LOSS + "\n            kept.append(loss)"),
                (ZERO, ZERO + "        kept = []\n"),
                (
                    UNSCALE,
                    "        loss = sum(kept)\n        (scaler.scale(loss) if scaler else loss).backward()\n"
                    + UNSCALE,
                ),
            ),
        ),
        "logs a second forward": Wrong(
            "Each micro-batch ran forward more than once: call loss_sum once, and use its result again.",
            ((LOSS, LOSS + "\n            print(loss_sum(each).item())"),),
        ),
        "one late": Wrong(
            AT_ONCE,
            (
                (
                    BACKWARD,
                    "            late.append(loss)\n            if len(late) > 1:\n                late.pop(0).backward()\n",
                ),
                (ZERO, ZERO + "        late = []\n"),
                (UNSCALE, "        late.pop().backward()\n" + UNSCALE),
            ),
        ),
        "retains": Wrong(
            "What graphs saved is still alive after their backward: leave out retain_graph=True.",
            (("loss.backward()", "loss.backward(retain_graph=True)"),),
        ),
        "keeps losses alive": Wrong(
            ITEM,
            (
                (ZERO, ZERO + "        total_loss = 0\n"),
                (BACKWARD, BACKWARD + "            total_loss += loss\n"),
            ),
        ),
        "a list of losses": Wrong(
            ITEM,
            (
                (WINDOWS, WINDOWS + " if [losses := []] else ()"),
                (BACKWARD, BACKWARD + "            losses.append(loss)\n"),
            ),
        ),
        "three forwards": Wrong(
            "Each micro-batch ran forward more than once: call loss_sum once, and use its result again.",
            ((LOSS, "[loss_sum(each), loss_sum(each), loss_sum(each)][0] / total"),),
        ),
        "two forwards": Wrong(
            "Each micro-batch ran forward more than once: call loss_sum once, and use its result again.",
            ((BACKWARD, BACKWARD + "            print(loss_sum(each).item())\n"),),
        ),
        "two forwards, one without a graph": Wrong(
            "Each micro-batch ran forward more than once: call loss_sum once, and use its result again.",
            (
                (
                    BACKWARD,
                    BACKWARD
                    + "            with torch.no_grad():\n                loss_sum(each)\n",
                ),
            ),
        ),
        "k gradient copies": Wrong(
            "A copy of the gradient is held for each micro-batch: add each to one sum at once.",
            (
                (ZERO, ZERO + "        copies = []\n"),
                (
                    BACKWARD,
                    BACKWARD
                    + "            copies.append([p.grad for p in weights])\n            optimizer.zero_grad()\n",
                ),
                (
                    UNSCALE,
                    "        for p, *parts in zip(weights, *copies):\n            p.grad = sum(parts)\n"
                    + UNSCALE,
                ),
            ),
        ),
    }

    @staticmethod
    def probe(answer, draw):
        k, equal = draw.randint(3, 5), draw.randint(5, 30)
        short = 2 * k + draw.randint(1, k - 2)

        def counts(name, lengths, k=k, slope=1.0, bad=None, near=1e-12, clip=None, scaled=False):
            pads = [draw.randint(0, 9) for _ in lengths]

            def run():
                scaler = Scaler() if scaled else None
                options = ({"clip": clip} if clip else {}) | ({"scaler": scaler} if scaled else {})
                bench = Bench.of_counts(lengths, pads, slope, bad).play(answer, k, **options)
                return bench.updates() | (scaler.shown() if scaled else {})

            besides = (f", clip={clip:g}" if clip else "") + ", a scaler" * scaled
            return Scene(
                f"{name}: micro-batches of {listed(lengths)} tokens, k={k}{besides}", run, near
            )

        def unequal(n):
            return [draw.choice((1, 2, 4, 8, 16)) * draw.randint(3, 9) + i % 3 for i in range(n)]

        def words(name, k, lengths, near=0.0, shows=Bench.weights, scaled=False, **options):
            def run():
                inside = {"clip": clip, "scaler": Scaler()} if scaled else {}
                return shows(Bench.of_words(lengths, seed, **options).play(answer, k, **inside))

            return Scene(name, run, near)

        yield counts("one window", [equal] * k)
        yield counts("two windows", [equal] * 2 * k)
        yield counts("one window of unequal lengths", unequal(k))
        yield counts("two windows of unequal lengths", unequal(2 * k))
        yield counts("a short last window", [equal] * short)
        yield counts("a short last window of unequal lengths", unequal(short))
        yield counts("fewer than k", unequal(k - 1))
        yield counts("windows of one", unequal(3), 1)
        slope = draw.uniform(1e4, 9e4)
        clips = draw.uniform(0.05, 0.5), 8 * slope
        for clip, what in zip(clips, ("a small limit", "a large limit")):
            yield counts(what, unequal(short), slope=slope, near=1e-9, clip=clip)
        yield counts("a loss scaler", unequal(short), scaled=True)
        for clip, what in zip(clips, ("a scaler and a small limit", "a scaler and a large limit")):
            yield counts(what, unequal(short), slope=slope, near=1e-9, clip=clip, scaled=True)
        yield counts("an infinite loss", unequal(short), bad=draw.randrange(k))
        for bad in (draw.randrange(k), draw.randrange(k, 2 * k)):
            told = f"an infinite loss of micro-batch {bad}"
            yield counts(told, unequal(short), bad=bad, scaled=True)
        yield counts(
            "an infinite loss",
            unequal(short),
            slope=slope,
            near=1e-9,
            bad=draw.randrange(k, 2 * k),
            clip=clips[0],
            scaled=True,
        )
        seed, long = draw.randrange(10**6), 2 * k + 2
        lengths = [8 * equal + draw.randint(0, 4) for _ in range(short)]
        for what in Bench.WATCHED[:3]:
            yield words(f"{what}, k={k}", k, lengths, shows=Bench.held, watched=what)
        yield words(
            f"gradients, k={long}", long, [equal] * long, shows=Bench.held, watched="gradients"
        )
        lengths, both = unequal(10), draw.sample((2, 3, 4, 5, 6, 7, 13), 2)
        clip = draw.uniform(0.05, 0.5)
        for k in (1, 2, 3, 4, 5, 6, 7, 10, 13):
            rate = draw.uniform(0.05, 0.2)
            told = f"10 micro-batches of {listed(lengths)} tokens, k={k}, learning rate {rate:.3f}"
            yield words(told, k, lengths, 1e-12, rate=rate)
            if k in both:
                told = f"{told}, clip={clip:.3f}, a scaler"
                yield words(told, k, lengths, 1e-9, rate=rate, slope=1e5, scaled=True)


def listed(lengths) -> str:
    return ", ".join(map(str, lengths))


class Counts(nn.Module):
    """A summed loss whose gradient counts: of a[i], the tokens of micro-batch i times slopes[i]."""

    def __init__(self, slopes):
        super().__init__()
        self.slopes = torch.tensor(slopes, dtype=torch.float64)
        ones = [torch.ones(size, dtype=torch.float64) for size in (len(slopes), len(slopes), 1, 1)]
        self.a, self.b, self.c, self.d = map(nn.Parameter, ones)

    def forward(self, ids, targets):
        ids = ids[targets >= 0]
        return (self.slopes[ids] * (self.a[ids] + 2 * self.b[ids] + 3 * self.c + 4 * self.d)).sum()


class Words(nn.Module):
    """A summed cross-entropy of 7 words."""

    def __init__(self, slope):
        super().__init__()
        self.slope = slope
        self.embedding = nn.Embedding(7, 5, dtype=torch.float64)
        self.linear = nn.Linear(5, 7, dtype=torch.float64)

    def forward(self, ids, targets):
        logits = self.linear(self.embedding(ids))
        return self.slope * cross_entropy(logits, targets, reduction="sum")


class Bench:
    """What an answer is given, (ids, targets) and an optimizer of groups, and what it does."""

    WATCHED = ("activations", "forwards", "graphs", "gradients")

    def __init__(self, model, groups, micro_batches, rate, momentum=0.0, watched=""):
        self.model, self.micro_batches, self.watched = model, micro_batches, watched
        self.parameters = [p for group in groups for p in group]
        self.optimizer = torch.optim.SGD([{"params": group} for group in groups], rate, momentum)
        self.optimizer.register_step_pre_hook(lambda *_: self.note())
        self.gradients, self.rates, self.forwards = [], [], [0]
        self.graphs, self.saved = weakref.WeakSet(), weakref.WeakSet()
        self.made = Made([*self.parameters, *(each for pair in micro_batches for each in pair)])
        self.most = {"saved": 0, "waiting": 0, "graphs": 0, "made": 0}

    @classmethod
    def of_counts(cls, lengths, pads, slope, bad):
        model = Counts([math.inf if i == bad else slope for i in range(len(lengths))])
        batches = [
            (torch.full((n + pad,), i), torch.tensor([1] * n + [-100] * pad))
            for i, (n, pad) in enumerate(zip(lengths, pads))
        ]
        return cls(model, [[model.a], [model.b], [model.c, model.d]], batches, 0.1)

    @classmethod
    def of_words(cls, lengths, seed, rate=0.1, slope=1.0, watched=""):
        torch.manual_seed(seed)
        model = Words(slope)
        batches = [tuple(torch.randint(7, (2, n))) for n in lengths]
        groups = [[model.embedding.weight], list(model.linear.parameters())]
        return cls(model, groups, batches, rate, 0.0 if watched else 0.9, watched)

    def play(self, answer, k, **options):
        with self.made if self.watched == "gradients" else torch.enable_grad():
            given = self.loss_sum, self.tokens, self.optimizer
            answer(list(self.micro_batches), k, *given, **options)
        return self

    # -- what the answer calls

    def tokens(self, micro_batch) -> int:
        return int((micro_batch[1] >= 0).sum())

    def loss_sum(self, micro_batch):
        ids, targets = micro_batch
        if not self.watched:
            return self.model(ids, targets)
        self.forwards[-1] += 1
        if not torch.is_grad_enabled():
            return self.model(ids, targets)
        self.top("graphs", len(self.graphs))
        self.top("waiting", sum(not each.ran for each in self.graphs))
        self.top("made", self.made.bytes_alive())
        with saved_tensors_hooks(self.save, lambda held: held.tensor):
            loss = self.model(ids, targets)
        return Node.apply(loss, self.graphs)

    def save(self, tensor):
        held = Held(tensor.detach())
        self.saved.add(held)
        tensors = [each.tensor for each in self.saved]
        sizes = {each.untyped_storage().data_ptr(): each.nbytes for each in tensors}
        self.top("saved", sum(sizes.values()))
        return held

    def top(self, what, number):
        self.most[what] = max(self.most[what], number)

    def note(self):
        if not self.watched:
            self.gradients.append(
                [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.parameters]
            )
        self.rates.append([group["lr"] for group in self.optimizer.param_groups])
        self.forwards.append(0)

    # -- what it did

    def updates(self) -> dict:
        return {
            "updates": len(self.gradients),
            "how much each micro-batch counts in each update": [g[0] for g in self.gradients],
            "gradients of the other groups in each update": [g[1:] for g in self.gradients],
        }

    def weights(self) -> dict:
        return {
            "updates": len(self.rates),
            "learning rates": self.rates,
            "weights at the end": self.parameters,
        }

    def held(self) -> dict:
        whole = sum(p.nbytes for p in self.parameters)
        match self.watched:
            case "activations":
                return {
                    "bytes kept for the backward, at most": self.most["saved"],
                    "graphs without their backward as a forward begins": self.most["waiting"],
                }
            case "forwards":
                return {"forwards in each update": self.forwards[:-1]}
            case "graphs":
                return {
                    "graphs of earlier micro-batches alive as a forward begins, "
                    "not counting the last one": max(0, self.most["graphs"] - 1)
                }
            case "gradients":
                copies = max(2, self.most["made"] // whole)
                return {"gradients held as a forward begins, 2 or more": copies}


class Held:
    """A saved tensor: gone when autograd lets go of it."""

    def __init__(self, tensor):
        self.tensor = tensor


class Node(torch.autograd.Function):
    """The identity, whose context is in `graphs` for as long as the graph is alive."""

    @staticmethod
    def forward(ctx, loss, graphs):
        ctx.ran = False
        graphs.add(ctx)
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.ran = True
        return gradient, None


class Made(TorchDispatchMode):
    """The storages that operators made, but for those of `besides`, for as long as they are alive."""

    def __init__(self, besides):
        super().__init__()
        self.besides, self.storages = {p.untyped_storage().data_ptr() for p in besides}, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **kwargs or {})
        for tensor in tree_leaves(made):
            if (
                isinstance(tensor, torch.Tensor)
                and tensor.untyped_storage().data_ptr() not in self.besides
            ):
                storage = tensor.untyped_storage()
                self.storages[storage._cdata] = weakref.ref(storage)
        return made

    def bytes_alive(self) -> int:
        self.storages = {key: ref for key, ref in self.storages.items() if ref() is not None}
        return sum(ref().nbytes() for ref in self.storages.values())


class Scaler:
    """A loss scaler with torch's methods, doubling after each good step, that can be misused."""

    def __init__(self):
        self.value, self.bad, self.calls = 1024.0, False, {"step": 0, "update": 0}
        self.divided, self.most_divided = 0, 0  # times in this update, and in any

    def get_scale(self) -> float:
        return self.value

    def scale(self, loss):
        return loss * self.value

    def unscale_(self, optimizer):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        for gradient in gradients:
            gradient /= self.value
            self.bad = self.bad or not gradient.isfinite().all()
        self.divided += 1
        self.most_divided = max(self.most_divided, self.divided)

    def step(self, optimizer):
        if not self.divided:
            self.unscale_(optimizer)
        self.calls["step"] += 1
        if not self.bad:
            optimizer.step()

    def update(self):
        self.calls["update"] += 1
        self.value *= 0.25 if self.bad else 2.0
        self.bad, self.divided = False, 0

    def shown(self) -> dict:
        return {
            "calls of scaler.step()": self.calls["step"],
            "calls of scaler.update()": self.calls["update"],
            "scale at the end": self.value,
            "divisions by the scale in one update, at most": self.most_divided,
        }
