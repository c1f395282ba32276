"""What every layered experiment does whose replicas may share what they hold (ZeRO): which elements
of a layer a rank keeps depends on its other layers, so each rank's whole training is run dry.

Cost: a dry run of two steps for each rank of a slice; without ZeRO one of each kind of layer does.
"""

from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, ClassVar

import torch

from ..core import Cost, Trace
from ..order.plan import Plan
from ..order.schedule import Action
from ..techniques.precision_levels import LEVELS
from ..techniques.replica_plan import parts_of, weights_of, with_replicas
from ..techniques.shards import Flat
from ..techniques.sliced_model import cut_of
from ..train.dry_run import META, Acted, DryRun, Likened, dry_run
from ..train.recipe import Recipe
from .experiment import Experiment
from .layered import Layered


class Sharded(Layered):
    """Needs `zero` too, the stage of ZeRO."""

    shapes: ClassVar[tuple[str, ...]]  # the settings that decide what an action holds and computes

    @property
    def sharded(self) -> int:
        """The same; 0 where there is nobody to share with."""
        return self.zero if self.replicas > 1 else 0

    @property
    def recipe(self) -> Recipe:
        return replace(super().recipe, zero=self.sharded)

    # -- what replicas send ------------------------------------------------------------------------

    @property
    def replicated(self) -> Plan:
        if not self.sharded:
            return super().replicated
        level = self.further.get("precision")
        return with_replicas(
            self.order,
            self.steps,
            self.replicas,
            self.stages_at(level if self.sharded < 3 else None),
            self.bucket_bytes,
            zero=self.sharded,
            slices=self.slices,
            compute_dtype=LEVELS[level].dtype if level and self.sharded == 3 else None,
            inside=self.inside if self.slices == 1 else {},
        )

    def duplicate_bytes(self, rank: int) -> int:
        if not self.sharded:
            return super().duplicate_bytes(rank)
        weights, units = weights_of(
            self.stages_at(self.further.get("precision")), self.order, self.place(rank)
        )
        parts, _ = parts_of(weights, units, self.sharded, self.replicas, self.bucket_bytes)
        total = 0
        for part in parts:
            own = [weights[n] for n in part.members]
            layout = Flat(own, self.replicas, self.mesh.coords(rank)["dp"])
            total += sum(
                (stop - start) * max(4, p.itemsize)
                for p, (start, stop) in zip(own, layout.own)
                if cut_of(p) is None
            )
        return total

    # -- what a rank holds -------------------------------------------------------------------------

    def least_bytes(self) -> list[int]:
        """Its weights and one micro-batch's activations, which it holds when that one's last
        forward ends; of one layer of each kind, without a dry run of each rank."""
        copies, least = self.replicas if self.sharded == 3 else 1, [0] * self.pipeline
        for at, each in enumerate(self.stage_bytes if self.sharded else []):
            least[self.order.rank_of(at, 0)] += each.weights // copies + each.activations
        return [least[self.place(rank)] for rank in range(self.ranks)]

    @property
    def few(self) -> int:
        """Micro-batches of a step of the dry run: where each backward follows its forward, the
        third stands for those between it and the last."""
        return min(
            self.own_micro_batches,
            4 if (self.pipeline, self.schedule) == (1, "1f1b") else self.micro_batches,
        )

    def dry(self, rank: int, steps: int = 0) -> DryRun:
        """A rank's whole training without values, of at most two steps: the first, and one like all
        others. `steps`: another number of them. Slices of a layer hold alike."""
        coords, steps = self.mesh.coords(rank), steps or min(self.steps, 2)
        settings = {name: getattr(self, name) for name in self.shapes} | {"steps": steps}
        settings["micro_batches"] = self.few * (self.micro_batches // self.own_micro_batches)
        return dried(type(self), tuple(settings.items()), coords["dp"], coords["pp"])

    @property
    def arriving(self) -> torch.Tensor:
        """What comes from the stage before, on meta."""
        level, recipe = self.further.get("precision"), self.recipe
        length = self.sequence // (self.slices if recipe.sequence_parallel else 1)
        dtype = LEVELS[level].dtype if level else self.config.dtype
        return torch.empty(self.rows, length, self.width, dtype=dtype, device=META)

    @cached_property
    def first(self) -> dict[tuple[str, int], Action]:
        """(kind, layer) -> the first such action of the dry run's second step."""
        found = {}
        for work in self.order.over(2):
            for (action,) in work:
                if action.micro_batch >= self.own_micro_batches:
                    found.setdefault(action[:2], action)
        return found

    def usual(self, kind: str, layer: int) -> Acted:
        if not self.sharded or (kind, layer) not in self.first:
            return super().usual(kind, layer)
        action = self.first[kind, layer]
        place = self.order.rank_of(layer, action.micro_batch)
        first = str(self.like(action))
        return self.dry(self.mesh.rank(dp=0, pp=place, tp=0), 2).actions[first]

    def like(self, action: Action) -> Action:
        """The action of the dry run that an action of the run is like."""
        batch, number = divmod(action.micro_batch, self.own_micro_batches)
        if self.few < self.own_micro_batches:
            number = min(number, 2) + (number == self.own_micro_batches - 1)
        return action._replace(micro_batch=min(batch, 1) * self.few + number)

    def cost(self, memory: bool = True) -> Cost:
        priced = super().cost(memory and not self.sharded)
        if self.sharded:
            priced = replace(priced, inside=self.inside)
        if not memory or not self.sharded:
            return priced
        work = self.order.over(self.steps)
        own = (chain.from_iterable(work[self.place(rank)]) for rank in range(self.ranks))
        return replace(priced, **self.likened.held([*own]))

    @property
    def likened(self) -> Likened:
        return Likened(self.dry, self.like)

    def predict(self) -> Trace:
        if not self.sharded:
            return super().predict()
        return self.likened.looked_into(Experiment.predict(self))


@lru_cache(maxsize=128)
def dried(cls: type[Sharded], settings: tuple[tuple[str, Any], ...], dp: int, pp: int) -> DryRun:
    """The dry run of a rank; settings that do not change shapes find it done."""
    asked = cls(**dict(settings))
    return dry_run(
        asked.program,
        index=pp,
        size=asked.pipeline,
        arriving=asked.arriving,
        slices=asked.slices,
        replica=dp,
        replicas=asked.replicas,
    )
