"""Data, pipeline and tensor parallel are one training, and any product of them gives one loss.

A GPT on Mesh(dp, pp, tp): copies of the model share the batch, the ranks of a copy its layers, and
neighbours each layer. The axis that talks most is the last one, inside a node. All go through the
one loop of recipe.py, with accumulation, mixed precision, recompute and the stages of ZeRO.
Source: Narayanan et al. 2021 (arXiv:2104.04473), section 3; Rajbhandari et al. 2020, ZeRO
(arXiv:1910.02054), section 5.1.
"""

from collections.abc import Iterable
from itertools import product
from typing import Any, ClassVar

from ..core import Trace, duration, knob, refuse, size
from ..order import axes, fullest_bytes
from .experiment import Quantity
from .layered import Layered, whole_layers

WHAT = {"dp": "averaging gradients", "pp": "bubbles and messages", "tp": "sums inside layers"}


class Combined(Layered):
    name: ClassVar[str] = "combined"
    question: ClassVar[str] = "Which product of data, pipeline and tensor parallel?"
    terms: ClassVar[dict[str, str]] = {"micro_batch": "micro-batch", "stage": "layer"}
    figures: ClassVar[tuple[str, ...]] = ("rivals", "timeline", "mesh", "memory")
    rivals_by: ClassVar[str] = "replicas x pipeline x slices"
    answers: ClassVar[tuple[str, ...]] = (
        "step time",
        "peak memory, fullest rank",
        "pp: bubbles and messages, a step",
    )
    must_exist: ClassVar[tuple[str, ...]] = ("scheduled", "stages")

    precision: str = knob("none", "level of mixed precision", choices=("none", "bf16"), more=True)
    recompute: bool = knob(
        False, "keep the input of each layer, and compute the rest again in the backward", more=True
    )
    sequence_parallel: bool = knob(
        False,
        "cut norms and the residual along the sequence, where slices duplicate them",
        more=True,
    )
    zero: int = knob(
        0,
        "what replicas share in place of copies, the stage of ZeRO: 1 the optimizer's state, 2 also"
        " gradients, 3 also weights; lamb and lars then need tp = 1",
        low=0,
        high=3,
        more=True,
    )
    varied: ClassVar[dict] = {
        "replicas": {"default": 2, "logarithmic": True, "more": False},
        "pipeline": {"default": 2, "more": False},
        "slices": {"default": 2, "more": False},
        "micro_batches": {
            "default": 8,
            "help": "micro-batches, which the replicas share",
            "unit": "in a batch",
            "high": 64,
            "logarithmic": True,
            "more": False,
        },
        "hardware": {"default": "v100-nvlink", "more": False},
        "layers": 8,
        "width": {"default": 512, "high": 2048},  # of less, launches would decide the order
        "heads": 8,
        "vocabulary": {"high": 65536},
        "sequence": {"default": 256, "high": 2048},
    }

    def model_post_init(self, facts):
        super().model_post_init(facts)
        refuse(
            (
                self.micro_batches % self.replicas,
                f"{self.micro_batches} micro-batches cannot be shared equally by {self.replicas}"
                f" replicas: take {-(-self.micro_batches // self.replicas) * self.replicas}"
                " micro-batches.",
            ),
            (
                self.sharded and self.slices > 1 and not self.optimizer_class.element_wise(),
                f"{self.optimizer} sums its norms over replicas and slices at once under ZeRO,"
                " which this lab does not predict: take adam, tp = 1, or zero = 0.",
            ),
        )

    unused: ClassVar[tuple] = (
        ("pipeline", lambda ranks: ranks == 1, {"schedule"}),
        ("slices", lambda ranks: ranks == 1, {"sequence_parallel"}),
        ("replicas", lambda ranks: ranks == 1, {"zero"}),
    )

    shapes: ClassVar[tuple[str, ...]] = (
        "replicas",
        "pipeline",
        "slices",
        "micro_batches",
        "schedule",
        "precision",
        "recompute",
        "sequence_parallel",
        "zero",
        "layers",
        "width",
        "heads",
        "fused_attention",
        "vocabulary",
        "sequence",
        "rows",
        "optimizer",
        "dtype",
    )

    @property
    def own_micro_batches(self) -> int:
        return self.micro_batches // self.replicas

    def products(self) -> list["Combined"]:
        """The same training on as many ranks, by every product of the three axes that it allows."""
        ranks = self.ranks
        axes = {
            (dp, pp): {"replicas": dp, "pipeline": pp, "slices": ranks // (dp * pp)}
            for dp, pp in product(range(1, ranks + 1), repeat=2)
            if ranks % (dp * pp) == 0
        }
        return [each for _, each in self.possible(axes)]

    def rivals(self) -> dict[str, dict[str, Any]]:
        return {
            f"{each.replicas} x {each.pipeline} x {each.slices}": {
                "replicas": each.replicas,
                "pipeline": each.pipeline,
                "slices": each.slices,
            }
            for each in self.products()
        }

    @property
    def facts(self) -> dict[str, Any]:
        return super().facts | {"mesh": dict(self.mesh.axes)}

    @property
    def further(self) -> dict[str, Any]:
        return {
            "precision": None if self.precision == "none" else self.precision,
            "recompute": whole_layers if self.recompute else None,
            "sequence_parallel": self.sequence_parallel and self.slices > 1,
        }

    def describe(self) -> str:
        return (
            f"a model of {size(self.weights, '')} parameters on {self.replicas} x {self.pipeline}"
            f" x {self.slices} ranks; a batch of {self.micro_batches} x {self.rows} samples of"
            f" {self.sequence} bytes"
        )

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            Quantity("step time", self.profile.unit, lambda t: t.step_time),
            *(
                Quantity(
                    f"{axis}: {WHAT[axis]}, a step",
                    self.profile.unit,
                    lambda t, at=at: axes(t)[at].time,
                )
                for at, axis in enumerate(WHAT)
            ),
            *(
                Quantity(
                    f"{axis}: bytes sent a step, busiest rank",
                    "B",
                    lambda t, at=at: axes(t)[at].bytes,
                )
                for at, axis in enumerate(WHAT)
            ),
            Quantity("peak memory, fullest rank", "B", fullest_bytes),
            Quantity("loss, mean of last batch", "", self.last_loss, exact=False),
        )

    def why(self, trace: Trace) -> Iterable[str]:
        found = [axis for axis in axes(trace) if dict(self.mesh.axes)[axis.name] > 1]
        dear = max(found, key=lambda axis: axis.time, default=None)
        if dear and dear.time:
            yield (
                f"Of the ranks' time {1 - trace.shares().compute:.1%} is no compute; the largest"
                f" part is {WHAT[dear.name]} ({dear.name})."
            )
        yield from (
            f"{axis.name}, {WHAT[axis.name]}: {duration(axis.time, trace.unit)} of a step"
            f" of {duration(trace.step_time, trace.unit)}, the mean over ranks; the busiest"
            f" rank sends {size(round(axis.bytes))}."
            for axis in found
        )
