"""Clip on Mesh(dp, pp, tp): one norm of one gradient, of which each rank has some numbers.

    |g|^2 = sum over pp and tp of the squares of own slices, of duplicates and tied weights once
    g <- g min(1, c / (|g| + 1e-6))       after the mean over dp and the sum of tied gradients

The truth is torch's own clipping of the whole gradient in one process. Norms are about 10^7, as of
a scaled loss, so that the 1e-6 does not matter.
Source: Narayanan et al. 2021 (arXiv:2104.04473), section 3; torch.nn.utils.clip_grad_norm_.
"""

from functools import cache

import torch
from torch.nn import Parameter

from ...core import Mesh
from ..fence import Refused
from ..likeness import Scene, Topic, Wrong
from ..ranks import Group, Ranks

NEAR, FEW = 1e-12, 3
RIGHT = """
import torch

def answer(parameters, max_norm, dp, pp, tp):
    learnt = [p for p in parameters if p.grad is not None]
    for p in learnt:
        dp.all_reduce(p.grad, "mean")
        if p.tied:
            pp.all_reduce(p.grad)
    square = torch.zeros(1, dtype=torch.float64)
    for p in learnt:
        counts = (p.sliced or tp.rank == 0) and (pp.rank == 0 or not p.tied)
        square += counts * p.grad.pow(2).sum()
    tp.all_reduce(square)
    pp.all_reduce(square)
    norm = square.sqrt().item()
    factor = min(1, max_norm / (norm + 1e-6))
    for p in learnt:
        p.grad *= factor
    return norm
"""
FLAT = """
import torch

def answer(parameters, max_norm, dp, pp, tp):
    own = [p for p in parameters if p.grad is not None]
    flat = dp.all_reduce(torch.cat([p.grad.flatten() for p in own])) / dp.size
    parts = dict(zip(own, flat.split([p.numel() for p in own])))
    if tied := [parts[p] for p in own if p.tied]:
        for part, both in zip(tied, pp.all_reduce(torch.cat(tied)).split([*map(len, tied)])):
            part.copy_(both)
    shares = (float(g @ g) / (1 if p.sliced else tp.size) / (pp.size if p.tied else 1) for p, g in parts.items())
    norm = pp.all_reduce(tp.all_reduce(torch.tensor([sum(shares)], dtype=torch.double))) ** 0.5
    flat *= torch.clamp(max_norm / norm, max=1)
    for p, part in parts.items():
        p.grad = part.view_as(p)
    return norm
"""
TORCH = """
import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

def answer(parameters, max_norm, dp, pp, tp):
    weights = [p for p in parameters if p.grad is not None]
    own = {True: [], False: []}
    for p in weights:
        p.grad = dp.all_reduce(p.grad.div(dp.size))
        if p.tied and pp.size > 1:
            pp.isend(p.grad, 1 - pp.rank)
            p.grad = p.grad + pp.recv(1 - pp.rank)
        if not (p.tied and pp.rank):
            own[p.sliced].append(p.grad)
    slices, once = (get_total_norm(each).double().reshape(()) for each in (own[True], own[False]))
    square = tp.all_reduce(slices ** 2) + once ** 2
    norm = torch.sqrt(pp.all_reduce(square, name="norm"))
    clip_grads_with_norm_(weights, max_norm, norm)
    return norm
"""
NUMPY = """
import numpy
import torch

def answer(parameters, max_norm, dp, pp, tp):
    squares = numpy.zeros((pp.size, tp.size))
    for p in parameters:
        if p.grad is None:
            continue
        dp.all_reduce(p.grad, op="mean")
        p.tied and pp.all_reduce(p.grad)
        once = (0 if p.tied else pp.rank), (tp.rank if p.sliced else 0)
        squares[once] += (p.grad.numpy() ** 2).sum() * (once == (pp.rank, tp.rank))
    every = torch.from_numpy(squares)
    for group in (pp, tp):
        group.all_reduce(every)
    norm = float(numpy.sqrt(squares.sum()))
    if norm > max_norm:
        for p in parameters:
            if p.grad is not None:
                p.grad.mul_(max_norm / norm)
    return norm
"""
MEAN, TIED, COUNTS = (
    'dp.all_reduce(p.grad, "mean")',
    "            pp.all_reduce(p.grad)\n",
    "(p.sliced or tp.rank == 0) and (pp.rank == 0 or not p.tied)",
)
OVER_TP, OVER_PP, FACTOR, SCALE = (
    "    tp.all_reduce(square)\n",
    "    pp.all_reduce(square)\n",
    "min(1, max_norm / (norm + 1e-6))",
    "p.grad *= factor",
)
LEARNT = "[p for p in parameters if p.grad is not None]"


def but(*changes: str) -> str:
    """The first right answer with old, new, old, new, ... replaced."""
    text = RIGHT
    for old, new in zip(changes[::2], changes[1::2]):
        text = text.replace(old, new)
    return text


class AllTogether(Topic):
    name = "all-together"
    hints = (
        "Lay the whole model's gradient out once. Which of its numbers does this rank have, and who else has the same?",
        "First make each number final: the mean over dp, the sum of both ends' tied gradients. Then let each count once.",
        "A duplicate counts where tp.rank is 0, a tied weight where pp.rank is 0. Add the squares over tp and over pp, not "
        "over dp; scale all that this rank has by the one factor.",
    )
    right = {
        "loops": RIGHT,
        "flat, in shares": FLAT,
        "torch's norms": TORCH,
        "numpy": NUMPY,
        "summed together": but(
            COUNTS,
            "1 / (1 if p.sliced else tp.size) / (pp.size if p.tied else 1)",
            OVER_TP + OVER_PP,
            "    for group in (pp, tp): square = group.all_reduce(square.clone())\n",
        ),
    }
    wrong = {
        name: Wrong(sentence, text)
        for name, sentence, text in (
            (
                "no_mean",
                "Replicas go on with different gradients: average over dp before anything else.",
                but(MEAN, "pass"),
            ),
            (
                "sum_over_dp",
                "The replicas' gradients are added up: take their mean.",
                but('p.grad, "mean"', "p.grad"),
            ),
            (
                "dp_over_all_ranks",
                "You average over all ranks, stage 0 with stage 1: take the group dp alone.",
                but(MEAN, MEAN + "; tp.all_reduce(p.grad, 'mean'); pp.all_reduce(p.grad, 'mean')"),
            ),
            (
                "clips_first",
                "Each replica clips its own gradient before the mean: average first, then clip.",
                but(MEAN, "pass", SCALE, SCALE + "; " + MEAN),
            ),
            (
                "norm_over_dp",
                "Replicas are the same gradient, and you add their squares: leave dp out of the norm.",
                but(OVER_TP, OVER_TP + "    dp.all_reduce(square)\n"),
            ),
            (
                "duplicates_in_norm",
                "Layer norms and row biases are counted on every slice, so everything is clipped too hard: count them once.",
                but("(p.sliced or tp.rank == 0) and ", ""),
            ),
            (
                "no_duplicates",
                "Layer norms and row biases are left out of the norm: count them on one slice.",
                but("or tp.rank == 0", "and True"),
            ),
            (
                "vectors_are_duplicates",
                "A column's bias is sliced though it is a vector: ask .sliced, not the shape.",
                but("p.sliced or", "p.dim() > 1 or"),
            ),
            (
                "norm_without_tp",
                "Each slice clips by a norm of its own: add the squares over tp too.",
                but(OVER_TP, ""),
            ),
            (
                "norm_without_pp",
                "Stages are clipped by different factors: add the squares over pp too.",
                but(OVER_PP, ""),
            ),
            (
                "own_norm",
                "Each rank clips by its own norm, which turns the gradient: add the squares over tp and pp.",
                but(OVER_TP + OVER_PP, "", f"{COUNTS}", "True"),
            ),
            (
                "norm_of_each",
                "Each parameter is clipped by its own norm, which turns the gradient: one norm for all.",
                but(
                    SCALE,
                    "square = p.grad.norm() ** 2\n        if p.sliced: tp.all_reduce(square)\n        p.grad *= min(1, max_norm / square.sqrt())",
                ),
            ),
            (
                "sums_duplicates",
                "Duplicates' gradients are added up over tp: each is whole already.",
                but(MEAN, MEAN + "\n        if not p.sliced: tp.all_reduce(p.grad)"),
            ),
            (
                "sums_slices",
                "Gradients are added up over tp as if slices were replicas: they are other numbers, so leave them apart.",
                but(MEAN, MEAN + "; tp.all_reduce(p.grad)"),
            ),
            (
                "tied_across_stages",
                "First and last stage hold one embedding: add their gradients.",
                but(TIED, "            pass\n"),
            ),
            (
                "tied_averaged",
                "The tied embedding's gradients are averaged: its gradient is their sum.",
                but(TIED, TIED.replace(")", ', "mean")')),
            ),
            (
                "tied_twice",
                "The tied embedding is counted on both of its stages: count it once.",
                but(" and (pp.rank == 0 or not p.tied)", ""),
            ),
            (
                "tied_left_out",
                "The tied embedding is left out of the norm: count it on one stage.",
                but("pp.rank == 0 or ", ""),
            ),
            (
                "tied_over_tp",
                "The tied embedding is cut over tp: its slices all count.",
                but("p.sliced or tp", "p.sliced and not p.tied or tp"),
            ),
            (
                "tied_summed_late",
                "The tied gradients are added up after the norm was taken: add them before.",
                but(
                    TIED,
                    "            pass\n",
                    "    for p in learnt:\n        p.grad *=",
                    "    for p in learnt:\n        if p.tied: pp.all_reduce(p.grad)\n        p.grad *=",
                ),
            ),
            (
                "tied_copied",
                "The last stage takes the first's gradient of the tied embedding and loses its own: add the two.",
                but(TIED, "            pp.broadcast(p.grad, 0)\n"),
            ),
            (
                "scales_what_counts",
                "What does not count in the norm is not scaled, so that copies differ: scale all that a rank has.",
                but(SCALE, f"p.grad *= factor if {COUNTS} else 1"),
            ),
            (
                "halves",
                "You divide by 2 on every mesh: divide by the sizes of tp and pp, or count on one rank.",
                but(COUNTS, "1 / (1 if p.sliced else 2) / (2 if p.tied else 1)"),
            ),
            (
                "divides_gradients",
                "A share of a gradient has too small a square: divide the square.",
                but(
                    COUNTS,
                    "(pp.rank == 0 or not p.tied)",
                    "p.grad.pow",
                    "(p.grad / (1 if p.sliced else tp.size)).pow",
                ),
            ),
            (
                "one_rank_counts",
                "Only rank 0 counts duplicates, so those of other stages are missing: ask for tp.rank alone.",
                but("tp.rank == 0)", "tp.rank + pp.rank == 0)"),
            ),
            (
                "norms_added",
                "Norms do not add up, squares do: take the root at the end.",
                but(OVER_TP, "    square.sqrt_()\n" + OVER_TP, "square.sqrt()", "square"),
            ),
            (
                "norms_maximum",
                "The largest norm of a rank is not the norm of all: add up squares.",
                but("(square)\n", "(square, 'max')\n"),
            ),
            (
                "no_root",
                "You return and clip by the square of the norm: take the root.",
                but("square.sqrt()", "square"),
            ),
            (
                "squares_of_sums",
                "You square a sum of gradients: add up squares of single numbers.",
                but("p.grad.pow(2).sum()", "p.grad.sum().pow(2)"),
            ),
            (
                "scales_up",
                "A gradient below max_norm grows: let the factor be at most 1.",
                but(FACTOR, "max_norm / norm"),
            ),
            (
                "never_scales",
                "The norm is right, but no gradient is scaled: multiply each .grad, in place.",
                but(SCALE, "p.grad * factor"),
            ),
            (
                "scales_weights",
                "You scale the weights: scale the gradients.",
                but(SCALE, "p.data *= factor"),
            ),
            (
                "returns_after",
                "You return the norm after clipping: return the one before.",
                but("return norm", "return min(norm, max_norm)"),
            ),
            (
                "frozen",
                "A frozen parameter has no gradient: leave it out.",
                but(LEARNT, "list(parameters)"),
            ),
            (
                "gives_frozen",
                "A frozen parameter got a gradient, with which an optimizer may move it: leave it without.",
                but(
                    LEARNT,
                    "list(parameters)",
                    "    for p in learnt:\n        dp",
                    "    for p in learnt:\n        p.grad = 0 * p.detach() if p.grad is None else p.grad\n        dp",
                ),
            ),
            (
                "float32",
                "The norm has lost digits: add up squares in float64.",
                but("torch.float64", "torch.float32"),
            ),
            (
                "sends_all",
                "Right norm, but gradients travel over tp: send the squares, which are one number.",
                but(OVER_TP, "    for p in learnt: tp.all_reduce(p.grad.clone())\n" + OVER_TP),
            ),
            (
                "no_answer",
                "You return nothing: return the norm before clipping.",
                but("return norm", "pass"),
            ),
        )
    }

    @staticmethod
    def probe(answer, draw):
        for shape, share in (
            ((3, 1, 1), 0.5),
            ((1, 1, 3), 0.5),
            ((1, 2, 1), 0.5),
            ((2, 2, 2), 0.5),
            ((1, 2, 2), 2.0),
            ((2, 3, 1), 0.1),
            ((1, 1, 1), 0.5),
        ):
            of = shape, share, draw.choice((6, 12)), draw.randrange(2**31)
            run = cache(lambda of=of: Clipped(answer, *of))
            who = " x ".join(map(str, shape)) + (
                " ranks" if share < 1 else " ranks, a norm below max_norm"
            )
            for shown in Clipped.values, Clipped.unlike:
                yield Scene(who, lambda shown=shown, run=run: shown(run()), NEAR)


class Axis(Ranks):
    """Those of the ranks that one axis connects."""

    def __init__(self, whole: Ranks, name: str, members: tuple[int, ...]):
        super().__init__(len(members), 0)
        self.whole, self.name, self.members, self.turns = whole, name, members, {}

    def group(self, turn: Group) -> Group:
        """Of the rank whose turns are those of `turn`."""
        self.turns[at := self.members.index(turn.rank)] = turn
        return Group(self, at)

    def until(self, group, call, peer, ready):
        self.whole.until(
            self.turns[group.rank], f"{call} of {self.name}", self.members[peer], ready
        )


class Clipped(Ranks):
    """An answer on all ranks of a mesh, and the whole gradient that they share."""

    def __init__(self, answer, shape: tuple[int, int, int], share: float, h: int, seed: int):
        mesh = Mesh(dp=shape[0], pp=shape[1], tp=shape[2])
        super().__init__(mesh.size, seed)
        self.mesh, self.shape, self.h = mesh, shape, h
        draw = torch.Generator().manual_seed(seed)
        self.whole = [
            [
                {
                    name: 1e6 * torch.randn(size, generator=draw).double()
                    for name, size, _ in self.sizes(stage)
                }
                for stage in range(shape[1])
            ]
            for _ in range(shape[0])
        ]
        self.max_norm = share * self.truth(1.0)[0]
        axes = {
            (axis, peers): Axis(self, axis, peers)
            for axis, _ in mesh.axes
            for rank in range(mesh.size)
            for peers in [tuple(mesh.peers(rank, axis))]
        }
        self.own, self.axes = [self.parameters(rank) for rank in range(mesh.size)], axes
        self.before = [[p.detach().clone() for p in own.values()] for own in self.own]

        def play(own, group):
            given = [
                axes[axis, tuple(mesh.peers(group.rank, axis))].group(group)
                for axis in ("dp", "pp", "tp")
            ]
            norm = own([*self.own[group.rank].values()], self.max_norm, *given)
            try:
                return float(norm)
            except (TypeError, ValueError):
                raise Refused(
                    f"You returned a {type(norm).__name__}: return the norm before clipping."
                ) from None

        self.norms = self.run(play, answer)

    def sizes(self, stage: int) -> list[tuple]:
        """Of each weight of a stage: name, shape, and the dimension that slices share."""
        h, stages = self.h, self.shape[1]
        own = [
            ("norm", (h,), None),
            ("A", (4 * h, h), 0),
            ("a", (4 * h,), 0),
            ("B", (h, 4 * h), 1),
            ("b", (h,), None),
        ]
        return [("words", (2 * h, h), 0)] * (stage in (0, stages - 1)) + own

    @property
    def ties(self) -> bool:
        return self.shape[1] < 3

    def parameters(self, rank: int) -> dict[str, Parameter]:
        """A rank's own, with their gradients; the last one is frozen."""
        at, found = self.mesh.coords(rank), {}
        for name, _, dim in self.sizes(at["pp"]):
            gradient = self.cut(self.whole[at["dp"]][at["pp"]][name], dim, at["tp"])
            found[name] = p = Parameter(torch.ones_like(gradient))
            p.grad, p.sliced, p.tied = (
                gradient.clone(),
                dim is not None,
                name == "words" and self.ties,
            )
        found["frozen"] = p = Parameter(torch.ones(self.h).double(), requires_grad=False)
        p.sliced = p.tied = False
        return found

    def cut(self, whole: torch.Tensor, dim: int | None, slice_: int) -> torch.Tensor:
        return whole if dim is None else whole.chunk(self.shape[2], dim)[slice_]

    def truth(self, max_norm: float) -> tuple[float, dict]:
        """Torch's norm of the whole gradient, and what it leaves: (stage, name) -> gradient."""
        weights = {}
        for replica in self.whole:
            for stage, gradients in enumerate(replica):
                for name, gradient in gradients.items():
                    place = (0 if name == "words" and self.ties else stage), name
                    p = weights.setdefault(place, Parameter(torch.zeros_like(gradient)))
                    p.grad = gradient / len(self.whole) + (0 if p.grad is None else p.grad)
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), max_norm).item()
        return norm, {place: p.grad for place, p in weights.items()}

    def values(self) -> dict:
        return {"norm returned by each rank": self.norms} | {
            f"first numbers of {told}, on each rank": [
                own[name].grad.flatten()[:FEW] for own in self.own if name in own
            ]
            for name, told in (
                ("norm", "a layer norm's gradient"),
                ("A", "a slice's gradient"),
                ("words", "the embedding's gradient"),
            )
        }

    def unlike(self) -> dict:
        """How much is not torch's own, what else changed, and how often a rank's gradient was sent."""
        norm, gradients = self.truth(self.max_norm)
        shown = {
            "norms that are not torch's own": sum(
                abs(each - norm) > NEAR * norm for each in self.norms
            )
        }
        off = shown["numbers of each rank's gradient that are not torch's own"] = []
        for rank, own in enumerate(self.own):
            at, count = self.mesh.coords(rank), 0
            for name, _, dim in self.sizes(at["pp"]):
                right = self.cut(
                    gradients[0 if name == "words" and self.ties else at["pp"], name], dim, at["tp"]
                )
                count += int((~((own[name].grad - right).abs() <= NEAR * right.abs().max())).sum())
            off.append(count)
        shown["frozen parameters with a gradient"] = sum(
            own["frozen"].grad is not None for own in self.own
        )
        shown["ranks whose weights changed"] = sum(
            not all(map(torch.equal, before, own.values()))
            for before, own in zip(self.before, self.own)
        )
        for axis in ("dp", "pp", "tp"):
            shown[f"times that a gradient travels over {axis}"] = [
                round(
                    (each.sent[at] + sum(size for *_, size in each.seen[at]))
                    / sum(p.nbytes for p in self.own[rank].values())
                )
                for (name, ranks), each in self.axes.items()
                if name == axis
                for at, rank in enumerate(ranks)
                if each.size > 1
            ]
        return shown
