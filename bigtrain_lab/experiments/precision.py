"""Just call .half()? What each level of mixed precision costs, saves and breaks.

A BERT-style encoder learns which of 21 relations a sentence states between two marked names
(data/relations.py). Each level's memory, time and state are predicted, and a run looks at its own
gradients.

The modelled clock charges products at the device's rate for the level's format, and every other
operator at memory speed, each value in the format that it has; a cast is an operator of its own. A
step that the loss scaler skips is charged as any other.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from .. import data, models, runtime, techniques, train
from ..core import Mesh, Trace, knob, refuse, size
from ..core.later import np, torch
from ..order import Action, Step, checkpoint_bytes, last, peak_bytes, reading_rate
from ..techniques.precision_levels import LEVELS
from .experiment import Quantity
from .one_device import OneDevice

WEIGHT_GRADIENT, ACTIVATION_GRADIENT = "weight gradient", "activation gradient"
READ = 64  # sentences of one inference
BREAKS = {  # what a level without one of the safeguards suffers from
    "fp16-no-scaling": (
        "Nothing lifts small gradients above fp16's smallest number, 2^-24: what is below half of"
        " it is 0 in the backward."
    ),
    "fp16-no-masters": (
        "Adam's moments and eps are fp16 like the weights: eps 1e-8 is 0 there, and so is 0.001 of"
        " the square of a gradient below 5.5e-3; 0 / 0 is nan."
    ),
    "bf16-no-masters": (
        "A bf16 weight has 8 bits: a step smaller than 1/512 to 1/256 of it moves nothing, and"
        " 0.999 v rounds back to v."
    ),
    "fp16-pure": (
        "Weights, moments, softmax and sums are all fp16: eps 1e-8 is 0 there, a small gradient's"
        " square is 0, and 0 / 0 is nan."
    ),
}


class Precision(OneDevice):
    name: ClassVar[str] = "precision"
    question: ClassVar[str] = "Just call .half()? What breaks, and what does each safeguard cost?"
    figures: ClassVar[tuple[str, ...]] = ("rivals", "timeline", "memory", "exponents", "underflow")
    rivals_by: ClassVar[str] = "level"
    curves: ClassVar[dict[str, str]] = {"loss": "loss", "loss scale": "loss scale"}
    answers: ClassVar[tuple[str, ...]] = (
        "step time",
        "peak memory",
        "checkpoint",
    )

    level: str = knob(
        "fp16-pure", "which formats compute, and which safeguards are there", choices=tuple(LEVELS)
    )
    learning_rate: float = knob(
        1e-3, "step size of the optimizer", low=1e-6, high=1, logarithmic=True
    )
    loss_weight: float = knob(
        1.0,
        "factor on the loss: 1e-5 makes each gradient as small as in a mean over 100,000 times the"
        " batch",
        low=1e-9,
        high=1,
        logarithmic=True,
    )
    steps: int = knob(20, "training steps of a run", low=1, high=5000)
    loss_scale: float = knob(
        2.0**13,
        "first loss scale, where the level scales; torch's 65,536 overflows in the first step of"
        " some seeds",
        low=1,
        high=2**40,
        logarithmic=True,
        more=True,
    )
    growth_interval: int = knob(
        2000, "good steps before the loss scale doubles", low=1, high=10_000, more=True
    )
    optimizer: str = knob("adam", "the rule of the update", choices=train.Optimizer.all, more=True)
    rows: int = knob(32, "sentences in a batch", low=1, high=512, unit="sentences", more=True)
    layers: int = knob(2, "transformer blocks", low=1, high=24, more=True)
    width: int = knob(512, "width of the model", low=16, high=1024, step=16, more=True)
    heads: int = knob(4, "attention heads; they divide the width", low=1, high=16, more=True)
    train_size: int = knob(
        8192, "sentences that it learns from", low=8, high=65536, unit="sentences", more=True
    )
    dev_size: int = knob(
        256,
        "sentences, of names never met, that it is examined on",
        low=READ,
        high=8192,
        step=READ,
        unit="sentences",
        more=True,
    )
    every: int = knob(
        10,
        "steps from one look at all gradients to the next; 0: never",
        low=0,
        high=1000,
        more=True,
    )
    varied: ClassVar[dict] = {
        "hardware": {"default": "a100-nvlink", "more": False},
        "learning_rate": {},
        "loss_weight": {},
        "steps": {},
    }

    def model_post_init(self, facts):
        super().model_post_init(facts)
        speeds = [each for each in self.profile.flops_per_s if each != "float64"]
        refuse(
            (
                not self.profile.textbook and self.format not in speeds,
                f"{self.profile.name} states no speed for {self.format}, in which level"
                f" {self.level} computes: choose a level of {' or '.join(speeds)}, or other"
                " hardware.",
            )
        )
        self.config  # noqa: B018  (raises Impossible)

    unused: ClassVar[tuple] = (
        (
            "level",
            lambda name: name in LEVELS and not LEVELS[name].scaling,
            {"loss_scale", "growth_interval"},
        ),
    )

    # -- what the settings mean --------------------------------------------------------------------

    @cached_property
    def config(self) -> "models.EncoderConfig":
        return models.EncoderConfig(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            sequence=data.relations.LONGEST,
            vocabulary=len(data.vocabulary()),
            classes=len(data.grammar.CLASSES),
        )

    @property
    def format(self) -> str:
        """The name of the dtype in which products are computed."""
        return LEVELS[self.level].format

    @property
    def half(self) -> bool:
        return self.format != "float32"

    @property
    def data(self) -> "data.Relations":
        return relations(self.seed, self.train_size, self.dev_size)

    def describe(self) -> str:
        return (
            f"an encoder of {size(models.parameters(self.config), '')} weights at level"
            f" {self.level}; {self.rows} sentences a batch"
        )

    # -- theory ------------------------------------------------------------------------------------

    shapes: ClassVar[tuple[str, ...]] = ("level", "optimizer", "rows", "layers", "width", "heads")
    slots: ClassVar[dict] = {"F": 1, "B": 2, "U": 0, "A": 1}

    def shaped(self) -> dict[str, Any]:
        return super().shaped() | {
            "hardware": "unit",
            "every": 0,
            "train_size": 8,
            "dev_size": READ,
        }

    def like(self, action: Action) -> Action:
        return action._replace(micro_batch=0) if action.kind == "A" else super().like(action)

    @cached_property
    def bytes(self) -> dict[str, int]:
        """kind -> bytes, in full: weights and masters always, the others while they are there."""
        ends = [acted.after for acted in self.dry.actions.values()]
        return {
            kind: max(after.get(kind, 0) for after in ends)
            for kind in ("weights", "master", "gradients", "optimizer", "activations")
        }

    def order(self) -> Iterator[Step]:
        """The training, then one forward without a graph for each batch of dev sentences."""
        for step in range(self.steps):
            yield from ((Action(kind, 0, step),) for kind in "FBU")
        yield from ((Action("A", 0, number),) for number in range(self.dev_size // READ))

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            Quantity("step time", self.profile.unit, lambda t: t.step_time),
            Quantity(
                f"inference, {READ} sentences",
                self.profile.unit,
                lambda t: 1 / rate if (rate := reading_rate(t)) else None,
            ),
            Quantity(
                "peak memory, between actions", "B", lambda t: t.peak_bytes(0), apart=self.unmade
            ),
            Quantity(
                "peak memory",
                "B",
                peak_bytes,
                apart=lambda t: "a step was skipped" if last(t, "skipped steps") else "",
            ),
            Quantity("activations saved", "B", lambda t: t.peak_bytes(0, "activations")),
            Quantity("checkpoint", "B", checkpoint_bytes, apart=self.unmade),
            Quantity("micro F1", "", lambda t: last(t, "micro F1"), exact=False),
            Quantity("macro F1", "", lambda t: last(t, "macro F1"), exact=False),
            Quantity("skipped steps", "", lambda t: last(t, "skipped steps"), exact=False),
            Quantity("loss, last", "", lambda t: last(t, "loss"), exact=False),
        )

    def unmade(self, trace: Trace) -> str:
        """Why a run may hold less than was predicted."""
        return (
            "every step was skipped, so no optimizer state was made"
            if last(trace, "skipped steps") == self.steps
            else ""
        )

    @property
    def relief(self) -> str:
        return (
            ("" if self.half else "A level of half precision, ")
            + ("Fewer" if self.half else "fewer")
            + " rows or a smaller model would need less."
        )

    @property
    def breaks(self) -> str:
        return BREAKS.get(self.level, "")

    def why(self, trace: Trace) -> Iterator[str]:
        if self.breaks:
            yield self.breaks
        if skipped := last(trace, "skipped steps"):
            yield (
                f"{skipped:g} of {self.steps} steps were skipped, since a gradient was inf or nan;"
                f" the loss scale ended at {last(trace, 'loss scale'):g}. The prediction knows of"
                " no skipped step."
            )
        if self.half and LEVELS[self.level].masters:
            plain = self.replace(level="fp32").bytes
            yield (
                f"State in full takes {self.state_bytes / 1e6:.3g} MB, and"
                f" {self.replace(level='fp32').state_bytes / 1e6:.3g} MB in fp32: what shrinks is"
                f" what the forward saves, {self.bytes['activations'] / 1e6:.3g} MB instead of"
                f" {plain['activations'] / 1e6:.3g}."
            )

    @property
    def state_bytes(self) -> int:
        """Weights, masters, gradients and the optimizer's state."""
        return sum(size for kind, size in self.bytes.items() if kind != "activations")

    # -- reality -----------------------------------------------------------------------------------

    @property
    def recipe(self) -> "train.Recipe":
        scaler = techniques.DynamicLossScaler(
            self.loss_scale,
            growth_interval=self.growth_interval,
            half_gradients=not LEVELS[self.level].masters,
        )
        return train.Recipe(
            model=lambda stage: models.Encoder(self.config, self.seed),
            data=self.sample,
            loss=models.class_loss,
            steps=self.steps,
            optimizer=self.optimizer_class.at(self.learning_rate),
            precision=self.level,
            scaler=scaler if LEVELS[self.level].scaling else None,
            weights=lambda window: [self.loss_weight],
        )

    def sample(self, step: int) -> "train.Sample":
        ids, keep, marks, labels = self.data.batch(step, self.rows)
        return train.Sample(ids, labels, (keep, marks))

    def program(self, rank) -> "dict[str, np.ndarray]":
        """Train, then examine."""
        lens = Looks(self, rank)
        trained, answers = train.train(self.recipe, rank, lens), []
        for number in range(self.dev_size // READ):
            lens.batch = tuple(
                tensor.to(rank.device)
                for tensor in self.data.dev.at(slice(number * READ, (number + 1) * READ))
            )
            with rank.span(Action("A", 0, number), self.steps), torch.no_grad(), trained.precision:
                answers += trained.stages[0](*lens.batch[:3]).argmax(-1).tolist()
        found = data.f1(
            torch.tensor(answers),
            self.data.dev.labels_B[: len(answers)],
            range(1, len(data.grammar.CLASSES)),
        )
        rank.log("micro F1", found.micro)
        rank.log("macro F1", found.macro)
        return self.recipe.arrays(trained.weights, trained.losses) | {"F1": np.array(found[:2])}

    def reference(self) -> "dict[str, np.ndarray]":
        """The same program with nobody watching."""
        return self.program(runtime.Rank(0, Mesh(world=1), torch.device("cpu")))


class Looks(train.Lens):
    """All gradients every few steps, what the loss scaler does, and the sentences, which are no
    part of the training."""

    skipped, batch = 0, ()

    def inputs(self):
        return (*self.lab.data.train, *self.lab.data.dev, *self.batch)

    def looks(self, number: int) -> bool:
        return bool(self.lab.every) and number % self.lab.every == 0

    def window(self, number, stages, samples):
        return seen_gradients(stages[0], self.rank) if self.looks(number) else nullcontext()

    def gradient(self, number, precision):
        if self.looks(number):
            for name, parameter in precision.named_parameters():
                self.rank.histogram(f"{WEIGHT_GRADIENT} {name.removeprefix('0.')}", parameter.grad)

    def updated(self, number, precision, stepped):
        self.skipped += not stepped
        if precision.scaler:
            self.rank.log("loss scale", precision.scaler.get_scale())
        self.rank.log("skipped steps", self.skipped)


@contextmanager
def seen_gradients(model, rank):
    """While open, the gradient of each Linear's and block's output is counted as it comes, in the
    format it has."""

    def watch(name):
        def forward(module, given, output):
            if output.requires_grad:
                output.register_hook(
                    lambda gradient: rank.histogram(f"{ACTIVATION_GRADIENT} {name}", gradient)
                )

        return forward

    handles = [
        module.register_forward_hook(watch(name))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) or name.count(".") == 1
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@lru_cache(maxsize=4)
def relations(seed: int, train_size: int, dev_size: int) -> "data.Relations":
    return data.Relations(seed, train_size, dev_size)
