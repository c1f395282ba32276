"""The one training loop: techniques surround each other here, and every lab is this loop with one
of them under the lens.

    training = model x data x optimizer
               x {schedule, slices, accumulation, replicas, ZeRO, precision, recompute, clip}

    for each window of micro-batches, replica d of R taking every R-th, from its d-th on:
        F and B of each, in the schedule's order      pipeline.py; one device is one stage
          the layers of a stage, sliced               tensor_parallel.py, sequence_parallel.py
        replicas sum their gradients meanwhile        data_parallel.py, replicas.py
        the gradient is unscaled and clipped          mixed_precision.py, clip.py
        the optimizers step, weights follow masters   mixed_precision.py

Accumulation needs no line of its own: k micro-batches on one device are the schedule 1F1B of one
rank. Nothing here is the inside of a technique; each has its own file in techniques/.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from ..core import Mesh
from ..order.recompute.plan import Recompute
from ..order.schedule import Action, Schedule
from ..runtime import Group, Run, launch
from ..runtime.devices import built
from ..techniques import Pipeline, one_process
from ..techniques.accumulate import windows
from ..techniques.checkpoint import recomputed
from ..techniques.clip import clip_grad_norm
from ..techniques.data_loader import copied
from ..techniques.fully_sharded import cast_inputs
from ..techniques.guards import recipe as guard
from ..techniques.guards.optimizers import before_step
from ..techniques.learning_rates import set_rate
from ..techniques.mixed_precision import DynamicLossScaler, Level, MixedPrecision
from ..techniques.one_process import Sample
from ..techniques.prepared_model import masters_of
from ..techniques.reducers import BUCKET_BYTES
from ..techniques.replicas import Replicas
from ..techniques.sequence_parallel import sum_duplicates
from ..techniques.shards import Home, home_of
from ..techniques.sliced_model import cut_of, sliced, whole_of
from ..techniques.zero import shared
from .lens import Lens


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a training is made of. `train` carries it out on a rank; `.run()` starts the ranks.

    model          stage -> its module, with the weights that a run starts from; on one device
                   stage 0 is the whole model
    data           micro-batch, numbered through the run -> (inputs, targets), the same on every
                   rank; or a Sample, with further arguments of every stage's forward
    loss           (output, targets) -> scalar mean
    optimizer      parameters -> torch optimizer
    learning_rate  update, from 1 on -> the rate of every parameter group, times the group's
                   "rate_scale" where it has one; None: the optimizer's own rate
    steps          updates of a run
    micro_batches  of an update on each replica: of a pipeline's batch, or of a window of gradient
                   accumulation
    samples        micro-batches of a run, where not steps x micro_batches: the last window takes
                   what is left
    weights        window of samples -> what the loss of each is multiplied by; without it each
                   counts alike, also where a mean leaves labels out, more in one than in another:
                   let `loss` be a sum then, and `weights` token_weighted of the labels that count
    ranks          processes of a replica; a schedule of several cuts the model into stages
    schedule       a Schedule, or its name
    replicas       copies of the model that share each window: its micro-batch i goes to replica
                   i mod replicas. Ranks are those of Mesh(dp=replicas, pp=ranks, tp=slices). Each
                   replica, and each rank of a pipeline, has a global seed of its own, so that
                   torch's nn.Dropout draws masks of its own there, and not those of one process,
                   as models.Dropout does
    bucket_bytes   gradients that replicas average in one message
    data_parallel  further settings of DistributedDataParallel, such as {"overlap": False}
    zero           what replicas hold in parts: 0, nothing; 1, the optimizer's state; 2, gradients
                   too; 3, parameters too, each stage being a unit
    slices         ranks that share each layer of a stage
    slicing        module path, or pattern -> how it is cut: see techniques/sliced_model.py
    sequence_parallel  slices share the sequence too where layers are whole, such as in a norm
    sliced_loss    (own slice of the output, targets, group) -> scalar mean, in place of `loss`,
                   such as vocab_parallel_cross_entropy
    precision      level of mixed precision; None: the model's own formats
    scaler         a loss scaler, in place of the level's default
    recompute      a recompute plan, or (stage, x, *context) -> output; None: autograd keeps all.
                   The layers of a plan are an nn.Sequential's, or a stage's `chained_layers`, which
                   in that order are its forward; any other stage is one layer, which plans keep:
                   give it `checkpoint`
    clip           largest norm of the gradient; None: it is not clipped
    tied           name -> {stage: parameter}: weights of which several stages hold copies
    whole_names    the stages name their parameters as the whole model does, and no two alike
    """

    model: Callable[[int], nn.Module]
    data: Callable[[int], Sequence]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable
    learning_rate: Callable[[int], float] | None = None
    steps: int = 1
    micro_batches: int = 1
    samples: int | None = None
    weights: Callable[[Sequence], Sequence[float]] | None = None
    ranks: int = 1
    schedule: Schedule | str = "1f1b"
    replicas: int = 1
    bucket_bytes: int = BUCKET_BYTES
    data_parallel: Mapping = field(default_factory=dict)
    zero: int = 0
    slices: int = 1
    slicing: Mapping[str, str] = field(default_factory=dict)
    sequence_parallel: bool = False
    sliced_loss: Callable | None = None
    precision: str | Level | None = None
    scaler: DynamicLossScaler | None = None
    recompute: str | Callable | None = None
    clip: float | None = None
    tied: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    whole_names: bool = False

    def __post_init__(self):
        guard.refuse_recipe(self)

    @cached_property
    def order(self) -> Schedule:
        """The schedule of one window; of a schedule that never drains, of the whole run."""
        order = (
            Schedule.named(self.schedule)(self.ranks, self.micro_batches)
            if isinstance(self.schedule, str)
            else self.schedule
        )
        return order.lengthened(self.steps) if order.asynchronous else order

    @property
    def mesh(self) -> Mesh:
        """Where the ranks lie: those of a stage are neighbours, and those of a replica."""
        return Mesh(dp=self.replicas, pp=self.order.ranks, tp=self.slices)

    @property
    def windows(self) -> list[tuple[int, ...]]:
        """The micro-batches of each window, of all replicas."""
        batch = self.replicas * self.order.micro_batches
        total = self.samples or batch * (1 if self.order.asynchronous else self.steps)
        return list(windows(range(total), batch))

    def sample(self, number: int, device="cpu") -> Sample:
        """A micro-batch on a device."""
        return copied(guard.asked(self, "data", number), device, pinned=False)

    def shares(self, window: Sequence[int], replica: int, own: Sequence[Sample]):
        """What the loss of each of a replica's own micro-batches is multiplied by, before replicas
        take the mean of their gradients; None: 1 over their number."""
        if self.replicas == 1:
            return guard.asked(self, "weights", own) if self.weights else None
        every = (
            guard.asked(self, "weights", [self.sample(number) for number in window])
            if self.weights
            else [1 / len(window)] * len(window)
        )
        shares = [self.replicas * each for each in every[replica :: self.replicas]]
        return shares + [0.0] * (len(own) - len(shares))

    @property
    def forward(self) -> Callable | None:
        """How a stage is called, where not plainly."""
        if isinstance(self.recompute, (str, Recompute)):
            return recomputed(self.recompute)
        return self.recompute and partial(guard.asked, self, "recompute")

    def run(self, **options) -> Run:
        """Start the ranks; options as for `launch`."""
        asked = {"ranks": self.mesh.size, "steps": self.steps, "name": "recipe"}
        asked |= {"mesh": self.mesh} if self.replicas * self.slices > 1 else {}
        return launch(self.program, **asked | options)

    def program(self, rank, lens: Lens = Lens()) -> dict[str, np.ndarray]:
        """What a rank runs: the loop. Returns final weights, whole, and the loss of each
        micro-batch of its replica."""
        trained = train(self, rank, lens)
        with rank.aside():
            return self.arrays(trained.weights, trained.losses, trained.replica)

    def reference(self) -> dict[str, np.ndarray]:
        """What `program` returns, of the same training `alone`."""
        losses, stages, _ = self.alone()
        weights = {number: dict(stage.named_parameters()) for number, stage in enumerate(stages)}
        found, places = {}, [place for window in self.windows for place in range(len(window))]
        for d in range(self.replicas):
            found |= self.arrays(
                weights,
                [loss for loss, place in zip(losses, places) if place % self.replicas == d],
                d,
            )
        return found

    def alone(self) -> one_process.Training:
        """The same in one process: stage after stage, in the model's own formats, and autograd
        keeps all."""
        order, stages = self.order, [self.model(stage) for stage in range(self.order.stages)]
        for places in self.tied.values():
            (first, name), *others = sorted(places.items())
            for stage, other in others:
                own = stages[stage].get_parameter(other)
                for part in stages[stage].modules():
                    for leaf in [leaf for leaf, p in part._parameters.items() if p is own]:
                        setattr(part, leaf, stages[first].get_parameter(name))
        batches = [[self.sample(n) for n in window] for window in self.windows]
        if not order.asynchronous:
            return one_process.synchronous(
                stages,
                batches,
                self.loss,
                self.optimizer,
                self.weights,
                self.clip,
                self.learning_rate,
            )
        return one_process.delayed(
            stages,
            batches[0],
            self.loss,
            self.optimizer,
            update_size=order.update_size,
            versions=lambda stage, n: tuple(order.version(Action(k, stage, n)) for k in "FB"),
        )

    def arrays(
        self, weights: Mapping[int, Mapping], losses: Sequence, replica: int = 0
    ) -> dict[str, np.ndarray]:
        """By name: "1.weight" is stage 1's "weight", unless the stages have names of the whole;
        "loss", of several replicas "loss of replica 1". Half formats become float32. On meta there
        are no values."""
        apart = self.order.stages > 1 and not self.whole_names
        named = {
            f"{stage}.{name}" if apart else name: weight.detach().cpu()
            for stage, own in weights.items()
            for name, weight in own.items()
            if not weight.is_meta
        }
        found = {
            name: (weight.float() if weight.itemsize < 4 else weight).numpy()
            for name, weight in named.items()
        }
        return found | (
            {"loss" + f" of replica {replica}" * (self.replicas > 1): np.array(losses)}
            if losses
            else {}
        )


def train(recipe: Recipe, rank, lens: Lens = Lens(), kind: type | None = None) -> "Training":
    """The loop, on one rank. `kind`: of Training."""
    training = (kind or Training)(recipe, rank, lens)
    for number, window in [*enumerate(recipe.windows)][lens.begin(training) :]:
        losses = training.step(number, window)
        training.losses += losses
        if lens.ended(number, training, losses):
            break
    return training


class Training:
    """Everything a rank trains with, and one step of the loop.

    copies, pipe, slices   its groups along dp, pp and tp; None: that axis has one rank
    stages, optimizers     by number of the stage; those of this rank
    precision, parallel    formats and masters; what averages gradients over the copies
    losses                 where the last stage is, of each micro-batch of this replica
    """

    def __init__(self, recipe: Recipe, rank, lens: Lens):
        self.recipe, self.rank, self.lens, self.losses = recipe, rank, lens, []
        self.copies = rank.group("dp") if recipe.replicas > 1 else None
        self.slices = rank.group("tp") if recipe.slices > 1 else None
        self.pipe = rank.group("pp") if self.copies or self.slices else rank.group()
        self.replica = self.copies.rank if self.copies else 0
        order, here = self.order, self.pipe.rank
        self.own = [stage for stage in range(order.stages) if order.rank_of(stage, 0) == here]
        self.stages = {stage: self.stage(stage) for stage in self.own}
        place = self.replica * order.ranks + here
        if place and rank.device.type != "meta":
            torch.manual_seed(rank.seed + place)  # dropout masks of its own
        self.holders = rank.group(("pp", "tp")) if self.slices else self.pipe
        if recipe.zero:  # who have parts of one gradient
            self.holders = self.copies if recipe.mesh.size == recipe.replicas else rank.group()
        scaler = recipe.scaler and recipe.scaler.among(self.holders)
        self.precision = MixedPrecision(recipe.precision, scaler, None if scaler else self.holders)
        self.modules = nn.ModuleList(self.stages.values())
        self.parallel = None
        if self.copies:
            self.parallel = replicas_of(recipe, self.stages, self.precision, self.copies)
        else:
            self.precision.prepare(self.modules)
        stepped = masters_of(self.modules)
        self.homes = [
            Home(name, p, stepped.get(p, p))
            for name, p in self.modules.named_parameters()
            if p.requires_grad
        ]
        self.optimizer_of = {stage: self.optimizer(stage) for stage in self.own}
        self.samples, self.waiting = {}, []
        self.pipeline = self.pipeline_of(order)
        rank.watch(self.holdings)

    @property
    def order(self) -> Schedule:
        return self.recipe.order

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [each for each in self.optimizer_of.values() if each]

    @property
    def parts(self) -> Replicas | None:
        """What the replicas hold in parts."""
        return self.parallel if self.recipe.zero else None

    def stage(self, number: int) -> nn.Module:
        module = built(partial(guard.asked, self.recipe, "model", number), self.rank.device)
        return (
            sliced(module, self.recipe.slicing, self.slices, self.recipe.sequence_parallel)
            if self.slices
            else module
        )

    def optimizer(self, stage: int) -> torch.optim.Optimizer | None:
        """Of what a stage learns; of an asynchronous schedule the pipeline makes it."""
        stepped = {home.weight: home.stepped for home in self.homes}
        learning = [p for p in self.stages[stage].parameters() if p.requires_grad]
        if self.order.asynchronous or not learning:
            return None
        optimizer = guard.asked(self.recipe, "optimizer", [stepped[p] for p in learning])
        guard.refuse_optimizer(optimizer, self.order)
        with self.rank.aside():  # a trial of the optimizer is no part of what a training holds
            if self.recipe.zero:
                among = self.rank.group(("dp", "tp")) if self.slices else self.copies
                whole = {h.stepped for h in self.homes if self.slices and cut_of(h.weight) is None}
                first = not self.slices or self.slices.rank == 0
                shared(optimizer, among, lambda piece: first or piece not in whole)
            elif self.slices and hasattr(optimizer, "among"):  # its norms are those of whole layers
                optimizer.among(self.slices)
            before_step(optimizer)
        return optimizer

    # -- a window ----------------------------------------------------------------------------------

    def step(self, number: int, window: Sequence[int]) -> list[float]:
        """Train on a window of micro-batches; the losses of this replica's own."""
        recipe, parallel, self.number = self.recipe, self.parallel, number
        mine = window[self.replica :: recipe.replicas]
        count = -(-len(window) // recipe.replicas) if recipe.zero > 1 else max(1, len(mine))
        numbers = [*mine, *window[:1] * (count - len(mine))]  # what is not its own counts 0
        if len(numbers) < self.order.micro_batches:  # of the last window
            short = replace(self.order, micro_batches=len(numbers))
            self.pipeline = self.pipeline_of(short, self.pipeline)
        with self.rank.aside():  # what loads data is no part of what a training holds
            self.samples = {
                self.pipeline.done + i: recipe.sample(n, self.rank.device)
                for i, n in enumerate(numbers)
            }
        batch, self.waiting = [*self.samples.values()], [*self.own]
        if parallel:
            parallel.rules.begin(self.pipeline.actions())
        with self.lens.window(number, self.stages, batch), self.precision:
            self.pipeline.step(
                [x for x, _, _ in batch],
                [y for _, y, _ in batch],
                recipe.shares(window, self.replica, batch),
            )
        if parallel:
            parallel.stepped()
        return [loss.item() for loss in self.pipeline.losses[: len(mine)]]

    def pipeline_of(self, order: Schedule, after: Pipeline | None = None) -> Pipeline:
        made = partial(guard.asked, self.recipe, "optimizer")
        updates = {"optimizer": made} if order.asynchronous else {"update": self.update}
        return Pipeline(
            self.stages.values(),
            order,
            self.loss,
            self.pipe,
            **updates,
            whole=self.whole,
            scale=self.precision.scale if self.precision.scaler else None,
            forward=self.recipe.forward,
            context=lambda n: self.samples[n].context,
            tied=self.recipe.tied,
            after=after,
            span=self.lens.span or self.span,
        )

    # What the pipeline calls, in the order in which a window meets it.

    @contextmanager
    def span(self, step, version):
        acts = step if self.parallel and step[0].kind != "U" else ()
        for action in acts:
            self.parallel.needed(action)
        with self.pipe.span(step, version, bool(self.parallel and self.parallel.under_way)):
            yield
        for action in acts:
            self.parallel.done(action)

    def loss(self, output, targets):
        loss = (
            self.recipe.sliced_loss(output, targets, self.slices)
            if self.slices
            else self.recipe.loss(output, targets)
        )
        first = self.number == 0 and all(loss is None for loss in self.pipeline.losses)
        guard.refuse_loss(self.recipe, loss, output if first else None)
        self.rank.log("loss", loss.item())
        return loss

    def whole(self):
        """After the last backward: make the gradients those of the whole batch."""
        if self.parallel:
            self.parallel.finish_gradient_synchronization()
        if self.slices and self.recipe.sequence_parallel:
            self.whole_duplicates()

    def whole_duplicates(self):
        sum_duplicates(self.modules, self.slices, f"duplicates of batch {self.number}")

    def update(self, stage: int):
        recipe, precision = self.recipe, self.precision
        if len(self.waiting) == len(self.own):  # the first of a window: its gradient is whole
            self.lens.gradient(self.number, precision)
            for optimizer in self.optimizers:
                precision.unscale_(optimizer)
                if recipe.learning_rate:
                    set_rate(optimizer, guard.asked(recipe, "learning_rate", self.number + 1))
            if recipe.clip:
                clip_grad_norm(self.homes, recipe.clip, self.holders)
        own = self.optimizer_of[stage]
        stepped = precision.step(*([own] if own else []))
        if own:
            own.zero_grad()
        self.waiting.remove(stage)
        if not self.waiting:
            precision.update()
            self.lens.updated(self.number, precision, stepped)

    # -- what it holds -----------------------------------------------------------------------------

    def holdings(self):
        held = self.pipeline.holdings(*self.optimizers)
        given = [part for x, y, context in self.samples.values() for part in (x, y, *context)]
        given = [*filter(lambda part: isinstance(part, Tensor), given), *self.lens.inputs()]
        held["inputs"] |= {f"given {i}": tensor for i, tensor in enumerate(given)}
        for kind, tensors in (self.parallel.holdings() if self.parallel else {}).items():
            held[kind] |= tensors
        return held

    @property
    def weights(self) -> dict[int, dict[str, Tensor]]:
        """Of each stage by name: masters, in place of the weights that follow them. All slices, and
        replicas that hold parts, ask for them together."""
        slices = self.slices and self.slices.unrecorded()
        masters = self.parts.whole_values() if self.parts else self.precision.masters
        return {
            number: {
                name: whole_of(masters.get(p, p).detach(), cut_of(p), slices, name)
                for name, p in stage.named_parameters()
            }
            for number, stage in self.stages.items()
        }


def replicas_of(
    recipe: Recipe, stages: Mapping[int, nn.Module], precision: MixedPrecision, copies: Group
) -> Replicas | None:
    """Prepare this rank's stages; returns what averages, or cuts, their gradients over the replicas
    `copies`, None where nothing learns."""
    copies.lane()  # made there too: torch names a group by how many groups its members have
    modules, level = nn.ModuleList(stages.values()), precision.level
    whole = {p: p.data for p in modules.parameters()}
    gathers_half = recipe.zero == 3 and level.masters  # stage 3 rounds what it gathers
    keeps = recipe.zero > 0 and (level.masters or recipe.precision is None)  # masters, in pieces
    precision.prepare(modules, masters=not recipe.zero, rounded=not gathers_half)
    if not any(p.requires_grad for p in modules.parameters()):
        return None
    masters = masters_of([modules])
    homes = [
        home_of(name, p, whole[p]) if keeps else Home(name, p, masters.get(p, p))
        for name, p in modules.named_parameters()
    ]
    own = {number: {*stage.parameters()} for number, stage in stages.items()}
    replicas = Replicas(
        modules,
        copies,
        recipe.zero,
        homes,
        units={p: {n for n in own if p in own[n]} for p in modules.parameters()},
        bucket_bytes=recipe.bucket_bytes,
        compute_dtype=level.dtype if gathers_half else None,
        alone=[
            stages[stage].get_parameter(name)
            for places in recipe.tied.values()
            for stage, name in places.items()
            if stage in stages
        ],
        **{"alike": True} | recipe.data_parallel,
    )
    for stage in stages.values() if recipe.zero == 3 else ():
        if gathers_half:
            stage.register_forward_pre_hook(
                partial(cast_inputs, level.dtype), prepend=True, with_kwargs=True
            )
        stage.register_forward_hook(lambda module, given, output: replicas.copied(output))
    return replicas
