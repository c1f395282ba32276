"""A layer over t ranks: the MLP cut by columns, then by rows; a loss without whole rows of logits.

    drop(drop(gelu(x A + a)) B + b)    one all-reduce of b s h numbers forward, and one backward
    log sum_v exp(z_v) - z_target      three all-reduces of b s numbers

The truth is torch's own of whole matrices, with the dropout masks that the ranks drew.
Source: Shoeybi et al. 2019, Megatron-LM (arXiv:1909.08053), section 3.
"""

from functools import cache

import torch
from torch.nn.functional import cross_entropy, gelu
from torch.utils._python_dispatch import TorchDispatchMode

from ..fence import Refused
from ..likeness import Scene, Topic, Wrong
from ..ranks import Ranks

NEAR, FEW = 1e-12, 6
RIGHT = """
import torch
from torch.nn.functional import gelu

class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.group.all_reduce(gradient.clone()), None

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return group.all_reduce(x.clone())

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None

class answer:
    def __init__(self, group):
        self.group, self.rank, self.size = group, group.rank, group.size

    def own(self, tensor, dim=0):
        return tensor.chunk(self.size, dim)[self.rank]

    def mlp(self, x, A, a, B, b, drop):
        x = Copy.apply(x, self.group)
        hidden = gelu(x @ self.own(A, 1) + self.own(a))
        hidden = drop(hidden, 1 + self.rank)
        y = Sum.apply(hidden @ self.own(B), self.group)
        return drop(y + b, 0)

    def loss(self, logits, targets):
        width = logits.shape[-1]
        top = self.group.all_reduce(logits.detach().amax(-1), "max")
        logits = logits - top[..., None]
        place = targets - self.rank * width
        mine = (place >= 0) & (place < width)
        found = logits.gather(-1, place.clamp(0, width - 1)[..., None])[..., 0]
        target = Sum.apply(found * mine, self.group)
        total = Sum.apply(logits.exp().sum(-1), self.group)
        return (total.log() - target).mean()
"""
CLOSURES = """
import torch
from types import SimpleNamespace

def answer(group):
    def mlp(x, A, a, B, b, drop):
        at, x = slice(group.rank, None, group.size), x * 1
        x.register_hook(lambda gradient: group.all_reduce(1 * gradient))
        hidden = torch.nn.GELU()(torch.addmm(a[at], x.flatten(0, -2), A[:, at]))
        y = drop(hidden, f"rank {group.rank}") @ B[at]
        group.all_reduce(y)
        return drop(torch.add(y.view(*x.shape[:-1], -1), b), "all")

    def loss(logits, targets):
        own = logits.logsumexp(-1)
        top = group.all_reduce(own.detach().clone(), op="max")
        ids = torch.arange(logits.shape[-1]) + group.rank * logits.shape[-1]
        at = ids == targets.unsqueeze(-1)
        sums = torch.stack([(own - top).exp(), (logits * at).sum(-1)])
        sums = sums + (group.all_reduce(sums.detach().clone()) - sums).detach()
        return torch.mean(top + sums[0].log() - sums[1])

    return SimpleNamespace(mlp=mlp, loss=loss)
"""
MLP, LOSS = (
    RIGHT[RIGHT.index(first) : RIGHT.index(last) + len(last)]
    for first, last in (("        x = Copy", "drop(y + b, 0)\n"), ("        width =", ".mean()\n"))
)
GELU, DROP, Y = (
    "x @ self.own(A, 1) + self.own(a)",
    "hidden = drop(hidden, 1 + self.rank)",
    "hidden @ self.own(B)",
)
TOP, BACK = 'self.group.all_reduce(logits.detach().amax(-1), "max")', "return gradient, None"
SUBTRACTED = "        logits = logits - top[..., None]\n"
SUMMED, FOUND, TOTAL = (
    "ctx.group.all_reduce(gradient.clone())",
    "found * mine",
    "logits.exp().sum(-1)",
)
JOIN = """
        parts = torch.zeros(self.size, *{0}.shape, dtype={0}.dtype)
        parts[self.rank] = {0}
        {0} = torch.cat(tuple(Sum.apply(parts, self.group)), -1)
"""
ROW_COLUMN = (
    """        x = self.own(Copy.apply(x, self.group), -1)
        hidden = Sum.apply(x @ self.own(A), self.group)
        hidden = drop(gelu(Copy.apply(hidden, self.group) + a), 0)
        y = hidden @ self.own(B, 1)"""
    + JOIN.format("y")
    + "        return drop(y + b, 0)\n"
)


def but(*changes: str) -> str:
    """The first right answer with old, new, old, new, ... replaced."""
    text = RIGHT
    for old, new in zip(changes[::2], changes[1::2]):
        text = text.replace(old, new)
    return text


class TensorSlicing(Topic):
    name = "tensor-slicing"
    hints = (
        "Is gelu(p + q) the sum of gelu(p) and gelu(q)? Which cut of A needs no sum before it?",
        (
            "Columns of A, rows of B: each rank has a part of y. Who needs x's gradient, and from"
            " whom?"
        ),
        (
            "f is x forward, an all-reduce backward; g the reverse. The loss needs three numbers of"
            " each token: its largest logit, its sum of exponentials, its target's logit."
        ),
    )
    right = {
        "a class": RIGHT,
        "closures, every t-th column": CLOSURES,
        "einsum": but(
            "x @ self.own(A, 1)",
            'torch.einsum("bsh,hf->bsf", x, self.own(A, 1))',
            "1 + self.rank",
            "7 * self.rank",
        ),
        "straight through": but(
            f"Sum.apply({Y}, self.group)",
            f"{Y}\n        y = y + (self.group.all_reduce(y.detach().clone()) - y).detach()",
            BACK,
            "return gradient.clone(), None",
        ),
        "a module": but(
            "answer:",
            "answer(torch.nn.Module):",
            "        self.group,",
            "        super().__init__()\n        self.group,",
        ),
    }
    wrong = {
        name: Wrong(sentence, text)
        for name, sentence, text in (
            (
                "gelu_of_partials",
                "gelu(p) + gelu(q) is not gelu(p + q): cut A so that no sum stands before GELU.",
                but(GELU, "self.own(x, -1) @ self.own(A) + a / self.size", "self.own(B)", "B"),
            ),
            (
                "g_forgotten",
                "Each rank returns its own part of y: add up the parts of all ranks.",
                but(f"Sum.apply({Y}, self.group)", Y),
            ),
            (
                "g_averages",
                "The parts of y are averaged: they are terms of one product, so add them up.",
                but("(x.clone())", "(x.clone(), 'mean')"),
            ),
            (
                "bias_times_t",
                (
                    "Every rank adds b before the sum, so it counts t times: add it once, after the"
                    " sum."
                ),
                but(Y, f"{Y} + b", "y + b", "y"),
            ),
            (
                "other_units",
                "A's columns and B's rows are of different hidden units: cut both alike.",
                but("self.own(B)", "B[self.rank::self.size]"),
            ),
            (
                "first_slice",
                "Every rank computes with the same slice: take that of your rank.",
                but("[self.rank]", "[0]"),
            ),
            (
                "f_forgotten",
                "x's gradient is one rank's share: add up the shares of all ranks.",
                but("Copy.apply(x, self.group)", "x"),
            ),
            (
                "f_averages",
                "x's gradient is the mean of the ranks' shares: add them up.",
                but("(gradient.clone())", "(gradient.clone(), 'mean')"),
            ),
            (
                "g_reduces_backward",
                "Gradients are t times too large: g's backward is the identity.",
                but(BACK, f"return {SUMMED}, None"),
            ),
            (
                "g_cuts",
                "No gradient passes your sum: its backward hands the gradient on.",
                but(Y, f"({Y}).detach()"),
            ),
            (
                "bias_on_one",
                (
                    "Only rank 0's b gets a gradient, so its copies will differ: let each rank add"
                    " it, after the sum."
                ),
                but(Y, f"{Y} + b * (self.rank == 0)", "y + b", "y"),
            ),
            (
                "bias_in_parts",
                "b's gradient is 1/t of what it should be: add all of b, after the sum.",
                but(Y, f"{Y} + b / self.size", "y + b", "y"),
            ),
            (
                "sums_weights",
                (
                    "Weights' gradients are summed as in data parallel: a slice has no copy on"
                    " another rank."
                ),
                but(
                    DROP,
                    f"{DROP}\n        A.register_hook(lambda g: self.group.all_reduce(g.clone()))",
                ),
            ),
            (
                "not_sliced",
                "Each rank computes the whole layer: use your own columns of A and rows of B.",
                but(MLP, "        return drop(drop(gelu(x @ A + a), 1 + self.rank) @ B + b, 0)\n"),
            ),
            (
                "computes_all",
                (
                    "Each rank computes all hidden units and keeps its own: multiply by your own"
                    " columns only."
                ),
                but(GELU, "x @ A + a", "drop(hidden,", "drop(self.own(hidden, -1),"),
            ),
            (
                "row_column",
                (
                    "Right numbers, but 4h-wide rows are summed before GELU: cut A by columns, then"
                    " B by rows."
                ),
                but(MLP, ROW_COLUMN),
            ),
            (
                "gathers_hidden",
                (
                    "Hidden rows are gathered to their whole width: multiply your part by your rows"
                    " of B."
                ),
                but(
                    DROP, DROP + JOIN.format("hidden"), f"Sum.apply({Y}, self.group)", "hidden @ B"
                ),
            ),
            (
                "sums_again",
                "There is an all-reduce more than needed: one forward and one backward are enough.",
                but(DROP, f"{DROP}; self.group.all_reduce(1 * x)"),
            ),
            (
                "same_mask_inside",
                (
                    "Ranks drew one dropout mask for different hidden units: let its seed depend on"
                    " the rank."
                ),
                but("1 + self.rank", "1"),
            ),
            (
                "different_mask_outside",
                "Outputs differ between ranks: after the sum, let all draw one dropout mask.",
                but("b, 0)", "b, self.rank)"),
            ),
            (
                "drops_before_gelu",
                "The first dropout stands before GELU: drop what GELU returned.",
                but(DROP, "", f"gelu({GELU})", f"gelu(drop({GELU}, 1 + self.rank))"),
            ),
            (
                "drops_before_bias",
                "The second dropout is of y without b: add b first.",
                but("drop(y + b, 0)", "drop(y, 0) + b"),
            ),
            (
                "local_max",
                (
                    "Each rank subtracts its own maximum, so exponentials no longer add up:"
                    " subtract the one of all."
                ),
                but(TOP, "logits.detach().amax(-1)"),
            ),
            (
                "no_max",
                "A large logit overflows: subtract the largest of all ranks before exp.",
                but(TOP, "0 * logits.detach().amax(-1)"),
            ),
            (
                "max_unused",
                "A large logit overflows: subtract the largest of all ranks before exp.",
                but(SUBTRACTED, ""),
            ),
            (
                "sums_maxima",
                "The maxima are added up, so exponentials vanish: all-reduce them with max.",
                but('"max"', '"sum"'),
            ),
            (
                "means_maxima",
                "The maxima are averaged, so an exponential overflows: all-reduce them with max.",
                but('"max"', '"mean"'),
            ),
            (
                "one_max",
                (
                    "One maximum for all tokens: a token of small logits underflows, so take each"
                    " token's own."
                ),
                but(
                    "logits.detach().amax(-1)",
                    "logits.detach().amax().expand(targets.shape).clone()",
                ),
            ),
            (
                "local_ids",
                (
                    "Targets are ids of the whole vocabulary: only the rank whose slice has one"
                    " adds its logit."
                ),
                but(" - self.rank * width", " % width"),
            ),
            (
                "no_mask",
                "Every rank adds a logit for each target: only the one that has the id adds.",
                but(FOUND, "found"),
            ),
            (
                "ids_beyond",
                (
                    "Targets of other ranks have no place in your slice: clamp the place, and mask"
                    " what it found."
                ),
                but("place.clamp(0, width - 1)", "place"),
            ),
            (
                "off_by_one",
                "A slice's first id is nobody's: count it in.",
                but("(place >= 0)", "(place > 0)"),
            ),
            (
                "unshifted",
                (
                    "The target's logit lacks the maximum that you subtracted elsewhere: subtract"
                    " it from both."
                ),
                but(FOUND, "(found + top) * mine"),
            ),
            (
                "own_loss",
                "Each rank's loss is of its slice alone: add up exponentials over the ranks.",
                but(f"Sum.apply({TOTAL}, self.group)", TOTAL),
            ),
            (
                "mean_of_losses",
                (
                    "A mean of the slices' losses is not the loss: add up exponentials, then take"
                    " the log."
                ),
                but(TOTAL, f"{TOTAL}.log()", "(total.log()", "(total / self.size"),
            ),
            (
                "cut_total",
                "No gradient comes from the sum of exponentials: let it pass.",
                but(TOTAL, f"{TOTAL}.detach()"),
            ),
            (
                "reduces_logits",
                "The logits' gradient is t times too large: each rank's is whole already.",
                but(
                    TOTAL,
                    f"Copy.apply({TOTAL}, self.group)",
                    FOUND,
                    f"Copy.apply({FOUND}, self.group)",
                ),
            ),
            (
                "gathers_logits",
                "Right loss, but whole rows of logits were there: send single numbers of a token.",
                but(
                    LOSS,
                    JOIN.format("logits")
                    + "        return torch.nn.functional.cross_entropy(logits.flatten(0, 1),"
                    " targets.flatten())\n",
                ),
            ),
            (
                "sum_of_tokens",
                "The loss is a sum over tokens: take the mean.",
                but(".mean()", ".sum()"),
            ),
        )
    }

    @staticmethod
    def probe(answer, draw):
        for played, runs in (
            (mlp, ((2, 0), (4, 0), (3, 0), (draw.choice((2, 3, 4)), 0.3), (1, 0))),
            (loss, ((2, 0), (4, 0), (1, 2000), (3, 2000), (1, 0))),
        ):
            for t, more in runs:
                of = (
                    t,
                    more,
                    draw.choice((13, 17, 19)),
                    draw.choice((12, 24)),
                    draw.randrange(2**31),
                )
                run = cache(lambda of=of, played=played: played(answer, *of))
                who = f"the {played.__name__} on {t} rank{'s' * (t > 1)}"
                who += "" if not more else ", dropout" if played is mlp else ", large logits"
                for shown in (
                    *[Sliced.outputs, Sliced.gradients] * (more != 0.3),
                    *[Sliced.masks] * (played is mlp),
                    *[Sliced.traffic] * (t > 1),
                    Sliced.unlike,
                ):
                    yield Scene(who, lambda shown=shown, run=run: shown(run()), NEAR)


class Rows(TorchDispatchMode):
    """The most numbers that an operation makes for each token; weights' sizes are no multiple."""

    def __init__(self, tokens: int):
        super().__init__()
        self.tokens, self.widest = tokens, 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **kwargs or {})
        if isinstance(made, torch.Tensor) and made.numel() % self.tokens == 0:
            self.widest = max(self.widest, made.numel() // self.tokens)
        return made


class Sliced(Ranks):
    """call(own answer, own copies of the whole tensors, rank), and its backward, on each rank.

    whole    {name: tensor}; gradients of `copies` are whole on each rank, the others' a slice
    truth    (*whole tensors) -> the same in one process     wide    numbers of a token's whole row
    enough   collectives forward and backward      drops   a rank's (seed, input, mask), call by call
    """

    def __init__(self, answer, size, seed, whole, copies, call, truth, wide, enough, drops=()):
        super().__init__(size, seed)
        self.whole, self.truth, self.wide, self.enough, self.drops = (
            whole,
            truth,
            wide,
            enough,
            drops,
        )
        given = [self.leaves() for _ in range(size)]
        self.tokens, self.widest = next(iter(whole.values()))[..., 0].numel(), [0] * size

        def play(own, group):
            with Rows(self.tokens) as made:
                back = call(own(group), given[group.rank].values(), group.rank)
            self.widest[group.rank] = made.widest
            self.seen[group.rank].append(None)
            return self.backward(back, group.rank)

        self.returned = self.run(play, answer)
        grads = {
            name: [own[name] * 0 if own[name].grad is None else own[name].grad for own in given]
            for name in whole
        }
        self.used = {
            f"share of {name} that a rank uses": [(grad != 0).double().mean() for grad in own]
            for name, own in grads.items()
            if name in "AaB"
        }
        self.grads = {name: own if name in copies else [sum(own)] for name, own in grads.items()}

    def leaves(self) -> dict:
        return {name: each.detach().clone().requires_grad_() for name, each in self.whole.items()}

    def backward(self, back, rank=0) -> torch.Tensor:
        shape = self.whole["x"].shape if "x" in self.whole else ()
        if not isinstance(back, torch.Tensor) or back.shape != shape:
            what = type(back).__name__ + (f" of {[*back.shape]}" if torch.is_tensor(back) else "")
            raise Refused(f"Rank {rank} returned a {what}: return a tensor of shape {[*shape]}.")
        back.backward(torch.linspace(1, 2, back.numel()).double().view(shape))
        return back.detach()

    def outputs(self) -> dict:
        return {"first numbers returned": [own.flatten()[:FEW] for own in self.returned]}

    def gradients(self) -> dict:
        return {
            f"first numbers of {name}'s gradient": [grad.flatten()[:FEW] for grad in own]
            for name, own in self.grads.items()
        } | self.used

    def masks(self) -> dict:
        first, last = ({drops[at][0] for drops in self.drops if drops} for at in (0, -1))
        return {
            "calls of drop": [*map(len, self.drops)],
            "masks inside": len(first),
            "masks outside": len(last),
        }

    def traffic(self) -> dict:
        wide = sum(width >= self.wide for width in self.widest) * (self.size > 2)
        shown = {"ranks with rows of the whole width": wide, "bytes in other messages": self.sent}
        for way, enough in zip(("forward", "backward"), self.enough):
            parts = [
                seen[: seen.index(None)] if way == "forward" else seen[seen.index(None) + 1 :]
                for seen in self.seen
            ]
            shown[f"numbers moved {way}, a token"] = [
                sum(size for *_, size in part) / 8 / self.tokens for part in parts
            ]
            shown[f"collectives {way} beyond {enough}"] = [max(0, len(p) - enough) for p in parts]
        return shown

    def unlike(self) -> dict:
        """How many numbers are not torch's own, by more than rounding."""

        def off(found, right):
            return int((~((found - right).abs() <= NEAR * right.abs().max())).sum())

        right = self.backward(self.truth(*(given := self.leaves()).values()))
        return {"numbers that are not torch's own": [off(own, right) for own in self.returned]} | {
            f"numbers of {name}'s gradient that are not": [
                off(grad, given[name].grad) for grad in own
            ]
            for name, own in self.grads.items()
        }


def mlp(answer, t: int, share: float, s: int, h: int, seed: int) -> Sliced:
    draw, drops = torch.Generator().manual_seed(seed), [[] for _ in range(t)]
    sizes = {"x": (2, s, h), "A": (h, 4 * h), "a": (4 * h,), "B": (4 * h, h), "b": (h,)}

    def call(own, given, rank):
        def drop(x, seed):
            draw = torch.Generator().manual_seed(sum(map(ord, str(seed))))
            mask = (torch.rand(x.shape, generator=draw) >= share).double() / (1 - share)
            drops[rank].append((str(seed), x.detach(), mask))
            return x * mask

        return own.mlp(*given, drop)

    def truth(x, A, a, B, b):
        hidden, inside = gelu(x @ A + a), torch.ones(2, s, 4 * h).double()
        for (_, part, mask), *_ in filter(None, drops):  # a rank's units are told by their numbers
            at = torch.cdist(part.flatten(0, -2).T, hidden.detach().flatten(0, 1).T).argmin(1)
            inside[..., at] = mask.view(2, s, -1)
        return (hidden * inside @ B + b) * drops[0][-1][2].view(x.shape)

    return Sliced(
        answer,
        t,
        seed,
        {name: torch.randn(size, generator=draw).double() for name, size in sizes.items()},
        "xb",
        call,
        truth,
        4 * h,
        (1, 1),
        drops,
    )


def loss(answer, t: int, more: float, s: int, width: int, seed: int) -> Sliced:
    draw = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(2, s, t * width, generator=draw)
    logits += more * torch.rand(2, s, t, generator=draw).repeat_interleave(width, -1)
    targets = torch.randint(t * width, (2, s), generator=draw)
    targets[:, :t] = torch.arange(t) * width + torch.tensor(
        [[0], [width - 1]]
    )  # first, last of a slice
    return Sliced(
        answer,
        t,
        seed,
        {"logits": logits.double()},
        "",
        lambda own, given, rank: own.loss([*given][0].chunk(t, -1)[rank].clone(), targets.clone()),
        lambda logits: cross_entropy(logits.flatten(0, 1), targets.flatten()),
        t * width,
        (3, 0),
    )
