"""What is wrong with a `checkpoint` of one's own: the mistake, then the mend.

    checkpoint(fn, *args, **kwargs)     right: fn's output; the plain run's gradients, bit for bit; the random numbers that the
                                        plain run would draw afterwards; and nothing of fn's inside held in between

fn is a witness: it writes down each time it runs what it was given, what it drew and in which number format it computed, so
that a wrong gradient is told by its cause. Only loss.backward() is asked for: an autograd Function can be right.
"""

import gc
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from ..core import Impossible


def checkpoint_findings(checkpoint: Callable) -> list[str]:
    """Sentences about `checkpoint(fn, *args, **kwargs)`, for functions of tensors that return a tensor; empty when it is right."""
    findings = []
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        for probe in (gradients, memory, random_numbers, formats, keywords, input_without_gradient):
            try:
                found = probe(checkpoint)
            except Impossible as error:
                found = str(error)
            except Exception as error:  # a student's code: whatever it raises is a finding
                found = f"Your function raised {type(error).__name__}: {error}. {WHERE[probe]}"
            if found:
                findings.append(found)
                if probe is gradients:  # without it the others have nothing to compare
                    break
    return findings


class Witness:
    """fn: dropout(tanh(linear(h)) * mask), h = sin(x); it notes each run."""

    def __init__(self, share: float = 0.0):
        self.linear, self.share, self.runs = nn.Linear(6, 5), share, []
        with torch.no_grad():
            for number, parameter in enumerate(self.linear.parameters()):
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape) + number)

    def __call__(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        h = x.sin()
        inside = h.cos()  # h and this are inputs that autograd saves, as tensors one can watch
        a = self.linear(inside.sin())
        drawn = dropout(torch.ones_like(a), self.share)
        self.runs.append(Run(a.dtype, mask is not None, [weakref.ref(t) for t in (h, inside)]))
        y = a.tanh() * drawn
        return y if mask is None else y * mask

    def alive(self) -> int:
        """How many tensors made inside, in all runs, somebody holds."""
        inside = [r for run in self.runs for r in run.inside]
        if any(r() is not None for r in inside):
            gc.collect()  # circles of references are no mistake
        return sum(r() is not None for r in inside)


class Run(NamedTuple):
    dtype: torch.dtype
    masked: bool
    inside: list


class Step(NamedTuple):
    """What a training step shows."""

    output: Tensor
    gradients: list[Tensor | None]
    later: Tensor  # random numbers between forward and backward, and after it


def step(call: Callable, witness: Witness, x: Tensor, **kwargs) -> Step:
    witness.linear.zero_grad()
    x.grad = None
    torch.manual_seed(7)
    y = call(witness, x, **kwargs)
    if not isinstance(y, Tensor):
        raise Impossible(f"Your function returned {'nothing' if y is None else f'a {type(y).__name__}'} where fn returns a tensor: return what fn returns.")
    if not torch.is_grad_enabled():
        raise Impossible("Gradients are still switched off after your function: use `with torch.no_grad():`, which ends.")
    between = torch.rand(3)
    y.float().square().sum().backward()
    return Step(y.detach(), [x.grad, *(p.grad for p in witness.linear.parameters())], torch.cat([between, torch.rand(3)]))


def both(checkpoint: Callable, share: float = 0.0, **kwargs) -> tuple[Step, Step]:
    """(with the student's checkpoint, without) on the same numbers."""
    return (step(checkpoint, Witness(share), start(), **kwargs),
            step(lambda fn, *a, **k: fn(*a, **k), Witness(share), start(), **kwargs))


def start(gradient: bool = True) -> Tensor:
    return torch.linspace(-2, 2, 24).reshape(4, 6).requires_grad_(gradient)


# -- the probes -------------------------------------------------------------------------------------------------


def gradients(checkpoint: Callable) -> str:
    found, right = both(checkpoint)
    if not torch.equal(found.output, right.output):
        return "The output is not fn's: call fn once, on the very arguments, and return what it returns."
    names = ("the input", "the weight inside fn", "the bias inside fn")
    wrong = [name for name, a, b in zip(names, found.gradients, right.gradients) if a is None or not torch.equal(a, b)]
    if not wrong:
        return ""
    none = [name for name, a in zip(names, found.gradients) if a is None]
    if none:
        return f"No gradient reached {' and '.join(none)}: in the backward run fn with a graph, and take that graph's backward."
    return f"The gradient of {' and '.join(wrong)} is wrong: in the backward run fn on the arguments of the forward, and hand it dL/dy."


def memory(checkpoint: Callable) -> str:
    witness = Witness()
    y = checkpoint(witness, start())
    if held := witness.alive():
        return (f"Peak equals keep-all: after the forward {held} of {len(witness.runs[0].inside)} tensors inside fn are still held. "
                "The first forward must run without a graph, or with one whose saved tensors are let go.")
    y.sum().backward()
    if witness.alive():
        return "What the recompute made is still held after the backward: let its graph go."
    return ""


def random_numbers(checkpoint: Callable) -> str:
    found, right = both(checkpoint, share=0.5)
    if any(a is None or not torch.equal(a, b) for a, b in zip(found.gradients, right.gradients)):
        return ("The second forward drew another dropout mask: gradient of a different function. Note torch.get_rng_state() before the first "
                "forward, and set it before the second.")
    if not torch.equal(found.later[:3], right.later[:3]):
        return "Numbers drawn after the forward are not those of the plain run: note the random state before fn, and set it in the backward only."
    if not torch.equal(found.later, right.later):
        return ("The gradient is right, but later random numbers repeat: restore the state after the recompute too, to what it was just before.")
    return ""


def formats(checkpoint: Callable) -> str:
    witness, x, left = Witness(), start(), None
    with torch.autocast("cpu", torch.bfloat16):
        y = checkpoint(witness, x)
    try:
        y.float().square().sum().backward()
    except Exception as error:  # often the consequence of what is looked for
        left = error
    used = [str(run.dtype).removeprefix("torch.") for run in witness.runs]
    if len(set(used)) > 1:
        return (f"{used[0]} forward, {used[1]} recompute: note in the forward whether autocast is on and in which format, "
                "and run the second forward under the same.")
    if left:
        raise left
    if torch.is_autocast_enabled("cpu"):
        return "Autocast is still on after your backward: enter it as a context, which ends."
    return ""


def keywords(checkpoint: Callable) -> str:
    mask, witness, left = (start(False)[:, :5] > 0).float(), Witness(), None
    try:
        y = checkpoint(witness, start(), mask=mask)
    except TypeError as error:
        return f"`mask=` was refused ({error}): take **kwargs, and hand them to fn both times."
    try:
        y.sum().backward()
    except Exception as error:
        left = error
    if not witness.runs[0].masked:
        return "`mask=` did not reach the forward: take **kwargs, and hand them to fn both times."
    if not all(run.masked for run in witness.runs):
        return "`mask=` did not reach the recompute: keep kwargs beside args, and hand both to fn again."
    if left:
        raise left
    found, right = both(checkpoint, mask=mask)
    same = all(a is not None and torch.equal(a, b) for a, b in zip(found.gradients, right.gradients))
    return "" if same else "With `mask=` the gradient is another: hand the same mask to the second forward."


def input_without_gradient(checkpoint: Callable) -> str:
    witness = Witness()
    y = checkpoint(witness, start(False))
    if y.requires_grad:
        y.sum().backward()
    if all(p.grad is not None for p in witness.linear.parameters()):
        return ""
    return ("With an input that needs no gradient the weights got none: autograd leaves a Function out where no input of it needs one. Give it one "
            "more that does, an empty tensor, or use saved-tensor hooks.")


WHERE = {
    gradients: "Call it alone: checkpoint(torch.sin, torch.ones(3, requires_grad=True)).sum().backward().",
    memory: "That was with a function of one tensor, twice in a row.",
    random_numbers: "That was with a function that uses dropout.",
    formats: "That was under `with torch.autocast(\"cpu\", torch.bfloat16):`, the backward outside it.",
    keywords: "That was checkpoint(fn, x, mask=mask).",
    input_without_gradient: "That was with an input that needs no gradient.",
}
