"""With 64 times the chips, may I use 64 times the batch?

A run has a fixed number of samples, so a larger batch makes fewer updates, and each must take a
longer step. How much longer is a rule of thumb, scaled from one rate that suits a batch of 32. A
deep classifier of digits, or a byte-level GPT, is trained by a rule of the user's choice; beside
it each layer's trust ratio, the length of its steps, and the accuracy on held-out samples are
logged. A batch is taken in micro-batches on one rank, or spread over replicas.
Source: You et al. 2019 (arXiv:1904.00962), section 4; Goyal et al. 2017 (arXiv:1706.02677), 2.1.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from .. import data, models, techniques, train
from ..core import Scalar, Span, Trace, knob, refuse
from ..core.later import torch
from ..data.digits import CLASSES, PASS, POINTS, digits
from ..order import (
    ACCURACY,
    STEP,
    TEST_LOSS,
    TRUST,
    Plan,
    Schedule,
    last,
    of_layers,
    samples,
    sent_bytes,
)
from ..runtime.kept import kept
from .experiment import Quantity
from .replicated import Replicated

BASE = 32  # the batch whose rate the settings give
SCALINGS = {
    "square-root": techniques.learning_rates.square_root_scaling,
    "linear": techniques.learning_rates.linear_scaling,
    "none": lambda rate, batch, base: rate,
}
LOOKS, EVALUATIONS = 128, 40  # of a run, at most
RATE = "learning rate"
EXAMINED = 256  # held-out sequences of text
SHAPES = (
    "optimizer",
    "task",
    "layers",
    "width",
    "norm",
    "sequence",
    "dtype",
)


class Looks(train.Lens):
    """On rank 0: how far each layer moves in an update, by which trust ratio, and how good the
    model is by then."""

    def __init__(self, lab, rank):
        self.lab, self.rank = lab, rank
        self.looked, self.evaluated = (
            {*each} if rank.index == 0 else set() for each in (lab.looked, lab.evaluated)
        )

    def begin(self, training):
        (self.model,), (self.optimizer,) = training.stages.values(), training.optimizers
        self.matrices = {
            name.removesuffix(".weight").removesuffix(".linear"): weight
            for name, weight in self.model.named_parameters()
            if weight.dim() > 1
        }
        return super().begin(training)

    def gradient(self, number, precision):
        if number + 1 in self.looked:
            with self.rank.aside():
                self.before = {
                    name: weight.detach().clone() for name, weight in self.matrices.items()
                }

    def updated(self, number, precision, stepped):
        with self.rank.aside():
            found = self.moved() if number + 1 in self.looked else {}
            found |= quality(self.model, self.lab.examined) if number + 1 in self.evaluated else {}
        for name, value in found.items():
            self.rank.log(name, value)

    def moved(self) -> dict[str, float]:
        """The rate, and of each layer its trust ratio, 1 where the optimizer has none, and |step| /
        |weights|."""
        ratios = getattr(self.optimizer, "trust_ratios", {})
        rate = {RATE: float(self.optimizer.param_groups[0]["lr"])}
        return (
            rate
            | {TRUST + name: ratios.get(weight, 1.0) for name, weight in self.matrices.items()}
            | {
                STEP + name: float((weight.detach() - was).norm() / was.norm())
                for (name, weight), was in zip(self.matrices.items(), self.before.values())
            }
        )


class LargeBatch(Replicated):
    name: ClassVar[str] = "large-batch"
    question: ClassVar[str] = "With 64 times the chips, may I use 64 times the batch?"
    figures: ClassVar[tuple[str, ...]] = ("curves", "trust", "learning", "rivals")
    rivals_by: ClassVar[str] = "batch"
    rivals_take: ClassVar[str] = "the whole run"
    curves: ClassVar[dict[str, str]] = {
        "loss": "loss, held out; thin: training",
        TEST_LOSS: "loss, held out; thin: training",
        ACCURACY: ACCURACY,
        RATE: RATE,
    }
    answers: ClassVar[tuple[str, ...]] = ("test accuracy, last", "updates", "the whole run")
    lens = Looks
    must_exist: ClassVar[tuple[str, ...]] = ("rate",)

    batch: int = knob(
        2048, "samples of an update", low=BASE, high=8192, logarithmic=True, unit="samples"
    )
    optimizer: str = knob("lamb", "the rule of the update", choices=train.Optimizer.all)
    scaling: str = knob(
        "square-root",
        "what the rate is multiplied by where a batch is k times 32: sqrt(k), k or 1",
        choices=tuple(SCALINGS),
    )
    learning_rate: float = knob(
        3e-3, "the rate at a batch of 32", low=1e-5, high=10, logarithmic=True
    )
    replicas: int = knob(1, "ranks that share each batch", low=1, high=8, logarithmic=True)
    warm_up: float = knob(
        0.1,
        "share of the updates in which the rate rises to its full height; it falls to 0 in the"
        " others",
        low=0,
        high=1,
        step=0.05,
        more=True,
    )
    samples: int = knob(
        2**18,
        "samples of the run, whatever the batch",
        low=1024,
        high=2**22,
        logarithmic=True,
        unit="samples",
        more=True,
    )
    task: str = knob(
        "digits",
        "images of digits, or the next byte of a text",
        choices=("digits", "text"),
        more=True,
    )
    layers: int = knob(8, "hidden layers, or transformer blocks", low=1, high=24, more=True)
    width: int = knob(64, "width of the model", low=16, high=1024, step=16, more=True)
    norm: str = knob(
        "none",
        "normalisation between the layers of the classifier",
        choices=("none", "batch"),
        more=True,
    )
    sequence: int = knob(32, "bytes of text in a sample", low=4, high=256, unit="bytes", more=True)
    at_once: int = knob(
        2048,
        "samples that a rank computes at once: a larger share of a batch comes in micro-batches",
        low=4,
        high=8192,
        logarithmic=True,
        unit="samples",
        more=True,
    )
    target: float = knob(
        0.9, "accuracy on held-out samples to be reached", low=0, high=1, step=0.01, more=True
    )
    dtype: str = knob(
        "float32",
        "number format of weights and activations",
        choices=("float32", "float64"),
        more=True,
    )
    varied: ClassVar[dict] = {
        "hardware": "rtx3090-pcie",
    }

    def model_post_init(self, facts):
        super().model_post_init(facts)
        refuse(
            (
                self.batch > self.samples,
                f"A batch of {self.batch:,} is more than the {self.samples:,} samples of the run:"
                " take more samples, or a smaller batch.",
            ),
            (
                self.batch % (self.replicas * self.micro_batches),
                f"A batch of {self.batch:,} cannot be cut into {self.replicas} x"
                f" {self.micro_batches} equal micro-batches: take a multiple of"
                f" {self.replicas * self.micro_batches}, or other numbers of them.",
            ),
        )

    unused: ClassVar[tuple] = (
        ("task", lambda name: name == "digits", {"sequence"}),
        ("task", lambda name: name == "text", {"norm"}),
    )

    # -- what the settings mean --------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return self.samples // self.batch

    @property
    def micro_batches(self) -> int:
        """Of a replica."""
        return max(1, -(-self.batch // (self.replicas * self.at_once)))

    @property
    def rows(self) -> int:
        """Samples of a micro-batch."""
        return self.batch // (self.replicas * self.micro_batches)

    @property
    def full_rate(self) -> float:
        """The highest rate of the run."""
        return SCALINGS[self.scaling](self.learning_rate, self.batch, BASE)

    @cached_property
    def rate(self) -> Callable[[int], float]:
        """Of an update, counted from 1; that of the last one is above 0."""
        rising = round(self.warm_up * self.steps)
        rates = techniques.learning_rates
        falling = rates.polynomial_decay(self.full_rate, self.steps - rising + 1)
        return rates.warm_up(self.full_rate, rising, after=falling) if rising else falling

    @cached_property
    def looked(self) -> list[int]:
        """The updates, from 1 on, at which the layers are looked at."""
        return evenly(self.steps, LOOKS)

    @cached_property
    def evaluated(self) -> list[int]:
        return evenly(self.steps, EVALUATIONS)

    @cached_property
    def order(self) -> Schedule:
        return Schedule.named(self.schedule)(1, self.micro_batches)

    @property
    def facts(self) -> dict[str, Any]:
        """Which updates were looked at, and what pictures need beside what was logged."""
        return {
            **super().facts,
            "looked": self.looked,
            "evaluated": self.evaluated,
            "rates": [self.rate(update) for update in self.looked],
            "pass": self.a_pass,
        }

    @property
    def a_pass(self) -> int:
        """Samples of one pass over the data."""
        return PASS if self.task == "digits" else text_bytes() // self.sequence

    def describe(self) -> str:
        at = f" of {self.micro_batches} x {self.rows}" if self.micro_batches > 1 else ""
        return (
            f"{self.samples / self.a_pass:.3g} passes over {self.a_pass:,} samples, in"
            f" {self.steps:,} updates{at}; the rate rises to {self.full_rate:.3g}"
        )

    # -- the training ------------------------------------------------------------------------------

    @property
    def recipe(self) -> "train.Recipe":
        return train.Recipe(
            model=lambda stage: self.model(),
            data=self.micro_batch,
            loss=loss_of,
            optimizer=self.optimizer_class.at(self.learning_rate),
            learning_rate=self.rate,
            steps=self.steps,
            micro_batches=self.micro_batches,
            schedule=self.order,
            replicas=self.replicas,
        )

    def model(self) -> "torch.nn.Module":
        if self.task == "digits":
            return models.Classifier(
                POINTS,
                self.width,
                self.layers,
                CLASSES,
                self.norm,
                self.seed,
                getattr(torch, self.dtype),
            )
        return models.GPT(
            models.GPTConfig(
                layers=self.layers,
                width=self.width,
                heads=4,
                sequence=self.sequence,
                dtype=self.dtype,
            ),
            self.seed,
        )

    def micro_batch(self, number: int) -> "tuple[torch.Tensor, torch.Tensor]":
        """The same samples in the same order, whatever the batch."""
        return self.stream(number * self.rows, self.rows)

    def stream(self, first: int, count: int) -> "tuple[torch.Tensor, torch.Tensor]":
        if self.task == "digits":
            return digits(self.dtype).batch(self.seed, first, count)
        blocks = range(first // BASE, -(-(first + count) // BASE))
        drawn = zip(
            *(texts()[0].batch(self.seed, 0, block, BASE, self.sequence) for block in blocks)
        )
        return tuple(torch.cat(parts)[first % BASE :][:count] for parts in drawn)

    @property
    def examined(self) -> "tuple[torch.Tensor, torch.Tensor]":
        """Samples that no run learns from."""
        return (
            digits(self.dtype).test
            if self.task == "digits"
            else texts()[1].batch(0, 0, 0, EXAMINED, self.sequence)
        )

    # -- theory ------------------------------------------------------------------------------------

    def stage_run(self, number: int, rehearsal: "train.Rehearsal") -> "train.Part":
        settled = tuple(self.shaped.items()), self.members(self.shaped), rehearsal
        return train.along(rehearsed, settled, (self.rows,), (1,), (1,))

    @property
    def shaped(self) -> dict[str, Any]:
        """The settings of the dry run: those that decide shapes, for two replicas at most."""
        return {name: getattr(self, name) for name in SHAPES} | {"replicas": min(self.replicas, 2)}

    @cached_property
    def lowered(self) -> Plan:
        stages = {0: shapes(tuple(self.shaped.items()), self.members(self.shaped))}
        return techniques.replica_plan.with_replicas(self.order, self.steps, self.replicas, stages)

    def predict(self) -> Trace:
        """Also the rate of the updates that a run looks at."""
        trace = super().predict()
        begins = [event.start for event in trace.where(Span, rank=0, kind="U")]
        rates = [
            Scalar(0, "compute", "scalar", RATE, begins[update - 1], self.rate(update))
            for update in self.looked
        ]
        return Trace.of([*trace.events, *rates], **trace.header())

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            Quantity("updates", "", lambda t: t.steps),
            Quantity("step time", self.profile.unit, lambda t: t.step_time),
            Quantity("the whole run", self.profile.unit, lambda t: t.makespan),
            Quantity("bytes sent a rank and update", "B", sent_bytes),
            Quantity("peak memory, between actions", "B", lambda t: t.peak_bytes(0)),
            Quantity(
                "test accuracy, last",
                "%",
                lambda t: 100 * of if (of := last(t, ACCURACY)) is not None else None,
                exact=False,
            ),
            Quantity(f"updates to {self.target:.0%}", "", self.updates_to_target, exact=False),
            Quantity("test loss, last", "", lambda t: last(t, TEST_LOSS), exact=False),
        )

    def updates_to_target(self, trace: Trace) -> int | None:
        """Of the first evaluation that reaches the target."""
        found = zip(self.evaluated, samples(trace, ACCURACY))
        return next((update for update, value in found if value >= self.target), None)

    def rivals(self) -> dict[str, dict[str, Any]]:
        """The small batch, and this one."""
        return {
            f"{batch:,}, {self.samples // batch:,} updates": {"batch": batch}
            for batch in sorted({BASE, self.batch})
        }

    def shown(self, figure: str, trace: Trace, pinned: Trace | None = None) -> Any:
        """By passes over the data, beside what is pinned."""
        return [trace, pinned] if figure == "learning" and pinned else trace

    relief: ClassVar[str] = "Fewer samples at once would need less."

    def why(self, trace: Trace) -> Iterable[str]:
        times, steps = self.batch / BASE, of_layers(trace, STEP)
        if steps:
            reached, wanted = (
                self.updates_to_target(trace),
                f"{self.target:.0%} of the held-out samples",
            )
            yield (
                f"It reached {wanted} at update {reached:,} of {self.steps:,}."
                if reached
                else f"It never reached {wanted}."
            )
        if times > 1:
            yield (
                f"A batch of {self.batch:,} makes {times:g} times fewer updates than one of {BASE},"
                f" and by the {self.scaling} rule each has"
                f" {self.full_rate / self.learning_rate:.3g} times the rate: together they can go"
                f" {times * self.learning_rate / self.full_rate:.3g} times less far."
            )
        if steps:
            middle = len(self.looked) // 2
            own = [values[middle] for values in steps.values()]
            least, most = f"{min(own):.2%}", f"{max(own):.2%}"
            yield (
                f"In update {self.looked[middle]:,}, at a rate of"
                f" {self.rate(self.looked[middle]):.3g}, a layer moved by"
                f" {least if least == most else f'{least} to {most}'} of the length of its weights."
            )


def evenly(count: int, most: int) -> list[int]:
    """At most so many of 1 .. count, the last among them."""
    every = -(-count // most)
    return [*range(count, 0, -every)][::-1]


@kept
def rehearsed(
    settings: tuple[tuple[str, Any], ...],
    members: tuple[type, ...],
    rehearsal: "train.Rehearsal",
    sizes: tuple[int],
) -> "train.Part":
    """The dry run of the model, on one of the replicas, without data. `members`: the classes that
    the settings name; `sizes`: the samples of a micro-batch."""
    lab = LargeBatch(**dict(settings))
    text = (*sizes, lab.sequence), torch.int64
    image = (*sizes, POINTS), getattr(torch, lab.dtype)
    given = [image, (sizes, torch.int64)] if lab.task == "digits" else [text, text]
    recipe = replace(
        lab.recipe,
        data=lambda number: tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in given),
        micro_batches=1,
        schedule="1f1b",
        steps=1,
    )
    return train.rehearse(recipe, rehearsal, 0, 1)


@kept
def shapes(
    settings: tuple[tuple[str, Any], ...], members: tuple[type, ...]
) -> "techniques.weight_shapes.Shapes":
    """The weights of the model."""
    return techniques.weight_shapes.Shapes.of(
        models.built(LargeBatch(**dict(settings)).model, torch.device("meta"))
    )


@kept
def text_bytes() -> int:
    """Of the text to learn from."""
    return len(texts()[0])


@lru_cache(maxsize=1)
def texts() -> "tuple[data.ByteText, data.ByteText]":
    """Nine tenths of Python's help, to learn from, and the rest."""
    whole = data.chosen_text("").content
    cut = len(whole) * 9 // 10
    return data.ByteText(whole[:cut]), data.ByteText(whole[cut:])


def loss_of(output: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    return torch.nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten())


def quality(
    model: "torch.nn.Module", examined: "tuple[torch.Tensor, torch.Tensor]"
) -> dict[str, float]:
    """Loss and accuracy on samples that no run learns from."""
    inputs, targets = (each.to(next(model.parameters()).device) for each in examined)
    model.eval()
    with torch.no_grad():
        output = model(inputs)
    model.train()
    return {
        TEST_LOSS: loss_of(output, targets).item(),
        ACCURACY: (output.argmax(-1) == targets).double().mean().item(),
    }
