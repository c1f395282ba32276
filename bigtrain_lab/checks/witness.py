"""A function that writes down how it was run: what it was given, what it drew, its number format, and which storages it made.

    fn(x, z=1, mask=1) = dropout(tanh(linear(sin(cos(sin(x) z))))) mask          all of one shape, [4, 6]

A run is noted as it begins, since one that only refills what a backward needs may stop before its end. Storages are watched by weak
references, as a tensor can be let go while another one, detached, keeps its bytes.
"""

import gc
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from ..core import Impossible

MADE = 5  # tensors of one input's run that autograd saves


class Run:
    """One call of fn. `graph`: whether gradients were on; `given`: how many arguments, which keywords."""

    def __init__(self, graph: bool, given: tuple):
        self.graph, self.given = graph, given
        self.dtype = self.drawn = None
        self.saved: list[weakref.ref] = []  # storages that a plain graph keeps
        self.others: list[weakref.ref] = []

    def note(self, tensor: Tensor, saved: bool = True) -> Tensor:
        (self.saved if saved else self.others).append(weakref.ref(tensor.untyped_storage()))
        return tensor


class Witness:
    def __init__(self, share: float = 0.0):
        self.linear, self.share, self.runs = nn.Linear(6, 6), share, []
        with torch.no_grad():
            for number, parameter in enumerate(self.linear.parameters()):
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape) + number)

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        run = Run(torch.is_grad_enabled(), (len(args), tuple(kwargs)))
        self.runs.append(run)
        x, *others = args
        h = run.note(x.sin())
        for other in others:
            h = run.note(h * other)
        a = run.note(self.linear(run.note(run.note(h.cos()).sin())), saved=False)
        run.dtype = a.dtype
        drawn = run.note(dropout(torch.ones_like(a), self.share))
        run.drawn = drawn.detach().clone()
        y = run.note(a.tanh()) * drawn
        for mask in kwargs.values():
            y = run.note(y) * mask
        return run.note(y, saved=False)

    def alive(self) -> int:
        """How many storages somebody holds, of those that a graph would: of a first run only these, since its result is the caller's."""
        first, *again = self.runs
        watched = [*first.saved, *(ref for run in again for ref in (*run.saved, *run.others))]
        if any(ref() is not None for ref in watched):
            gc.collect()  # circles of references are no mistake
        return sum(ref() is not None for ref in watched)

    def backward(self, loss: Tensor) -> None:
        """loss.backward(), with torch's error for a second run without a graph in other words."""
        if not loss.requires_grad:
            raise Impossible("What your function returned has no graph, so no gradient can come back: return what an autograd Function gave, or fn's own "
                             "output under saved-tensor hooks, not a detached one.")
        try:
            loss.backward()
        except RuntimeError as error:
            if len(self.runs) > 1 and not self.runs[-1].graph:
                raise Impossible("The second forward ran without a graph, so it has no backward: autograd switches gradients off in the backward of a Function. "
                                 "Run fn under torch.enable_grad().") from error
            raise


class Step(NamedTuple):
    """What a training step shows."""

    output: Tensor
    gradients: dict[str, Tensor | None]
    later: Tensor  # random numbers between forward and backward, and after it
    runs: list[Run]

    def without_gradient(self) -> list[str]:
        return [name for name, gradient in self.gradients.items() if gradient is None]

    def unlike(self, right: "Step") -> list[str]:
        """Whose gradients are not the right ones, bit for bit."""
        return [name for name, b in right.gradients.items()
                if (a := self.gradients[name]) is not b and (a is None or b is None or not torch.equal(a, b))]


def squares(y: Tensor) -> Tensor:
    return y.float().square().sum()


def step(call: Callable, witness: Witness, inputs: dict[str, Tensor], loss: Callable[[Tensor], Tensor] = squares, before: float | None = None,
         beside: Witness | None = None) -> Step:
    """Forward, random numbers, backward. `inputs`: by what they are called, "`mask=`" as a keyword; `before`: the .grad that is there."""
    leaves = inputs | {f"{the} {name} inside {fn}": p for the, fn, each in (("the", "fn", witness), ("the", "the second fn", beside)) if each
                       for name, p in each.linear.named_parameters()}
    for leaf in leaves.values():
        leaf.grad = None if before is None else torch.full_like(leaf, before)
    torch.manual_seed(7)
    y = call(witness, *(x for name, x in inputs.items() if name != "`mask=`"), **({"mask": inputs["`mask=`"]} if "`mask=`" in inputs else {}))
    if not isinstance(y, Tensor):
        raise Impossible(f"Your function returned {'nothing' if y is None else f'a {type(y).__name__}'} where fn returns a tensor: return what fn returns.")
    if not torch.is_grad_enabled():
        raise Impossible("Gradients are still switched off after your function: use `with torch.no_grad():`, which ends.")
    between = torch.rand(3)
    witness.backward(loss(y))
    return Step(y.detach(), {name: leaf.grad for name, leaf in leaves.items()}, torch.cat([between, torch.rand(3)]), witness.runs)


def plainly(fn: Callable, *args, **kwargs):
    return fn(*args, **kwargs)


def start(gradient: bool = True) -> Tensor:
    return torch.linspace(-2, 2, 24).reshape(4, 6).requires_grad_(gradient)
