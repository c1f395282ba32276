"""What every experiment does whose actions are layers of a GPT, on a mesh of ranks: predict each
layer by its dry run, and run the recipe.

A layer for an action lets other lanes begin inside a stage: a gradient travels when its layer's
backward ends.
"""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

from .. import models, techniques, train
from ..core import DTYPES, Hardware, Mesh, knob, refuse
from ..core.later import later
from ..order import (
    SLICES,
    Action,
    Plan,
    Schedule,
    Together,
    by_layers,
    with_calls,
)
from ..runtime.kept import kept
from ..techniques.guards.schedules import refuse_order
from ..techniques.precision_levels import LEVELS
from .experiment import MB
from .of_gpt import OfGPT
from .on_hardware import with_links
from .pipeline import arriving, slice_run, training
from .pipelined import Pipelined

with later():
    from ..runtime import devices
    from ..train import dry_run

LAYER = re.compile(r"^layers\.\d+\.")


class Layered(OfGPT, Pipelined):
    """A lab makes a ClassVar of each setting that it fixes. One that has `zero`, the stage of
    ZeRO, says its `shapes` too. `bucket_mb`, `link_gb_s` and `precision` count where they are
    fields."""

    further: ClassVar[Mapping[str, Any]] = {}  # settings of a Recipe that change what a layer does
    slot: ClassVar[int] = 1  # is a layer's work
    shapes: ClassVar[tuple[str, ...]]  # the settings that decide what an action holds and computes

    replicas: int = knob(
        1, "dp: copies of the model, each with its share of a batch", low=1, high=8, more=True
    )
    pipeline: int = knob(
        1, "pp: ranks that the layers of a copy are spread over", low=1, high=8, more=True
    )
    slices: int = knob(
        1, "tp: ranks that share each layer", low=1, high=8, logarithmic=True, more=True
    )
    micro_batches: int = knob(
        1,
        "micro-batches of a rank whose gradients are added before they are averaged",
        low=1,
        high=16,
        more=True,
    )
    schedule: str = knob(
        "1f1b",
        "the order in which the ranks of a pipeline work",
        choices=lambda: Schedule.all(),
        more=True,
    )
    ranks_per_node: int = knob(
        8, "ranks that one node holds; the slower links lie between nodes", low=1, high=8, more=True
    )
    steps: int = knob(2, "updates of a run", low=1, high=50, more=True)
    vocabulary: int = knob(
        256,
        "words; the text's bytes are the first 256",
        low=256,
        high=32768,
        logarithmic=True,
        more=True,
    )
    rows: int = knob(1, "samples in a micro-batch", low=1, high=64, unit="samples", more=True)

    def model_post_init(self, facts):
        super().model_post_init(facts)
        refuse(
            (
                (self.slices > 1 or self.sharded) and not self.optimizer_class.steps_parts(),
                f"{self.optimizer} looks across the elements of a tensor, of which a rank has only"
                " a part here: take one that steps each element by itself, such as adam.",
            )
        )

    @cached_property
    def profile(self) -> Hardware:
        """With the nodes and links that the settings ask for."""
        return with_links(super().profile, self.ranks_per_node, getattr(self, "link_gb_s", 0.0))

    @property
    def sharded(self) -> int:
        """The stage of ZeRO; 0 where there is nobody to share with."""
        return getattr(self, "zero", 0) if self.replicas > 1 else 0

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
        return by_layers(
            order, [range(*piece) for piece in models.split(self.config, order.stages)]
        )

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """A stage of the order is one piece of the model."""
        return [(at, at + 1) for at in range(self.config.pieces)]

    @property
    def recipe(self) -> "train.Recipe":
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
            zero=self.sharded,
            **self.further,
        )

    @property
    def scheduled(self) -> Schedule:
        """The order; Impossible where it leaves no room for what the recipe asks for, which is said
        without a recipe, and so without torch."""
        level = self.further.get("precision")
        refuse_order(
            self.order,
            {
                "clip": self.further.get("clip"),
                "replicas": self.replicas > 1,
                "slices": self.slices > 1,
                "precision": level and LEVELS[level].masters,
            },
        )
        return self.order

    # -- how replicas average their gradients ------------------------------------------------------

    @property
    def bucket_bytes(self) -> int:
        """Gradients that travel in one message."""
        return (
            round(self.bucket_mb * MB)
            if hasattr(self, "bucket_mb")
            else techniques.reducers.BUCKET_BYTES
        )

    @property
    def reducing(self) -> dict[str, Any]:
        """What is sent together, when, and by which messages: for DistributedDataParallel, and for
        its plan."""
        return {}

    # -- theory ------------------------------------------------------------------------------------

    @cached_property
    def stages(self) -> dict[int, techniques.weight_shapes.Shapes]:
        """What a rank holds of each, on meta."""
        return self.stages_at(None)

    def stages_at(self, level: str | None) -> dict[int, techniques.weight_shapes.Shapes]:
        """The same in the formats of a level of mixed precision."""
        return {
            at: on_meta(self.config, at, self.slices, self.further.get("slicing", ()), level)
            for at in range(self.config.pieces)
        }

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
        if not self.sharded:
            stages, how = self.stages, self.reducing
        else:
            level = self.further.get("precision")
            stages = self.stages_at(level if self.sharded < 3 else None)
            how = {
                "zero": self.sharded,
                "compute_dtype": DTYPES[LEVELS[level].format]
                if level and self.sharded == 3
                else None,
                "inside": self.inside if self.slices == 1 else {},
            }
        return techniques.replica_plan.with_replicas(
            self.order,
            self.steps,
            self.replicas,
            stages,
            self.bucket_bytes,
            slices=self.slices,
            **how,
        )

    @cached_property
    def lowered(self) -> Plan:
        plan = self.replicated
        if self.slices == 1:
            return plan
        sizes = {
            rank: self.duplicate_bytes(rank)
            for rank in (range(plan.ranks) if self.further.get("sequence_parallel") else ())
        }

        def before_update(rank: int, batch: int) -> list:
            name = f"duplicates of batch {batch}"
            peers = self.mesh.peers(rank, SLICES)
            return [Together(name, "all_reduce", sizes[rank], peers)] if sizes.get(rank) else []

        return with_calls(plan, self.inside, self.mesh, before_update)

    def duplicate_bytes(self, rank: int) -> int:
        """Of the gradients of a rank that its slices have parts of."""
        runs = (
            [self.dry(rank)]
            if self.sharded
            else [
                self.stage_run(at, train.WHOLE)
                for at in range(len(self.pieces))
                if self.order.rank_of(at, 0) == self.place(rank)
            ]
        )
        return sum(run.sent.get("duplicates of batch 0", 0) for run in runs)

    def stage_run(self, number: int, rehearsal: "train.Rehearsal") -> "train.Part":
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

    def seconds(self, kind: str, layer: int) -> float:
        tensors = len([*self.stages[layer].parameters()]) if kind == "U" else 1
        return self.usual(kind, layer).work.seconds(self.profile, self.format, tensors)

    def usual(self, kind: str, layer: int) -> train.Acted:
        """A later action of a layer; a backward that finds no gradients."""
        if not self.sharded or (kind, layer) not in self.first:
            return self.stage_run(layer, train.HALVES if kind in "IW" else train.WHOLE).usual(kind)
        action = self.first[kind, layer]
        place = self.order.rank_of(layer, action.micro_batch)
        return self.dry(self.mesh.rank(dp=0, pp=place, tp=0), 2).actions[str(self.like(action))]

    @cached_property
    def inside(self) -> dict:
        """The collectives that the slices of each layer call, as a Cost has them."""
        return {  # a block's calls stand for those of all blocks
            (kind, at): tuple(
                call._replace(name=LAYER.sub(f"layers.{at}.", call.name))
                for call in self.usual(kind, at).calls(self.time)
            )
            for at in range(len(self.pieces))
            for kind in ("FBIWU" if self.order.halved else "FBU")
        }

    def charged(self) -> dict[str, Any]:
        return super().charged() | (
            {"inside": self.inside} if self.slices > 1 or self.sharded else {}
        )

    # -- what a rank holds -------------------------------------------------------------------------

    def least_bytes(self) -> list[int]:
        """Its weights and one micro-batch's activations, which it holds when that one's last
        forward ends; of one layer of each kind, without a dry run of each rank."""
        copies, least = self.replicas if self.sharded == 3 else 1, [0] * self.pipeline
        for at, each in enumerate(self.stage_bytes if self.sharded else []):
            least[self.order.rank_of(at, 0)] += each.weights // copies + each.activations
        return [least[self.place(rank)] for rank in range(self.ranks)]

    @cached_property
    def few(self) -> int:
        """Micro-batches of a step of the dry run: where each backward follows its forward, the
        third stands for those between it and the last."""
        return min(
            self.own_micro_batches,
            4 if (self.pipeline, self.schedule) == (1, "1f1b") else self.micro_batches,
        )

    def dry(self, rank: int, steps: int = 0) -> train.DryRun:
        """A rank's whole training without values, of at most two steps: the first, and one like all
        others. `steps`: another number of them. Slices of a layer hold alike."""
        coords, steps = self.mesh.coords(rank), steps or min(self.steps, 2)
        settings, members = self.shaped
        settings = *settings.items(), ("steps", steps)
        return dried(type(self), settings, members, coords["pp"])[coords["dp"]]

    @cached_property
    def shaped(self) -> tuple[dict[str, Any], tuple[type, ...]]:
        """The settings that decide what a dry run finds, and the classes that they name."""
        settings = {name: getattr(self, name) for name in self.shapes}
        settings["micro_batches"] = self.few * (self.micro_batches // self.own_micro_batches)
        return settings, self.members(settings)

    @cached_property
    def first(self) -> dict[tuple[str, int], Action]:
        """(kind, layer) -> the first such action of the dry run's second step."""
        actions = [action for work in self.order.over(2) for (action,) in work]
        return {
            action[:2]: action
            for action in reversed(actions)  # so that the first one stays
            if action.micro_batch >= self.own_micro_batches
        }

    def like(self, action: Action) -> Action:
        """The action of the dry run that an action of the run is like."""
        batch, number = divmod(action.micro_batch, self.own_micro_batches)
        if self.few < self.own_micro_batches:
            number = min(number, 2) + (number == self.own_micro_batches - 1)
        return action._replace(micro_batch=min(batch, 1) * self.few + number)

    @cached_property
    def memory(self) -> train.Holdings:
        """Where replicas share, as each rank's own dry run tells."""
        if not self.sharded:
            return super().memory
        work = self.order.over(self.steps)
        return train.Likened(
            self.dry,
            self.like,
            (chain.from_iterable(work[self.place(rank)]) for rank in range(self.ranks)),
        )


def whole_layers(layer: Callable, /, *given, **named):
    """Recompute each layer whole in its backward: the `recompute` of a Recipe."""
    return techniques.checkpoint.checkpoint(layer, *given, **named)


def on_meta(
    config: "models.GPTConfig", at: int, slices: int, slicing: tuple = (), level: str | None = None
) -> techniques.weight_shapes.Shapes:
    """The weights of a piece of the model, or of its first slice, in the formats of a level of
    mixed precision; blocks are alike."""
    return shapes(config, 1 if 1 < at < config.pieces - 1 else at, slices, slicing, level)


@kept
def shapes(
    config: "models.GPTConfig", at: int, slices: int, slicing: tuple, level: str | None
) -> techniques.weight_shapes.Shapes:
    stage, plan = (
        devices.built(lambda: models.GPTStage(config, at, at + 1), dry_run.META),
        models.gpt_slices(config) | dict(slicing),
    )
    if slices > 1:
        stage = techniques.sliced_model.sliced(stage, plan, dry_run.Slices(None, slices))
    return techniques.weight_shapes.Shapes.of(
        techniques.MixedPrecision(level).prepare(stage) if level else stage
    )


@kept
def dried(
    cls: type[Layered],
    settings: tuple[tuple[str, Any], ...],
    members: tuple[type, ...],
    pp: int,
) -> tuple[train.DryRun, ...]:
    """The dry run of a rank of each replica; settings that do not change shapes find it done.
    `members`: the classes that the settings name."""
    asked = cls(**dict(settings))
    return train.of_each_replica(
        asked.recipe,
        index=pp,
        size=asked.pipeline,
        arriving=arriving(asked.config, asked.rows, {"slices": asked.slices, **asked.further}),
        slices=asked.slices,
    )
