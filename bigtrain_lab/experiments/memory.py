"""Where did the memory go? One device trains a GPT; every storage of every step is predicted from
shapes, then followed.

The prediction is a dry run of the same program, operator by operator, so it knows the peak inside
an action and what it is made of.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import ClassVar

from .. import data, models, train
from ..core import Impossible, Trace, counted, knob, readings, size
from ..order import Action, Step, last
from .experiment import Quantity
from .of_gpt import OfGPT
from .one_device import OneDevice

WORDS = {"F": "forward", "B": "backward", "U": "update"}
KINDS = ("weights", "gradients", "optimizer", "activations", "temporaries")


class MemoryExperiment(OfGPT, OneDevice):
    name: ClassVar[str] = "memory"
    question: ClassVar[str] = "Where did the memory go?"

    rows: int = knob(8, "samples in a batch", low=1, high=64, unit="samples")
    vocabulary: int = knob(
        4096, "tokens that the model could predict; the text uses 256 of them", low=256, high=32_000
    )
    tied: bool = knob(False, "embedding and output share one matrix", more=True)
    dropout: float = knob(0.0, "share of values that dropout zeroes", low=0, high=0.9, more=True)
    steps: int = knob(2, "training steps of a run", low=1, high=20, more=True)
    varied: ClassVar[dict] = {
        "layers": {"more": False},
        "width": {"default": 128, "more": False},
        "rows": {},
        "vocabulary": {},
        "optimizer": {"more": False},
    }

    @cached_property
    def account(self) -> "train.dry_run.Account":
        """Every storage of the run, from a dry run."""
        return train.dry_run.account(self.program)

    def describe(self) -> str:
        weights = self.dry.start["weights"]
        return (
            f"a model of {size(weights / self.config.item_bytes, '')} parameters,"
            f" {size(weights)}; a batch of {self.rows} x {self.sequence} bytes of text"
        )

    # -- theory ------------------------------------------------------------------------------------

    shapes: ClassVar[tuple[str, ...]] = (
        "layers",
        "width",
        "rows",
        "vocabulary",
        "optimizer",
        "sequence",
        "heads",
        "fused_attention",
        "tied",
        "dropout",
        "dtype",
    )
    slots: ClassVar[dict] = {
        "F": 1,
        "B": 2,
        "U": 1,
    }  # elsewhere an update is free; here there is much to see in it

    def order(self) -> Iterator[Step]:
        return ((Action(kind, 0, step),) for step in range(self.steps) for kind in "FBU")

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            *(
                Quantity(f"peak, step {step + 1}", "B", lambda t, step=step: peak_of(t, step))
                for step in range(min(2, self.steps))
            ),
            *(
                Quantity(f"{kind} at the peak", "B", lambda t, kind=kind: at_peak(t, kind))
                for kind in KINDS
            ),
            Quantity("step time", self.profile.unit, lambda t: t.step_time),
            Quantity("loss, last", "", lambda t: last(t, "loss"), exact=False),
        )

    @property
    def relief(self) -> str:
        smaller, chosen = [], self.optimizer_class.moments()
        for name, rule in train.Optimizer.all().items():
            with suppress(Impossible):  # one that cannot step
                smaller += [name] if rule.moments() < chosen else []
        return (
            "Take fewer rows or a shorter sequence"
            + (f", {' or '.join(smaller)} as optimizer" if smaller else "")
            + ", or a smaller model or vocabulary."
        )

    def excess(self, trace: Trace) -> list[str]:
        """A dry run sees into actions: which operator makes too much."""
        limit = self.capacity_bytes if trace.clock == "predicted" else None
        return [
            f"It does not fit: {name} in the {place(action)} would make {size(held)} of what is"
            f" held, and the device has {size(limit)}. {self.relief}"
            for action, name, held in self.dry.rises
            if limit and held > limit
        ][:1]

    def why(self, trace: Trace) -> Iterator[str]:
        dry = self.dry
        largest = ", ".join(f"{row.name} ({size(row.bytes)})" for row in dry.alive[:3])
        kinds = ", ".join(f"{kind} {size(held)}" for kind, held in dry.kinds().items())
        yield f"The peak of {size(dry.peak_bytes)} is in the {place(dry.peak_action)}: {kinds}."
        yield f"The largest that live then: {largest}."
        highest = {action[2:]: held for action, _, held in dry.rises}  # of each step that rose
        if len(highest) > 1:
            yield (
                f"Step 2 peaks {size(highest['1'] - highest['0'])} above step 1: the optimizer's"
                " state is born in the first update."
            )
        *_, update = dry.actions.values()
        weights = dry.start["weights"] // self.config.item_bytes
        launched = update.work.on_gpu(sum(row.kind == "weights" for row in dry.alive))
        yield (
            f"The update moves {launched.moved_bytes / weights:.3g} bytes a weight, by"
            f" {counted(launched.operators, 'operator')} on a GPU."
        )

    # -- reality -----------------------------------------------------------------------------------

    def sample(self, step: int) -> "train.Sample":
        inputs, targets = data.chosen_text(self.text).batch(
            self.seed, step, 0, self.rows, self.sequence
        )
        return train.Sample(inputs, targets, (models.Noise(self.seed, step, 0),))

    @property
    def recipe(self) -> "train.Recipe":
        return train.Recipe(
            model=lambda stage: models.GPT(self.config, self.seed),
            data=self.sample,
            loss=models.cross_entropy,
            optimizer=self.optimizer_class.at(self.learning_rate),
            steps=self.steps,
        )


def place(action: str) -> str:
    """In words: "backward of step 2" is 0B1."""
    return f"{WORDS[action[1]]} of step {int(action[2:]) + 1}" if action[1:2] in WORDS else "start"


def peak_of(trace: Trace, step: int) -> int | None:
    """Most bytes held in a step; None where the trace tells no levels inside its actions."""
    return max(
        (read.bytes for read in readings(trace, 0) if read.inside and read.action[2:] == str(step)),
        default=None,
    )


def at_peak(trace: Trace, kind: str) -> int | None:
    """Bytes of one kind when the most was held; None where the trace does not tell."""
    return (
        sum(row.bytes for row in alive if row.kind == kind) if (alive := trace.at_peak(0)) else None
    )
