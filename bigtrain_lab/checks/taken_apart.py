"""A bench that takes the gradient of each update apart into its micro-batches' gradients, and counts whose graphs are alive.

    G_t = sum_i c_ti g_i          c by least squares: g_i are 10 vectors of 77 numbers; what is left over is no sum of them

With the learning rate 0 the g_i stay what they are. Beside c a bench writes down what a scaler was asked, and, each time that a
micro-batch's forward begins, which graphs of those before are still there: with what they saved, or only by name.
"""

import math
import weakref
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ..core import Impossible
from ..techniques.accumulate import parameters

K = 4
SCALE = 1024.0
CLOSE = 1e-6  # of the largest number in a row


class Bench:
    """A model whose optimizer has two groups of parameters, its micro-batches, and what an `accumulate` did with them."""

    def __init__(self, lengths: tuple[int, ...], rate: float = 0.0, k: int = K):
        draw = torch.Generator().manual_seed(0)
        self.lengths, self.k = lengths, k
        self.micro_batches = [tuple(torch.randint(7, (2, length), generator=draw)) for length in lengths]
        self.model = nn.Sequential(nn.Embedding(7, 5, dtype=torch.float64), nn.Linear(5, 7, dtype=torch.float64))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64) / 10)
        self.optimizer = torch.optim.SGD([{"params": list(layer.parameters())} for layer in self.model], rate, momentum=0.9)
        self.parts = torch.stack([self.gradient(self.summed(each)) for each in self.micro_batches], dim=1)
        self.gradients: list[torch.Tensor] = []  # of each update
        self.rates = set()
        self.optimizer.register_step_pre_hook(lambda *_: self.note())
        self.graphs: weakref.WeakSet = weakref.WeakSet()
        self.entries: list[Entry] = []

    # -- what accumulate is given -----------------------------------------------------------------------------------

    def loss_sum(self, micro_batch) -> torch.Tensor:
        """The summed loss, whose graph is watched for as long as anyone keeps it."""
        graphs = list(self.graphs)
        self.entries.append(Entry(len(graphs), sum(not graph.ran for graph in graphs), sum(bool(graph.saved) for graph in graphs)))
        saved: weakref.WeakSet = weakref.WeakSet()

        def pack(tensor):
            saved.add(held := Held(tensor))
            return held

        with saved_tensors_hooks(pack, lambda held: held.tensor):
            loss = self.summed(micro_batch)
        return Witnessed.apply(loss, self.graphs, saved)

    def tokens(self, micro_batch) -> int:
        return len(micro_batch[1])

    def summed(self, micro_batch) -> torch.Tensor:
        ids, targets = micro_batch
        return nn.functional.cross_entropy(self.model(ids), targets, reduction="sum")

    # -- what it did ------------------------------------------------------------------------------------------------

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(self.model.parameters()))])

    def note(self) -> None:
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters(self.optimizer)]
        self.gradients.append(torch.cat([g.detach().flatten() for g in found]))
        self.rates |= {group["lr"] for group in self.optimizer.param_groups}

    @property
    def rows(self) -> list[torch.Tensor]:
        """c of each update: how much each micro-batch's gradient counts in it."""
        return [self.counts(update) for update in range(len(self.gradients))]

    def counts(self, update: int) -> torch.Tensor:
        whole = self.gradients[update].unsqueeze(1)
        if not whole.isfinite().all():
            raise Impossible(f"The gradient of update {update} is not finite: did you divide by 0?")
        c = torch.linalg.lstsq(self.parts, whole).solution
        if (self.parts @ c - whole).norm() > CLOSE * whole.norm():
            raise Impossible(f"The gradient of update {update} is no weighted sum of the micro-batches' gradients: "
                             "let backward() add them up, and change them only by a factor.")
        return c.flatten()

    @property
    def updates(self) -> int:
        """How many there should be."""
        return math.ceil(len(self.lengths) / self.k)

    def window(self, update: int) -> range:
        return range(update * self.k, min((update + 1) * self.k, len(self.lengths)))

    def in_window(self, update: int) -> int:
        """Tokens of a window."""
        return sum(self.lengths[i] for i in self.window(update))

    def right(self, update: int) -> torch.Tensor:
        row = torch.zeros(len(self.lengths), dtype=torch.float64)
        row[list(self.window(update))] = 1 / self.in_window(update)
        return row

    def right_gradient(self, update: int) -> torch.Tensor:
        return self.parts @ self.right(update)


class Entry(NamedTuple):
    """Graphs of micro-batches before, when the next one's forward begins: there at all, without their backward, with what they saved."""

    alive: int
    waiting: int
    saved: int


class Held:
    """A saved tensor; gone when autograd lets go of it."""

    def __init__(self, tensor):
        self.tensor = tensor


class Witnessed(torch.autograd.Function):
    """The identity; its node is in `alive` for as long as the graph is."""

    @staticmethod
    def forward(ctx, loss, alive, saved):
        ctx.ran, ctx.saved = False, saved
        alive.add(ctx)
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.ran = True
        return gradient, None, None


class Scaler:
    """A loss scaler with torch's methods that writes down what it is asked, and lets itself be misused."""

    def __init__(self):
        self.unscaled, self.steps, self.updates, self.most, self.early, self.scaled = 0, 0, 0, 0, False, 0

    def get_scale(self) -> float:
        return SCALE

    def scale(self, loss):
        self.scaled += 1
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
        self.scaled = 0
        optimizer.step()

    def update(self):
        self.updates += 1
        self.early |= self.scaled > 0
        self.unscaled = 0


def taken_apart(accumulate, lengths, k: int = K, rate: float = 0.0, **options) -> Bench:
    bench = Bench(lengths, rate, k)
    accumulate(bench.micro_batches, k, bench.loss_sum, bench.tokens, bench.optimizer, **options)
    return bench


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() <= CLOSE * b.abs().max())


def share(a: torch.Tensor, b: torch.Tensor) -> float | None:
    """The factor between a and b; None where there is none."""
    factor = float(a @ b / (b @ b))
    return factor if near(a, factor * b) else None
