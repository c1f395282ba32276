"""What is wrong with an `accumulate` of one's own: the mistake, then the mend.

The check holds the model still (learning rate 0). Every micro-batch i then has one gradient g_i of its summed loss, and the
gradient that reaches the optimizer at update t can be taken apart, exactly, into

    G_t = sum_i c_ti g_i          right: c_ti = 1 / (tokens of window t) for i in window t, and 0 for all others

Each mistake is a pattern in c: 1/n_i is a mean that was never divided, numbers before the window a missing zero_grad. Loss
curves would hide most of them: Adam's weights do not notice a gradient that is k times too large.
"""

import math
import weakref
from collections.abc import Callable

import torch
from torch import nn

from ..core import Impossible
from ..techniques.accumulate import parameters
from .parity import tensors_differ

LENGTHS = (16, 32, 64, 256, 8, 40, 24, 120, 12, 48)
EQUAL = (16,) * 10
K = 4
SCALE = 1024.0
CLOSE = 1e-6  # of the largest number in a row


def accumulation_findings(accumulate: Callable) -> list[str]:
    """Sentences about `accumulate(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None)`; empty when right.

    loss_sum    micro-batch -> its summed loss       tokens    micro-batch -> how many tokens that is over

    One step of the optimizer for each k micro-batches and one for those that are left, clipped as by
    torch.nn.utils.clip_grad_norm_; `scaler` has torch's .scale, .unscale_, .step and .update.
    """
    try:
        return (structure(taken_apart(accumulate, EQUAL)) or weighting(taken_apart(accumulate, LENGTHS))
                or clipping(accumulate) or scaling(accumulate) or memory(taken_apart(accumulate, LENGTHS))
                or parity(accumulate))
    except Impossible as error:
        return [str(error)]
    except Exception as error:  # a student's code: whatever it raises is a finding
        return [f"Your function raised {type(error).__name__}: {error}. Call it alone, with two micro-batches and k=2."]


# -- taking a gradient apart --------------------------------------------------------------------------------------------


class Bench:
    """A model, its micro-batches, and what an `accumulate` did with them."""

    def __init__(self, lengths: tuple[int, ...], rate: float = 0.0):
        draw = torch.Generator().manual_seed(0)
        self.lengths = lengths
        self.micro_batches = [tuple(torch.randint(7, (2, length), generator=draw)) for length in lengths]
        self.model = nn.Sequential(nn.Embedding(7, 5, dtype=torch.float64), nn.Linear(5, 7, dtype=torch.float64))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64) / 10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), rate, momentum=0.9)
        self.parts = torch.stack([self.gradient(self.summed(each)) for each in self.micro_batches], dim=1)
        self.rows: list[torch.Tensor] = []  # of each update: how much each micro-batch's gradient counts in it
        if not rate:  # gradients of weights that have moved are others than `parts`
            self.optimizer.register_step_pre_hook(lambda *_: self.rows.append(self.counts()))
        self.graphs: weakref.WeakSet = weakref.WeakSet()
        self.most_graphs = 0

    def summed(self, micro_batch) -> torch.Tensor:
        ids, targets = micro_batch
        return nn.functional.cross_entropy(self.model(ids), targets, reduction="sum")

    def loss_sum(self, micro_batch) -> torch.Tensor:
        """The summed loss, whose graph is counted for as long as anyone keeps it."""
        self.most_graphs = max(self.most_graphs, len(self.graphs) + 1)
        return Witnessed.apply(self.summed(micro_batch), self.graphs)

    def tokens(self, micro_batch) -> int:
        return len(micro_batch[1])

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(self.model.parameters()))])

    def counts(self) -> torch.Tensor:
        """c of this moment's .grad = sum_i c_i g_i."""
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters(self.optimizer)]
        whole = torch.cat([g.flatten() for g in found]).unsqueeze(1)
        if not whole.isfinite().all():
            raise Impossible(f"The gradient of update {len(self.rows)} is not finite: you divided by 0.")
        c = torch.linalg.lstsq(self.parts, whole).solution
        if (self.parts @ c - whole).norm() > CLOSE * whole.norm():
            raise Impossible(f"The gradient of update {len(self.rows)} is no weighted sum of the micro-batches' gradients: "
                             "let backward() add them up, and change them only by a factor.")
        return c.flatten()

    def window(self, update: int) -> range:
        return range(update * K, min((update + 1) * K, len(self.lengths)))

    def right(self, update: int) -> torch.Tensor:
        row, window = torch.zeros(len(self.lengths), dtype=torch.float64), self.window(update)
        row[list(window)] = 1 / sum(self.lengths[i] for i in window)
        return row


class Witnessed(torch.autograd.Function):
    """The identity; its node in the graph is in `alive` for as long as the graph is."""

    @staticmethod
    def forward(ctx, loss, alive):
        alive.add(ctx)
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Scaler:
    """A loss scaler with torch's methods that writes down what it is asked, and lets itself be misused."""

    def __init__(self):
        self.unscaled, self.steps, self.updates, self.most = 0, 0, 0, 0

    def scale(self, loss):
        return loss * SCALE

    def unscale_(self, optimizer):
        self.unscaled += 1
        self.most = max(self.most, self.unscaled)
        for parameter in parameters(optimizer):
            if parameter.grad is not None:
                parameter.grad /= SCALE

    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        self.steps += 1
        optimizer.step()

    def update(self):
        self.updates += 1
        self.unscaled = 0


def taken_apart(accumulate, lengths, **options) -> Bench:
    bench = Bench(lengths)
    accumulate(bench.micro_batches, K, bench.loss_sum, bench.tokens, bench.optimizer, **options)
    return bench


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() <= CLOSE * b.abs().max())


# -- the findings -------------------------------------------------------------------------------------------------------


def structure(bench: Bench) -> list[str]:
    """On equal lengths, where a mean of means is right: how many updates, of which micro-batches, how large."""
    n, expected = len(bench.lengths), math.ceil(len(bench.lengths) / K)
    if len(bench.rows) == n // K < expected:
        left = " and ".join(map(str, range(n // K * K, n)))
        return [f"{n // K} updates for {n} micro-batches, not {expected}: micro-batches {left} never reached the optimizer. "
                "Let the last window be short."]
    if len(bench.rows) != expected:
        return [f"{len(bench.rows)} updates for {n} micro-batches, not {expected}: step once after every {K}, and once for what is left."]
    for update, row in enumerate(bench.rows):
        window, right = bench.window(update), bench.right(update)
        size = row.abs().max()
        if not size:
            return [f"The gradient of update {update} is zero: call zero_grad after the step, or before the first backward."]
        if update and row[:window.start].abs().max() > CLOSE * size:
            return [f"Update {update} holds the sum of all gradients since the start: call zero_grad after every step."]
        if len(window) > 1 and row[window.start:window.stop - 1].abs().max() <= CLOSE * size:
            return ["Only the last micro-batch of each window counts: call zero_grad once a window, not before each backward."]
        ratio = float(row @ right / (right @ right))
        if not near(row, ratio * right):
            return [f"In update {update} micro-batches of equal length count {', '.join(f'{c:.3g}' for c in row[window.start:window.stop])}: "
                    "give each of their tokens the same weight."]
        tokens = sum(bench.lengths[i] for i in window)
        if abs(ratio - 1) > CLOSE:
            return [too_large(ratio, len(window), tokens, update)]
    return []


def too_large(ratio: float, size: int, tokens: int, update: int) -> str:
    """Every micro-batch counts alike, but the sum is so many times what it should be."""
    if math.isclose(ratio, size / K):
        return (f"The last gradient is exactly {ratio:g} of the right one: that window holds {size}, you divided by {K}. Divide by "
                "what is in the window.")
    if math.isclose(ratio, size):
        return f"Exactly {size} times too large: you added means and never divided. Divide each sum by the window's tokens."
    if math.isclose(ratio, tokens):
        return f"Exactly {tokens} times too large: you added sums and never divided. Divide each sum by the window's tokens."
    return f"The gradient of update {update} is {ratio:.6g} times the right one: divide each sum by the window's tokens, once."


def weighting(bench: Bench) -> list[str]:
    """On unequal lengths: what a token counts."""
    for update, row in enumerate(bench.rows):
        right = bench.right(update)
        if not near(row, right):
            true = bench.parts @ right
            off = float((bench.parts @ row - true).norm() / true.norm())
            counts = [float(row[i] / right[i]) for i in bench.window(update)]
            return [f"Off by {off:.0%} here: short micro-batches count as much as long ones (a token of the first window's "
                    f"counts {', '.join(f'{c:.2f}' for c in counts)} times). Divide each *sum* by the window's tokens."]
    return []


def clipping(accumulate, **options) -> list[str]:
    """With a limit that every partial sum exceeds."""
    sound = Bench(LENGTHS)
    norms = [float((sound.parts @ sound.right(update)).norm()) for update in range(math.ceil(len(LENGTHS) / K))]
    clip = 0.05 * min(norms)
    bench = taken_apart(accumulate, LENGTHS, clip=clip, **options)
    for update, row in enumerate(bench.rows):
        right = bench.right(update)
        if near(row, right):
            return [f"The gradient of update {update} has norm {norms[update]:.3g} and the limit is {clip:.3g}: you never clipped."]
        ratio = float(row @ right / (right @ right))
        if not near(row, ratio * right):
            return ["You clipped the parts; clip the sum, once, just before the step."]
        if not math.isclose(ratio * norms[update], clip, rel_tol=CLOSE + 2e-6 / norms[update]):  # torch adds 1e-6 to the norm
            scaled = " You clipped the scaled gradient: unscale before clipping." if options else ""
            return [f"The clipped gradient has norm {ratio * norms[update]:.3g}, and the limit is {clip:.3g}.{scaled}"
                    + ("" if scaled else " Divide first, then clip.")]
    return []


def scaling(accumulate) -> list[str]:
    """With a loss scaler, without and with clipping."""
    scaler = Scaler()
    bench = taken_apart(accumulate, LENGTHS, scaler=scaler)
    if scaler.steps != len(bench.rows):
        return [f"The optimizer stepped {len(bench.rows)} times and the scaler {scaler.steps}: call scaler.step(optimizer), which "
                "skips a step whose gradient overflowed."]
    if scaler.updates != len(bench.rows):
        return [f"{len(bench.rows)} updates and {scaler.updates} calls of scaler.update(): call it after each step."]
    if scaler.most > 1:
        return [unscaled_often(scaler)]
    for update, row in enumerate(bench.rows):
        right = bench.right(update)
        if not near(row, right):
            ratio = float(row @ right / (right @ right))
            return [f"Under a loss scale of {SCALE:g} update {update} is {ratio:.3g} times too large: call backward on scaler.scale(loss), "
                    "each micro-batch's, and unscale once."]
    scaler = Scaler()
    findings = clipping(accumulate, scaler=scaler)
    return [unscaled_often(scaler)] if scaler.most > 1 else findings


def unscaled_often(scaler: Scaler) -> str:
    return f"Gradients were unscaled {scaler.most} times; unscale once, just before clipping."


def memory(bench: Bench) -> list[str]:
    """The last micro-batch's graph may wait for its name to be taken by the next one."""
    if bench.most_graphs > 2:
        return [f"{bench.most_graphs} graphs alive at the peak: call backward on each micro-batch's loss at once, and store loss.item(), "
                "not loss."]
    return []


def parity(accumulate) -> list[str]:
    """Weights after a run that does move, for k = 1 to 7, with everything switched on."""
    for k in range(1, 8):
        bench, large = Bench(LENGTHS, rate=0.1), Bench(LENGTHS, rate=0.1)
        accumulate(bench.micro_batches, k, bench.loss_sum, bench.tokens, bench.optimizer, clip=0.5, scaler=Scaler())
        for start in range(0, len(LENGTHS), k):
            batch = tuple(torch.cat(each) for each in zip(*large.micro_batches[start:start + k]))
            (large.summed(batch) / large.tokens(batch)).backward()
            nn.utils.clip_grad_norm_(large.model.parameters(), 0.5)
            large.optimizer.step()
            large.optimizer.zero_grad()
        found, expected = ({name: p.detach() for name, p in each.model.named_parameters()} for each in (bench, large))
        if findings := tensors_differ(found, expected):
            return [f"With k={k} the weights are not those of the large batch: {findings[0]}."]
    return []
