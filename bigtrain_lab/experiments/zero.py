"""Every rank keeps the same Adam state. Why?

Data parallel ranks hold the same weights, gradients and optimizer state. ZeRO keeps one copy among
N ranks: of the state (stage 1), also of the gradients (2), also of the weights (3). What each rank
holds at every action is found by a dry run of its whole training; activations stay as they are.
Source: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 3, 5 and 7.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

from .. import models
from ..core import Trace, duration, knob, readings, size
from ..order import exposed, fullest_bytes, sent_bytes
from .experiment import Quantity
from .layered import Layered, whole_layers

STAGES = ("data parallel", "stage 1", "stage 2", "stage 3")
SHARED = ("nothing", "the optimizer's state", "state and gradients", "state, gradients and weights")
WORDS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "master": "masters",
}


class Zero(Layered):
    name: ClassVar[str] = "zero"
    question: ClassVar[str] = "Every rank keeps the same Adam state. Why?"
    figures: ClassVar[tuple[str, ...]] = ("rivals", "timeline", "microscope", "memory")
    rivals_by: ClassVar[str] = "stage"
    rivals_tell: ClassVar[tuple[str, ...]] = ("optimizer state, most on a rank",)
    answers: ClassVar[tuple[str, ...]] = (
        "peak memory, fullest rank",
        "optimizer state, most on a rank",
        "step time",
    )
    must_exist: ClassVar[tuple[str, ...]] = ("scheduled",)
    pipeline: ClassVar[int] = 1
    slices: ClassVar[int] = 1
    schedule: ClassVar[str] = "1f1b"

    stage: int = knob(
        1,
        "what the ranks share instead of copying: 0 nothing, 1 the optimizer's state, 2 also"
        " gradients, 3 also weights",
        low=0,
        high=3,
    )
    precision: str = knob("none", "level of mixed precision", choices=("none", "bf16"))
    link_gb_s: float = knob(
        0.0,
        "bandwidth inside a node; 0: what the hardware profile states",
        low=0,
        high=1000,
        step=0.5,
        unit="GB/s",
        more=True,
    )
    bucket_mb: float = knob(
        0.1,
        "gradients that travel in one message at stages 0 to 2",
        low=0.01,
        high=100,
        step=0.01,
        unit="MB",
        logarithmic=True,
        more=True,
    )
    recompute: bool = knob(
        False, "keep the input of each layer, and compute the rest again in the backward", more=True
    )
    clip: float = knob(
        0.0,
        "largest norm of the gradient, over all ranks; 0: it is not clipped",
        low=0,
        high=100,
        step=0.01,
        more=True,
    )
    varied: ClassVar[dict] = {
        "stage": {},
        "replicas": {"default": 4, "help": "ranks, each with its share of a batch", "more": False},
        "optimizer": {"more": False},
        "precision": {},
        "micro_batches": {
            "help": "micro-batches whose gradients add up before the update",
            "unit": "of a rank",
            "more": False,
        },
        "hardware": "rtx3090-pcie",
        "sequence": 16,
        "width": 512,  # of less, launches of kernels would decide the order of the stages
    }

    unused: ClassVar[tuple] = (
        ("stage", lambda stage: stage == 3, {"bucket_mb"}),  # a layer is a message
    )

    shapes: ClassVar[tuple[str, ...]] = (
        "stage",
        "replicas",
        "optimizer",
        "precision",
        "micro_batches",
        "bucket_mb",
        "recompute",
        "clip",
        "layers",
        "width",
        "heads",
        "fused_attention",
        "vocabulary",
        "sequence",
        "rows",
        "dtype",
    )

    # -- what the settings mean --------------------------------------------------------------------

    @property
    def zero(self) -> int:
        return self.stage

    def rivals(self) -> dict[str, dict[str, Any]]:
        return {name: {"stage": stage} for stage, name in enumerate(STAGES)}

    @property
    def further(self) -> dict[str, Any]:
        return {
            "precision": None if self.precision == "none" else self.precision,
            "clip": self.clip or None,
            "recompute": whole_layers if self.recompute else None,
        }

    def describe(self) -> str:
        who = (
            f"{self.ranks} ranks share {SHARED[self.stage]}"
            if self.ranks > 1
            else "one rank has nobody to share with"
        )
        batch = f"{self.replicas} x {self.micro_batches} x {self.rows} samples"
        return (
            f"a model of {size(self.weights, '')} parameters; {who}; a batch of {batch} of "
            f"{self.sequence} bytes"
        )

    # -- theory ---------------------------------------------------------------------------------

    @property
    def terms(self) -> dict[str, str]:
        return {
            "stage": "layer",
            "micro_batch": "step" if self.micro_batches == 1 else "micro-batch",
        }

    # -- what it shows -----------------------------------------------------------------------------

    @property
    def bytes_a_weight(self) -> tuple[int, int, float]:
        """Of a weight, of its gradient and of what its optimizer keeps, as the paper counts."""
        moments = self.optimizer_class.moments()
        z = self.config.item_bytes
        return (z, z, moments * z) if self.precision == "none" else (2, 2, 4 * (1 + moments))

    def paper_bytes(self, stage: int) -> float:
        """Of weights, gradients and state on each rank at a stage, without padding and without what
        a step adds."""
        return models.theory.zero_bytes(self.weights, self.replicas, stage, self.bytes_a_weight)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            *(
                Quantity(
                    f"{word}, most on a rank",
                    "B",
                    lambda t, kind=kind: max(t.peak_bytes(rank, kind) for rank in range(t.ranks)),
                )
                for kind, word in WORDS.items()
                if kind != "master" or self.precision != "none"
            ),
            Quantity("peak memory, fullest rank", "B", fullest_bytes),
            Quantity("bytes sent a rank and step", "B", sent_bytes),
            Quantity("step time", self.profile.unit, lambda t: t.step_time),
            Quantity("exposed communication a step", self.profile.unit, exposed),
            Quantity("loss, mean of last batch", "", self.last_loss, exact=False),
        )

    @property
    def relief(self) -> str:
        higher = f"A higher stage ({self.stage + 1}) or more" if self.stage < 3 else "More"
        return (
            f"{higher} ranks (replicas), a smaller batch (rows) or recompute would need less "
            "on each device."
        )

    def shown(
        self, figure: str, trace: Trace, pinned: Trace | None = None
    ) -> Trace | dict[str, Trace]:
        """For the microscope all four stages: predictions beside the trace of this one."""
        if figure != "microscope":
            return trace
        return {
            name: trace
            if stage == self.stage
            else self.replace(stage=stage, fault="none").predict()
            for stage, name in enumerate(STAGES)
        }

    def excess(self, trace: Trace) -> list[str]:
        """Also that a rank has no room for the whole model, of which it then keeps a part."""
        said = super().excess(trace)
        if said or trace.clock != "predicted" or not self.capacity_bytes or not self.sharded:
            return said
        most = self.dry(0).set_up_bytes
        if most <= self.capacity_bytes:
            return []
        return [
            "It does not fit: a rank makes the whole model before it keeps its part, and holds "
            f"{size(most)} then. Its device has {size(self.capacity_bytes)}: take a smaller "
            "model (layers, width)."
        ]

    def why(self, trace: Trace) -> Iterable[str]:
        if self.replicas == 1:
            return
        if self.stage:
            what = ("state", "gradients and state", "values, gradients and state")[self.stage - 1]
            yield (
                f"It need not: a rank keeps the {what} of 1/{self.replicas} of the weights,"
                f"{' updates those,' * (self.stage < 3)} and gets the others"
                f"{' layer by layer' * (self.stage == 3)}."
            )
        each, copied = (self.paper_bytes(stage) for stage in (self.stage, 0))
        yield (
            f"By the paper's formula it is {each / self.weights:.3g} bytes a weight on each rank at"
            f" stage {self.stage}, {size(round(each))}; data parallel has "
            f"{copied / self.weights:.3g}, {size(round(copied))}."
        )
        if most := max(readings(trace, 0), key=lambda read: read.bytes, default=None):
            model = sum(held for kind, held in most.held.items() if kind in WORDS)
            yield (
                f"At the peak of rank 0 weights, gradients and state are {size(model)}. No "
                f"stage shares the other {size(most.bytes - model)}, such as activations."
            )
        if self.sharded:
            yield (
                f"Before the first step rank 0 holds up to {size(self.dry(0).set_up_bytes)}, while"
                " it makes its model and its optimizer: that is in no step's peak, and has to fit."
            )
        if most_sent := sent_bytes(trace):
            gradients = self.weights * (
                2 if self.stage and self.precision != "none" else self.config.item_bytes
            )
            times = most_sent / models.theory.zero_sent_bytes(gradients, self.replicas, 0)
            yield (
                f"A rank sends {size(round(most_sent))} a step, "
                f"{f'{times:.3g} times' if times > 1.05 else 'as much as'} what an "
                "all-reduce of all gradients sends. It waits for that alone "
                f"{duration(exposed(trace), trace.unit)} of a step."
            )
