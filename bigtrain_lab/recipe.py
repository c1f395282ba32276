"""The one training loop: techniques surround each other here, and every lab is this loop with one of them under the lens.

    training = model x data x optimizer x {schedule, accumulation, precision, recompute, clip}

    for each window of micro-batches:
        F and B of each, in the schedule's order        pipeline.py; one device is a pipeline of one stage
        the gradient is unscaled and clipped            mixed_precision.py, clip.py
        the optimizer steps, weights follow masters     mixed_precision.py

Accumulation needs no line of its own: k micro-batches on one device are the schedule 1F1B of one rank. Nothing here is the
inside of a technique; each has its own file in techniques/.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from .recompute import Recompute
from .runtime import Run, launch
from .schedule import Schedule
from .techniques.accumulate import windows
from .techniques.checkpoint import recomputed
from .techniques.clip import clip_grad_norm
from .techniques.guards import recipe as guard
from .techniques.mixed_precision import DynamicLossScaler, Level, MixedPrecision
from .techniques.pipeline import Pipeline


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a training is made of. `train` carries it out on a rank; `.run()` starts the ranks.

    model          stage -> its module, with the weights that a run starts from; on one device stage 0 is the whole model
    data           micro-batch, numbered through the run -> (inputs, targets, *context); context goes to every stage's forward
    loss           (output, targets) -> scalar mean
    optimizer      parameters -> torch optimizer
    steps          updates of a run
    micro_batches  of an update: of a pipeline's batch, or of a window of gradient accumulation on one device
    samples        micro-batches of a run, where not steps x micro_batches: the last window takes what is left
    shares         window of samples -> share of each in the gradient; without it all are equal
    ranks          processes; a schedule of several cuts the model into stages
    schedule       a Schedule, or its name
    precision      level of mixed precision; None: the model's own formats
    scaler         a loss scaler, in place of the level's default
    recompute      a recompute plan, or (stage, x, *context) -> output; None: autograd keeps all that it saves
    clip           largest norm of the gradient; None: it is not clipped
    tied           name -> {stage: parameter}: weights of which several stages hold copies
    """

    model: Callable[[int], nn.Module]
    data: Callable[[int], Sequence]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable
    steps: int = 1
    micro_batches: int = 1
    samples: int | None = None
    shares: Callable[[Sequence], Sequence[float]] | None = None
    ranks: int = 1
    schedule: Schedule | str = "1f1b"
    precision: str | Level | None = None
    scaler: DynamicLossScaler | None = None
    recompute: str | Callable | None = None
    clip: float | None = None
    tied: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def __post_init__(self):
        guard.refuse(self)

    @cached_property
    def order(self) -> Schedule:
        """The schedule of one window; of a schedule that never drains, of the whole run."""
        chosen = self.schedule
        order = Schedule.named(chosen)(self.ranks, self.micro_batches) if isinstance(chosen, str) else chosen
        return order.lengthened(self.steps) if order.asynchronous else order

    @property
    def windows(self) -> list[tuple[int, ...]]:
        """The micro-batches of each window."""
        return list(windows(range(self.samples or self.steps * self.micro_batches), self.order.micro_batches))

    @property
    def forward(self) -> Callable | None:
        """How a stage is called, where not plainly."""
        return recomputed(self.recompute) if isinstance(self.recompute, (str, Recompute)) else self.recompute

    def program(self, rank) -> dict[str, np.ndarray]:
        """What a rank runs: the loop. Returns the final weights ("1.weight" of stage 1's "weight") and each micro-batch's loss."""
        trained = train(self, rank)
        apart = self.order.stages > 1
        weights = {f"{stage}.{name}" if apart else name: value for stage, module in trained.stages.items()
                   for name, value in trained.weights(module).items()}
        return weights | ({"loss": np.array(trained.losses)} if trained.losses else {})

    def run(self, **options) -> Run:
        """Start the ranks; options as for `launch`."""
        return launch(self.program, **{"ranks": self.order.ranks, "steps": self.steps, "name": "recipe", **options})


class Lens:
    """What a lab looks at while it trains. This one looks at nothing."""

    spans = True  # whether each action of the schedule is a span; else a lab opens its own

    def window(self, number: int, stages: Sequence[nn.Module], samples: Sequence):
        """Around all that is done for a window."""
        return nullcontext()

    def gradient(self, number: int, precision: MixedPrecision) -> None:
        """When the window's gradient is whole, and still scaled."""


class Trained(NamedTuple):
    """What a rank is left with: its stages by number and, where the last stage is, the loss of each micro-batch."""

    stages: dict[int, nn.Module]
    precision: MixedPrecision
    losses: list[float]

    def weights(self, *stages: nn.Module) -> dict[str, np.ndarray]:
        """Of these stages, else of all, by the names that they give them: masters, in place of weights that follow them."""
        named = ((name, self.precision.masters.get(p, p).detach()) for stage in stages or self.stages.values() for name, p in stage.named_parameters())
        return {name: (weight.float() if weight.itemsize < 4 else weight).cpu().numpy() for name, weight in named}


def train(recipe: Recipe, rank, lens: Lens = Lens()) -> Trained:
    """The loop."""
    group, order = rank.group(), recipe.order
    stages = {s: recipe.model(s).to(rank.device) for s in range(order.stages) if order.rank_of(s, 0) == group.rank}
    precision = MixedPrecision(recipe.precision, recipe.scaler, None if recipe.scaler else group)
    precision.prepare(nn.ModuleList(stages.values()))
    optimizer = None if order.asynchronous else recipe.optimizer(precision.parameters())
    samples, losses = {}, []

    def loss_fn(output, targets):
        loss = recipe.loss(output, targets)
        rank.log("loss", loss.item())
        return loss

    def update():
        lens.gradient(number, precision)
        precision.unscale_(optimizer)
        if recipe.clip:
            clip_grad_norm(precision.parameters(), recipe.clip, group, copies=pipeline.copies)
        precision.step(optimizer)
        precision.update()
        optimizer.zero_grad()

    def pipeline_of(order, after=None):
        return Pipeline(stages.values(), order, loss_fn, group, **{"optimizer": recipe.optimizer} if order.asynchronous else {"update": update},
                        scale=precision.scale if precision.scaler else None, forward=recipe.forward, context=lambda n: samples[n][2:],
                        tied=recipe.tied, after=after)

    def holdings():
        held = pipeline.holdings(*filter(None, [optimizer]))
        held["inputs"] |= {f"sample {n}, {i}": part for n, sample in samples.items() for i, part in enumerate(sample) if isinstance(part, Tensor)}
        return held

    pipeline = pipeline_of(order)
    rank.watch(holdings)
    for number, window in enumerate(recipe.windows):
        if len(window) < order.micro_batches:
            pipeline = pipeline_of(replace(order, micro_batches=len(window)), pipeline)
        samples = {n: [part.to(rank.device) if isinstance(part, Tensor) else part for part in recipe.data(n)] for n in window}
        with precision, lens.window(number, stages, samples):
            pipeline.step([x for x, *_ in samples.values()], [y for _, y, *_ in samples.values()],
                          recipe.shares(list(samples.values())) if recipe.shares else None)
        losses += [loss.item() for loss in pipeline.losses]
    return Trained(stages, precision, losses)
