"""Which pipeline schedule wastes the least time, and what does it pay in memory?

A byte-level GPT is cut into one stage a rank and trained on real text by the schedule of your choice.
"""

from dataclasses import replace
from functools import cached_property, lru_cache
from typing import ClassVar, Literal

import numpy as np
import torch

from ..core import Cost, Impossible, Trace, knob
from ..core.hardware import PROFILES, TICKS_PER_SECOND, Hardware
from ..data import ByteText, help_text, read_text
from ..explain import bubbles
from ..footprint import StageBytes, footprint
from ..models import (GPTConfig, GPTStage, Noise, boundary_bytes, cross_entropy, matmul_flops, moved_bytes, parameter_bytes,
                      parameter_shapes, saved_bytes, split)
from ..runtime import this_machine
from ..schedule import Schedule
from ..simulate import simulate
from ..techniques import one_process
from ..techniques.pipeline import Pipeline
from .experiment import Experiment, Quantity


MACHINE = "this-machine"



OPTIMIZERS = {
    # name: values of state a weight, bytes of state a tensor, values read and written a weight, how to make it
    "sgd": (0, 0, 3, lambda lr: lambda params: torch.optim.SGD(params, lr)),
    "momentum": (1, 0, 5, lambda lr: lambda params: torch.optim.SGD(params, lr, momentum=0.9)),
    "adam": (2, 4, 7, lambda lr: lambda params: torch.optim.Adam(params, lr)),
}


class PipelineExperiment(Experiment):
    name: ClassVar[str] = "pipeline"
    question: ClassVar[str] = "Which schedule wastes the least time, and what does it pay in memory?"
    figures: ClassVar[tuple[str, ...]] = ("timeline", "memory", "versions")

    schedule: str = knob("1f1b", "the order in which each rank works", choices=lambda: Schedule.all())
    ranks: int = knob(4, "processes, each holding one stage of the model", low=1, high=8)
    micro_batches: int = knob(8, "pieces that a batch is cut into", low=1, high=32)
    hardware: str = knob("unit", "what the modelled clock charges for compute and messages", choices=lambda: [*PROFILES, MACHINE])
    stashing: bool = knob(True, "PipeDream: a backward uses the weight version of its forward")
    steps: int = knob(3, "training steps (batches) of a run", low=1, high=200, more=True)
    layers: int = knob(8, "transformer blocks", low=1, high=48, more=True)
    width: int = knob(64, "width of the model; 12 x width^2 weights a block", low=16, high=1024, step=16, more=True)
    heads: int = knob(4, "attention heads; they divide the width", low=1, high=32, more=True)
    sequence: int = knob(64, "tokens (bytes of text) in a sample", low=4, high=1024, unit="tokens", more=True)
    rows: int = knob(2, "samples in a micro-batch", low=1, high=64, unit="samples", more=True)
    optimizer: str = knob("adam", "the rule that U applies", choices=tuple(OPTIMIZERS), more=True)
    learning_rate: float = knob(1e-3, "step size of the optimizer", low=1e-5, high=10, logarithmic=True, more=True)
    dropout: float = knob(0.0, "share of values that dropout zeroes", low=0, high=0.9, more=True)
    tied: bool = knob(False, "embedding and output share one matrix (one rank only)", more=True)
    dtype: Literal["float32", "float64"] = knob("float32", "number format of weights and activations",
                                                choices=("float32", "float64"), more=True)
    text: str = knob("", "path of a text file; empty: Python's own help", more=True)
    seed: int = knob(0, "seed of weights, samples and dropout", low=0, high=2**31 - 1, more=True)

    def model_post_init(self, _):
        """Refuse now, in a sentence, what could not run."""
        for name, menu in (("hardware", [*PROFILES, MACHINE]), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in menu:
                raise Impossible(f"{name} is {getattr(self, name)!r}: choose one of {', '.join(menu)}.")
        self.order, self.slices  # noqa: B018  (both raise Impossible)
        if self.text:
            text_of(self.text).batch(0, 0, 0, 1, self.sequence)

    # -- what the settings mean -----------------------------------------------------------------------------

    @cached_property
    def order(self) -> Schedule:
        """The schedule object that the settings describe."""
        chosen = Schedule.named(self.schedule)
        options = {name: getattr(self, name) for name in chosen.options() if name in type(self).model_fields}
        return chosen(self.ranks, self.micro_batches, **options)

    @cached_property
    def config(self) -> GPTConfig:
        return GPTConfig(layers=self.layers, width=self.width, heads=self.heads, sequence=self.sequence,
                         dropout=self.dropout, tied=self.tied, dtype=getattr(torch, self.dtype))

    @cached_property
    def slices(self) -> list[tuple[int, int]]:
        """Each stage's slice [first, last) of the model's pieces."""
        return split(self.config, self.order.stages)

    @cached_property
    def profile(self) -> Hardware:
        return this_machine() if self.hardware == MACHINE else PROFILES[self.hardware]

    @property
    def watts(self) -> float | None:
        return self.profile.watts

    @property
    def make_optimizer(self):
        return OPTIMIZERS[self.optimizer][-1](self.learning_rate)

    def describe(self) -> str:
        weights = [sizes.weights // self.config.dtype.itemsize for sizes in self.stage_bytes]
        return (f"a model of {sum(weights) / 1e6:.3g} M parameters in {len(weights)} stage{'s' * (len(weights) > 1)}; "
                f"a batch of {self.micro_batches} x {self.rows} samples of {self.sequence} bytes")

    # -- theory ---------------------------------------------------------------------------------------------

    @cached_property
    def stage_bytes(self) -> list[StageBytes]:
        """What one stage holds: weights, gradients, optimizer state, activations of one micro-batch."""
        values, a_tensor, _, _ = OPTIMIZERS[self.optimizer]
        sizes = []
        for first, last in self.slices:
            weights = parameter_bytes(self.config, first, last)
            tensors = len(parameter_shapes(self.config, first, last))
            saved = sum(row.bytes for row in saved_bytes(self.config, first, last, self.rows))
            sizes.append(StageBytes(weights, weights, values * weights + a_tensor * tensors, saved))
        return sizes

    def durations(self) -> dict:
        """Kind -> time of each stage: slots on the unit profile, else matmul FLOPs at peak plus other bytes at memory speed."""
        if self.profile.textbook:
            return {"F": 1, "B": 2, "I": 1, "W": 1, "U": 0}
        touched = OPTIMIZERS[self.optimizer][2]
        table: dict[str, list] = {"F": [], "B": [], "U": []}
        for (first, last), sizes in zip(self.slices, self.stage_bytes):
            flops, moved = matmul_flops(self.config, first, last, self.rows), moved_bytes(self.config, first, last, self.rows)
            for kind, work, traffic in zip("FB", flops, moved):
                table[kind].append(self.profile.seconds(work, traffic, self.dtype))
            table["U"].append(self.profile.seconds(0, touched * sizes.weights, self.dtype))
        return table

    def cost(self) -> Cost:
        changes, resident = footprint(self.order, self.stage_bytes, self.steps)
        message = boundary_bytes(self.config, self.rows)
        time = {} if self.profile.textbook else {"unit": "s", "ticks_per_unit": TICKS_PER_SECOND}
        return Cost(self.durations(), {"F": message, "B": message, "I": message}, changes, resident,
                    self.profile.links(self.ranks), **time)

    def predict(self) -> Trace:
        return replace(simulate(self.order, self.cost(), self.steps), settings=self.model_dump(mode="json"))

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        unit = "slot" if self.profile.textbook else "s"
        return (
            Quantity("step time", unit, lambda t: t.step_time),
            Quantity("idle share", "%", lambda t: 100 * t.bubble()),
            *(Quantity(f"peak memory, rank {r}", "B", lambda t, r=r: t.peak_bytes(r)) for r in range(self.ranks)),
            Quantity("bytes sent, all ranks", "B", lambda t: sum(t.bytes_sent(r) for r in range(t.ranks))),
        )

    def explain(self, trace: Trace) -> list[str]:
        return bubbles(trace, self.order)

    # -- reality --------------------------------------------------------------------------------------------

    def stages(self) -> list[GPTStage]:
        """All stages, with the weights that a run starts from."""
        return [GPTStage(self.config, first, last, seed=self.seed) for first, last in self.slices]

    def samples(self, micro_batch: int) -> one_process.Sample:
        """Inputs, targets and noise of a micro-batch, numbered through the whole run: the n-th is the same text
        whatever the size of a batch."""
        inputs, targets = text_of(self.text).batch(self.seed, 0, micro_batch, self.rows, self.sequence)
        return one_process.Sample(inputs, targets, (Noise(self.seed, micro_batch // self.micro_batches, micro_batch),))

    def program(self, rank) -> dict[str, np.ndarray]:
        """Each rank trains its stage; an asynchronous schedule runs all steps as one stream."""
        schedule, calls = self.order, self.steps
        if schedule.asynchronous:
            schedule, calls = replace(schedule, micro_batches=self.micro_batches * self.steps), 1
        stage = GPTStage(self.config, *self.slices[rank.index], seed=self.seed).to(rank.device)
        pipeline = Pipeline(stage, schedule, logged(rank, cross_entropy), rank.group(), optimizer=self.make_optimizer,
                            context=lambda micro_batch: self.samples(micro_batch).context)
        rank.watch(pipeline.holdings)
        losses = []
        for call in range(calls):
            numbers = range(call * schedule.micro_batches, (call + 1) * schedule.micro_batches)
            batch = [self.samples(n) for n in numbers] if rank.index in (0, self.ranks - 1) else []
            pipeline.step([s.inputs.to(rank.device) for s in batch], [s.targets.to(rank.device) for s in batch])
            losses += pipeline.losses
        results = {name: p.detach().cpu().numpy() for name, p in stage.named_parameters()}
        return results | ({"loss": np.array([loss.item() for loss in losses])} if losses else {})

    def reference(self) -> dict[str, np.ndarray]:
        """One process: the mean gradient of each batch, or PipeDream's recurrence of delayed weights."""
        training = self.train_alone()
        return {"loss": np.array(training.losses), **{name: w.numpy() for name, w in training.weights.items()}}

    def train_alone(self) -> one_process.Training:
        """The same training in one process, with all that it tells: see techniques/one_process.py."""
        stages = self.stages()
        samples = [self.samples(n) for n in range(self.steps * self.micro_batches)]
        if self.order.asynchronous:
            return one_process.delayed(stages, samples, cross_entropy, self.make_optimizer, self.stashing)
        batches = [samples[i:i + self.micro_batches] for i in range(0, len(samples), self.micro_batches)]
        return one_process.synchronous(stages, batches, cross_entropy, self.make_optimizer)


def logged(rank, loss_fn):
    """The loss function, whose values the run's log shows as they come."""
    def loss(output, targets):
        value = loss_fn(output, targets)
        rank.log("loss", value.item())
        return value
    return loss


@lru_cache(maxsize=4)
def text_of(path: str) -> ByteText:
    return read_text(path) if path else help_text()
