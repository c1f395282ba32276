"""The one training loop: techniques surround each other here, and every lab is this loop with one of them under the lens.

    training = model x data x optimizer x {schedule, accumulation, precision, recompute, clip}

    for each window of micro-batches:
        F and B of each, in the schedule's order        pipeline.py; one device is a pipeline of one stage
        the gradient is unscaled and clipped            mixed_precision.py, clip.py
        the optimizer steps, weights follow masters     mixed_precision.py

Accumulation needs no line of its own: k micro-batches on one device are the schedule 1F1B of one rank. Nothing here is the
inside of a technique; each is a file of its own under techniques/.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from torch import Tensor, nn

from .runtime import Run, launch
from .schedule import Schedule
from .techniques import one_process
from .techniques.accumulate import windows
from .techniques.checkpoint import checkpointed
from .techniques.clip import clip_grad_norm
from .techniques.guards import recipe as guard
from .techniques.mixed_precision import DynamicLossScaler, Level, MixedPrecision
from .techniques.pipeline import Pipeline


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a training is made of. `train` carries it out on a rank; `.run()` starts the ranks.

    model          stage -> its module, with the weights that a run starts from; on one device stage 0 is the whole model
    data           micro-batch, numbered through the run -> (inputs, targets, *context); every stage's forward gets the context
    loss           (output, targets) -> scalar mean
    optimizer      parameters -> torch optimizer
    micro_batches  of one update: of a pipeline's batch, or on one device of a window of gradient accumulation
    steps          updates of a run
    samples        micro-batches of a run, if not steps x micro_batches: the last window is what is left
    weights        window of samples -> share of each in the gradient; without it their shares are equal
    ranks          processes; a schedule over several cuts the model into stages
    schedule       a Schedule, or its name
    precision      level of mixed precision; None: formats are the model's own
    scaler         another loss scaler than the level's
    recompute      recompute plan, or a function (stage, x, *context) -> output; None: autograd keeps all
    clip           largest norm of the whole gradient; None: it is not clipped
    tied           name -> {stage: parameter}: weights that several stages hold copies of
    seed           of the ranks' generators
    """

    model: Callable[[int], nn.Module]
    data: Callable[[int], Sequence]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable
    micro_batches: int = 1
    steps: int = 1
    samples: int | None = None
    weights: Callable[[Sequence], Sequence[float]] | None = None
    ranks: int = 1
    schedule: Schedule | str = "1f1b"
    precision: str | Level | None = None
    scaler: DynamicLossScaler | None = None
    recompute: str | Callable | None = None
    clip: float | None = None
    tied: dict | None = None
    seed: int = 0

    def __post_init__(self):
        guard.refuse(self)

    @cached_property
    def order(self) -> Schedule:
        """The schedule of one window."""
        chosen = self.schedule
        return Schedule.named(chosen)(self.ranks, self.micro_batches) if isinstance(chosen, str) else chosen

    def windows(self) -> list[tuple[int, ...]]:
        """The micro-batches of each update; of an asynchronous schedule, which never drains, all at once."""
        total = self.samples or self.steps * self.micro_batches
        return list(windows(range(total), total if self.order.asynchronous else self.micro_batches))

    def run(self, **options) -> Run:
        """Start the ranks; options as for `launch`."""
        options = {"ranks": self.ranks, "steps": self.steps, "seed": self.seed, "name": "recipe", **options}
        return launch(lambda rank: train(self, rank).arrays(), **options)


class Lens:
    """What a lab looks at while it trains. This one looks at nothing."""

    span: Callable | None = None  # (step, version) -> context manager, in place of the rank's own

    def window(self, number: int, stages: Sequence[nn.Module], samples: Sequence):
        """Around the work on a window."""
        return nullcontext()

    def gradients(self, number: int, precision: MixedPrecision) -> None:
        """When the window's gradient is whole, and still scaled."""


class Trained(NamedTuple):
    """What a rank is left with: its stages, and on the rank of the last stage the loss of each micro-batch."""

    stages: list[nn.Module]
    precision: MixedPrecision
    losses: list[float]


def train(recipe: Recipe, rank, lens: Lens = Lens()) -> Trained:
    """The loop."""
    group, order = rank.group(), recipe.order
    own = [s for s in range(order.stages) if order.rank_of(s, 0) == group.rank]
    stages = [recipe.model(s).to(rank.device) for s in own]
    mp = MixedPrecision(recipe.precision, recipe.scaler, group)
    mp.prepare(nn.ModuleList(stages))
    optimizer = recipe.optimizer(mp.parameters())
    losses, batch = [], []

    def loss_fn(output, targets):
        loss = recipe.loss(output, targets)
        losses.append(rank.log("loss", loss.item()))
        return loss

    def update():
        lens.gradients(number, mp)
        mp.unscale_(optimizer)
        if recipe.clip:
            clip_grad_norm(mp.parameters(), recipe.clip, group, copies=pipeline.copies)
        mp.step(optimizer)
        mp.update()
        optimizer.zero_grad()

    for number, window in enumerate(recipe.windows()):
        samples = [recipe.data(n) for n in window]
        ...
