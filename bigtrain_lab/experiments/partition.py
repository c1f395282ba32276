"""Where do I cut the model so that no stage waits for another?

The pipeline lab's model, with an output layer that weighs as much as some blocks: equal layers
leave the last stage too much. On the unit profile a slot is the forward of a perfect share, 1/p of
the model's multiplications, and a stage costs its own.
"""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

from .. import models
from ..core import PROFILES, Hardware, Impossible, Trace, knob
from ..order import Stage, by_sizes, require_sizes, stage_times, worst
from ..order.simulate import simulate
from ..runtime.calibrate import NAME as MACHINE
from .experiment import Quantity
from .pipeline import PipelineExperiment


class Partition(PipelineExperiment):
    name: ClassVar[str] = "partition"
    question: ClassVar[str] = "Where do I cut the model so that no stage waits for another?"
    figures: ClassVar[tuple[str, ...]] = ("rivals", "timeline", "memory", "versions", "profile")
    rivals_by: ClassVar[str] = "partition"
    rivals_tell: ClassVar[tuple[str, ...]] = ("slowest stage, a micro-batch",)
    answers: ClassVar[tuple[str, ...]] = ("step time", *rivals_tell, "peak memory, fullest rank")
    ticks_of_chunk: ClassVar[int] = 10**6

    cut: str = knob(
        "3 2 2 3",
        "pieces of each stage when partition is mine; embedding, blocks and head count one each",
    )
    vocabulary: int = knob(
        2048,
        "words that the output layer scores; the text's bytes are the first 256",
        low=256,
        high=32768,
        logarithmic=True,
    )
    profiled: str = knob(
        "counted",
        "a piece's time: counted products and bytes on that hardware, or measured on this machine",
        choices=("counted", "measured"),
    )
    varied: ClassVar[dict] = {
        "hardware": {
            "help": "what prices each piece, and the messages between stages",
            "choices": lambda: [*PROFILES, MACHINE],
            "more": False,
        },
        "partition": {
            "help": "equal layers; balanced, by dynamic programming; the worst there is; or mine",
            "choices": ("equal", "balanced", "worst", "mine"),
            "more": False,
        },
        "cut": {},
        "vocabulary": {},
        "profiled": {},
        "schedule": {"more": True},
        "micro_batches": {"more": True},
        "stashing": {"more": True},
        "chunks": {"more": True},
    }

    unused: ClassVar[tuple] = (
        ("partition", lambda name: name != "mine", {"cut"}),
        ("profiled", lambda how: how == "measured", {"hardware"}),
    )

    @cached_property
    def config(self) -> "models.GPTConfig":
        return replace(super().config, vocabulary=self.vocabulary)

    @cached_property
    def profile(self) -> Hardware:
        return self.machine if self.profiled == "measured" else super().profile

    def model_post_init(self, facts):
        super().model_post_init(facts)
        if self.profiled == "measured" and "timed" in self.kept:
            self.measured  # noqa: B018  (raises Impossible where it is damaged)

    @cached_property
    def measured(self) -> list[tuple[float, float]]:
        """(forward, backward) of each piece: as the run kept them, where this was restored from one
        of such a model."""
        try:
            if three := self.kept.get("timed", {}).get(
                models.timing.timed_as(self.config, self.rows)
            ):
                return models.timing.of_pieces(self.config, three)
        except (AttributeError, TypeError, ValueError) as error:
            raise Impossible(
                "what the run kept of its pieces' times cannot be read: run it again."
            ) from error
        return models.timing.piece_seconds(self.config, self.rows)

    # -- the cut -----------------------------------------------------------------------------------

    def stages_by(self, partition: str) -> list[Stage]:
        stages = (
            super().stages_by("equal") if partition == "equal" else super().stages_by("balanced")
        )
        if partition == "worst":
            return worst(self.pieces, len(stages))
        return (
            by_sizes(require_sizes(self.cut, len(self.pieces), len(stages)))
            if partition == "mine"
            else stages
        )

    def rivals(self) -> dict[str, dict[str, Any]]:
        """With how many pieces each stage has."""
        told = {name: " ".join(map(str, cut["sizes"])) for name, cut in self.cuts.items()}
        return {
            f"{name}: {told.get(name, self.cut)}": changes
            for name, changes in super().rivals().items()
        }

    @cached_property
    def cuts(self) -> dict[str, dict[str, Any]]:
        """What each rule's cut would cost, by simulation: its sizes, step time and idle share."""
        told, plan = {}, self.lowered  # the order does not depend on the cut
        rules = dict.fromkeys(("equal", "balanced", "worst", self.partition))
        # more stages than layers can still be balanced
        for name, other in self.possible({name: {"partition": name} for name in rules}):
            trace = simulate(plan, other.cost(memory=False))
            told[name] = {
                "sizes": [last - first for first, last in other.slices],
                "step_time": trace.step_time,
                "idle": trace.shares().idle,
            }
        return told

    @property
    def facts(self) -> dict[str, Any]:
        timed = (
            [list(self.measured[at]) for at in (0, 1, -1)] if self.profiled == "measured" else []
        )
        return {
            **super().facts,
            "unit": self.profile.unit,
            "pieces": [[piece.name, float(piece.time)] for piece in self.pieces],
            "chosen": self.partition,
            "cuts": self.cuts,
            **({"timed": {models.timing.timed_as(self.config, self.rows): timed}} if timed else {}),
        }

    # -- the profile -------------------------------------------------------------------------------

    def durations(self) -> dict:
        return self.priced()

    def time_of(self, kind: str, first: int, last: int) -> float | Fraction:
        """Measured: the sum of the pieces' times, B halved as its products are. On the unit
        profile: its share of all products."""
        if self.profiled == "measured":
            forward, backward = (sum(times) for times in zip(*self.measured[first:last]))
            if kind in "FB":
                return forward if kind == "F" else backward
            late = backward * self.flops("W", first, last) / (self.flops("B", first, last) or 1)
            return late if kind == "W" else backward - late
        if self.profile.textbook:
            return Fraction(
                self.ranks * self.flops(kind, first, last),
                models.theory.forward_flops(self.config, self.rows),
            )
        return super().time_of(kind, first, last)

    def flops(self, kind: str, first: int, last: int) -> int:
        """Of a slice for one micro-batch."""
        return sum(work.flops for work in self.works(kind, first, last))

    # -- what is told ------------------------------------------------------------------------------

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        others = (
            Quantity(
                f"step time if cut {name}",
                self.profile.unit,
                lambda t, cost=cost: cost["step_time"] if t.clock == "predicted" else None,
            )
            for name, cost in self.cuts.items()
            if name != self.partition
        )
        step, *rest = super().quantities
        return (
            Quantity(
                "slowest stage, a micro-batch",
                self.profile.unit,
                lambda t: max(stage_times(t), default=None),
            ),
            step,
            *others,
            *rest,
        )

    def describe(self) -> str:
        return (
            f"{super().describe()}; stages of"
            f" {', '.join(str(last - first) for first, last in self.slices)} pieces"
        )

    def why(self, trace: Trace) -> Iterable[str]:
        times = stage_times(trace)
        if len(times) > 1:
            best = min(self.cuts.values(), key=lambda cut: cut["step_time"])["sizes"]
            yield (
                f"Stage {times.index(max(times))} has {max(times) / sum(times):.0%} of the work,"
                f" where {1 / len(times):.0%} would be a share."
                + " No rule cuts it better."
                * (best == self.cuts[self.partition]["sizes"])
            )
        yield from super().why(trace)
