"""What every experiment does whose actions are layers of a GPT, on a mesh of ranks: predict each
layer by its dry run, and run the recipe.

A layer for an action lets other lanes begin inside a stage: a gradient travels when its layer's
backward ends.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import torch

from ..core import Cost, Impossible, Mesh, Scalar, Trace
from ..core.hardware import Hardware
from ..data import chosen_text
from ..models import GPTConfig, GPTStage, Noise, gpt_slices, split
from ..order.plan import SLICES, Plan, Together, with_calls
from ..order.schedule import Action, Schedule, Written
from ..order.simulate import simulate
from ..runtime.devices import built
from ..techniques import one_process
from ..techniques.mixed_precision import MixedPrecision
from ..techniques.replica_plan import with_replicas
from ..techniques.sliced_model import cut_of, sliced
from ..train.dry_run import META, Acted, Slices
from ..train.recipe import Recipe
from ..train.rehearsal import HALVES, WHOLE, Part, Rehearsal
from .experiment import MB
from .on_hardware import OnHardware, with_links
from .pipeline import slice_run, training
from .pipelined import Pipelined

LAYER = re.compile(r"^layers\.\d+\.")


class Layered(OnHardware, Pipelined):
    """Needs the fields `replicas`, `pipeline`, `slices` (ranks along each axis), `schedule`,
    `micro_batches`, `steps`, the model's sizes, `rows`, `optimizer`, `learning_rate`, `dtype`,
    `text` and `seed`."""

    further: ClassVar[Mapping[str, Any]] = {}  # settings of a Recipe that change what a layer does
    sharded: ClassVar[int] = 0  # the stage of ZeRO

    def model_post_init(self, facts):
        super().model_post_init(facts)
        if (self.slices > 1 or self.sharded) and not self.optimizer_class.steps_parts():
            raise Impossible(
                f"{self.optimizer} looks across the elements of a tensor, of which a rank has only"
                " a part here: take one that steps each element by itself, such as adam."
            )

    @cached_property
    def profile(self) -> Hardware:
        """With the nodes and links that the settings ask for, where they do."""
        if not hasattr(self, "ranks_per_node"):
            return super().profile
        return with_links(super().profile, self.ranks_per_node, getattr(self, "link_gb_s", 0.0))

    @property
    def ranks(self) -> int:
        return self.mesh.size

    @property
    def mesh(self) -> Mesh:
        return Mesh(dp=self.replicas, pp=self.pipeline, tp=self.slices)

    def place(self, rank: int) -> int:
        return self.mesh.coords(rank)["pp"]

    @property
    def own_micro_batches(self) -> int:
        """Of a replica."""
        return self.micro_batches

    @cached_property
    def order(self) -> Schedule:
        """Of each replica, layer by layer."""
        order = Schedule.named(self.schedule)(self.pipeline, self.own_micro_batches)
        return by_layers(order, [range(*piece) for piece in split(self.config, order.stages)])

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """A stage of the order is one piece of the model."""
        return [(at, at + 1) for at in range(self.config.pieces)]

    @property
    def recipe(self) -> Recipe:
        return training(
            self.config,
            len(self.pieces),
            self.pieces,
            self.samples,
            self.optimizer_class.at(self.learning_rate),
            self.seed,
            schedule=self.order,
            steps=self.steps,
            replicas=self.replicas,
            slices=self.slices,
            bucket_bytes=self.bucket_bytes,
            data_parallel=self.reducing,
            **self.further,
        )

    def samples(self, micro_batch: int) -> one_process.Sample:
        inputs, targets = chosen_text(self.text).batch(
            self.seed, 0, micro_batch, self.rows, self.sequence
        )
        return one_process.Sample(inputs, targets, (Noise(self.seed, 0, micro_batch),))

    # -- how replicas average their gradients ------------------------------------------------------

    @property
    def bucket_bytes(self) -> int:
        """Gradients that travel in one message."""
        return round(self.bucket_mb * MB) if hasattr(self, "bucket_mb") else Recipe.bucket_bytes

    @property
    def reducing(self) -> dict[str, Any]:
        """What is sent together, when, and by which messages: for DistributedDataParallel, and for
        its plan."""
        return {}

    # -- theory ------------------------------------------------------------------------------------

    @cached_property
    def stages(self) -> dict[int, torch.nn.Module]:
        """What a rank holds of each, on meta."""
        return self.stages_at(None)

    def stages_at(self, level: str | None) -> dict[int, torch.nn.Module]:
        """The same in the formats of a level of mixed precision."""
        about = self.slices, self.further.get("slicing", ()), level
        return {at: on_meta(self.config, at, *about) for at in range(self.config.pieces)}

    @property
    def weights(self) -> int:
        """Parameters of the whole model."""
        return sum(
            parameter.numel()
            for at in range(self.config.pieces)
            for parameter in on_meta(self.config, at, 1).parameters()
        )

    @property
    def replicated(self) -> Plan:
        """The order of all replicas, and what they send each other."""
        return with_replicas(
            self.order,
            self.steps,
            self.replicas,
            self.stages,
            self.bucket_bytes,
            slices=self.slices,
            **self.reducing,
        )

    @cached_property
    def lowered(self) -> Plan:
        plan = self.replicated
        if self.slices == 1:
            return plan
        duplicates = range(plan.ranks) if self.recipe.sequence_parallel else ()
        sizes = {rank: self.duplicate_bytes(rank) for rank in duplicates}

        def before_update(rank: int, batch: int) -> list:
            name = f"duplicates of batch {batch}"
            peers = self.mesh.peers(rank, SLICES)
            return [Together(name, "all_reduce", sizes[rank], peers)] if sizes.get(rank) else []

        return with_calls(plan, self.inside, self.mesh, before_update)

    def learnt(self, rank: int, level: str | None = None) -> list[torch.nn.Parameter]:
        """Of a rank, in the formats of a level; on meta."""
        return [
            p
            for at, stage in self.stages_at(level).items()
            for p in stage.parameters()
            if p.requires_grad and self.order.rank_of(at, 0) == self.place(rank)
        ]

    def duplicate_bytes(self, rank: int) -> int:
        """Of the gradients of a rank that its slices have parts of."""
        return sum(p.nbytes for p in self.learnt(rank) if cut_of(p) is None)

    def stage_run(self, number: int, rehearsal: Rehearsal) -> Part:
        return slice_run(
            self.config,
            *self.pieces[number],
            self.rows,
            self.optimizer_class,
            rehearsal,
            self.replicas,
            slices=self.slices,
            **self.further,
        )

    @property
    def messages(self) -> dict[str, list[int]]:
        parts = [self.stage_run(at, WHOLE) for at in range(len(self.pieces))]
        return {
            kind: [part.message_bytes(kind.replace("I", "B")) for part in parts] for kind in "FBI"
        }

    def durations(self) -> dict:
        """Slots on the textbook profile, where all layers are equal, else seconds."""
        if self.profile.textbook:
            return {"F": 1, "B": 2, "I": 1, "W": 1, "U": 0}
        return {
            kind: [self.seconds(kind, at) for at in range(len(self.pieces))]
            for kind in ("FBIWU" if self.halves else "FBU")
        }

    def seconds(self, kind: str, layer: int) -> float:
        tensors = len([*self.stages[layer].parameters()]) if kind == "U" else 1
        return self.time(self.usual(kind, layer).work, tensors)

    def usual(self, kind: str, layer: int) -> Acted:
        """A later action of a layer; a backward that finds no gradients."""
        return self.stage_run(layer, HALVES if kind in "IW" else WHOLE).usual(kind)

    def time(self, work, tensors: int = 1) -> float:
        """Seconds of this work; on the textbook profile its FLOPs, which share a slot."""
        textbook = self.profile.textbook
        return work.flops if textbook else work.seconds(self.profile, self.format, tensors)

    @property
    def format(self) -> str:
        """Of the products."""
        return "bfloat16" if getattr(self, "precision", "none") == "bf16" else self.dtype

    @cached_property
    def inside(self) -> dict:
        """The collectives that the slices of each layer call, as a Cost has them."""
        found = {}
        for at in range(len(self.pieces)):
            for kind in "FBIWU" if self.halves else "FBU":
                calls = self.usual(kind, at).calls(
                    self.time
                )  # of a block in the place of all blocks
                found[kind, at] = tuple(
                    call._replace(name=LAYER.sub(f"layers.{at}.", call.name)) for call in calls
                )
        return found

    def cost(self, memory: bool = True) -> Cost:
        priced = super().cost(memory)
        return replace(priced, inside=self.inside) if self.slices > 1 else priced

    @cached_property
    def alone_s(self) -> float:
        """The step of one replica."""
        one = self.replace(replicas=1, fault="none", **self.faultless)
        return simulate(one.lowered, one.cost(memory=False)).step_time

    faultless: ClassVar[Mapping[str, str]] = {}  # settings without a mistake

    def last_loss(self, trace: Trace) -> float | None:
        """Of the last batch, of all replicas; slices report the same one."""
        losses = [
            event.value
            for event in trace.where(Scalar, name="loss")
            if self.mesh.coords(event.rank)["tp"] == 0
        ]
        losses = losses[-self.replicas * self.own_micro_batches :]
        return sum(losses) / len(losses) if losses else None

    def speed_up(self, trace: Trace) -> float:
        return self.replicas * self.alone_s / trace.step_time


def by_layers(order: Schedule, layers: list[range]) -> Schedule:
    """The schedule with each action cut into those of its stage's layers, which are the stages of
    the result."""

    def cut(action: Action):
        own = layers[action.stage]
        return [
            action._replace(stage=layer) for layer in (own if action.kind == "F" else reversed(own))
        ]

    if order.asynchronous:  # which a recipe refuses
        return order
    orders = (
        tuple((each,) for step in steps for action in step for each in cut(action))
        for steps in order.over(1)
    )
    return Written(order.ranks, order.micro_batches, tuple(orders), order.name)


@lru_cache(maxsize=64)
def on_meta(
    config: GPTConfig, at: int, slices: int, slicing: tuple = (), level: str | None = None
) -> GPTStage:
    """A piece of the model, or its first slice, in the formats of a level of mixed precision;
    blocks are alike."""
    if 1 < at < config.pieces - 1:
        return on_meta(config, 1, slices, slicing, level)
    stage, plan = (
        built(lambda: GPTStage(config, at, at + 1), META),
        gpt_slices(config) | dict(slicing),
    )
    if slices > 1:
        stage = sliced(stage, plan, Slices(None, slices))
    return MixedPrecision(level).prepare(stage) if level else stage
