"""What do old weights do to the gradient, the memory and the loss?

Stages of small tanh layers learn a fixed random network, each micro-batch an update (2BW: each
batch), on ranks that use the versions their schedule gives them. A delay of tau updates is stable
on a quadratic of curvature lambda only for
    lr * lambda < 2 sin(pi / (2 (2 tau + 1))):     2, 1, 0.618, 0.445 for tau = 0, 1, 2, 3.
Source: Narayanan et al. 2019, PipeDream (SOSP 2019), section 3.3; the bound is that of w(t+1) =
w(t) - lr lambda w(t-tau).
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, lru_cache
from math import nan
from typing import ClassVar

from .. import models, techniques, train
from ..core import Scalar, Trace, counted, knob, refuse
from ..core.later import torch
from ..order import Schedule
from ..runtime.kept import kept
from .experiment import Quantity
from .pipelined import Pipelined

MOST_PRODUCTS = 2 * 10**9  # of a training in one process: it takes a fraction of a second


class Staleness(Pipelined):
    name: ClassVar[str] = "staleness"
    figures: ClassVar[tuple[str, ...]] = (*Pipelined.figures, "curves")
    curves: ClassVar[dict[str, str]] = {"loss": "loss of each micro-batch"}
    answers: ClassVar[tuple[str, ...]] = (
        "loss, mean of last batch",
        "loss, weights never old",
        "peak memory, fullest rank",
    )
    question: ClassVar[str] = "What do old weights do to the gradient, the memory and the loss?"

    schedule: str = knob(
        "pipedream", "which versions a micro-batch uses", choices=lambda: Schedule.all()
    )
    ranks: int = knob(4, "stages, one a rank", low=1, high=8)
    learning_rate: float = knob(1.0, "step size of plain SGD", low=0.01, high=16, logarithmic=True)
    micro_batches: int = knob(8, "micro-batches in a batch", low=1, high=32)
    stashing: bool = knob(True, "PipeDream: a backward uses the weight version of its forward")
    steps: int = knob(5, "batches of a run", low=1, high=100, more=True)
    width: int = knob(16, "width of each layer", low=2, high=256, more=True)
    rows: int = knob(32, "samples in a micro-batch", low=1, high=512, unit="samples", more=True)
    seed: int = knob(0, "seed of weights, teacher and samples", low=0, high=2**31 - 1, more=True)

    def model_post_init(self, facts):
        super().model_post_init(facts)
        refuse(
            (
                self.order.stages != self.ranks,
                f"{self.schedule} holds several stages on a rank, and this experiment has one: take"
                " another schedule.",
            )
        )

    hardware: ClassVar[str] = "unit"

    def stage_run(self, number: int, rehearsal: "train.Rehearsal") -> "train.Part":
        return layer_run(self.width, self.rows, number > 0, number < self.ranks - 1, rehearsal)

    @property
    def recipe(self) -> "train.Recipe":
        return training(
            self.ranks,
            self.width,
            self.samples,
            self.learning_rate,
            self.seed,
            schedule=self.order,
            steps=self.steps,
        )

    def samples(self, micro_batch: int) -> "train.Sample":
        """The teacher has the student's shape and other weights."""
        inputs = torch.randn(
            self.rows,
            self.width,
            generator=torch.Generator().manual_seed(self.seed * 1_000_003 + micro_batch),
            dtype=torch.float64,
        )
        with torch.no_grad():
            return train.Sample(inputs, teacher_of(self.ranks, self.width, self.seed)(inputs))

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            *super().quantities,
            Quantity("loss, weights never old", "", self.prompt_loss, exact=False),
        )

    def prompt_loss(self, trace: Trace) -> float | None:
        """Mean of the last batch, of a run."""
        prompt, _ = self.beside(trace) if trace.where(Scalar, name="loss") else (None, "")
        return self.last_loss(prompt) if prompt else None

    def beside(self, trace: Trace) -> tuple[Trace | None, str]:
        """The same updates from weights that are never old, in one process."""
        count = self.steps * self.micro_batches
        if not self.delay(0) or count * self.ranks * self.rows * self.width**2 > MOST_PRODUCTS:
            return None, ""
        losses = iter(self.prompt_losses)
        events = [
            e._replace(value=next(losses, nan)) if isinstance(e, Scalar) and e.name == "loss" else e
            for e in trace
        ]
        return replace(trace, events=tuple(events)), "the same updates, weights never old"

    @cached_property
    def prompt_losses(self) -> list[float]:
        size = self.order.update_size
        prompt = replace(
            self.recipe,
            schedule=Schedule.named("1f1b")(self.ranks, size),
            steps=self.steps * self.micro_batches // size,
        )
        return prompt.alone().losses

    def describe(self) -> str:
        delays = ", ".join(f"{self.delay(stage)}" for stage in range(self.ranks))
        return f"delay of each stage, in updates: {delays}"

    def why(self, trace: Trace) -> Iterable[str]:
        if late := self.delay(0):
            stable = techniques.delayed_descent.largest_stable_rate(late) / 2
            yield (
                f"Stage 0 uses weights that are {counted(late, 'update')} old: on a parabola it can"
                f" learn at {stable:.0%} of the largest rate that fresh weights allow."
            )
        if self.fault == "none" and (prompt := self.prompt_loss(trace)) is not None:
            yield (
                f"The last batch has a loss of {self.last_loss(trace):.4g}; had weights never been"
                f" old, {prompt:.4g}."
            )
        yield from super().why(trace)


@lru_cache(maxsize=4)
def teacher_of(layers: int, width: int, seed: int):
    return models.layered_mlp(layers, width, seed=seed + 100, dtype=torch.float64)[0]


def training(
    stages: int, width: int, data, learning_rate: float = 0.1, seed: int = 0, **order
) -> "train.Recipe":
    return train.Recipe(
        model=lambda stage: models.layered_mlp(stages, width, stages, seed, torch.float64)[stage],
        data=data,
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda weights: torch.optim.SGD(weights, learning_rate),
        whole_names=True,
        **order,
    )


@kept
def layer_run(
    width: int, rows: int, stage: bool, after: bool, rehearsal: "train.Rehearsal"
) -> "train.Part":
    """The dry run of a stage: one layer, which all in between are like."""
    x, stages = torch.zeros(rows, width, dtype=torch.float64), stage + 1 + after
    return train.rehearse(
        training(stages, width, lambda n: (x.clone(), x.clone())), rehearsal, stage, stages, x
    )
