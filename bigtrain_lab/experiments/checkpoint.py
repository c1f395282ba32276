"""Can I train 4 times deeper by throwing activations away?

A chain of layers is trained by a recompute plan: every advance, recorded pass and backward is an
action of its own, so the player shows what is kept and what runs again. The plan sees the layers'
weights from shapes alone; the run measures them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import groupby
from math import ceil, prod
from typing import Any, ClassVar

from .. import data, models, techniques, train
from ..core import Impossible, Memory, Trace, counted, knob, refuse, size
from ..core.family import is_typed
from ..core.later import later, torch
from ..order import Action, Step
from ..order.recompute.compared import compared, work_beside
from ..order.recompute.optimum import frontier, smallest_budget
from ..order.recompute.plan import (
    Chain,
    Op,
    Recompute,
    advances,
    extra_cost,
    held,
    live,
    named,
    peak_bytes,
    turn,
)
from ..runtime.kept import kept
from .experiment import Quantity
from .of_gpt import OfGPT
from .one_device import OneDevice

with later():
    from ..runtime.memory import owned

MOST_FOLLOWED = (
    100  # operations of a plan that a dry run carries out one by one, in a third of a second
)


class Checkpoint(OfGPT, OneDevice):
    name: ClassVar[str] = "checkpoint"
    question: ClassVar[str] = "Can I train 4 times deeper by throwing activations away?"
    terms: ClassVar[dict[str, str]] = {"stage": "layer", "micro_batch": "pass"}
    must_exist: ClassVar[tuple[str, ...]] = ("ops",)
    figures: ClassVar[tuple[str, ...]] = ("rivals", "timeline", "memory", "budgets")
    rivals_by: ClassVar[str] = "plan"
    rivals_tell: ClassVar[tuple[str, ...]] = ("work beside keep-all",)
    looks_late: ClassVar[bool] = True
    answers: ClassVar[tuple[str, ...]] = (
        "saved activations, peak",
        "work beside keep-all",
        "activations, times fewer than keep-all",
    )

    plan: str = knob(
        "optimal",
        "which activations are kept, and which are made again",
        choices=lambda: Recompute.all(),
    )
    budget: float = knob(
        25.0,
        "memory for kept activations, as a share of what keeping all would take",
        low=1,
        high=100,
        step=0.5,
        unit="%",
    )
    model: str = knob(
        "gpt",
        "gpt: equal blocks that learn real text; mlp: layers of unequal widths",
        choices=("gpt", "mlp"),
    )
    rows: int = knob(4, "samples in a batch", low=1, high=256, unit="samples")
    k: int = knob(4, "every-k: how many layers share one kept input", low=1, high=64, more=True)
    dropout: float = knob(0.1, "share of values that dropout zeroes", low=0, high=0.9, more=True)
    steps: int = knob(2, "training steps of a run", low=1, high=20, more=True)
    varied: ClassVar[dict] = {
        "layers": {
            "default": 16,
            "help": "blocks of the GPT, or layers of the MLP",
            "low": 2,
            "high": 64,
            "more": False,
        },
        "model": {},
        "rows": {},
        "width": 32,
        "sequence": {"default": 32, "help": "gpt: tokens (bytes of text) in a sample"},
        "heads": {"help": "gpt: attention heads; they divide the width"},
    }

    def model_post_init(self, facts):
        """Refuse now, in a sentence, what could not run."""
        super().model_post_init(facts)
        refuse(
            (
                self.recompute.inside and self.model == "mlp",
                "The plan selective recomputes inside attention, and an MLP has none: take the"
                " model gpt, or another plan.",
            )
        )
        if self.recompute.needs_budget() and self.budget_bytes < (
            least := smallest_budget(self.chain)
        ):
            raise Impossible(
                f"A budget of {size(self.budget_bytes)} is below the smallest peak that any plan"
                f" reaches, {size(least)}: take at least"
                f" {ceil(200 * least / self.everything) / 2:g}% of keep-all, or more layers that"
                " share it."
            )

    unused: ClassVar[tuple] = (
        ("plan", lambda name: not needs_budget(name), {"budget"}),
        ("plan", lambda name: name != "every-k", {"k"}),
        ("model", lambda name: name == "mlp", {"sequence", "heads", "fused_attention", "text"}),
    )

    # -- what the settings mean --------------------------------------------------------------------
    @cached_property
    def recompute(self) -> Recompute:
        """The plan itself: one that was typed in a notebook travels to the ranks with the
        experiment."""
        return named(f"every-{self.k}" if self.plan == "every-k" else self.plan)

    def weighed(self, inside: bool) -> tuple[Chain, dict[str, tuple]]:
        """The chain, priced by the hardware, and the durations of its passes."""
        chain, *work = (
            models.chain_weights.gpt_weights(self.config, self.rows, inside)
            if self.model == "gpt"
            else models.chain_weights.mlp_weights(
                self.layers, self.width, self.rows, self.dropout, self.dtype
            )
        )
        if self.profile.textbook:  # a slot a forward; a backward two, and what it makes again
            forwards = [1] * chain.layers
            backwards = [Fraction(b.flops, f.flops) if f.flops else 2 for f, b in zip(*work)]
        else:
            forwards, backwards = (
                [each.seconds(self.profile, self.dtype) for each in passes] for passes in work
            )
        return Chain.of(*chain[:2], forwards, backwards, *chain[4:]), {
            "A": tuple(forwards),
            "F": tuple(forwards),
            "B": tuple(backwards),
        }

    @cached_property
    def chain(self) -> Chain:
        return self.weighed(self.recompute.inside)[0]

    @cached_property
    def whole(self) -> Chain:
        """The chain without selective recompute, which other plans are compared on."""
        return self.weighed(False)[0]

    @cached_property
    def budget_bytes(self) -> int:
        return int(self.everything * self.budget / 100)

    @cached_property
    def everything(self) -> int:
        """Bytes of all records: what plain training keeps."""
        return peak_bytes(named("keep-all").ops(self.whole), self.whole)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """The plan of one step."""
        # what a typed one does may follow from other cells too
        make = planned.__wrapped__ if is_typed(type(self.recompute)) else planned
        return make(self.recompute, self.chain, self.budget_bytes)

    @cached_property
    def weights(self) -> list[list[tuple[int, ...]]]:
        """The shapes of each layer's weights, tensor by tensor."""
        if self.model == "gpt":
            one = replace(self.config, layers=1)
            pieces = [list(models.parameter_shapes(one, i, i + 1).values()) for i in range(3)]
            return list(models.chain_weights.repeated(pieces, self.layers))
        sizes = models.chain_weights.uneven_widths(self.layers, self.width)
        return [[shape] for shape in zip(sizes, sizes[1:])]

    @cached_property
    def weight_bytes(self) -> list[int]:
        """Of each layer."""
        return [self.item * sum(map(prod, layer)) for layer in self.weights]

    # -- theory ------------------------------------------------------------------------------------

    def numbered(self, action: Action, step: int) -> Action:
        """The action of a step's plan, as an action of the run: passes are numbered on."""
        return action._replace(micro_batch=action.micro_batch + step * self.passes[action.stage])

    @cached_property
    def passes(self) -> Counter:
        return Counter(op.action.stage for op in self.ops if op.action.kind != "B")

    shapes: ClassVar[tuple[str, ...]] = (
        "plan",
        "budget",
        "layers",
        "model",
        "rows",
        "k",
        "width",
        "sequence",
        "heads",
        "fused_attention",
        "dropout",
        "optimizer",
        "dtype",
        "hardware",  # by which the optimal plan is found
    )

    def like(self, action: Action) -> Action:
        passes = 1 if action.kind == "U" else self.passes[action.stage]
        step, number = divmod(action.micro_batch, passes)
        return action._replace(micro_batch=min(step, 1) * passes + number)

    def order(self) -> Iterator[Step]:
        for step in range(self.steps):
            yield from ((self.numbered(op.action, step),) for op in self.ops)
            yield (Action("U", 0, step),)

    def planned(self) -> list:
        return [list(self.ops), self.recompute.inside]

    def durations(self) -> dict:
        """A pass of a layer takes as long in whichever step, and with or without a record."""
        return {
            **self.weighed(self.recompute.inside)[1],
            "U": 0
            if self.profile.textbook
            else self.update[1].seconds(self.profile, self.dtype, sum(map(len, self.weights))),
        }

    @cached_property
    def update(self) -> tuple[int, train.Work]:
        """Bytes of the optimizer's state, and the work of the last update: the sums over all
        weights."""
        rule, steps = self.optimizer_class, min(self.steps, 2)
        each = [
            updated(tuple(shape), self.dtype, rule, steps)
            for layer in self.weights
            for shape in layer
        ]
        return sum(acted.after.get("optimizer", 0) for acted in each), train.Work(
            *map(sum, zip(*(acted.work for acted in each)))
        )

    @cached_property
    def foretold(self) -> train.DryRun:
        """What the plan leaves at the end of each action. Gradients come with each backward and go
        with the update, which first makes its state. In the backward the gradient of the loss, one
        number, is there, and no output of the chain, which is the loss itself."""
        start = between = {"weights": sum(self.weight_bytes)}
        first_backward, more = turn(self.ops, self.chain.layers), self.item - self.chain.states[-1]
        actions = {}
        for step in range(min(self.steps, 2)):
            before, gradients = between, 0
            for at, (op, now) in enumerate(zip(self.ops, held(self.ops, self.chain))):
                now["temporaries"] += more * (at >= first_backward)
                gradients += self.weight_bytes[op.action.stage] * (op.action.kind == "B")
                after = {**between, **now, "gradients": gradients}
                actions[self.numbered(op.action, step)] = before, after
                before = after
            between = start | {"optimizer": self.update[0]}
            actions[Action("U", 0, step)] = before, between
        return train.DryRun(
            start,
            {str(at): train.Acted(train.Work(), *each, (), ()) for at, each in actions.items()},
        )

    @cached_property
    def dry(self) -> train.DryRun:
        """Of a long plan what is foretold, and not what happens inside actions."""
        return super().dry if len(self.ops) <= MOST_FOLLOWED else self.foretold

    def bytes_held(self) -> dict[str, dict]:
        """Without a dry run, since many plans are compared."""
        return self.likened(self.foretold).held(self.ranks, self.counted)

    # -- what is told ------------------------------------------------------------------------------

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        time, peak, loss = super().quantities
        return (
            time,
            Quantity("work beside keep-all", "x", self.work),
            Quantity(
                "forwards run again, a step",
                "",
                lambda t: sum(e.kind == "A" for e in t.spans(0)) / self.steps,
            ),
            Quantity("saved activations, peak", "B", self.saved_peak),
            Quantity(
                "activations, times fewer than keep-all",
                "times",
                lambda t: self.everything / kept if (kept := self.saved_peak(t)) else None,
            ),
            Quantity(
                "saved activations, keep-all",
                "B",
                lambda t: self.everything if t.clock == "predicted" else None,
            ),
            peak,
            loss,
        )

    def work(self, trace: Trace) -> float | None:
        """What layers take in all, over what they would without recompute, by the times of the
        trace itself."""
        spans = trace.spans(0)
        took = {kind: sum(s.end - s.start for s in spans if s.kind == kind) for kind in "AFB"}
        longer, plain = (sum(c.forwards) + sum(c.backwards) for c in (self.chain, self.whole))
        return (
            float((took["A"] + took["F"] + took["B"]) * longer / ((took["F"] + took["B"]) * plain))
            if took["F"]
            else None
        )

    def saved_peak(self, trace: Trace) -> int:
        """The most that is kept for the backward at an action's end. The state in hand is left out,
        as a budget leaves it out: the ledger counts it among what was recomputed where a recorded
        pass in the backward has just made it.
        """
        in_hand = {
            self.numbered(op.action, step): kinds["activations"] + kinds["recomputed"] - kept
            for step in range(self.steps)
            for op, kinds, kept in zip(
                self.ops, held(self.ops, self.chain), live(self.ops, self.chain)
            )
        }
        in_hand, level, most = {str(action): over for action, over in in_hand.items()}, {}, 0
        for (_, name), events in groupby(
            trace.where(Memory, inside=False).events, key=lambda e: (e.start, e.name)
        ):
            level |= {e.kind: e.bytes for e in events}
            most = max(
                most,
                level.get("activations", 0) + level.get("recomputed", 0) - in_hand.get(name, 0),
            )
        return most

    @property
    def facts(self) -> dict[str, Any]:
        """Every plan beside the recursion's frontier: (peak bytes, work of a step over that of
        keep-all)."""
        plans, steps = compared(
            self.weighed(False)[0], self.weighed(True)[0] if self.model == "gpt" else None, self.k
        )
        return {
            **super().facts,
            "plans": plans,
            "frontier": steps,
            "chosen": self.plan,
            "everything": self.everything,
            "here": [
                peak_bytes(self.ops, self.chain),
                work_beside(self.ops, self.chain, self.whole),
            ],
            "budget": self.budget_bytes if self.recompute.needs_budget() else None,
        }

    def describe(self) -> str:
        return (
            f"{self.chain.layers} pieces with {size(sum(self.weight_bytes) // self.item, '')}"
            f" parameters; keeping all takes {size(self.everything)}, the largest layer"
            f" {size(max(map(self.whole.record, range(self.whole.layers))))}"
        )

    @property
    def relief(self) -> str:
        less = "A smaller budget" if self.recompute.needs_budget() else "The plan optimal"
        return (
            f"{less} would need less (activations down to {size(smallest_budget(self.whole))}), or"
            " fewer rows, or fewer or narrower layers."
        )

    def why(self, trace: Trace) -> Iterable[str]:
        peak, again, (layer, times) = (
            peak_bytes(self.ops, self.chain),
            advances(self.ops),
            self.passes.most_common(1)[0],
        )
        most = trace.peak_bytes(0)
        if (
            len(self.ops) > MOST_FOLLOWED
            and trace.clock == "predicted"
            and self.capacity_bytes
            and most <= self.capacity_bytes < 2 * most
        ):
            yield (
                "This prediction knows what is held where actions end. A run is limited at the very"
                " operator, and may hold more inside an action."
            )
        if peak < self.everything:
            yield (
                f"In the same {size(peak)} of activations the plan trains a model"
                f" {self.everything / peak:.3g} times as deep as keeping all would, for"
                f" {work_beside(self.ops, self.chain, self.whole):.2f} times the work. Weights,"
                " gradients and optimizer state grow with the layers under any plan."
            )
        if again:
            yield (
                f"It runs {counted(again, 'forward')} again. Layer {layer} runs {times} times:"
                f" {times - 1} advance{'s' * (times > 2)}, and the"
                " pass that its backward uses."
            )
        if self.recompute.inside:
            yield (
                "No layer advances: inside each block the attention's square is made again, in its"
                " backward."
            )
        if self.plan == "optimal" and (
            better := [
                memory
                for memory, cost in frontier(self.chain)
                if cost < extra_cost(self.ops, self.chain)
            ]
        ):
            yield (
                f"The next better plan needs at most {size(better[0])}; the smallest budget that"
                f" any plan fits in is {size(smallest_budget(self.chain))}."
            )

    # -- reality -----------------------------------------------------------------------------------

    @property
    def recipe(self) -> "train.Recipe":
        """Plain training; the chain ends in the loss, so a model's output is its loss."""
        model = (
            partial(models.chains.ChainGPT, self.config, self.seed)
            if self.model == "gpt"
            else partial(
                models.chains.UnevenMLP,
                self.layers,
                self.width,
                self.dropout,
                self.seed,
                getattr(torch, self.dtype),
            )
        )
        return train.Recipe(
            model=lambda stage: model(),
            data=self.sample,
            loss=lambda output, targets: output,
            steps=self.steps,
            optimizer=self.optimizer_class.at(self.learning_rate),
        )

    def program(self, rank) -> dict[str, Any]:
        inside = techniques.checkpoint.selective if self.recompute.inside else None

        def planned(model, x, noise, targets):
            return techniques.checkpoint_sequential(
                models.chains.chain_of(model, noise, targets, inside),
                self.ops,
                x,
                span=lambda action: rank.span(self.numbered(action, noise.step), noise.step),
            )

        recipe = replace(self.recipe, recompute=planned)
        trained = train.train(recipe, rank, Operations(self, rank))
        return recipe.arrays(trained.weights, trained.losses)

    def sample(self, step: int) -> "train.Sample":
        """Text, or numbers and their sines."""
        if self.model == "gpt":
            x, targets = data.chosen_text(self.text).batch(
                self.seed, step, 0, self.rows, self.sequence
            )
        else:
            x = torch.randn(
                self.rows,
                self.width,
                generator=torch.Generator().manual_seed(self.seed * 1000 + step),
                dtype=getattr(torch, self.dtype),
            )
            targets = x.sin()
        return train.Sample(x, targets, (models.Noise(self.seed, step, 0), targets))


@kept
def planned(recompute: Recompute, chain: Chain, budget_bytes: int) -> tuple[Op, ...]:
    """The operations of one step. The optimal plan of 64 layers takes a quarter of a second."""
    return recompute.ops(chain, budget_bytes)


@kept
def updated(
    shape: tuple[int, ...], dtype: str, optimizer: type[train.Optimizer], steps: int
) -> train.Acted:
    """The last update of a weight, by its dry run: an optimizer updates each tensor alone."""

    def program(rank):
        weight = torch.empty(
            shape, dtype=getattr(torch, dtype), device=train.dry_run.META, requires_grad=True
        )
        rule = optimizer.at(0.1)([weight])
        rank.watch(lambda: owned.of([rule]))
        for step in range(steps):
            weight.grad = torch.empty_like(weight)
            with rank.span(Action("U", 0, step)):
                rule.step()

    return train.dry_run.dry_run(program).actions[f"0U{steps - 1}"]


class Operations(train.Lens):
    """Each operation of the plan is a span of its own, in place of the forward and the backward
    that it is part of."""

    def span(self, step, version):
        return self.rank.span(step, version) if step[0].kind == "U" else nullcontext()


def needs_budget(plan: str) -> bool:
    """Whether there is such a plan, and it asks for one."""
    chosen = Recompute.all().get(plan)
    return bool(chosen) and chosen().needs_budget()
