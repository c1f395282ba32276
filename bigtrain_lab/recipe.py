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
from itertools import chain
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from .recompute import Recompute
from .runtime import Run, launch
from .schedule import Action, Schedule
from .techniques import one_process
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
    data           micro-batch, numbered through the run -> (inputs, targets), or a Sample: with further arguments of every
                   stage's forward
    loss           (output, targets) -> scalar mean
    optimizer      parameters -> torch optimizer
    steps          updates of a run
    micro_batches  of an update: of a pipeline's batch, or of a window of gradient accumulation on one device
    samples        micro-batches of a run, where not steps x micro_batches: the last window takes what is left
    weights        window of samples -> what the loss of each is multiplied by; without it each counts alike
    ranks          processes; a schedule of several cuts the model into stages
    schedule       a Schedule, or its name
    precision      level of mixed precision; None: the model's own formats
    scaler         a loss scaler, in place of the level's default
    recompute      a recompute plan, or (stage, x, *context) -> output; None: autograd keeps all that it saves
    clip           largest norm of the gradient; None: it is not clipped
    tied           name -> {stage: parameter}: weights of which several stages hold copies
    whole_names    the stages call their parameters as the whole model does, and no two alike
    """

    model: Callable[[int], nn.Module]
    data: Callable[[int], Sequence]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable
    steps: int = 1
    micro_batches: int = 1
    samples: int | None = None
    weights: Callable[[Sequence], Sequence[float]] | None = None
    ranks: int = 1
    schedule: Schedule | str = "1f1b"
    precision: str | Level | None = None
    scaler: DynamicLossScaler | None = None
    recompute: str | Callable | None = None
    clip: float | None = None
    tied: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    whole_names: bool = False

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
        batch = self.order.micro_batches
        return list(windows(range(self.samples or batch * (1 if self.order.asynchronous else self.steps)), batch))

    @property
    def forward(self) -> Callable | None:
        """How a stage is called, where not plainly."""
        return recomputed(self.recompute) if isinstance(self.recompute, (str, Recompute)) else self.recompute

    def program(self, rank) -> dict[str, np.ndarray]:
        """What a rank runs: the loop. Returns the final weights and the loss of each micro-batch."""
        trained = train(self, rank)
        return self.arrays(trained.weights, trained.losses)

    def alone(self) -> one_process.Training:
        """The same in one process: in the model's own formats, every stage after the other, and autograd keeps all."""
        stages, windows = [self.model(s) for s in range(self.order.stages)], [[self.sample(n) for n in window] for window in self.windows]
        if not self.order.asynchronous:
            return one_process.synchronous(stages, windows, self.loss, self.optimizer, self.weights, self.clip)
        return one_process.delayed(stages, windows[0], self.loss, self.optimizer, update_size=self.order.update_size, versions=lambda s, n: tuple(
            self.order.version(Action(kind, s, n)) for kind in "FB"))

    def reference(self) -> dict[str, np.ndarray]:
        """What `program` returns, of `alone`."""
        training = self.alone()
        return self.arrays({s: dict(stage.named_parameters()) for s, stage in enumerate(training.stages)}, training.losses)

    def sample(self, number: int, device="cpu") -> one_process.Sample:
        """A micro-batch on a device."""
        inputs, targets, *context = self.data(number)
        moved = [part.to(device) if isinstance(part, Tensor) else part for part in (inputs, targets, *(context[0] if context else ()))]
        return one_process.Sample(moved[0], moved[1], tuple(moved[2:]))

    def arrays(self, weights: Mapping[int, Mapping[str, Tensor]], losses: Sequence[float]) -> dict[str, np.ndarray]:
        """By name: "1.weight" is stage 1's "weight", unless the stages have names of the whole. Half formats become float32."""
        apart = self.order.stages > 1 and not self.whole_names
        named = {f"{stage}.{name}" if apart else name: weight.detach().cpu() for stage, own in weights.items() for name, weight in own.items()}
        return {name: (weight.float() if weight.itemsize < 4 else weight).numpy() for name, weight in named.items()} | (
            {"loss": np.array(losses)} if losses else {})

    def run(self, **options) -> Run:
        """Start the ranks; options as for `launch`."""
        return launch(self.program, **{"ranks": self.order.ranks, "steps": self.steps, "name": "recipe", **options})


class Lens:
    """What a lab looks at while it trains. This one looks at nothing."""

    span: Callable | None = None  # (step of actions, weight version) -> what is around it, in place of the rank's span

    def inputs(self) -> Sequence[Tensor]:
        """Tensors that are no part of what the training holds."""
        return ()

    def window(self, number: int, stages: Mapping[int, nn.Module], samples: Sequence):
        """Around all that is done for a window."""
        return nullcontext()

    def gradient(self, number: int, precision: MixedPrecision) -> None:
        """When the window's gradient is whole, and still scaled."""

    def updated(self, number: int, precision: MixedPrecision, stepped: bool) -> None:
        """When the weights are new, or the loss scaler has skipped the step."""


class Trained(NamedTuple):
    """What a rank is left with: its stages by number and, where the last stage is, the loss of each micro-batch."""

    stages: dict[int, nn.Module]
    precision: MixedPrecision
    losses: list[float]

    @property
    def weights(self) -> dict[int, dict[str, Tensor]]:
        """Of each stage by name: masters, in place of the weights that follow them."""
        return {s: {name: self.precision.masters.get(p, p) for name, p in stage.named_parameters()} for s, stage in self.stages.items()}


def train(recipe: Recipe, rank, lens: Lens = Lens()) -> Trained:
    """The loop."""
    group, order = rank.group(), recipe.order
    stages = {s: built(recipe.model, s, rank.device) for s in range(order.stages) if order.rank_of(s, 0) == group.rank}
    precision = MixedPrecision(recipe.precision, recipe.scaler, None if recipe.scaler else group)
    precision.prepare(nn.ModuleList(stages.values()))
    learning = {s: [precision.masters.get(p, p) for p in stage.parameters() if p.requires_grad] for s, stage in stages.items()}
    optimizers = {s: [recipe.optimizer(own)] if own and not order.asynchronous else [] for s, own in learning.items()}
    samples, losses, waiting = {}, [], []

    def loss_fn(output, targets):
        loss = recipe.loss(output, targets)
        rank.log("loss", loss.item())
        return loss

    def update(stage):
        if len(waiting) == len(stages):  # the first update of a window: its gradient is whole
            lens.gradient(number, precision)
            for optimizer in chain(*optimizers.values()):
                precision.unscale_(optimizer)
            if recipe.clip:
                clip_grad_norm(precision.parameters(), recipe.clip, group)
        stepped = precision.step(*optimizers[stage])
        for optimizer in optimizers[stage]:
            optimizer.zero_grad()
        waiting.remove(stage)
        if not waiting:
            precision.update()
            lens.updated(number, precision, stepped)

    def pipeline_of(order, after=None):
        return Pipeline(stages.values(), order, loss_fn, group, **{"optimizer": recipe.optimizer} if order.asynchronous else {"update": update},
                        scale=precision.scale if precision.scaler else None, forward=recipe.forward, context=lambda n: samples[n].context,
                        tied=recipe.tied, after=after, span=lens.span)

    def holdings():
        held = pipeline.holdings(*chain(*optimizers.values()))
        parts = [part for x, y, context in samples.values() for part in (x, y, *context) if isinstance(part, Tensor)]
        held["inputs"] |= {f"input {i}": tensor for i, tensor in enumerate((*parts, *lens.inputs()))}
        return held

    pipeline = pipeline_of(order)
    rank.watch(holdings)
    for number, window in enumerate(recipe.windows):
        if len(window) < order.micro_batches:
            pipeline = pipeline_of(replace(order, micro_batches=len(window)), pipeline)
        samples, waiting = {n: recipe.sample(n, rank.device) for n in window}, list(stages)
        with lens.window(number, stages, list(samples.values())), precision:
            pipeline.step([sample.inputs for sample in samples.values()], [sample.targets for sample in samples.values()],
                          recipe.weights(list(samples.values())) if recipe.weights else None)
        losses += [loss.item() for loss in pipeline.losses]
    return Trained(stages, precision, losses)


def built(model: Callable[[int], nn.Module], stage: int, device) -> nn.Module:
    """On the device; without values on meta, where a dry run trains."""
    with device if device.type == "meta" else nullcontext():
        return model(stage).to(device)
