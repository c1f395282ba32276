"""Every rank keeps the same Adam state. Why?

Data parallel ranks hold the same weights, gradients and optimizer state. ZeRO keeps one copy of them
among N ranks: of the state (stage 1), also of the gradients (2), also of the weights (3). What each
rank holds at every action is found by a dry run of its whole training; activations stay as they are.
Source: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 3, 5 and 7.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from ..core import Scalar, Trace, Transfer, knob
from ..core.hardware import Hardware
from ..core.peak import peak
from ..data import chosen_text
from ..models.optimizers import OPTIMIZERS
from ..models.theory import zero_bytes, zero_sent_bytes
from ..rates import exposed
from ..techniques.checkpoint import checkpoint
from ..words import duration, size
from .experiment import MB, Quantity
from .on_hardware import profiles
from .pipelined import Pipelined
from .sharded import Sharded

STAGES = ("data parallel", "stage 1", "stage 2", "stage 3")
SHARED = ("nothing", "the optimizer's state", "state and gradients", "state, gradients and weights")
WORDS = {"weights": "weights", "gradients": "gradients", "optimizer": "optimizer state", "master": "masters"}


class Zero(Sharded):
    name: ClassVar[str] = "zero"
    question: ClassVar[str] = "Every rank keeps the same Adam state. Why?"
    figures: ClassVar[tuple[str, ...]] = ("microscope", "overlap", "memory")
    pipeline: ClassVar[int] = 1
    slices: ClassVar[int] = 1
    schedule: ClassVar[str] = "1f1b"

    stage: int = knob(1, "what the ranks share instead of copying: 0 nothing, 1 the optimizer's state, 2 also gradients, 3 also weights", low=0, high=3)
    replicas: int = knob(4, "ranks, each with its share of a batch", low=1, high=8)
    optimizer: str = knob("adam", "the rule that U applies", choices=tuple(OPTIMIZERS))
    precision: str = knob("none", "level of mixed precision", choices=("none", "bf16"))
    micro_batches: int = knob(1, "micro-batches of a rank whose gradients add up before the update", low=1, high=16)
    hardware: str = knob("rtx3090-pcie", "what the modelled clock charges for compute and messages", choices=profiles, more=True)
    link_gb_s: float = knob(0.0, "bandwidth inside a node; 0: what the hardware profile states", low=0, high=1000, step=0.5, unit="GB/s", more=True)
    ranks_per_node: int = knob(8, "ranks that one node holds; the slower links lie between nodes", low=1, high=8, more=True)
    bucket_mb: float = knob(1.0, "gradients that travel in one message at stages 0 to 2", low=0.01, high=100, step=0.01, unit="MB", logarithmic=True, more=True)
    recompute: bool = knob(False, "keep the input of each layer, and compute the rest again in the backward", more=True)
    clip: float = knob(0.0, "largest norm of the gradient, over all ranks; 0: it is not clipped", low=0, high=100, step=0.01, more=True)
    steps: int = knob(2, "updates of a run", low=1, high=50, more=True)
    layers: int = knob(4, "transformer blocks", low=1, high=24, more=True)
    width: int = knob(64, "width of the model; 12 x width^2 weights a block", low=16, high=1024, step=16, more=True)
    heads: int = knob(4, "attention heads; they divide the width", low=1, high=32, more=True)
    vocabulary: int = knob(256, "words; the text's bytes are the first 256", low=256, high=32768, logarithmic=True, more=True)
    sequence: int = knob(16, "tokens (bytes of text) in a sample", low=4, high=1024, unit="tokens", more=True)
    rows: int = knob(1, "samples in a micro-batch", low=1, high=64, unit="samples", more=True)
    learning_rate: float = knob(1e-3, "step size of the optimizer", low=1e-5, high=10, logarithmic=True, more=True)
    dtype: Literal["float32", "float64"] = knob("float32", "number format of weights and activations", choices=("float32", "float64"), more=True)
    text: str = knob("", "path of a text file; empty: Python's own help", more=True)
    seed: int = knob(0, "seed of weights and samples", low=0, high=2**31 - 1, more=True)

    def model_post_init(self, facts):
        super().model_post_init(facts)
        self.recipe  # noqa: B018  (raises Impossible)
        if self.text:
            chosen_text(self.text).batch(0, 0, 0, 1, self.sequence)

    @classmethod
    def idle_settings(cls, settings: dict) -> set[str]:
        return super(Pipelined, cls).idle_settings(settings) | ({"bucket_mb"} if settings["stage"] == 3 else set())

    shapes: ClassVar[tuple[str, ...]] = (
        "stage", "replicas", "optimizer", "precision", "micro_batches", "bucket_mb", "recompute", "clip", "layers", "width", "heads", "vocabulary",
        "sequence", "rows", "dtype")

    # -- what the settings mean -----------------------------------------------------------------------------

    @property
    def zero(self) -> int:
        return self.stage

    @property
    def bucket_bytes(self) -> int:
        return round(self.bucket_mb * MB)

    @property
    def further(self) -> dict[str, Any]:
        return {"precision": None if self.precision == "none" else self.precision, "clip": self.clip or None,
                "recompute": checkpoint if self.recompute else None}

    @property
    def format(self) -> str:
        return {"none": self.dtype, "bf16": "bfloat16"}[self.precision]

    def describe(self) -> str:
        who = f"{self.ranks} ranks share {SHARED[self.stage]}" if self.ranks > 1 else "one rank has nobody to share with"
        return (f"a model of {self.weights / 1e6:.3g} M parameters; {who}; a batch of {self.replicas} x {self.micro_batches} x {self.rows} samples of "
                f"{self.sequence} bytes")

    # -- theory ---------------------------------------------------------------------------------------------

    @cached_property
    def profile(self) -> Hardware:
        """With the links that the settings ask for."""
        hardware = super().profile
        if hardware.textbook:
            return hardware
        if self.link_gb_s:  # what was measured of collectives is of the profile's links
            inside = replace(hardware.inside, bytes_per_s=self.link_gb_s * 1e9)
            hardware = replace(hardware, inside=inside, collective_bytes_per_s=())
        return replace(hardware, node_size=self.ranks_per_node)

    @property
    def facts(self) -> dict[str, Any]:
        terms = {"terms": {"stage": "layer", "micro_batch": "step" if self.micro_batches == 1 else "micro-batch"}}
        return super().facts | terms

    # -- what it shows --------------------------------------------------------------------------------------

    @property
    def bytes_a_weight(self) -> tuple[int, int, int]:
        """Of a weight, of its gradient, and of what its optimizer keeps, as the paper counts them."""
        z, moments = (8 if self.dtype == "float64" else 4), {"sgd": 0, "momentum": 1, "lars": 1}.get(self.optimizer, 2)
        return (z, z, moments * z) if self.precision == "none" else (2, 2, 4 * (1 + moments))

    def paper_bytes(self, stage: int) -> float:
        """Of weights, gradients and state on each rank at a stage; no padding, nothing that a step adds."""
        return zero_bytes(self.weights, self.replicas, stage, self.bytes_a_weight)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        unit = "slot" if self.profile.textbook else "s"
        kinds = ("weights", "gradients", "optimizer") + ("master",) * (self.precision != "none")
        return (
            *(Quantity(f"{WORDS[kind]}, most on a rank", "B", lambda t, kind=kind: max(t.peak_bytes(rank, kind) for rank in range(t.ranks)))
              for kind in kinds),
            Quantity("peak memory, most on a rank", "B", lambda t: max(highest(t, rank) for rank in range(t.ranks))),
            Quantity("bytes sent a rank and step", "B", lambda t: max(map(t.bytes_sent, range(t.ranks))) / t.steps),
            Quantity("step time", unit, lambda t: t.step_time),
            Quantity("exposed communication a step", unit, exposed),
            Quantity("loss, last batch", "", self.last_loss, exact=False))

    def last_loss(self, trace: Trace) -> float | None:
        """Of the last batch, of all ranks."""
        losses = [e.value for e in trace.where(Scalar, name="loss")][-self.replicas * self.micro_batches:]
        return sum(losses) / len(losses) if losses else None

    @property
    def relief(self) -> str:
        higher = f"A higher stage ({self.stage + 1}) or more" if self.stage < 3 else "More"
        return f"{higher} ranks (replicas), a smaller batch (rows) or recompute would need less on each device."

    def shown(self, figure: str, trace: Trace) -> Trace | dict[str, Trace]:
        """For the microscope all four stages: predictions beside the trace of this one."""
        if figure != "microscope":
            return trace
        return {STAGES[stage]: trace if stage == self.stage else self.replace(stage=stage, fault="none").predict() for stage in range(4)}

    def explain(self, trace: Trace) -> list[str]:
        said = super(Pipelined, self).explain(trace)
        if self.replicas == 1 or trace.settings.get("unfinished"):
            return said
        each, whole = (self.paper_bytes(stage) for stage in (self.stage, 0))
        said.append(f"The paper counts {each / self.weights:.3g} bytes a weight on each rank at stage {self.stage}, {size(round(each))}, where data parallel "
                    f"has {whole / self.weights:.3g}, {size(round(whole))}.")
        if most := peak(trace, 0):
            model = sum(held for kind, held in most.held.items() if kind in WORDS)
            said.append(f"At the peak of rank 0 they are {size(model)}; the other {size(most.bytes - model)}, activations most of all, no stage shares.")
        if not trace.where(Transfer).events:
            return said
        sent, z = max(map(trace.bytes_sent, range(trace.ranks))) / trace.steps, 2 if self.stage and self.precision != "none" else self.config.dtype.itemsize
        usual = zero_sent_bytes(z * self.weights, self.replicas, 0)
        said.append(f"A rank sends {size(round(sent))} a step, {f'{sent / usual:.3g} times' if sent > 1.05 * usual else 'as much as'} what an all-reduce of "
                    f"all gradients sends; for {duration(exposed(trace), trace.unit)} of a step it waits for that alone.")
        return said


def highest(trace: Trace, rank: int) -> int:
    """The most bytes that a rank held."""
    most = peak(trace, rank)
    return most.bytes if most else 0
