"""LAMB whose parameters lie on several ranks: norms are those of whole parameters.

    |x|^2 = sum over ranks of |piece|^2      of duplicates, which all ranks hold, one rank's
    x <- x - lr min(|x|, 10) / |u| u         one message a step: two numbers a parameter

With phi(z) = z a norm that counts twice, in |x| and in |u|, would cancel; with min(z, 10) it shows.

The truth is the step of one process with whole parameters, in float64.
Source: You et al. 2019 (arXiv:1904.00962), Algorithm 2.
"""

from functools import cache

import torch

from ..fence import Refused
from ..likeness import Scene, Topic, Wrong
from ..ranks import Ranks

NEAR = 1e-12
NORMS_OF = {
    "rows": 8.0,
    "columns": 13.0,
    "norm": 9.0,
    "large": 400.0,
    "small": 0.3,
}  # 10 lies between
RIGHT = """
import torch

class answer:
    def __init__(self, parameters, pieces, group, lr, betas, eps, weight_decay):
        self.parameters, self.pieces, self.group = parameters, pieces, group
        self.lr, (self.b1, self.b2), self.eps, self.decay = lr, betas, eps, weight_decay
        self.m = [torch.zeros_like(p) for p in parameters]
        self.v = [torch.zeros_like(p) for p in parameters]
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        learnt, us, squares = [], [], []
        for p, m, v, piece in zip(self.parameters, self.m, self.v, self.pieces):
            if p.grad is None:
                continue
            g = p.grad
            m.copy_(self.b1 * m + (1 - self.b1) * g)
            v.copy_(self.b2 * v + (1 - self.b2) * g**2)
            c1, c2 = 1 - self.b1**self.t, 1 - self.b2**self.t
            r = m / c1 / ((v / c2).sqrt() + self.eps)
            u = r + self.decay * p
            counts = piece or self.group.rank == 0
            squares += [p.square().sum() * counts, u.square().sum() * counts]
            learnt.append(p)
            us.append(u)
        norms = self.group.all_reduce(torch.stack(squares)).sqrt()
        for p, u, x_norm, u_norm in zip(learnt, us, norms[::2], norms[1::2]):
            ratio = min(x_norm, 10.0) / u_norm if x_norm > 0 and u_norm > 0 else 1.0
            p -= self.lr * ratio * u
"""
BY_ADAM = """
import torch

class answer:
    def __init__(self, parameters, pieces, group, *, lr, betas, eps, weight_decay):
        self.x, self.pieces, self.group, self.lr, self.decay = list(parameters), pieces, group, lr, weight_decay
        self.shadows = [torch.zeros_like(p, requires_grad=True) for p in self.x]
        self.adam = torch.optim.Adam(self.shadows, 1.0, betas, eps)

    def step(self):
        for x, shadow in zip(self.x, self.shadows):
            shadow.data.zero_()
            shadow.grad = x.grad
        self.adam.step()
        u = [self.decay * x.detach() - shadow.detach() for x, shadow in zip(self.x, self.shadows)]
        squares = torch.tensor([[float((part.detach() ** 2).sum()) for part in each] for each in (self.x, u)], dtype=torch.float64)
        own = torch.tensor(self.pieces)
        whole = torch.where(own, self.group.all_reduce(squares * own), squares)
        x_norm, u_norm = whole.sqrt()
        ratio = torch.where((x_norm == 0) | (u_norm == 0), torch.ones(()).double(), x_norm.clamp(max=10) / u_norm)
        for x, each, r in zip(self.x, u, ratio):
            if x.grad is not None:
                x.data.sub_(each, alpha=float(self.lr * r))
"""
CLOSURES = """
import math
import torch
from types import SimpleNamespace

def answer(parameters, pieces, group, lr, betas, eps, weight_decay):
    means = {}

    def direction(i, p):
        m, v, t = means.get(i, (0, 0, 0))
        t, g = t + 1, p.grad.clone()
        weight = [(1 - b) / (1 - b**t) for b in betas]      # a running mean whose weights sum to one
        m, v = m + weight[0] * (g - m), v + weight[1] * (g * g - v)
        means[i] = m, v, t
        return m / (v**0.5 + eps) + weight_decay * p.data

    def step():
        us = {i: direction(i, p) for i, p in enumerate(parameters) if p.grad is not None}
        share = [1.0 if piece else 1 / group.size for piece in pieces]
        sums = torch.zeros(2 * len(parameters), dtype=torch.float64)
        for i, u in us.items():
            x = parameters[i].data.reshape(-1)
            sums[2 * i], sums[2 * i + 1] = share[i] * torch.dot(x, x), share[i] * u.norm() ** 2
        group.all_reduce(sums)
        for i, u in us.items():
            a, b = (math.sqrt(float(s)) for s in sums[2 * i:2 * i + 2])
            parameters[i].data -= lr * (min(a, 10) / b if a * b else 1) * u

    return SimpleNamespace(step=step)
"""
OPTIMIZER = """
import torch

class answer(torch.optim.Optimizer):
    def __init__(self, parameters, pieces, group, lr, betas, eps, weight_decay):
        super().__init__(parameters, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
        self.ranks, self.piece = group, dict(zip(parameters, pieces))

    @torch.no_grad()
    def step(self, closure=None):
        (group,) = self.param_groups
        b1, b2 = group["betas"]
        learnt = [p for p in group["params"] if p.grad is not None]
        updates = {}
        for p in learnt:
            state = self.state[p]
            if not state:
                state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
            state["step"] += 1
            state["m"].mul_(b1).add_(p.grad, alpha=1 - b1)
            state["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            root = state["v"].div(1 - b2 ** state["step"]).sqrt_().add_(group["eps"])
            updates[p] = (state["m"] / (1 - b1 ** state["step"]) / root).add_(p, alpha=group["weight_decay"])
        sliced = [p for p in learnt if self.piece[p]]
        own = {p: torch.stack([p.norm() ** 2, updates[p].norm() ** 2]) for p in learnt}
        if sliced:
            summed = self.ranks.all_reduce(torch.cat([own[p] for p in sliced])).view(-1, 2)
            own.update(zip(sliced, summed))
        for p in learnt:
            x, u = own[p].sqrt()
            p.add_(updates[p], alpha=-group["lr"] * (min(float(x), 10.0) / float(u) if x and u else 1.0))
"""
M, V, T, U = (
    "self.b1 * m + (1 - self.b1) * g",
    "self.b2 * v + (1 - self.b2) * g**2",
    "self.t += 1\n",
    "u = r + self.decay * p",
)
G, R, COUNTS = (
    "            g = p.grad\n",
    "m / c1 / ((v / c2).sqrt() + self.eps)",
    "piece or self.group.rank == 0",
)
SUMS = "[p.square().sum() * counts, u.square().sum() * counts]"
NORMS, ZERO = (
    "self.group.all_reduce(torch.stack(squares)).sqrt()",
    "if x_norm > 0 and u_norm > 0 else",
)
RATIO, STEP, NONE = (
    "ratio = min(x_norm, 10.0) / u_norm if x_norm > 0 and u_norm > 0 else 1.0",
    "p -= self.lr * ratio * u",
    "                continue\n",
)
WHOLE = """
            whole = torch.zeros(self.group.size, 2, *p.shape, dtype=p.dtype)
            whole[self.group.rank] = torch.stack([p, u]) * counts
            self.group.all_reduce(whole)
            squares += [whole[:, 0].square().sum() / self.group.size, whole[:, 1].square().sum() / self.group.size]
"""


def but(*changes: str) -> str:
    """The first right answer with old, new, old, new, ... replaced."""
    text = RIGHT
    for old, new in zip(changes[::2], changes[1::2]):
        assert old in text, old
        text = text.replace(old, new)
    return text


class SlicedLamb(Topic):
    name = "sliced-lamb"
    hints = (
        "Two ranks hold halves of a matrix, with norms 3 and 4. What is the norm of the whole? Of a layer norm that both hold?",
        "Each rank can make u of its pieces alone. What it lacks are two numbers a parameter, which it needs before any step.",
        "Stack |x|^2 and |u|^2 of all parameters, a duplicate's on rank 0 only, else zeros; all_reduce once; then the roots, and "
        "the ratio 1 where a root is 0.",
    )
    right = {
        "a class": RIGHT,
        "torch's Adam makes u": BY_ADAM,
        "closures, running means": CLOSURES,
        "an optimizer": OPTIMIZER,
        "norms, then squares": but(
            SUMS,
            "[p.norm()**2 * counts, torch.linalg.vector_norm(u)**2 * counts]",
            R,
            "(m / c1) * ((v / c2)**0.5 + self.eps).reciprocal()",
        ),
    }
    wrong = {
        name: Wrong(sentence, text)
        for name, sentence, text in (
            (
                "no_ratio",
                "This is AdamW: multiply the step by |x| / |u| of the layer.",
                but(RATIO, "ratio = 1.0"),
            ),
            (
                "ratio_inverted",
                "The ratio is |u| / |x|, so layers of small weights take the longest steps: divide |x| by |u|.",
                but(
                    RATIO,
                    "ratio = u_norm / min(x_norm, 10.0) if x_norm > 0 and u_norm > 0 else 1.0",
                ),
            ),
            (
                "ratio_of_squares",
                "The ratio is of squares: take their roots first.",
                but(NORMS, NORMS[:-7]),
            ),
            (
                "one_global_ratio",
                "One ratio for the whole model: each parameter has its own.",
                but(
                    "        for p, u, x_norm",
                    "        norms = torch.stack([norms[::2].norm(), norms[1::2].norm()]).repeat(len(us))\n        for p, u, x_norm",
                ),
            ),
            (
                "not_clipped",
                "|x| above 10 counts in full: phi(z) is at most 10.",
                but("min(x_norm, 10.0)", "x_norm"),
            ),
            (
                "ratio_clipped",
                "The ratio is at most 10: it is |x| that phi cuts off there.",
                but("min(x_norm, 10.0) / u_norm", "min(x_norm / u_norm, torch.tensor(10.0))"),
            ),
            *(
                (
                    f"{x} by u, below {top}",
                    "The ratio itself is cut off: phi bounds |x| alone, by 10.",
                    but("min(x_norm, 10.0) / u_norm", f"min({x} / u_norm, {top})"),
                )
                for top in (1.0, 2.0)
                for x in ("min(x_norm, 10.0)", "x_norm")
            ),
            (
                "gradient_norm",
                "|u| is the gradient's norm, as in LARS: take that of Adam's step.",
                but("u.square()", "g.square()"),
            ),
            (
                "no_root",
                "m is divided by v: divide by the root of v.",
                but("(v / c2).sqrt()", "(v / c2)"),
            ),
            (
                "eps_in_root",
                "eps is inside the root: add it after.",
                but("(v / c2).sqrt() + self.eps", "(v / c2 + self.eps).sqrt()"),
            ),
            (
                "betas_swapped",
                "b1 is v's and b2 is m's: b1 makes m.",
                but("(self.b1, self.b2)", "(self.b2, self.b1)"),
            ),
            (
                "no_bias_correction",
                "m and v are not corrected: Adam's part of u is 3.16 times too large at step 1.",
                but(R, "m / (v.sqrt() + self.eps)"),
            ),
            (
                "eps_uncorrected",
                "eps is added to the root before its correction: correct v first.",
                but(R, "m / c1 / (v.sqrt() + self.eps) * c2**0.5"),
            ),
            ("half_corrected", "Only m is corrected: correct v too.", but("(v / c2)", "v")),
            (
                "no_decay",
                "Weights do not decay: add weight_decay x to Adam's step.",
                but(U, "u = r"),
            ),
            (
                "l2_in_gradient",
                "Decay went through m and v: that is Adam with L2. Add it to the finished step.",
                but(G, "            g = p.grad + self.decay * p\n", U, "u = r"),
            ),
            (
                "decay_outside_norm",
                "|u| lacks the decay: it is the norm of all of u.",
                but("u.square()", "r.square()"),
            ),
            (
                "decay_without_ratio",
                "The ratio scales Adam's part alone: decay is a part of u.",
                but(U, "u = r", STEP, STEP + "\n            p -= self.lr * self.decay * p"),
            ),
            *(
                (
                    f"decay_without_ratio, {when}",
                    "The ratio scales Adam's part alone: decay is a part of u.",
                    but(
                        U,
                        "u = r",
                        at,
                        at.replace(what, f"p *= 1 - self.lr * self.decay\n            {what}"),
                    ),
                )
                for when, at, what in (
                    ("before the step", STEP, STEP),
                    ("before the norms", G, "g = "),
                )
            ),
            (
                "decay_without_rate",
                "Decay is added whatever the rate is: it is a part of u.",
                but(U, "u = r + self.decay * p / self.lr"),
            ),
            ("forgets", "m is this step's gradient alone: keep b1 of the last m.", but(M, "g")),
            (
                "v_sums",
                "v adds up: keep b2 of the last v only.",
                but(V, "v + (1 - self.b2) * g**2"),
            ),
            (
                "first_step_forever",
                "Each step is corrected as if it were the first: count the updates.",
                but(T, "self.t = 1\n"),
            ),
            (
                "counts_parameters",
                "t grows with each parameter: it counts updates.",
                but(T, "pass\n", G, G + "            self.t += 1\n"),
            ),
            (
                "starts_at_zero",
                "The first update is corrected with t = 0, that is divided by 0: count from 1.",
                but(
                    T,
                    "pass\n",
                    "            p -= self.lr",
                    "            self.t += p is learnt[-1]\n            p -= self.lr",
                ),
            ),
            (
                "zero_bias_frozen",
                "|x| = 0 gave ratio 0, so a bias of zeros never moves: use 1.",
                but(RATIO, "ratio = min(x_norm, 10.0) / u_norm if u_norm > 0 else 1.0"),
            ),
            (
                "zero_update",
                "|u| = 0 made nan: where there is no step, use ratio 1.",
                but(ZERO, "if x_norm > 0 else"),
            ),
            (
                "eps_in_ratio",
                "A small number is added to |u|: where |u| is 0 the ratio is 1, elsewhere it is exact.",
                but(RATIO, "ratio = min(x_norm, 10.0) / (u_norm + 1e-6) if x_norm > 0 else 1.0"),
            ),
            (
                "local_norms",
                "Each rank used its piece's norm: all-reduce the squares.",
                but(NORMS, "torch.stack(squares).sqrt()", COUNTS, "True"),
            ),
            (
                "sums_norms",
                "Norms do not add; squares do.",
                but(SUMS, "[p.norm() * counts, u.norm() * counts]", NORMS, NORMS[:-7]),
            ),
            (
                "mean_of_squares",
                "The squares are averaged over ranks: add them up.",
                but("(squares))", '(squares), "mean")'),
            ),
            (
                "largest_norm",
                "The ranks take the largest piece's norm: add up the squares.",
                but("(squares))", '(squares), "max")'),
            ),
            (
                "x_local",
                "|x| is that of this rank's piece: sum its squares over the ranks too.",
                but(
                    "for p, u, x_norm, u_norm",
                    "for p, u, _, u_norm",
                    "            ratio =",
                    "            x_norm = p.norm()\n            ratio =",
                ),
            ),
            (
                "u_local",
                "|u| is that of this rank's piece: sum its squares over the ranks too.",
                but(
                    "for p, u, x_norm, u_norm",
                    "for p, u, x_norm, _",
                    "            ratio =",
                    "            u_norm = u.norm()\n            ratio =",
                ),
            ),
            (
                "sums_gradients",
                "Gradients are summed over ranks, as in data parallel: each rank has its own piece's.",
                but(G, "            g = self.group.all_reduce(p.grad.clone())\n"),
            ),
            (
                "rank_0_only",
                "Only rank 0's squares count, also of pieces: of a piece each rank adds its own.",
                but(COUNTS, "self.group.rank == 0"),
            ),
            (
                "duplicates_counted",
                "A layer norm that all ranks hold entered its norm once a rank: count a duplicate once.",
                but(COUNTS, "True"),
            ),
            (
                "duplicates_dropped",
                "A duplicate's squares are nobody's: one rank must add them.",
                but(COUNTS, "piece"),
            ),
            (
                "zero_piece",
                "A rank whose own piece is zero took the ratio 1: ask whether the whole is zero.",
                but("if x_norm > 0 and", "if p.any() and"),
            ),
            (
                "moves_unreached",
                "A parameter without a gradient moved: leave it as it is.",
                but(NONE, "                p.grad = torch.zeros_like(p)\n"),
            ),
            (
                "stops_at_unreached",
                "Parameters after one without a gradient were left out: go on with the next.",
                but(NONE, "                break\n"),
            ),
            (
                "message_each",
                "There is a message for each parameter: send the squares of all in one.",
                but(
                    NORMS,
                    "torch.cat([self.group.all_reduce(s[None].clone()) for s in squares]).sqrt()",
                ),
            ),
            (
                "two_messages",
                "The squares of x and of u travel apart: send them in one message.",
                but(
                    NORMS,
                    "torch.stack([self.group.all_reduce(torch.stack(squares[i::2])) for i in (0, 1)], 1).view(-1).sqrt()",
                ),
            ),
            (
                "sends_pieces",
                "Whole parameters travel: two numbers of each are enough.",
                but(
                    "            squares += " + SUMS + "\n",
                    WHOLE,
                    NORMS,
                    "torch.stack(squares).sqrt()",
                    COUNTS,
                    "piece or 1.0",
                ),
            ),
        )
    }

    @staticmethod
    def probe(answer, draw):
        def plays(who, ranks, parts, steps=1, decay=0.0, *shown):
            of = {
                "ranks": ranks,
                "parts": parts,
                "steps": steps,
                "decay": decay,
                "seed": draw.randrange(2**31),
                "sizes": [draw.choice((2, 3, 5)) for _ in range(2)],
                "lr": draw.choice((0.01, 0.02, 0.05)),
                "betas": (draw.choice((0.8, 0.9)), draw.choice((0.99, 0.999))),
                "eps": draw.choice((1e-6, 1e-5)),
            }
            run = cache(lambda: Training(answer, **of))
            for show in shown or (Training.weights,):
                yield Scene(who, lambda: show(run()), NEAR)

        decay, many, both = (
            draw.choice((0.02, 0.1, 0.3)),
            draw.choice((3, 4)),
            (Training.weights, Training.traffic),
        )
        yield from plays("one rank, one step, no decay", 1, ("rows", "large", "small"))
        yield from plays("one rank, one step", 1, ("rows", "norm"), 1, decay)
        yield from plays("one rank, three steps", 1, ("rows", "norm"), 3, decay)
        yield from plays("one rank, zeros", 1, ("rows", "zeros"), 2, decay)
        yield from plays("one rank, no gradient but zeros", 1, ("rows", "still"), 2)
        yield from plays("two ranks, one piece each", 2, ("rows",), 1, decay)
        yield from plays(f"{many} ranks, pieces", many, ("rows", "columns", "zeros"), 2, decay)
        yield from plays(f"{many} ranks, duplicates", many, ("rows", "norm"), 2, decay)
        yield from plays(
            "two ranks, one of which has zeros", 2, ("rows", "half zeros", "norm"), 2, decay
        )
        yield from plays(
            "two ranks, a parameter without a gradient",
            2,
            ("columns", "unreached", "norm", "rows"),
            2,
            decay,
        )
        yield from plays(
            "three ranks, six parameters",
            3,
            ("rows", "norm", "columns", "zeros", "half zeros", "large"),
            2,
            decay,
            *both,
        )
        yield from plays("100 steps on two ranks", 2, ("rows", "norm"), 100, decay)


class Training(Ranks):
    """Steps of an answer on some ranks. `parts`: what the parameters are; all but norm and unreached
    lie on the ranks in pieces."""

    def __init__(self, answer, ranks, parts, steps, decay, seed, sizes, **settings):
        super().__init__(ranks, seed)
        self.parts, self.steps, self.draw = parts, steps, torch.Generator().manual_seed(seed)
        a, b = sizes
        self.dims = {
            part: None if part in ("norm", "unreached") else int(part == "columns")
            for part in parts
        }
        self.first = {part: self.numbers(a * ranks, b * ranks) for part in parts}
        for part, whole in self.first.items():
            whole *= NORMS_OF.get(part, 6.0) / whole.norm()
            whole[: a if part == "half zeros" else a * ranks * (part == "zeros")] = 0
        given = [
            {part: self.numbers(a * ranks, b * ranks) * 0.1 for part in parts} for _ in range(steps)
        ]

        def play(own, group):
            mine = {
                part: self.piece(part, whole, group.rank).requires_grad_()
                for part, whole in self.first.items()
            }
            optimizer = own(
                [*mine.values()],
                [self.dims[part] is not None for part in parts],
                group,
                weight_decay=decay,
                **settings,
            )
            for each in given:
                for part, p in mine.items():
                    p.grad = (
                        None
                        if part == "unreached"
                        else self.piece(part, each[part] * (part != "still"), group.rank)
                    )
                optimizer.step()
            if any(
                not isinstance(p, torch.Tensor)
                or p.shape != self.piece(part, self.first[part], 0).shape
                for part, p in mine.items()
            ):
                raise Refused(
                    f"Rank {group.rank}'s parameters have another shape after the step: change their numbers in place."
                )
            return {part: p.detach().clone() for part, p in mine.items()}

        self.returned = self.run(play, answer)

    def numbers(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.draw, dtype=torch.float64)

    def piece(self, part: str, whole: torch.Tensor, rank: int) -> torch.Tensor:
        dim = self.dims[part]
        return (whole if dim is None else whole.chunk(self.size, dim)[rank]).clone()

    def weights(self) -> dict:
        """Each parameter, or its pieces, on all ranks."""
        return {
            f"parameter {part!r}": torch.stack([own[part] for own in self.returned])
            for part in self.parts
        }

    def traffic(self) -> dict:
        calls = self.seen[0]
        numbers = sum(size for _, _, size in calls) / 8 / self.steps
        return {
            "messages a step": len(calls) / self.steps,
            "numbers a step beyond two a parameter": max(0, numbers - 2 * len(self.parts)),
        }
