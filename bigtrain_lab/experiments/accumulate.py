"""My batch does not fit. Is it the same if I take it in pieces?

A byte-level GPT learns real text from sequences of unequal length, in micro-batches whose gradients
are added before each update. All are padded to one length, so that micro-batches cost the same, and
differ in how many of their tokens count. `compare` also takes each window as one large batch,
beside the run, and logs how far each rule's gradient is from that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

from .. import data, models, train
from ..core import Scalar, Trace, knob, size
from ..core.later import np, torch
from ..order import Action, B, F, Step, U, peak_bytes
from ..techniques.accumulate import RULES, mean_of_means, noise_error, token_counts, windows
from .experiment import Quantity
from .of_gpt import OfGPT
from .one_device import OneDevice

IGNORED = -100  # torch's ignore_index
MOST_LISTED = 8  # micro-batches, by their tokens
SPREADS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 11, 16)


class Accumulate(OfGPT, OneDevice):
    name: ClassVar[str] = "accumulate"
    question: ClassVar[str] = "My batch does not fit. Is it the same if I take it in pieces?"
    terms: ClassVar[dict[str, str]] = {"micro_batch": "micro-batch"}
    figures: ClassVar[tuple[str, ...]] = ("timeline", "memory", "accumulation")
    curves: ClassVar[dict[str, str]] = {"loss": "loss of each micro-batch"}
    answers: ClassVar[tuple[str, ...]] = (
        "gradient off by, token-weighted",
        "gradient off by, mean of means",
        "peak memory",
    )

    sequences: int = knob(2, "sequences in a micro-batch: what must fit at once", low=1, high=32)
    accumulation: int = knob(
        4, "micro-batches whose gradients are added before an update", low=1, high=32
    )
    spread: float = knob(
        16.0,
        "the longest sequence over the shortest; 1: all of one length",
        low=1,
        high=16,
        step=0.5,
    )
    micro_batches: int = knob(
        10,
        "micro-batches in all; where they do not divide, the last window ends early",
        low=1,
        high=200,
    )
    rule: str = knob(
        "token-weighted", "what each micro-batch's summed loss is divided by", choices=tuple(RULES)
    )
    clip: float = knob(
        0.0,
        "largest norm of an update's gradient; 0: it is not clipped",
        low=0,
        high=100,
        step=0.1,
        more=True,
    )
    compare: bool = knob(
        True,
        "take each window as one large batch too, beside the run, and compare the gradients",
        more=True,
    )
    varied: ClassVar[dict] = {
        "learning_rate": 0.01,
        "layers": {"default": 2, "high": 48},
        "width": 32,
        "sequence": {"help": "tokens (bytes of text) that a sequence is padded to"},
    }

    # -- what the settings mean --------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return -(-self.micro_batches // self.accumulation)

    def windows(self) -> list[tuple[int, ...]]:
        """The numbers of each update's micro-batches."""
        return list(windows(range(self.micro_batches), self.accumulation))

    def lengths(self, spread: float) -> list[int]:
        """Tokens that count in a sequence of each micro-batch of a window: from the shortest to the
        longest, by equal factors."""
        last = max(self.accumulation - 1, 1)
        return [max(1, round(self.sequence * spread ** (i / last - 1))) for i in range(last + 1)][
            -self.accumulation :
        ]

    def tokens(self, spread: float | None = None) -> list[int]:
        """Tokens of each micro-batch of a whole window, or of all that there are."""
        return [self.sequences * length for length in self.lengths(spread or self.spread)][
            : self.micro_batches
        ]

    def describe(self) -> str:
        tokens = self.tokens()
        told = (
            ", ".join(map(str, tokens))
            if len(tokens) <= MOST_LISTED
            else f"{tokens[0]} .. {tokens[-1]}"
        )
        return (
            f"{self.steps} update{'s' * (self.steps > 1)} of a model of"
            f" {size(self.dry.start['weights'] / self.config.item_bytes, '')} parameters; in"
            f" a window {len(tokens)} micro-batch{'es' * (len(tokens) > 1)} of {told} tokens"
            f"{', padded' * (len({*tokens}) > 1)}"
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What a token of each micro-batch counts, and the error to expect by spread and by update:
        see techniques/accumulate.py."""
        return {
            **super().facts,
            "tokens": self.tokens(),
            "counts": {name: token_counts(rule, self.tokens()) for name, rule in RULES.items()},
            "spread": self.spread,
            "expected": [
                [spread, noise_error(mean_of_means, self.tokens(spread))] for spread in SPREADS
            ],
            "noise": [
                noise_error(mean_of_means, self.tokens()[: len(window)])
                for window in self.windows()
            ],
        }

    # -- theory ------------------------------------------------------------------------------------

    shapes: ClassVar[tuple[str, ...]] = (
        "sequences",
        "layers",
        "width",
        "heads",
        "fused_attention",
        "sequence",
        "dtype",
        "optimizer",
        "clip",
    )
    slots: ClassVar[dict] = {
        "F": 1,
        "B": 2,
        "U": Fraction(1, 2),
    }  # an update reads and writes weights, whatever the batch: here, enough to be seen

    @property
    def pieces(self) -> tuple[int, int]:
        """Micro-batches of the dry run's windows: a window's second is as all after it, and the
        second window as all after it."""
        inside = min(self.accumulation, self.micro_batches, 2)
        return inside, (
            min(inside, self.micro_batches - self.accumulation)
            if self.steps == 2
            else inside * (self.steps > 1)
        )

    def shaped(self) -> dict[str, Any]:
        inside, later = self.pieces
        return {name: getattr(self, name) for name in self.shapes} | {
            "accumulation": inside,
            "micro_batches": inside + later,
            "compare": False,
        }

    def like(self, action: Action) -> Action:
        window, place = divmod(action.micro_batch, self.accumulation)
        count, before = self.pieces[min(window, 1)], self.pieces[0] if window else 0
        return action._replace(
            micro_batch=before + (count - 1 if action.kind == "U" else min(place, count - 1))
        )

    def activations(self, times: int = 1) -> int:
        """Bytes that a forward of so many micro-batches at once saves; the summed loss keeps one
        number, of how many tokens it is."""
        one = self.config.item_bytes
        return times * (self.acted(F(0, 0)[0]).after["activations"] - one) + one

    def order(self) -> list[Step]:
        return [
            step
            for window in self.windows()
            for step in (*(each for n in window for each in (F(0, n), B(0, n))), U(0, window[-1]))
        ]

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        time, peak, _ = super().quantities
        whole = self.activations(min(self.accumulation, self.micro_batches))
        noise = 100 * noise_error(mean_of_means, self.tokens())
        return (
            time,
            peak,
            Quantity("peak memory", "B", peak_bytes),
            Quantity("activations, peak", "B", lambda t: t.peak_bytes(0, "activations")),
            Quantity(
                "activations, window in one pass",
                "B",
                lambda t: whole if t.clock == "predicted" else None,
            ),
            Quantity(
                "gradient off by, token-weighted",
                "%",
                lambda t: (
                    0.0
                    if t.clock == "predicted"
                    else self.of_whole_windows(t, "error, token-weighted", 100)
                ),
                exact=False,
            ),
            Quantity(
                "gradient off by, mean of means, expected",
                "%",
                lambda t: noise if t.clock == "predicted" else None,
            ),
            Quantity(
                "gradient off by, mean of means",
                "%",
                lambda t: self.of_whole_windows(t, "error, mean of means", 100),
                exact=False,
            ),
            Quantity(
                "cosine, mean of means",
                "",
                lambda t: self.of_whole_windows(t, "cosine, mean of means"),
                exact=False,
            ),
            Quantity("loss, mean of last update", "", self.last_loss, exact=False),
        )

    def last_loss(self, trace: Trace) -> float | None:
        """Of the last update that is done; None where there is none."""
        losses = self.by_update([event.value for event in trace.where(Scalar, name="loss")])
        return losses[-1] if losses else None

    def of_whole_windows(self, trace: Trace, name: str, times: float = 1.0) -> float | None:
        """The mean of what a run logged under a name, of its whole windows where there are any."""
        values = [e.value for e in trace.where(Scalar, name=name)][
            : self.micro_batches // self.accumulation or None
        ]
        return times * sum(values) / len(values) if values else None

    relief: ClassVar[str] = (
        "Fewer sequences in a micro-batch, and more micro-batches for the same window, would"
        " need less."
    )

    def why(self, trace: Trace) -> Iterable[str]:
        saved, k, counts = (
            self.activations(),
            min(self.accumulation, self.micro_batches),
            token_counts(mean_of_means, self.tokens()),
        )
        yield "Token-weighted it is the same: each token counts once."
        yield (
            f"One micro-batch's activations are alive at a time, {size(saved)}; the window in one"
            f" pass would hold {size(self.activations(k))}."
        )
        if max(counts) > min(counts):
            yield (
                f"By the mean of means a token of the shortest micro-batch counts {max(counts):.2f}"
                f" times what it should, one of the longest {min(counts):.2f} times. Where tokens'"
                " gradients are noise its gradient is off by about"
                f" {noise_error(mean_of_means, self.tokens()):.0%}; where they agree, as in the"
                " first updates, by less."
            )
        if over := self.micro_batches % self.accumulation:
            yield (
                f"The last update is made of {over} micro-batch{'es' * (over > 1)}, not"
                f" {self.accumulation}, and divides by their tokens."
            )

    # -- reality -----------------------------------------------------------------------------------

    def micro_batch(self, number: int) -> "train.Sample":
        """(inputs, targets), each (sequences, sequence): the same text whatever the window, its
        tail left out of the targets."""
        ids, targets = data.chosen_text(self.text).batch(
            self.seed, 0, number, self.sequences, self.sequence
        )
        length = self.lengths(self.spread)[number % self.accumulation]
        return train.Sample(
            ids, targets.masked_fill(torch.arange(self.sequence) >= length, IGNORED)
        )

    @property
    def recipe(self) -> "train.Recipe":
        return train.Recipe(
            model=lambda stage: models.GPT(self.config, seed=self.seed),
            data=self.micro_batch,
            loss=mean,
            clip=self.clip or None,
            optimizer=self.optimizer_class.at(self.learning_rate),
            steps=self.steps,
            samples=self.micro_batches,
            micro_batches=min(self.accumulation, self.micro_batches),
            weights=lambda window: shares(self.rule, [counting(each.targets) for each in window]),
        )

    def by_update(self, losses: Sequence[float]) -> list[float]:
        """The loss of each update that is done, of those of its micro-batches."""
        lengths = self.lengths(self.spread)
        return [
            sum(
                share * losses[n]
                for n, share in zip(
                    window, shares(self.rule, [lengths[n % self.accumulation] for n in window])
                )
            )
            for window in self.windows()
            if window[-1] < len(losses)
        ]

    def program(self, rank) -> "dict[str, np.ndarray]":
        trained = train.train(
            self.recipe, rank, BesideLarge(self, rank) if self.compare else train.Lens()
        )
        return self.recipe.arrays(trained.weights, self.by_update(trained.losses))

    def reference(self) -> "dict[str, np.ndarray]":
        """Each window as one large batch, in one pass; every token weighted as the rule says."""

        def large_batch(number: int) -> "train.Sample":
            window = [self.micro_batch(n) for n in self.windows()[number]]
            return train.Sample(*(torch.cat([each[i] for each in window]) for i in (0, 1)))

        def loss(logits, targets):
            parts = targets.split(self.sequences)
            factors = RULES[self.rule]([counting(part) for part in parts])
            sums = mean(logits, targets, "none").view(len(parts), -1).sum(1)
            return (sums * torch.tensor(factors, dtype=self.config.torch_dtype)).sum()

        return replace(
            self.recipe,
            data=large_batch,
            loss=loss,
            weights=None,
            micro_batches=1,
            samples=self.steps,
        ).reference()


def shares(rule: str, tokens: Sequence[int]) -> list[float]:
    """What the mean loss of each micro-batch is multiplied by: each of its tokens counts as the
    rule says."""
    return [factor * count for factor, count in zip(RULES[rule](tokens), tokens)]


def mean(
    logits_BSV: "torch.Tensor", targets_BS: "torch.Tensor", reduction: str = "mean"
) -> "torch.Tensor":
    """The mean loss over the tokens that count."""
    return torch.nn.functional.cross_entropy(
        logits_BSV.flatten(0, 1), targets_BS.flatten(), ignore_index=IGNORED, reduction=reduction
    )


def counting(targets: "torch.Tensor") -> int:
    return int((targets != IGNORED).sum())


class BesideLarge(train.Lens):
    """Beside the run each window is taken as one large batch too: how far is each rule's gradient
    from that?"""

    def window(self, number, stages, samples):
        with self.rank.aside():
            found = compared(stages[0], samples)
        for name, value in found.items():
            self.rank.log(name, value)
        return super().window(number, stages, samples)


def compared(model: "torch.nn.Module", batch: "Sequence[train.Sample]") -> dict[str, float]:
    """How far each rule's gradient is from that of the window as one large batch: |g' - g| / |g|,
    and the cosine between them."""

    def gradient(loss):
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    tokens = [counting(each.targets) for each in batch]
    large = gradient(
        mean(
            model(torch.cat([each.inputs for each in batch])),
            torch.cat([each.targets for each in batch]),
        )
    )
    parts = [gradient(mean(model(each.inputs), each.targets, "sum")) for each in batch]
    told = {}
    for name, rule in RULES.items():
        found = sum(factor * part for factor, part in zip(rule(tokens), parts))
        told |= {
            f"error, {name}": float((found - large).norm() / large.norm()),
            f"cosine, {name}": float(torch.nn.functional.cosine_similarity(found, large, dim=0)),
        }
    return told
