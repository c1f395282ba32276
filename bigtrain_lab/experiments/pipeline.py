"""Which pipeline schedule wastes the least time, and what does it pay in memory?

A byte-level GPT is cut into one stage a rank and trained on real text by the schedule of your
choice.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from math import fsum
from typing import ClassVar

from .. import models, techniques, train
from ..core import Impossible, Trace, knob, refuse, size
from ..core.later import torch
from ..order import Piece, Schedule, Stage, balanced, fullest_bytes
from ..runtime.kept import kept
from .of_gpt import OfGPT
from .pipelined import Pipelined


class PipelineExperiment(OfGPT, Pipelined):
    name: ClassVar[str] = "pipeline"
    question: ClassVar[str] = (
        "Which schedule wastes the least time, and what does it pay in memory?"
    )
    must_exist: ClassVar[tuple[str, ...]] = ("order", "slices")

    schedule: str = knob(
        "1f1b", "the order in which each rank works", choices=lambda: Schedule.all()
    )
    ranks: int = knob(4, "processes, each holding one stage of the model", low=1, high=8)
    micro_batches: int = knob(8, "pieces that a batch is cut into", low=1, high=32)
    stashing: bool = knob(True, "PipeDream: a backward uses the weight version of its forward")
    chunks: int = knob(
        2, "interleaved, looped-bfs: pieces of the model that each rank holds", low=1, high=4
    )
    partition: str = knob(
        "equal",
        "where the model is cut: equal layers, or balanced over what each piece costs on this"
        " hardware",
        choices=("equal", "balanced"),
        more=True,
    )
    steps: int = knob(3, "training steps (batches) of a run", low=1, high=200, more=True)
    rows: int = knob(2, "samples in a micro-batch", low=1, high=64, unit="samples", more=True)
    dropout: float = knob(0.0, "share of values that dropout zeroes", low=0, high=0.9, more=True)
    tied: bool = knob(False, "embedding and output share one matrix", more=True)
    varied: ClassVar[dict] = {
        "hardware": {"more": False},
        "stashing": {},
        "chunks": {},
        "layers": {"default": 8, "high": 48},
    }

    # -- what the settings mean --------------------------------------------------------------------

    @cached_property
    def slices(self) -> list[tuple[int, int]]:
        """Each stage's slice [first, last) of the model's pieces."""
        return [(stage.first, stage.last) for stage in self.stages_by(self.partition)]

    def stages_by(self, partition: str) -> list[Stage]:
        """The stages, by one of the menu's rules."""
        refuse(
            (
                self.tied and self.order.stages > 1 and self.order.asynchronous,
                f"{self.schedule} updates its stages at different times, so the copies of a tied"
                " embedding would part: take tied=False, or a synchronous schedule such as 1f1b.",
            )
        )
        self.refuse_more_chunks_than(self.layers if partition == "equal" else self.config.pieces)
        if partition == "equal":
            return [
                Stage(first, last) for first, last in models.split(self.config, self.order.stages)
            ]
        models.require_cuttable(self.config, self.order.stages)
        return balanced(self.pieces, self.order.stages, self.bytes_per_s)

    def refuse_more_chunks_than(self, room: int) -> None:
        """Impossible, in the words of the settings, where ranks of several chunks would cut the
        model into more parts than it has."""
        ranks, chunks = self.ranks, self.order.stages // self.ranks
        if chunks == 1 or ranks * chunks <= room:
            return
        fewer = (
            f"{room // ranks} chunk{'s' * (room >= 2 * ranks)}"
            if room >= ranks and "chunks" in self.order.options()
            else f"{max(1, room // chunks)} rank{'s' * (room >= 2 * chunks)}"
        )
        of, among = (
            ("layers", "")
            if room == self.layers
            else ("pieces", ", its embedding and head among them")
        )
        raise Impossible(
            f"{ranks} rank{'s' * (ranks > 1)} with {chunks} chunks each need at least"
            f" {ranks * chunks} {of}; the model has {room}{among}: take {fewer} or"
            f" {ranks * chunks - (room - self.layers)} layers."
        )

    def describe(self) -> str:
        weights = [sizes.weights // self.config.item_bytes for sizes in self.stage_bytes]
        weights[0] -= (
            self.config.vocabulary * self.width * bool(self.tied_copies)
        )  # of a tied one, which two stages hold
        return (
            f"a model of {size(sum(weights), '')} parameters in {len(weights)}"
            f" stage{'s' * (len(weights) > 1)}; a batch of {self.micro_batches} x {self.rows}"
            f" samples of {self.sequence} bytes"
        )

    def why(self, trace: Trace) -> Iterable[str]:
        """Beside GPipe, whose memory grows with the micro-batches."""
        told = self.rivals_by == "schedule" and self.schedule != "gpipe"
        beside = {"gpipe": {"schedule": "gpipe"}} if told and trace.clock != "measured" else {}
        for _, gpipe in self.possible(beside):
            (idle, held), (more_idle, more) = (
                (of.shares().idle, size(fullest_bytes(of))) for of in (trace, gpipe.predict())
            )
            yield (
                f"{self.schedule} idles {idle:.1%} of the time and holds {held} at most; gpipe"
                f" idles {more_idle:.1%} and holds {more}. All schedules stand side by side."
            )
        yield from super().why(trace)

    # -- theory ------------------------------------------------------------------------------------

    @cached_property
    def pieces(self) -> list[Piece]:
        """The profile that a cut is balanced over: each piece's forward and backward of one
        micro-batch."""
        return [
            Piece(
                name,
                self.time_of("F", at, at + 1) + self.time_of("B", at, at + 1),
                self.message_bytes,
                slice_run(self.config, at, at + 1, self.rows, self.optimizer_class).start[
                    "weights"
                ],
            )
            for at, name in enumerate(
                ["embedding", *(f"block {i}" for i in range(1, self.config.layers + 1)), "head"]
            )
        ]

    @property
    def bytes_per_s(self) -> float | None:
        """Bandwidth of the slowest link between neighbours; None where links are free."""
        wires = [self.profile.wire(rank, rank + 1) for rank in range(self.ranks - 1)]
        return min((wire.bytes_per_s for wire in wires if wire), default=None)

    def stage_run(self, number: int, rehearsal: "train.Rehearsal") -> "train.Part":
        return slice_run(
            self.config, *self.slices[number], self.rows, self.optimizer_class, rehearsal
        )

    @property
    def tied_copies(self) -> dict[str, dict[int, str]]:
        return models.tied_weights(self.config, self.order.stages)

    @property
    def message_bytes(self) -> int:
        """Of the activation of one micro-batch between two pieces."""
        return slice_run(self.config, 0, 1, self.rows, self.optimizer_class).message_bytes("F")

    @property
    def slots(self) -> dict:
        """A chunk costs 1/v of a rank's work."""
        v = self.order.stages // self.ranks
        return {kind: Fraction(slots, v) for kind, slots in super().slots.items()}

    def seconds(self, kind: str, stage: int) -> float:
        if kind != "U":
            return self.time_of(kind, *self.slices[stage])
        return 0 if self.profile.textbook else super().seconds(kind, stage)

    def time_of(self, kind: str, first: int, last: int) -> float:
        """Seconds of a kind of action on a slice: the sum of its pieces', rounded once, so that
        every Python has the same."""
        refuse(
            (
                self.profile.textbook,
                "On the unit profile each stage takes one slot in this lab, so there is nothing to"
                " balance: take other hardware, or partition equal.",
            )
        )
        return fsum(map(self.time, self.works(kind, first, last)))

    def works(self, kind: str, first: int, last: int) -> list[train.Work]:
        """What each piece of a slice computes and moves for one micro-batch."""
        about = self.rows, self.optimizer_class, train.HALVES if kind in "IW" else train.WHOLE
        return [slice_run(self.config, at, at + 1, *about).work(kind) for at in range(first, last)]

    # -- reality -----------------------------------------------------------------------------------

    @property
    def recipe(self) -> "train.Recipe":
        return training(
            self.config,
            self.order.stages,
            self.slices,
            self.samples,
            self.optimizer_class.at(self.learning_rate),
            self.seed,
            schedule=self.order,
            steps=self.steps,
        )


def training(
    config: "models.GPTConfig",
    stages: int,
    pieces,
    data: Callable,
    optimizer: Callable,
    seed: int = 0,
    slicing: tuple = (),
    **order,
) -> "train.Recipe":
    """`slicing`: (path, how) of those that are cut otherwise than `gpt_slices` says."""
    return train.Recipe(
        model=lambda stage: models.GPTStage(config, *pieces[stage], seed=seed),
        data=data,
        loss=models.cross_entropy,
        optimizer=optimizer,
        tied=models.tied_weights(config, stages),
        whole_names=True,
        slicing=models.gpt_slices(config) | dict(slicing),
        sliced_loss=techniques.vocab_parallel_cross_entropy,
        **order,
    )


def slice_run(
    config: "models.GPTConfig",
    first: int,
    last: int,
    rows: int,
    optimizer: type[train.Optimizer],
    rehearsal: "train.Rehearsal | None" = None,
    replicas: int = 1,
    **further,
) -> "train.Part":
    """The dry run of the slice [first, last) of a model, on one of so many replicas. Blocks are
    alike: so many blocks, with or without ends, are run once. `further`: settings of the Recipe."""
    begins, ends = first == 0, last == config.pieces
    blocks = last - first - begins - ends
    start = 0 if begins else 1 if blocks else 2
    shared = further.get("slices", 1)
    words = config.vocabulary if begins or ends else shared  # which blocks alone do not have
    settled = (
        replace(config, layers=max(1, blocks), width=config.heads, sequence=1, vocabulary=1),
        start,
        start + last - first,
        optimizer,
        rehearsal or train.WHOLE,
        min(replicas, 2),
        tuple(further.items()),
    )
    sizes, units = (rows, config.sequence, config.width, words), (1, shared, config.heads, shared)
    return train.along(run_slice, settled, sizes, (1, 2, 2, 1), units)


@kept
def run_slice(
    config: "models.GPTConfig",
    first: int,
    last: int,
    optimizer: type[train.Optimizer],
    rehearsal: "train.Rehearsal",
    replicas: int,
    further: tuple,
    sizes: tuple[int, ...],
) -> "train.Part":
    """`sizes`: rows, sequence, width, vocabulary."""
    rows, sequence, width, vocabulary = sizes
    config = replace(config, sequence=sequence, width=width, vocabulary=vocabulary)
    further = dict(further)
    stage, stages = int(first > 0), 1 + (first > 0) + (last < config.pieces)

    def data(number: int) -> "train.Sample":
        inputs, targets = (torch.zeros(rows, sequence, dtype=torch.int64) for _ in range(2))
        return train.Sample(inputs, targets, (models.Noise(0, 0, number),))

    recipe = training(
        config,
        stages,
        {stage: (first, last)},
        data,
        optimizer.at(0.1),
        replicas=replicas,
        **further,
    )
    return train.rehearse(recipe, rehearsal, stage, stages, arriving(config, rows, further))


def arriving(config: "models.GPTConfig", rows: int, further: Mapping) -> "torch.Tensor":
    """What a stage receives from the one before, on meta. `further`: settings of the Recipe."""
    shared = further.get("slices", 1) if further.get("sequence_parallel") else 1
    level = further.get("precision")
    dtype = techniques.precision_levels.LEVELS[level].dtype if level else config.torch_dtype
    return torch.empty(
        rows, config.sequence // shared, config.width, dtype=dtype, device=train.dry_run.META
    )
