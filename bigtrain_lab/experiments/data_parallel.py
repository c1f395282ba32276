"""Three GPUs: three times faster?

A GPT whose layers are actions, so that the gradients of the last layers travel while the backward
of the first ones goes on. Each rank holds the model, or a stage of it, and takes its share of every
batch. Buckets of gradients are averaged on a lane of their own; what the backward does not cover is
exposed.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from .. import techniques
from ..core import TICKS_PER_SECOND, Trace, duration, grouped, knob, refuse, size
from ..order import bubbles, exposed, sent_bytes
from ..runtime.failure.faults import MISTAKES, Astray, Fault
from .experiment import Quantity
from .layered import Layered

SYMPTOMS = {
    "nan": (
        "One all-reduce brings the NaN of rank {rank} to every rank: after the first update no "
        "weight is a number anywhere."
    ),
    "straggler": (
        "All ranks wait for rank {rank} in every step: its compute lane alone never idles."
    ),
}


class DataParallel(Layered):
    name: ClassVar[str] = "data-parallel"
    question: ClassVar[str] = "Three GPUs: three times faster?"
    figures: ClassVar[tuple[str, ...]] = ("timeline", "memory")
    answers: ClassVar[tuple[str, ...]] = (
        "speed-up over one replica",
        "step time",
        "bytes sent a rank and step",
    )
    slices: ClassVar[int] = 1

    bucket_mb: float = knob(
        1.0,
        "gradients that travel in one message",
        low=0.01,
        high=100,
        step=0.01,
        unit="MB",
        logarithmic=True,
    )
    strategy: str = knob(
        "buckets",
        "what is sent together: what fills a bucket; what is ready on all ranks at a cycle of"
        " Horovod's; or pieces, front layers first, each rank being the server of a part of them,"
        " as BytePS pushes and pulls",
        choices=("buckets", "fused-cycle", "push-pull"),
        more=True,
    )
    cycle_ms: float = knob(
        1.0,
        "time from one fused cycle to the next; on the textbook profile in slots",
        low=0.001,
        high=100,
        step=0.001,
        unit="ms",
        logarithmic=True,
        more=True,
    )
    overlap: bool = knob(
        True, "send a bucket when it is full, beside the backward; else all of them after it"
    )
    link_gb_s: float = knob(
        0.0,
        "bandwidth inside a node; 0: what the hardware profile states",
        low=0,
        high=1000,
        step=0.5,
        unit="GB/s",
    )
    split_parameters: bool = knob(
        False, "cut a parameter where its bucket is full, such as a large embedding", more=True
    )
    ring: bool = knob(
        False,
        "average by the messages of our ring, in place of the backend's all-reduce",
        more=True,
    )
    mistake: str = knob(
        "none",
        "what fault-rank does otherwise than the others, at its all-reduce number fault-at",
        choices=tuple(MISTAKES),
        more=True,
    )
    varied: ClassVar[dict] = {
        "replicas": {
            "default": 3,
            "help": "copies of the model, each with its share of a batch",
            "more": False,
        },
        "bucket_mb": {},
        "overlap": {},
        "hardware": {"default": "rtx3090-pcie", "more": False},
        "link_gb_s": {},
        "ranks_per_node": {"more": False},
        "pipeline": {"help": "ranks that each copy of the model is cut over", "high": 4},
        "layers": 6,
        "width": 128,
        "vocabulary": 2048,
        "sequence": 32,
        "rows": 2,
    }

    def model_post_init(self, facts):
        super().model_post_init(facts)
        self.scheduled  # noqa: B018  (raises Impossible)
        if self.mistake != "none":
            self.refuse_mistake()

    unused: ClassVar[tuple] = (
        ("pipeline", lambda ranks: ranks == 1, {"schedule"}),
        ("strategy", lambda name: name != "fused-cycle", {"cycle_ms"}),
        ("strategy", lambda name: name != "buckets", {"split_parameters"}),
        ("strategy", lambda name: name == "push-pull", {"ring"}),
    )

    @classmethod
    def idle_settings(cls, settings: dict) -> set[str]:
        return super().idle_settings(settings) - {"none": set(), "short": {"fault_rank"}}.get(
            settings["mistake"], {"fault_rank", "fault_at"}
        )

    def refuse_mistake(self) -> None:
        """Impossible where nothing would go wrong."""
        Fault("straggler", self.fault_rank).refuse(self.ranks)
        count = len(travels(self.simulated(), self.fault_rank)) - (self.mistake == "swapped")
        one = "replica" if self.replicas == 1 else "step"
        refuse(
            (
                self.replicas == 1 or self.mistake == "short" and self.steps == 1,
                f"One {one} cannot go wrong so: take 2 or more, or no mistake.",
            ),
            (
                self.mistake != "short" and self.fault_at >= count,
                f"The mistake is at all-reduce {self.fault_at} of rank {self.fault_rank}, "
                f"which can make it at 0 to {count - 1}: choose one of them as fault-at.",
            ),
        )

    # -- what the settings mean --------------------------------------------------------------------

    @property
    def reducing(self) -> dict[str, Any]:
        """What is sent together, when, and by which messages."""
        ticks = round(self.cycle_ms * (1000 if self.profile.textbook else TICKS_PER_SECOND / 1000))
        strategy = {
            "buckets": techniques.reducers.Buckets(self.split_parameters),
            "fused-cycle": techniques.reducers.FusedCycle(every_ticks=ticks),
            "push-pull": techniques.reducers.PushPull(),
        }[self.strategy]
        return {
            "strategy": strategy,
            "overlap": self.overlap,
            "all_reduce": (
                techniques.ring_all_reduce
                if self.ring and self.strategy != "push-pull"
                else strategy.all_reduce
            ),
        }

    def program(self, rank) -> dict[str, Any]:
        recipe = self.recipe
        if self.mistake != "none" and rank.index == self.fault_rank:
            right = recipe.data_parallel
            wrong = right | {"all_reduce": Astray(self.mistake, self.fault_at, right["all_reduce"])}
            recipe = (
                replace(recipe, steps=self.steps - 1)
                if self.mistake == "short"
                else replace(recipe, data_parallel=wrong)
            )
        return recipe.program(rank)

    def describe(self) -> str:
        return (
            f"a model of {size(self.weights, '')} parameters on {self.ranks}"
            f" rank{'s' * (self.ranks > 1)}; a batch of {self.replicas} x {self.micro_batches} x"
            f" {self.rows} samples of {self.sequence} bytes"
        )

    # -- theory ------------------------------------------------------------------------------------

    @property
    def terms(self) -> dict[str, str]:
        """Where a step has one micro-batch, a box is told by its layer."""
        return (
            {"stage": "layer", "micro_batch": "step"}
            if self.pipeline == self.micro_batches == 1
            else {}
        )

    @cached_property
    def alone_s(self) -> float:
        """The step of one replica."""
        return (
            self.replace(replicas=1, fault="none", mistake="none").simulated(memory=False).step_time
        )

    def speed_up(self, trace: Trace) -> float:
        return self.replicas * self.alone_s / trace.step_time

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            Quantity("step time", self.profile.unit, lambda t: t.step_time),
            Quantity("exposed communication a step", self.profile.unit, exposed),
            Quantity(
                "speed-up over one replica",
                "times",
                lambda t: self.speed_up(t) if t.clock != "measured" else None,
            ),
            Quantity("bytes sent a rank and step", "B", sent_bytes),
            Quantity("loss, mean of last batch", "", self.last_loss, exact=False),
        )

    def why(self, trace: Trace) -> Iterable[str]:
        if trace.clock == "modelled" and self.fault in SYMPTOMS:
            yield SYMPTOMS[self.fault].format(rank=self.fault_rank)
        if self.replicas == 1:
            return

        def time(amount):
            return duration(amount, trace.unit)

        if trace.clock != "measured":
            copies = min(map(trace.busy, range(trace.ranks))) / trace.steps - self.alone_s
            if self.pipeline == 1 and self.fault == "none":
                yield (
                    f"{self.replicas} replicas train {self.speed_up(trace):.3g} times as fast as"
                    f" one: a step is {time(self.alone_s)} as on one, {time(max(copies, 0))} of"
                    " copies of gradients into buckets and back,"
                    f" {time(exposed(trace))} of waiting for them."
                )
            else:
                yield (
                    f"{self.replicas} replicas train {self.speed_up(trace):.3g} times as fast as"
                    f" one: a step takes {time(trace.step_time)} in place of {time(self.alone_s)}."
                )
        wait, reduced = exposed(trace), travels(trace, 0)
        travelling = trace.units(sum(end - start for start, end in reduced.values())) / trace.steps
        yield (
            f"Gradients travel for {time(travelling)} of each step; {time(wait)} of it a rank "
            "has nothing else to do."
        )
        if wait and self.overlap and reduced:
            start, end = max(reduced.values(), key=lambda times: times[1])
            done = max(s.end for s in trace.spans(0) if s.kind in "BW" and s.end <= end)
            when = (
                "is full when the backward ends" if start >= done else "waits for those before it"
            )
            if self.strategy == "fused-cycle":
                when = f"waits {time(trace.units(max(start - done, 0)))} for its cycle"
            elif self.strategy == "push-pull" and start >= done:
                when = "lets those of the front layers go first"
            yield (
                f"The last bucket {when}, and takes "
                f"{time(trace.units(end - max(start, done)))} after it."
            )
        last = max(p.nbytes for p in self.stages[0].parameters())
        yield (
            f"The last gradient, {size(last)} of the embedding, comes at once when the "
            "backward ends: smaller buckets, or parts of the parameter, send none of it "
            "earlier."
        )
        if self.pipeline > 1:
            first = tuple(event for event in trace if event.rank < self.pipeline)
            yield from bubbles(replace(trace, events=first, ranks=self.pipeline), self.order)


def travels(trace: Trace, rank: int) -> dict[str, tuple[int, int]]:
    """Of each bucket of a rank, or several that were fused, by name: from its first message, or
    call, to its last."""
    events = grouped(
        (event.name.split(" round ")[0], event)
        for event in trace.where(rank=rank, lane=techniques.replica_rules.LANE)
        if not event.name.startswith("cycle")
    )
    return {
        name: (min(each.start for each in own), max(each.end for each in own))
        for name, own in events.items()
    }
