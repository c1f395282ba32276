"""ZeRO-1 around any optimizer of torch: a rank keeps the state of its part, and updates that.

    gradients   reduce_scatter: a rank gets the mean of its part       (N-1)/N psi numbers sent
    step        the optimizer on the part; clipped by the norm of all  state psi / N
    weights     all_gather: all parts, on all ranks                    (N-1)/N psi numbers sent

The truth is the same optimizer of torch, unsharded, in one process, on the mean gradient.
Source: Rajbhandari et al. 2019, ZeRO (arXiv:1910.02054), sections 5.1 and 7.
"""

import weakref
from functools import cache
from typing import NamedTuple

import torch

from ..likeness import Scene, Topic, Wrong
from ..ranks import Ranks

FEW = 6
BEGIN, STEP, END = "(begin)", "(step)", "(end)"  # marks, with the bytes of messages so far
RIGHT = """
import torch

class answer:
    def __init__(self, params, optimizer_class, group, max_norm=None, **kwargs):
        self.group, self.max_norm = group, max_norm
        params = list(params)
        groups = params if isinstance(params[0], dict) else [{"params": params}]
        self.learnt = [[p for p in each["params"] if p.requires_grad] for each in groups]
        self.pieces = [torch.nn.Parameter(self.own(self.flat(ps))) for ps in self.learnt]
        groups = [{**each, "params": [piece]} for each, piece in zip(groups, self.pieces)]
        self.inner = optimizer_class(groups, **kwargs)

    def flat(self, tensors):
        whole = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return torch.nn.functional.pad(whole, (0, -len(whole) % self.group.size))

    def own(self, whole):
        return whole.view(self.group.size, -1)[self.group.rank].clone()

    def step(self):
        for ps, piece in zip(self.learnt, self.pieces):
            piece.grad = self.group.reduce_scatter(self.flat([p.grad for p in ps]), "mean")
        if self.max_norm is not None:
            square = sum(piece.grad.square().sum() for piece in self.pieces)
            norm = self.group.all_reduce(square).sqrt()
            for piece in self.pieces:
                piece.grad *= min(1.0, self.max_norm / (norm + 1e-6))
        self.inner.step()
        for ps, piece in zip(self.learnt, self.pieces):
            whole = self.group.all_gather(piece.detach())
            for p in ps:
                p.data.copy_(whole[:p.numel()].view_as(p))
                whole = whole[p.numel():]
"""
VIEWS = """
import torch

class answer:
    def __init__(self, params, optimizer_class, group, max_norm=None, **kwargs):
        self.group, self.most = group, max_norm
        groups = [dict(each) if isinstance(each, dict) else {"params": [each]} for each in params]
        cut = lambda p: p.data.view(-1).tensor_split(group.size)[group.rank]
        self.pieces = {p: torch.nn.Parameter(cut(p)) for each in groups
                       for p in each["params"] if p.requires_grad}
        for each in groups:
            each["params"] = [self.pieces[p] for p in each["params"] if p in self.pieces]
        self.inner = optimizer_class(groups, **kwargs)

    def step(self):
        for p, piece in self.pieces.items():                # a piece is a view of its parameter
            piece.grad = self.group.reduce_scatter(p.grad.view(-1), "mean")
        if self.most:
            norm = torch.cat([piece.grad for piece in self.pieces.values()]).norm()
            norm = self.group.all_reduce(norm ** 2) ** 0.5
            torch.nn.utils.clip_grads_with_norm_(self.pieces.values(), self.most, norm)
        self.inner.step()
        for p, piece in self.pieces.items():
            self.group.all_gather(piece.data, out=p.data.view(-1))
"""
CLOSURES = """
import torch
from types import SimpleNamespace

def answer(params, optimizer_class, group, max_norm=None, **kwargs):
    groups = [dict(params=params)]
    if isinstance(params[0], dict):
        groups = [dict(each) for each in params]
    learnt = [p for each in groups for p in each["params"] if p.requires_grad]
    count = sum(p.numel() for p in learnt)
    part = -(-count // group.size)
    whole = torch.zeros(part * group.size, dtype=learnt[0].dtype)     # of all groups, side by side
    begin, stop, at, pieces = part * group.rank, part * (group.rank + 1), 0, []
    for p in learnt:
        whole[at:at + p.numel()] = p.data.view(-1)
        p.data = whole[at:at + p.numel()].view_as(p)
        low, high = max(at, begin), min(at + p.numel(), stop)
        pieces.append(whole[low:max(low, high)].requires_grad_())
        at += p.numel()
    own = dict(zip(learnt, pieces))
    for each in groups:
        each["params"] = [own[p] for p in each["params"] if p in own]
    inner = optimizer_class(groups, **kwargs)

    def step():
        gradients = torch.zeros_like(whole)
        torch.cat([p.grad.view(-1) for p in learnt], out=gradients[:count])
        mine = group.reduce_scatter([each / group.size for each in gradients.split(part)])
        if max_norm is not None:
            norm = float(group.all_reduce(mine.dot(mine))) ** 0.5
            mine = mine * max_norm / norm if norm > max_norm else mine
        for piece in pieces:
            piece.grad, mine = mine[:len(piece)], mine[len(piece):]
        inner.step()
        group.all_gather(whole[begin:stop].clone(), out=list(whole.split(part)))

    return SimpleNamespace(step=step)
"""
MESSAGES = """
import torch

class answer(torch.optim.Optimizer):
    def __init__(self, params, optimizer_class, group, max_norm=None, **kwargs):
        super().__init__(params, kwargs)
        self.ranks, self.max_norm = group, max_norm
        for each in self.param_groups:
            each["params"] = [p for p in each["params"] if p.requires_grad]
        self.learnt = [p for each in self.param_groups for p in each["params"]]
        mine = slice(group.rank, None, group.size)                      # every N-th number
        self.shadows = {p: p.detach().flatten()[mine].clone() for p in self.learnt}
        own = [{**each, "params": [self.shadows[p] for p in each["params"]]}
               for each in self.param_groups]
        self.inner = optimizer_class(own, **kwargs)

    @torch.no_grad()
    def step(self, closure=None):
        me, others = self.ranks.rank, [r for r in range(self.ranks.size) if r != self.ranks.rank]
        for p in self.learnt:
            for other in others:
                self.ranks.isend(p.grad.flatten()[other::self.ranks.size], other)
            parts = [p.grad.flatten()[me::self.ranks.size], *map(self.ranks.recv, others)]
            self.shadows[p].grad = torch.stack(parts).mean(0)
        if self.max_norm is not None:
            squares = torch.stack([shadow.grad.norm() ** 2 for shadow in self.shadows.values()])
            norm = self.ranks.all_reduce(squares).sum().sqrt()
            for shadow in self.shadows.values():
                shadow.grad.mul_((self.max_norm / norm).clamp(max=1))
        self.inner.step()
        for p, shadow in self.shadows.items():
            p.view(-1)[me::self.ranks.size] = shadow
            for other in others:
                self.ranks.isend(shadow, other)
            for other in others:
                p.view(-1)[other::self.ranks.size] = self.ranks.recv(other)
        self.ranks.finish()
"""
BY_TENSOR = """
import torch

class answer:
    def __init__(self, params, optimizer_class, group, max_norm=None, **kwargs):
        self.group, params = group, list(params)
        groups = params if isinstance(params[0], dict) else [{"params": params}]
        self.learnt = [p for each in groups for p in each["params"] if p.requires_grad]
        own = {p for at, p in enumerate(self.learnt) if at % group.size == group.rank}
        groups = [{**each, "params": [p for p in each["params"] if p in own]} for each in groups]
        self.inner = optimizer_class(groups, **kwargs)

    def step(self):
        for p in self.learnt:
            self.group.all_reduce(p.grad, "mean")
        self.inner.step()
        for at, p in enumerate(self.learnt):
            self.group.broadcast(p.detach(), at % self.group.size)
"""
GRADS, GATHERED = "self.flat([p.grad for p in ps])", "self.group.all_gather(piece.detach())"
REDUCED = f'self.group.reduce_scatter({GRADS}, "mean")'
NORM = "self.group.all_reduce(square).sqrt()"
PADDED = "torch.nn.functional.pad(whole, (0, -len(whole) % self.group.size))"
PART, OWN = "[self.group.rank].clone()", "whole.view(self.group.size, -1)[self.group.rank].clone()"
GROUPS = 'groups = params if isinstance(params[0], dict) else [{"params": params}]'
MADE, LEARNS = "self.inner = optimizer_class(groups, **kwargs)\n", " if p.requires_grad]"
COPIED, EACH = "                whole = whole[p.numel():]\n", "                piece.grad *= "
CLIPS, FACTOR = "self.max_norm is not None", "min(1.0, self.max_norm / (norm + 1e-6))"
EACH_NORM = f"""
                norm = piece.grad.square().sum()
                norm = {NORM.replace("square", "norm")}
{EACH}"""[1:]
ZEROS = "torch.zeros_like(p) if p.grad is None else p.grad for"
GATHER_ALL = """        self.inner.step()
        for p, piece in self.pieces.items():
            self.group.all_gather"""
ONE_BY_ONE = """        for each, (p, piece) in zip(self.inner, self.pieces.items()):
            each.step()
            self.group.all_gather"""
SETTLED = """        for each in groups:
            each["params"] = [self.pieces[p] for p in each["params"] if p in self.pieces]
        self.inner = optimizer_class(groups, **kwargs)
"""
ONE_EACH = """
        self.inner = [optimizer_class([{**each, "params": [self.pieces[p]]}], **kwargs)
                      for each in groups for p in each["params"] if p in self.pieces]
"""[1:]
BROADCAST = """torch.cat([
                self.group.broadcast(piece.detach().clone(), rank)
                for rank in range(self.group.size)])"""
BUILT = """
        whole = optimizer_class([dict(each) for each in groups], **kwargs)
        for p in sum(self.learnt, []):
            p.grad = torch.zeros_like(p)
        before = [p.detach().clone() for p in sum(self.learnt, [])]
        whole.step()
        for p, each in zip(sum(self.learnt, []), before):
            p.data.copy_(each)
        whole.state.clear()
        self.pieces ="""
MINE = """{}
            whole.view(self.group.size, -1)[self.group.rank] = piece.detach()"""
REST = """torch.cat([p.detach().flatten() for p in ps])[self.group.size * len(piece):]"""
MERGED = """groups = [{"params": params}]
        if isinstance(params[0], dict):
            groups = [{**params[0], "params": [p for each in params for p in each["params"]]}]"""
OWN_FACTOR = """    def factor(self):
        norm = torch.cat([p.grad.flatten() for ps in self.learnt for p in ps]).norm()
        return 1.0 if self.max_norm is None else min(1.0, self.max_norm / norm)

    def step(self):
"""


def but(*changes: str, text: str = RIGHT) -> str:
    """The first right answer, or another text, with old, new, old, new, ... replaced."""
    for old, new in zip(changes[::2], changes[1::2]):
        assert old in text, old
        text = text.replace(old, new)
    return text


class ZeroOne(Topic):
    name = "zero-1"
    hints = (
        "Adam updates a number from its own gradient and state. Who else needs this state?",
        "Lay all numbers in a row, and cut it into N equal parts. Reduce-scatter brings a "
        "rank its part's gradient, all-gather all parts' weights.",
        "Make a Parameter of your part, give it to optimizer_class with the group's settings, "
        "and set its .grad in step(); clip by the squares summed over the ranks; then step, "
        "all-gather, and copy into the parameters without the padding.",
    )
    right = {
        "a flat tensor a group": RIGHT,
        "views of each parameter": VIEWS,
        "closures, one flat tensor": CLOSURES,
        "every N-th number, by messages": MESSAGES,
        "gathered by broadcasts": but(GATHERED, BROADCAST),
        "an optimizer for each": but(SETTLED, ONE_EACH, GATHER_ALL, ONE_BY_ONE, text=VIEWS),
    }
    wrong = {
        name: Wrong(sentence, text)
        for name, sentence, text in (
            (
                "ignores_class",
                "You chose the optimizer yourself: make the one that you are given, optimizer_class.",
                but("optimizer_class(groups", "torch.optim.Adam(groups"),
            ),
            (
                "ignores_settings",
                "The settings never reach the optimizer: hand kwargs on.",
                but("(groups, **kwargs)", "(groups, lr=1e-3)"),
            ),
            (
                "sum_not_mean",
                "Gradients are summed over ranks: divide by their number.",
                but(', "mean")', ")"),
            ),
            (
                "same_data",
                "Each part was stepped with one rank's own gradient, which is right only where all "
                "ranks see equal data: reduce-scatter it.",
                but(REDUCED, f"self.own({GRADS})"),
            ),
            (
                "no_gather",
                "Each rank has new weights in its own part alone: all-gather the parts after the step.",
                but(GATHERED, MINE.format("self.flat(ps)")),
            ),
            (
                "gathers_before",
                "The weights are those before the step: step first, then all-gather.",
                but(
                    "        self.inner.step()\n",
                    "",
                    COPIED,
                    COPIED + "        self.inner.step()\n",
                ),
            ),
            (
                "other_part",
                "A part of the weights was stepped with the gradient of another: reduce_scatter returns "
                "part number group.rank.",
                but(PART, "[self.group.rank - 1].clone()"),
            ),
            (
                "first_part",
                "Every rank steps the weights of part 0: take that of your rank.",
                but(PART, "[0].clone()"),
            ),
            (
                "gathers_gradients",
                "You gathered gradients into the weights: gather the stepped parts.",
                but(GATHERED, "self.group.all_gather(piece.grad)"),
            ),
            (
                "rounded",
                "Numbers were rounded to float32 on their way: give your own tensors the parameters' "
                "dtype.",
                but("torch.cat([tensor.detach()", "torch.cat([tensor.detach().float()"),
            ),
            (
                "adds_up",
                "A step's gradient still has those of the steps before in it: set it anew.",
                but(
                    "piece.grad = self",
                    "piece.grad = (0 if piece.grad is None else piece.grad) + self",
                ),
            ),
            (
                "new_each_step",
                "The optimizer is made anew at each step, so it forgets its state: make it once.",
                but(
                    MADE,
                    f"self.make = lambda: {MADE[13:]}",
                    "self.inner.step()",
                    "self.make().step()",
                ),
            ),
            (
                "nothing_sharded",
                "Weights right, but every rank keeps the state of all numbers: that is plain data "
                "parallel.",
                but(
                    OWN,
                    "whole.clone()",
                    "reduce_scatter",
                    "all_reduce",
                    GATHERED,
                    "piece.detach()",
                    NORM,
                    "square.sqrt()",
                ),
            ),
            (
                "sharded_by_tensor",
                "A rank keeps far more than 1/N of the state, since tensors are unequal: split by "
                "elements.",
                BY_TENSOR,
            ),
            (
                "state_built_then_dropped",
                "The peak shows the whole state once: create the optimizer on your part alone.",
                but("\n        self.pieces =", BUILT),
            ),
            (
                "all_reduce_then_slice",
                "Right, but 3 psi numbers were sent: reduce-scatter is enough.",
                but(REDUCED, f'self.own(self.group.all_reduce({GRADS}, "mean"))'),
            ),
            (
                "gathers_by_all_reduce",
                "Right, but weights travel by an all-reduce of zeros and parts: an all-gather sends "
                "half as much.",
                but(
                    GATHERED,
                    MINE.format("self.flat([torch.zeros_like(p) for p in ps])")
                    + """
            self.group.all_reduce(whole)""",
                ),
            ),
            (
                "padding_forgotten",
                "N does not divide the number of weights, and the last ones never move: pad.",
                but(
                    PADDED,
                    "whole[:len(whole) // self.group.size * self.group.size]",
                    GATHERED,
                    f"torch.cat([{GATHERED}, {REST}])",
                ),
            ),
            (
                "no_padding",
                "N does not divide the number of weights, and no equal parts can be cut: pad.",
                but(PADDED, "whole"),
            ),
            (
                "chunk",
                "torch.chunk makes fewer parts than ranks of a small tensor: use tensor_split, or pad.",
                but("tensor_split", "chunk", text=VIEWS),
            ),
            ("frozen_fails", "A frozen parameter has no gradient: leave it out.", but(LEARNS, "]")),
            (
                "frozen_moves",
                "A frozen parameter moved, as weight decay also pulls at what has no gradient: leave it "
                "out.",
                but(LEARNS, "]", "p.grad for", ZEROS),
            ),
            (
                "groups_merged",
                "All parameters were stepped with the settings of the first group: each group has its "
                "own.",
                but(GROUPS, MERGED),
            ),
            (
                "groups_lose_settings",
                "A group's own settings are lost: hand them on with its pieces.",
                but('{**each, "params": [piece]}', '{"params": [piece]}'),
            ),
            (
                "no_clip",
                "Nothing was clipped: scale the gradient where its norm is above max_norm.",
                but(CLIPS, "False"),
            ),
            (
                "clip_local",
                "Clipped by the norm of a rank's own part, so ranks scale differently: add up the "
                "squares of all.",
                but(NORM, "square.sqrt()"),
            ),
            (
                "clip_before_mean",
                "Each rank's own gradient was clipped, and then the mean taken: take the mean first.",
                but(
                    GRADS,
                    f"{GRADS} * self.factor()",
                    CLIPS,
                    "False",
                    "    def step(self):\n",
                    OWN_FACTOR,
                ),
            ),
            (
                "norms_added",
                "Norms do not add: sum the squares over the ranks, then take the root.",
                but(NORM, "self.group.all_reduce(square.sqrt())"),
            ),
            (
                "squares_averaged",
                "The squares were averaged over the ranks: add them up.",
                but("all_reduce(square)", 'all_reduce(square, "mean")'),
            ),
            (
                "clip_each_group",
                "Each group was clipped by its own norm: there is one norm, of all parameters.",
                but(EACH, EACH_NORM),
            ),
            (
                "clips_up",
                "A small gradient was scaled up to max_norm: clipping only makes smaller.",
                but(FACTOR, FACTOR[9:-1]),
            ),
        )
    }

    @staticmethod
    def probe(answer, draw):
        lr, decay = draw.choice((0.01, 0.02, 0.05)), draw.choice((0.02, 0.1))
        moving = {"lr": lr, "momentum": draw.choice((0.8, 0.9))}
        sgd, momentum, adam = SGD(lr=lr), SGD(**moving), Rule(torch.optim.Adam, {"lr": lr})
        adamw = Rule(torch.optim.AdamW, {"lr": lr, "weight_decay": decay})
        other = draw.choice(
            (Rule(torch.optim.Adagrad, {"lr": lr}), Rule(torch.optim.RMSprop, moving))
        )
        name = other.optimizer.__name__
        two = SGD(({"weight_decay": decay}, {"lr": 3 * lr, "momentum": 0.5}), **moving)
        even, many = [[4, 4], [6], [2, 3]], [[4, 8], [16], [4, 4], [8]]
        odd = [[draw.choice((5, 7)), 3], [draw.choice((11, 13))], [3, 3]]
        large, tiny = [[17, 19], [5], [draw.choice((3, 6))]], [[1], [2], [3], [7, 3], [4]]
        weights, every = [Trained.weights], [Trained.weights, Trained.state, Trained.traffic]
        for who, ranks, shapes, rule, more, shows in (
            ("2 ranks, even sizes, SGD", 2, even, sgd, {"steps": 1}, weights),
            ("2 ranks, even sizes, momentum, 3 steps", 2, even, momentum, {}, weights),
            ("4 ranks, even sizes, Adam", 4, many, adam, {}, every),
            ("3 ranks, odd sizes, Adam", 3, odd, adam, {}, every),
            (f"4 ranks, one large parameter, {name}", 4, large, other, {}, every),
            ("5 ranks, more than a tensor has elements", 5, tiny, momentum, {}, every),
            ("2 ranks, a frozen parameter, AdamW", 2, odd, adamw, {"frozen": 1}, every),
            ("3 ranks, two groups", 3, odd, two, {}, every),
            ("3 ranks, clipped", 3, odd, momentum, {"clip": 0.3}, every),
            ("2 ranks, two groups, clipped", 2, odd, two, {"clip": 0.3}, weights),
            ("3 ranks, a norm below max_norm", 3, odd, momentum, {"clip": 3.0}, weights),
            ("1 rank", 1, odd, adam, {"clip": 0.3}, weights),
        ):
            of = dict(more, ranks=ranks, shapes=shapes, rule=rule, seed=draw.randrange(2**31))
            run = cache(lambda of=of: Trained(answer, **of))
            for shown in shows:
                yield Scene(who, lambda shown=shown, run=run: shown(run()))


class Rule(NamedTuple):
    """An optimizer with its settings, and those of two groups of parameters, if there are."""

    optimizer: type
    settings: dict
    groups: tuple[dict, ...] = ()

    def scaled(self, scale: float) -> "Rule":
        """With rates for gradients that are so many times as large."""

        def slower(settings):
            return settings | ({"lr": settings["lr"] / scale} if "lr" in settings else {})

        return Rule(self.optimizer, slower(self.settings), tuple(map(slower, self.groups)))

    def of(self, parameters: list) -> list:
        """What the optimizer is given of the parameters."""
        cut = len(parameters) // 2
        halves = zip(self.groups, (parameters[:cut], parameters[cut:]))
        return [dict(each, params=some) for each, some in halves] or list(parameters)


def SGD(groups=(), **settings) -> Rule:
    return Rule(torch.optim.SGD, settings, groups)


class Trained(Ranks):
    """Steps of an answer. A rank's loss is |p - own target|^2 / 2: gradients follow the weights.

    clip     max_norm as a share of the first gradient's norm. Gradients are then about 10^7, so
             that nobody's 1e-6 matters
    frozen   which parameter is not learnt
    """

    def __init__(self, answer, ranks, shapes, rule: Rule, seed, steps=3, frozen=None, clip=None):
        super().__init__(ranks, seed)
        self.steps, self.frozen, self.many = steps, frozen, len(shapes)
        draw, self.scale = torch.Generator().manual_seed(seed), 1.0 if clip is None else 1e7
        rule = rule.scaled(self.scale)
        self.first, *targets = [
            [torch.randn(shape, generator=draw).double() for shape in shapes]
            for _ in range(1 + ranks)
        ]
        self.targets, self.mean = targets, [torch.stack(each).mean(0) for each in zip(*targets)]
        params = self.parameters()
        self.gradients(params, self.mean)
        if clip is not None:
            clip *= float(flat(p.grad for p in params if p.requires_grad).norm())
        self.psi = sum(p.numel() for p in params if p.requires_grad)
        self.most, self.kept = [0] * ranks, [0] * ranks
        self.right, self.whole = self.truth(rule, clip)
        self.shown = self.run(lambda own, group: self.train(own, group, rule, clip), answer)

    def parameters(self) -> list:
        return [
            torch.nn.Parameter(p.clone(), requires_grad=at != self.frozen)
            for at, p in enumerate(self.first)
        ]

    def gradients(self, params, targets) -> None:
        for p, target in zip(params, targets):
            p.grad = self.scale * (p.detach() - target) if p.requires_grad else None

    def truth(self, rule: Rule, clip) -> tuple[list, int]:
        """The weights after each step, and how many numbers the state has, in one process."""
        params, weights = self.parameters(), []
        inner = rule.optimizer(rule.of(params), **rule.settings)
        for _ in range(self.steps):
            self.gradients(params, self.mean)
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(params, clip)
            inner.step()
            weights.append(flat(params))
        return weights, held([inner])

    def train(self, own, group, rule: Rule, clip) -> list:
        made, rank, seen, shown = weakref.WeakSet(), group.rank, self.seen[group.rank], []

        class Watched(rule.optimizer):
            def __init__(mine, *args, **kwargs):
                super().__init__(*args, **kwargs)
                made.add(mine)
                self.most[rank] = max(self.most[rank], held(made))

            def step(mine, closure=None):
                seen.append((STEP, "", self.sent[rank]))
                loss = super().step(closure)
                self.most[rank] = max(self.most[rank], held(made))
                return loss

        Watched.__name__ = rule.optimizer.__name__
        params = self.parameters()
        mine = own(rule.of(params), Watched, group, max_norm=clip, **rule.settings)
        for _ in range(self.steps):
            self.gradients(params, self.targets[rank])
            seen.append((BEGIN, "", self.sent[rank]))
            mine.step()
            seen.append((END, "", self.sent[rank]))
            self.kept[rank] = held(made)
            shown.append(flat(params))
        return shown

    def weights(self) -> dict:
        """How many numbers are not those of torch's own optimizer, and the first ones."""

        def off(found, right):
            return int(((found - right).abs() > 1e-9 * right.abs().max()).sum())

        wrong = {
            f"wrong numbers after step {at + 1}": [off(own[at], right) for own in self.shown]
            for at, right in enumerate(self.right)
        }
        return wrong | {"first weights": [own[-1][:FEW] for own in self.shown]}

    def state(self) -> dict:
        """Numbers of state beyond a rank's share and one number a parameter."""
        room = self.whole / self.psi * (self.psi / self.size + self.many)
        times = ("after a step", self.kept), ("at the highest moment", self.most)
        return {
            f"numbers of state beyond 1/{self.size}, {when}": [
                max(0, round(each - room)) for each in counts
            ]
            for when, counts in times
        }

    def traffic(self) -> dict:
        """Numbers that a rank sends beyond psi (N-1)/N, padding and a few for a norm, before and
        after the optimizer's step; of several optimizers, half of all."""
        share = (self.size - 1) / self.size
        room = share * (self.psi + self.size * self.many) + 2 * self.many
        before, after = [0.0] * self.size, [0.0] * self.size
        for rank, seen in enumerate(self.seen):
            so_far, first, steps = 0.0, 0, []  # in collectives; in messages before; at each step
            for what, _, size in seen:
                if what == BEGIN:
                    so_far, first, steps = 0.0, size, []
                elif what == STEP:
                    steps.append(so_far + size - first)
                elif what == END:
                    all_of_it = so_far + size - first
                    until = steps[0] if len(steps) == 1 else all_of_it / 2
                    before[rank] += until / 8 / self.steps
                    after[rank] += (all_of_it - until) / 8 / self.steps
                else:
                    so_far += size * share * (1 + (what == "all_reduce"))
        return {
            f"numbers sent a step {when} beyond psi": [max(0, round(n - room)) for n in some]
            for when, some in (("before the optimizer's step", before), ("after it", after))
        }


def held(optimizers) -> int:
    """Numbers that optimizers' states keep, by what lies in memory; without counts of steps."""
    states = [state for optimizer in list(optimizers) for state in optimizer.state.values()]
    kept = [
        each.untyped_storage()
        for state in states
        for each in state.values()
        if torch.is_tensor(each) and each.dim()
    ]
    return sum({storage.data_ptr(): storage.nbytes() for storage in kept}.values()) // 8


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
