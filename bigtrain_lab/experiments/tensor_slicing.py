"""One layer is too big. Where do I cut?

A GPT whose every matrix lies on several ranks: attention by heads, the MLP by columns and then by
rows, or the other way round, both tables by the vocabulary. The sums that a cut needs are called
inside a layer's forward and backward, and nothing hides them. Each rank reads off its own tensors
which part of each matrix it holds. Source: Shoeybi et al. 2019, Megatron-LM (arXiv:1909.08053),
section 3.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from .. import techniques, train
from ..core import Scalar, Trace, duration, knob, size
from ..core.cost import port_share
from ..core.later import torch
from ..order import HOLDS, SLICES, Part, axes, called
from .experiment import Quantity
from .layered import Layered, on_meta

CUTS = {
    "column-row": (),
    "row-column": (("layers.*.mlp.up", "split row"), ("layers.*.mlp.down", "column gather")),
}
LOOKED_AT = 8  # numbers by which a row is found in the whole matrix


class ReadsOff(train.Lens):
    """Before the first step a rank finds its parts in the whole matrices, by their numbers."""

    def window(self, number, stages, samples):
        if number == 0:
            with self.rank.aside():
                model, pieces = self.lab.recipe.model, range(self.lab.config.pieces)
                whole = dict(self.lab.matrices({at: model(at) for at in pieces}))
                for name, own in self.lab.matrices(stages):
                    for part in found(name, own.detach().cpu(), whole[name].detach()):
                        self.rank.log(HOLDS + str(part), numbers(part))
        return super().window(number, stages, samples)


class TensorSlicing(Layered):
    name: ClassVar[str] = "tensor-slicing"
    question: ClassVar[str] = "One layer is too big. Where do I cut?"
    figures: ClassVar[tuple[str, ...]] = ("rivals", "timeline", "slices", "memory")
    rivals_by: ClassVar[str] = "cut"
    answers: ClassVar[tuple[str, ...]] = (
        "step time",
        "weights a rank",
        "bytes sent forward, a rank and step",
    )
    must_exist: ClassVar[tuple[str, ...]] = ("scheduled", "lowered")
    lens = ReadsOff

    cut: str = knob(
        "column-row", "how the MLP's two matrices are cut, one after the other", choices=CUTS
    )
    sequence_parallel: bool = knob(
        False,
        "cut norms and the residual along the sequence, where slices duplicate them",
        more=True,
    )
    varied: ClassVar[dict] = {
        "slices": {"default": 4, "help": "ranks that share each layer", "more": False},
        "cut": {},
        "rows": {"default": 4, "help": "samples in a batch: b", "more": False},
        "sequence": {
            "default": 256,
            "help": "tokens (bytes of text) in a sample: s",
            "high": 2048,
            "more": False,
        },
        "width": {
            "default": 512,  # of less, launches would take most of the time
            "help": "width of the model: h; 12 h^2 weights a layer",
            "high": 4096,
            "more": False,
        },
        "hardware": {"default": "v100-nvlink", "more": False},
        "layers": 2,
        "heads": {"default": 8, "high": 64},
        "vocabulary": {
            "default": 1024,
            "help": "words: v; the text's bytes are the first 256",
            "high": 65536,
        },
        "optimizer": "momentum",
        "learning_rate": 0.05,
    }

    replicas: ClassVar[int] = 1
    pipeline: ClassVar[int] = 1
    micro_batches: ClassVar[int] = 1
    schedule: ClassVar[str] = "1f1b"

    unused: ClassVar[tuple] = (
        ("slices", lambda ranks: ranks == 1, {"cut", "sequence_parallel", "ranks_per_node"}),
    )

    @property
    def further(self) -> dict[str, Any]:
        return {
            "sequence_parallel": self.sequence_parallel and self.slices > 1,
            "slicing": CUTS[self.cut],
        }

    def describe(self) -> str:
        held = sum(p.numel() for stage in self.stages.values() for p in stage.parameters())
        return (
            f"a model of {size(self.weights, '')} parameters, {size(held, '')} on each of"
            f" {self.slices} ranks; a batch of {self.rows} x {self.sequence} tokens"
        )

    # -- which part of each matrix lies where ------------------------------------------------------

    def predict(self) -> Trace:
        trace = super().predict()
        return Trace.of(
            [
                *trace.events,
                *(
                    Scalar(rank, "compute", "scalar", HOLDS + str(part), 0, numbers(part))
                    for rank in range(self.ranks)
                    for part in self.parts(rank)
                ),
            ],
            **trace.header(),
        )

    def parts(self, rank: int) -> Iterator[Part]:
        """What a rank holds of each matrix, by the plan."""
        for name, weight in self.matrices(self.stages):
            cut, t = weight.cut or techniques.weight_shapes.Cut(0), self.slices if weight.cut else 1
            whole = [*weight.shape]
            whole[cut.dim] *= t
            long = weight.shape[cut.dim] // cut.blocks
            for block in range(cut.blocks):
                ends, start = [0, whole[0], 0, whole[1]], (block * t + rank % t) * long
                ends[2 * cut.dim : 2 * cut.dim + 2] = start, start + long
                yield Part(name, *ends, *whole)

    def matrices(self, stages: "Mapping[int, torch.nn.Module]") -> "list[tuple[str, torch.Tensor]]":
        """Both tables, and those of the first layer."""
        return [
            (name, weight)
            for at in (0, 1, self.config.pieces - 1)
            for name, weight in stages[at].named_parameters()
            if len(weight.shape) == 2 and not name.endswith("position.weight")
        ]

    # -- what is told ------------------------------------------------------------------------------

    terms: ClassVar[dict[str, str]] = {"stage": "layer", "micro_batch": "step"}

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            Quantity("step time", self.profile.unit, lambda t: t.step_time),
            Quantity("of it, sums between slices", "%", lambda t: 100 * in_sums(t) / t.step_time),
            Quantity("bytes sent forward, a rank and step", "B", lambda t: sent(t, "F")),
            Quantity(
                "bytes sent backward, a rank and step",
                "B",
                lambda t: t.bytes_sent(0) / t.steps - sent(t, "F"),
            ),
            Quantity(
                "data parallel would send", "B", lambda t: self.replicated_bytes(self.weights)
            ),
            Quantity("weights a rank", "B", lambda t: t.peak_bytes(0, "weights")),
            Quantity("activations a rank, at most", "B", lambda t: t.peak_bytes(0, "activations")),
            Quantity("loss, mean of last batch", "", self.last_loss, exact=False),
        )

    def replicated_bytes(self, weights: int) -> float:
        """What each of as many replicas sends a step to average the gradients of so many
        weights."""
        return float(port_share("all_reduce", self.slices) * weights * self.config.item_bytes)

    relief: ClassVar[str] = "More slices, or fewer rows, would need less on each device."

    def why(self, trace: Trace) -> Iterator[str]:
        """Of a layer, then of the loss."""
        if self.slices == 1 or trace.clock == "measured":
            return
        own = [call for call in called(trace) if call.module.startswith("layers.1.")]
        times, sends = sum(call.times for call in own), sum(call.bytes for call in own)
        layer = sum(p.numel() for p in on_meta(self.config, 1, 1).parameters())
        tokens, most = self.rows * self.sequence, 3 * self.width
        if self.cut == "column-row":
            yield (
                "Columns before rows: GELU needs no sum before it, so only the results of a block"
                " are summed."
            )
            less = "fewer" if tokens < most else "more" if tokens > most else "as many"
            yield (
                "4 b s h values of activations stand against 12 h^2 of gradients, so slicing sends"
                f" less below b s = 3 h = {most:,} tokens: here are {tokens:,},"
                f" {less}{' than that' * (tokens != most)}."
            )
        else:
            mlp, theirs = (
                sum(c.bytes for c in called(each) if "layers.1.mlp" in c.module and c.way == "F")
                for each in (trace, self.replace(cut="column-row", fault="none").predict())
            )
            yield (
                "Rows before columns: whole rows of 4 h values are summed before GELU, and the"
                f" result is gathered. The MLP's forward sends {mlp / theirs:.3g} times the bytes"
                " of column-row."
            )
        yield (
            f"A layer calls {times:.0f} collectives a step, in which each rank sends {size(sends)};"
            f" data parallel would send {size(self.replicated_bytes(layer))} for that layer's"
            " gradients."
        )
        if time := in_sums(trace):
            alone_s = (
                self.replace(
                    slices=1, cut="column-row", sequence_parallel=False, fault="none", memory_mb=0
                )
                .simulated(memory=False)
                .step_time
            )
            yield (
                f"No compute covers these sums: they take {duration(time, trace.unit)} of a step of"
                f" {duration(trace.step_time, trace.unit)}. One rank alone would need"
                f" {duration(alone_s, trace.unit)}."
            )
        if self.sequence_parallel:
            kept = [
                each.peak_bytes(0, "activations")
                for each in (trace, self.replace(sequence_parallel=False, fault="none").predict())
            ]
            yield (
                "Each all-reduce is now a reduce-scatter and an all-gather of the same bytes, and"
                " the backward gathers the inputs of column-cut matrices once more. A rank keeps"
                f" {size(kept[0])} of activations in place of {size(kept[1])}."
            )
        values_bytes = tokens * self.config.item_bytes
        yield (
            f"The loss sums 3 values a token, {size(3 * values_bytes)}; gathering the logits would"
            f" move {size(self.vocabulary * values_bytes)}, {self.vocabulary / 3:,.0f} times as"
            " much."
        )


def found(name: str, own: "torch.Tensor", whole: "torch.Tensor") -> Iterator[Part]:
    """Where a rank's tensor stands in the whole matrix, run of rows by run; nothing of what stands
    nowhere in it."""
    wide = own.shape[1]
    starts = whole.unflatten(1, (-1, wide))[
        :, :, :LOOKED_AT
    ]  # [row, which part of the row, number]
    places = (own[:, None, None, :LOOKED_AT] == starts).all(-1).flatten(1).int()
    rows, lefts = (
        each.tolist()
        for each in (places.argmax(1) // starts.shape[1], places.argmax(1) % starts.shape[1])
    )
    begin = 0
    for at in range(1, len(own) + 1):
        if at == len(own) or (rows[at], lefts[at]) != (rows[at - 1] + 1, lefts[at - 1]):
            part = Part(
                name,
                rows[begin],
                rows[at - 1] + 1,
                lefts[begin] * wide,
                (lefts[begin] + 1) * wide,
                *whole.shape,
            )
            if torch.equal(own[begin:at], whole[part.top : part.bottom, part.left : part.right]):
                yield part
            begin = at


def numbers(part: Part) -> float:
    return float((part.bottom - part.top) * (part.right - part.left))


def in_sums(trace: Trace) -> float:
    """Time of a step that a rank spends in collectives of its slices."""
    return next(axis.time for axis in axes(trace) if axis.name == SLICES)


def sent(trace: Trace, way: str) -> float:
    """Bytes that rank 0 sends in the forwards, or the backwards, of a step."""
    return sum(call.bytes for call in called(trace) if call.way == way)
