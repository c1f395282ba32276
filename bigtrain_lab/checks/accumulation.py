"""What is wrong with an `accumulate` of one's own: the mistake, then the mend.

The check holds the model still (learning rate 0). Every micro-batch i then has one gradient g_i of its summed loss, and the
gradient that reaches the optimizer at update t can be taken apart, exactly (taken_apart.py), into

    G_t = sum_i c_ti g_i          right: c_ti = 1 / (tokens of window t) for i in window t, and 0 for all others

Each mistake is a pattern in c: 1/n_i is a mean that was never divided, numbers before the window a missing zero_grad. Loss
curves would hide most of them: Adam's weights do not notice a gradient that is k times too large.
"""

import math
from collections.abc import Callable

import torch
from torch import nn

from ..techniques.accumulate import parameters
from .findings import first_finding
from .parity import relative_errors, tensors_differ
from .taken_apart import CLOSE, SCALE, K, Bench, Scaler, near, share, taken_apart

LENGTHS = (16, 32, 64, 256, 8, 40, 24, 120, 12, 48)
EQUAL = (16,) * 10
RATE, CLIP = 0.1, 0.5  # of the run that moves
COUNTS = (1, 2, 3, 4, 5, 6, 7, 10, 13)  # k of that run: numbers that divide 10 and do not, 10 itself, and more


def accumulation_findings(accumulate: Callable) -> list[str]:
    """Sentences about `accumulate(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None)`; empty when right.

    loss_sum    micro-batch -> its summed loss       tokens    micro-batch -> how many tokens that is over

    One step of the optimizer for each k micro-batches and one for those that are left, clipped as by
    torch.nn.utils.clip_grad_norm_; `scaler` has torch's .scale, .unscale_, .step and .update.
    """
    checks = (lambda: structure(taken_apart(accumulate, EQUAL)), lambda: weighting(taken_apart(accumulate, LENGTHS)),
              lambda: clipping(accumulate), lambda: scaling(accumulate), lambda: memory(taken_apart(accumulate, LENGTHS)),
              lambda: parity(accumulate))
    return first_finding(checks, "Your function", "Call it alone, with two micro-batches and k=2.")


def times(ratio: float) -> str:
    """A number against the right one: "1,024 times too small"."""
    if ratio < 0:
        return f"{-ratio:,.6g} times the right one and points the other way"
    return f"{ratio:,.6g} times too large" if ratio > 1 else f"{1 / ratio:,.6g} times too small"


def listed(numbers) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers)


# -- the gradient -------------------------------------------------------------------------------------------------------


def how_many(bench: Bench) -> list[str]:
    n, found, expected = len(bench.lengths), len(bench.gradients), bench.updates
    if found == n // bench.k < expected:
        left = [str(i) for i in range(n // bench.k * bench.k, n)]
        which = f"micro-batches {', '.join(left[:-1])} and {left[-1]}" if len(left) > 1 else f"micro-batch {left[0]}"
        return [f"{found} update{'s' * (found != 1)} for {n} micro-batches, not {expected}: {which} never reached the optimizer. "
                "Let the last window be short."]
    if found != expected:
        return [f"{found} update{'s' * (found != 1)} for {n} micro-batches, not {expected}: step once after every {bench.k}, and once for what is left."]
    return []


def structure(bench: Bench) -> list[str]:
    """On equal lengths, where a mean of means is right: how many updates, of which micro-batches, how large."""
    if findings := how_many(bench):
        return findings
    for update, row in enumerate(bench.rows):
        window, right = bench.window(update), bench.right(update)
        size = row.abs().max()
        if not size:
            return [f"The gradient of update {update} is zero: call zero_grad after the step, or before the first backward."]
        if update and row[:window.start].abs().max() > CLOSE * size:
            if near(row[:window.start], row[window.start] * torch.ones(window.start, dtype=row.dtype)):
                return [f"Update {update} holds the sum of all gradients since the start: call zero_grad after every step."]
            return [f"Update {update} holds gradients of micro-batches before its window, {window.start} to {window.stop - 1}: call zero_grad after every "
                    "step, and step before the next backward."]
        if row[window.stop:].abs().sum() > CLOSE * size:
            return [f"Update {update} holds gradients of micro-batches after its window, {window.start} to {window.stop - 1}: step before the next backward."]
        own = row[window.start:window.stop]
        if len(window) > 1 and own[:-1].abs().max() <= CLOSE * size:
            return ["Only the last micro-batch of each window counts: call zero_grad once a window, not before each backward."]
        ratio = share(row, right)
        if ratio is None:
            return [f"In update {update} micro-batches of equal length count {listed(own / right[window.start])} times what they should: "
                    "give each of their tokens the same weight."]
        if abs(ratio - 1) > CLOSE:
            return [of_another_size(ratio, len(window), bench.in_window(update), update)]
    return []


def of_another_size(ratio: float, size: int, tokens: int, update: int) -> str:
    """Every micro-batch counts alike, but the sum is so many times what it should be."""
    mend = "Divide each sum by the window's tokens"
    known = [(size, f"Exactly {size} times too large: you added means and never divided. {mend}."),
             (tokens, f"Exactly {tokens} times too large: you added sums and never divided. {mend}."),
             (tokens / size, f"Exactly {tokens / size:g} times too large: you divided sums by the number of micro-batches alone. {mend}."),
             (size / K, f"The last gradient is exactly {size / K:g} of the right one: that window holds {size}, you divided by {K}. Divide by what is "
                        "in the window."),
             (1 / size, f"Exactly {size} times too small: you divided by the window's tokens and by its number of micro-batches too. {mend}, once."),
             (1 / tokens, f"Exactly {tokens} times too small: you divided by the window's tokens twice. {mend}, once.")]
    for factor, sentence in known:
        if math.isclose(ratio, factor):
            return sentence
    return f"The gradient of update {update} is {times(ratio)}: divide each sum by the window's tokens, once."


def weighting(bench: Bench) -> list[str]:
    """On unequal lengths: what a token counts."""
    for update, row in enumerate(bench.rows):
        right, window = bench.right(update), bench.window(update)
        if near(row, right):
            continue
        if ratio := share(row, right):
            return [f"The gradient of update {update} is {times(ratio)}, and all its tokens count alike: you divided by {bench.in_window(update) / ratio:.4g}, "
                    f"as an average or another window would have it. This window holds {bench.in_window(update)} tokens: divide by them."]
        true = bench.right_gradient(update)
        off = float((bench.gradients[update] - true).norm() / true.norm())
        counts = [float(row[i] / right[i]) for i in window]
        told = f"a token of {'the first' if not update else 'this'} window's counts {', '.join(f'{c:.2f}' for c in counts)} times"
        means = torch.tensor([row[i] * bench.lengths[i] for i in window])
        if near(means, means.mean() * torch.ones_like(means)):
            return [f"Off by {off:.0%} here: short micro-batches count as much as long ones ({told}). Divide each *sum* by the window's tokens."]
        return [f"Off by {off:.0%} here: in update {update} tokens do not count alike ({told}). Divide each *sum* by the window's tokens, all by "
                "the same number, known before the first backward."]
    return []


# -- what comes before the step -----------------------------------------------------------------------------------------


def clipping(accumulate, **options) -> list[str]:
    """With a limit that every partial sum exceeds, then with one that none reaches."""
    sound = Bench(LENGTHS)
    norms = [float(sound.right_gradient(update).norm()) for update in range(sound.updates)]
    clip = 0.05 * min(norms)
    bench = taken_apart(accumulate, LENGTHS, clip=clip, **options)
    if findings := how_many(bench):
        return findings
    for update in range(len(bench.gradients)):
        if findings := of_each_tensor(bench, update, clip):
            return findings
        row, right, true = bench.counts(update), bench.right(update), bench.right_gradient(update)
        if near(row, right):
            return [f"The gradient of update {update} has norm {norms[update]:.3g} and the limit is {clip:.3g}: you never clipped."]
        ratio = share(row, right)
        if ratio is None:
            return ["You clipped the parts; clip the sum, once, just before the step."]
        found = ratio * norms[update]
        if not same(found, clip, norms[update]):
            return [f"The clipped gradient has norm {found:.3g}, and the limit is {clip:.3g}. "
                    + why_another_norm(found / clip, true, len(bench.window(update)), bench.in_window(update), bool(options))]
    roomy = taken_apart(accumulate, LENGTHS, clip=10 * max(norms), **options)
    if any(not near(row, roomy.right(update)) for update, row in enumerate(roomy.rows)):
        return [f"Under a limit of {10 * max(norms):.3g} gradients of norm {listed(norms)} need no clipping, and you changed them: clip after dividing"
                f"{' and unscaling' if options else ''}, and only what is longer than the limit."]
    return []


def same(norm: float, clip: float, before: float) -> bool:
    return math.isclose(norm, clip, rel_tol=CLOSE + 2e-6 / before)  # torch adds 1e-6 to the norm before


def of_each_tensor(bench: Bench, update: int, clip: float) -> list[str]:
    """Tensors or groups of the optimizer that were clipped each by itself, or left out."""
    found, true, sizes = bench.gradients[update], bench.right_gradient(update), [p.numel() for p in parameters(bench.optimizer)]
    shares = [share(a, b) for a, b in zip(found.split(sizes), true.split(sizes))]
    if None in shares or max(shares) - min(shares) <= CLOSE * max(shares):
        return []
    whole = "The norm is that of the whole gradient: clip the parameters of all groups in one call."
    if all(math.isclose(one, 1, rel_tol=CLOSE) for one in shares[1:]):  # the first group is one tensor
        return [f"You clipped the first group of the optimizer and not the others. {whole}"]
    return [f"You clipped each tensor, or each group, by its own norm. {whole}"]


def why_another_norm(times_clip: float, true: torch.Tensor, size: int, tokens: int, scaled: bool) -> str:
    """`times_clip`: the norm that was left, of the limit."""
    norm = float(true.norm())
    if scaled and math.isclose(times_clip, 1 / SCALE, rel_tol=1e-3):
        return "You clipped the scaled gradient: unscale before clipping."
    for which in (1, math.inf):
        if math.isclose(times_clip, norm / float(torch.linalg.vector_norm(true, which)), rel_tol=1e-3):
            return f"That is the limit of the norm of type {which}: leave out norm_type, and it is the Euclidean one."
    if any(math.isclose(times_clip, 1 / divisor, rel_tol=1e-3) for divisor in (size, tokens)):
        return "Divide first, then clip."
    return "Clip once, to this limit, by the norm of the whole divided gradient, just before the step."


def scaling(accumulate) -> list[str]:
    """With a loss scaler, without and with clipping."""
    scaler = Scaler()
    bench = taken_apart(accumulate, LENGTHS, scaler=scaler)
    if findings := of_calls(scaler, len(bench.gradients)) or how_many(bench):
        return findings
    under = f"Under a loss scale of {SCALE:,g}"
    for update, row in enumerate(bench.rows):
        right = bench.right(update)
        if near(row, right):
            continue
        mend = "call backward on scaler.scale(loss), each micro-batch's, and unscale once"
        ratio = share(row, right)
        if ratio is None:
            counts = [float(row[i] / right[i]) for i in bench.window(update)]
            off = [i for i, c in zip(bench.window(update), counts) if math.isclose(c, 1 / SCALE, rel_tol=1e-3)]
            what = (f"micro-batch{'es' * (len(off) > 1)} {' and '.join(map(str, off))} of update {update} {'count' if len(off) > 1 else 'counts'} "
                    f"{SCALE:,g} times too little, unscaled without having been scaled" if off
                    else f"the micro-batches of update {update} count {listed(counts)} times what they should")
            return [f"{under} {what}: {mend}."]
        if math.isclose(ratio, 1 / SCALE, rel_tol=1e-3):
            return [f"{under} update {update} is {times(ratio)}: you never scaled the loss. {mend[0].upper()}{mend[1:]}."]
        return [f"{under} update {update} is {times(ratio)}: {mend}."]
    scaler = Scaler()
    bench = taken_apart(accumulate, LENGTHS, clip=1e-3, scaler=scaler)
    return of_calls(scaler, len(bench.gradients)) or clipping(accumulate, scaler=Scaler())


def of_calls(scaler: Scaler, updates: int) -> list[str]:
    """What a scaler was asked, in which order and how often."""
    if scaler.steps != updates:
        return [f"The optimizer stepped {updates} times and the scaler {scaler.steps}: call scaler.step(optimizer), which skips a step whose gradient "
                "overflowed."]
    if scaler.early:
        return ["You called scaler.update() before scaler.step(optimizer): the step then unscales by another number, or again. Step, then update."]
    if scaler.updates != updates:
        return [f"{updates} updates and {scaler.updates} calls of scaler.update(): call it once after each step."]
    if scaler.most > 1:
        return [f"Gradients were unscaled {scaler.most} times; unscale once, just before clipping."]
    return []


# -- memory, and the weights --------------------------------------------------------------------------------------------


def memory(bench: Bench) -> list[str]:
    """When a forward begins, the last graph's name may still be there; its backward has run, and what it saved is gone."""
    waiting, saved, alive = (1 + max(column) for column in ([entry[place] for entry in bench.entries] for place in (1, 2, 0)))
    if waiting > 1:
        return [f"{waiting} graphs alive at the peak: call backward on each micro-batch's loss at once, before the next forward, and store loss.item(), "
                "not loss."]
    if saved > 1:
        return [f"{saved} graphs alive at the peak with all that they saved: leave out retain_graph=True."]
    if alive > 2:
        return [f"{alive} graphs alive at the peak: store loss.item(), not loss."]
    return []


def parity(accumulate) -> list[str]:
    """Weights after a run that does move, for each k, with everything switched on."""
    for k in COUNTS:
        large = Bench(LENGTHS, RATE)
        bench = taken_apart(accumulate, LENGTHS, k, RATE, clip=CLIP, scaler=Scaler())
        for start in range(0, len(LENGTHS), k):
            batch = tuple(torch.cat(each) for each in zip(*large.micro_batches[start:start + k]))
            (large.summed(batch) / large.tokens(batch)).backward()
            nn.utils.clip_grad_norm_(large.model.parameters(), CLIP)
            large.optimizer.step()
            large.optimizer.zero_grad()
        if findings := how_many(bench):
            return [f"With k={k}: {findings[0]}"]
        if bench.rates != {RATE}:
            return [f"You changed the learning rate, {RATE} to {max(bench.rates, key=lambda rate: abs(rate - RATE)):g}: leave it. The gradient is that of "
                    "the large batch, and so is its step."]
        found, expected = ({name: p.detach() for name, p in each.model.named_parameters()} for each in (bench, large))
        if findings := tensors_differ(found, expected):
            single = " Keep factors as Python numbers: a tensor of theirs is float32." if max(relative_errors(found, expected).values()) < 1e-6 else ""
            return [f"With k={k} the weights are not those of the large batch: {findings[0]}.{single}"]
    return []
