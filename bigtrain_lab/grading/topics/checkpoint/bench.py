"""A checkpoint of one's own: calls of it on a function that notes what it meets, and their
backwards."""

import weakref
from contextlib import nullcontext

import torch
from torch.nn.functional import dropout

from ....order.plan import collector_paused
from ...trainings import refuse


class Noted:
    """fn(x, z=1, mask=1, late=1) = y = dropout(tanh(linear(sin(cos(sin(x) z))))) mask, or a tuple
    of y, scale exp(y) late, and exp(y) without a gradient; one linear more where it is `twice`.

    kept: weak references to storages, those that a graph of the first run keeps and all of later
    ones. A second run may stop once all is there that the backward needs, so what it meets is noted
    as it begins.
    """

    def __init__(self, share: float, results: list, twice: bool):
        self.linear, self.share, self.results = torch.nn.Linear(6, 6), share, results
        self.twice = twice
        self.linear.scale = torch.nn.Parameter(torch.rand(6))
        self.given, self.drawn, self.formats, self.kept = [], [], [], []

    def __call__(self, x, *others, **named):
        again = bool(self.given)
        kinds = [type(each).__name__ for each in (x, *others)]
        self.given.append(", ".join(kinds + [f"{name}=" for name in sorted(named)]))

        def note(tensor, saved=True):
            if saved or again:
                self.kept.append(weakref.ref(tensor.untyped_storage()))
            return tensor

        h = note(x.sin())
        for other in others:
            h = h if other is None else note(h * other)
        h = self.linear(h) if self.twice else h
        a = note(self.linear(note(note(h.cos()).sin())), False)
        self.formats.append(str(a.dtype))
        drawn = note(dropout(torch.ones_like(a), self.share))
        self.drawn.append(drawn.tolist())
        y = note(a.tanh()) * drawn
        late = named.pop("late", 1)
        for name in sorted(named):  # in whatever order they come
            y = y if named[name] is None else note(y) * named[name]
        made = y, note(y.exp()) * self.linear.scale * late, y.detach().exp()
        return tuple(note(made[each], False) for each in self.results) or note(y, False)

    def alive(self) -> int:
        """How many of those storages are; what a circle of references keeps is alive too, since no
        collector runs."""
        return sum(each() is not None for each in self.kept)


@collector_paused()
def play(
    answer,
    seed,
    rows,
    calls,
    share=0.0,
    results=(),
    used=None,
    backwards=(None,),
    under=None,
    before=None,
    graph=True,
    twice=False,
) -> dict:
    """`calls`: the arguments of each, and the format of autocast around it; `backwards`: of which
    call each is, or of their sum; `used`: the one result that the loss is of; `before`: each
    weight's .grad."""
    torch.manual_seed(seed)
    fn, tensors, losses, outputs, y = Noted(share, results, twice), {}, [], [], None
    for name, p in fn.linear.named_parameters():
        tensors[f"the {name} inside fn"] = p
        p.grad = None if before is None else torch.full_like(p, before)
    for number, (args, named, dtype) in enumerate(calls):
        args = [made(each, rows, y) for each in args]
        named = {name: made(each, rows, y) for name, each in named.items()}
        for at, each in enumerate((*args, *named.values())):
            if torch.is_tensor(each) and each.is_leaf:
                tensors[f"argument {at} of call {number}"] = each
        with autocast(dtype), nullcontext() if graph else torch.no_grad():
            y = answer(fn, *args, **named)
        ours = y if isinstance(y, tuple) else (y,)
        refuse(
            (
                not all(isinstance(each, torch.Tensor) for each in ours),
                f"Your checkpoint returned a {type(y).__name__}: return what fn returns.",
            )
        )
        outputs.append([each.tolist() for each in ours] if ours is y else y.tolist())
        if used is not None:
            ours = y = ours[used : used + 1]  # the others are let go
        losses.append(sum(each.float().square().sum() for each in ours))
    came = {
        "what fn was given in each run": fn.given,
        "runs of fn in the forward": len(fn.given),
        "the output": outputs,
        "it has a graph": all(loss.requires_grad for loss in losses),
        "tensors inside fn alive after the forward": fn.alive() if len(calls) == 1 else 0,
        "numbers drawn after the forward": torch.rand(3).tolist(),
    }
    for at in backwards if came["it has a graph"] else ():
        with autocast(under):
            (sum(losses) if at is None else losses[at]).backward()
    came["tensors inside fn alive after the backward"] = fn.alive() if len(calls) == 1 else 0
    fn.kept += [weakref.ref(each.untyped_storage()) for each in ours]
    losses = ours = y = None  # the caller lets go of all
    return (
        {"runs of fn": len(fn.given)}
        | came
        | {
            "formats of fn's runs": fn.formats,
            "dropout's mask in each run": fn.drawn,
            **{
                f"gradient of {name}": None if each.grad is None else each.grad.tolist()
                for name, each in tensors.items()
            },
            "tensors alive when the result is gone": fn.alive() if len(calls) == 1 else 0,
            "numbers drawn after the backward": torch.rand(3).tolist(),
        }
    )


def made(what, rows: int, last):
    """A tensor by its name, or what is no tensor as it is."""
    tensors = {
        "x": lambda: torch.randn(rows, 6, requires_grad=True),
        "x without gradient": lambda: torch.randn(rows, 6),
        "whole numbers": lambda: torch.randint(9, (rows, 6)),
        "the last output": lambda: last,
    }
    return tensors[what]() if isinstance(what, str) else what


def autocast(dtype: str | None):
    return torch.autocast("cpu", getattr(torch, dtype or "bfloat16"), enabled=dtype is not None)
