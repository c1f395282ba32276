"""Does data parallel pay on a real translator? With all that its training needs beside the model.

Numbers and dates from English into Chinese numerals: a task whose truth is known. Batches of so
many tokens are shared by ranks; the rate warms up; now and then the held-out pairs' loss and BLEU
say how good the model is, which is the best, and when to stop. The timeline shows what each costs:
training, evaluation, and the data loader, a lane of its own for each worker.

A micro-batch is padded to its own longest sentence, so each is priced by its shape. A translation
is priced as if each sentence were as long as the longest right answer of its batch.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import Any, ClassVar

from .. import data, models, techniques, train
from ..core import Trace, Wire, duration, grouped, knob, size
from ..core.later import np, torch
from ..order import (
    Action,
    Compute,
    Plan,
    Schedule,
    Together,
    by_layers,
    exposed,
    last,
    sent_bytes,
)
from ..runtime.kept import kept
from .experiment import MB, Quantity
from .replicated import Replicated
from .translation import Translation

HOST = Wire(
    "PCIe 3.0 x16", 5e-6, 12e9
)  # assumed: what copies to a device reach; pageable memory is copied twice


class Translate(Replicated):
    name: ClassVar[str] = "translate"
    question: ClassVar[str] = "Does data parallel pay on a real translator?"
    figures: ClassVar[tuple[str, ...]] = ("rivals", "curves", "timeline", "memory")
    rivals_by: ClassVar[str] = "replicas"
    rivals_tell: ClassVar[tuple[str, ...]] = ("speed-up over one rank",)
    rivals_take: ClassVar[str] = "the run"
    curves: ClassVar[dict[str, str]] = {
        "train loss": "loss, held out; thin: training",
        "held-out loss": "loss, held out; thin: training",
        "BLEU": "BLEU, of 100; below 10: no translation yet",
    }
    answers: ClassVar[tuple[str, ...]] = (
        "the run",
        "speed-up over one rank",
        "held-out loss",
    )

    replicas: int = knob(3, "ranks that share each batch and the evaluation", low=1, high=4)
    batch_tokens: int = knob(
        480,
        "tokens of an update, on all ranks together, padding included",
        low=64,
        high=2**18,
        unit="tokens",
        logarithmic=True,
    )
    workers: int = knob(
        1,
        "threads of a rank that load micro-batches beside its compute; 0: it loads itself",
        low=0,
        high=4,
    )
    disk_ms: float = knob(
        2.0,
        "time that the disk takes for a micro-batch; on the textbook profile in slots",
        low=0,
        high=1000,
        step=0.5,
        unit="ms",
    )
    spread: bool = knob(True, "evaluate on all ranks; else on rank 0, while the others wait")
    steps: int = knob(12, "updates of a run", low=1, high=5000, logarithmic=True, more=True)
    evaluate_every: int = knob(
        2, "updates from one evaluation to the next; 0: an epoch", low=0, high=5000, more=True
    )
    patience: int = knob(
        5, "evaluations without a better one after which the run ends", low=1, high=100, more=True
    )
    watched: str = knob(
        "bleu", "what says which is the best, and when to stop", choices=("bleu", "loss"), more=True
    )
    beam: int = knob(1, "prefixes that decoding keeps; 1: greedy", low=1, high=8, more=True)
    accumulation: int = knob(1, "micro-batches of an update on each rank", low=1, high=8, more=True)
    prefetch: int = knob(
        2, "micro-batches that a worker has ready at most", low=1, high=8, more=True
    )
    pinned: bool = knob(
        True, "host memory that a device reads by itself: copies run beside the compute", more=True
    )
    precision: str = knob(
        "none", "mixed precision of weights and activations", choices=("none", "bf16"), more=True
    )
    clip: float = knob(
        1.0,
        "largest norm of an update's gradient; 0: it is not clipped",
        low=0,
        high=100,
        step=0.1,
        more=True,
    )
    smoothing: float = knob(
        0.1,
        "share of a target that label smoothing spreads over all words",
        low=0,
        high=0.9,
        step=0.05,
        more=True,
    )
    warm_up: int = knob(
        40, "updates until Noam's rate is highest", low=1, high=20000, logarithmic=True, more=True
    )
    rate: float = knob(
        1.0, "factor of Noam's rate", low=0.01, high=10, step=0.01, logarithmic=True, more=True
    )
    bucket_mb: float = knob(
        25.0,
        "gradients that travel in one message",
        low=0.01,
        high=100,
        step=0.01,
        unit="MB",
        logarithmic=True,
        more=True,
    )
    layers: int = knob(1, "layers of the encoder, and of the decoder", low=1, high=12, more=True)
    width: int = knob(
        32,
        "width of the model; its MLPs are four times as wide",
        low=16,
        high=1024,
        step=16,
        more=True,
    )
    heads: int = knob(4, "attention heads; they divide the width", low=1, high=32, more=True)
    vocabulary: int = knob(
        0,
        "rows of each table, where the task has fewer words; 32,000 with 6 layers of 512 and 8"
        " heads is the model of 93 M",
        low=0,
        high=65536,
        more=True,
    )
    dtype: str = knob(
        "float32",
        "number format of weights and activations",
        choices=("float32", "float64"),
        more=True,
    )
    pairs: int = knob(400, "training pairs", low=20, high=10**6, logarithmic=True, more=True)
    held_out: int = knob(
        24, "pairs that only the evaluation reads", low=1, high=10**4, logarithmic=True, more=True
    )
    held_out_rows: int = knob(4, "pairs that are evaluated together", low=1, high=512, more=True)
    digits: int = knob(3, "digits of the largest number", low=1, high=12, more=True)
    file: str = knob(
        "", "a file of lines `source TAB target`, in place of numbers and dates", more=True
    )
    track: str = knob(
        "none",
        "where metrics go besides the run's directory",
        choices=("none", "tensorboard", "wandb"),
        more=True,
    )
    varied: ClassVar[dict] = {
        "hardware": "rtx3090-pcie",
    }

    def model_post_init(self, facts):
        super().model_post_init(facts)
        self.training.recipe  # noqa: B018  (raises Impossible)
        train.tracking.refuse(self.track)

    unused: ClassVar[tuple] = (
        ("replicas", lambda ranks: ranks == 1, {"spread", "bucket_mb"}),
        ("workers", lambda count: not count, {"prefetch", "pinned"}),
        ("file", bool, {"pairs", "held_out", "digits"}),
    )

    # -- what the settings mean --------------------------------------------------------------------

    @cached_property
    def task(self) -> "data.parallel.Parallel":
        return (
            data.parallel.read_pairs(self.file, held_out=self.held_out)
            if self.file
            else data.parallel.generated(self.seed, self.pairs, self.held_out, self.digits)
        )

    @cached_property
    def config(self) -> "models.TranslatorConfig":
        return self.training.sizes

    @cached_property
    def training(self) -> "Translation":
        """The training, as a program for each rank."""
        return Translation(
            pairs=self.task,
            learning_rate=techniques.learning_rates.noam(self.width, self.warm_up, self.rate),
            config=models.TranslatorConfig(
                self.layers,
                self.width,
                self.heads,
                4 * self.width,
                longest=128,
                dtype=self.dtype,
                embedding_scale=self.width**0.5,
            ),
            vocabulary=self.vocabulary,
            replicas=self.replicas,
            accumulation=self.accumulation,
            batch_tokens=self.batch_tokens,
            updates=self.steps,
            smoothing=self.smoothing,
            clip=self.clip or None,
            precision=None if self.precision == "none" else self.precision,
            seed=self.seed,
            watched=self.watched,
            patience=self.patience,
            beam=self.beam,
            rows=self.held_out_rows,
            evaluate_every=self.evaluate_every or None,
            evaluators=None if self.spread else 1,
            bucket_bytes=round(self.bucket_mb * MB),
            loading=techniques.data_loader.Loading(
                self.workers, self.prefetch, self.disk_ms / 1000, self.pinned
            ),
        )

    @property
    def order(self) -> Schedule:
        return self.training.order

    @property
    def recipe(self) -> "train.Recipe":
        return self.training.recipe

    def program(self, rank) -> "dict[str, np.ndarray]":
        return {  # the trace has the evaluations
            name: values
            for name, values in self.training.program(rank).items()
            if name != "evaluations"
        }

    def run(self, **options):
        run = super().run(**options)
        train.tracking.follow(run, self.track)
        return run

    def describe(self) -> str:
        training = self.training
        return (
            f"a translator of {size(self.weights, '')} parameters on {self.ranks}"
            f" rank{'s' * (self.ranks > 1)}; {len(self.task.train):,} pairs,"
            f" {len(training.batches):,} updates an epoch; {len(training.held_out)} held-out"
            " batches"
        )

    # -- theory ------------------------------------------------------------------------------------

    @property
    def stages(self) -> "dict[int, techniques.weight_shapes.Shapes]":
        return models.translator_pieces.pieces_on_meta(self.config)

    @property
    def weights(self) -> int:
        return sum(p.numel() for stage in self.stages.values() for p in stage.parameters())

    def shape(self, rank: int, number: int) -> tuple[int, int, int]:
        """(B, S, T) of a rank's micro-batch, numbered as in its actions."""
        return self.training.shape(self.training.own(rank)[number])

    def part(
        self, at: int, shape: tuple[int, int, int], rehearsal: "train.Rehearsal | None" = None
    ) -> "train.Part":
        """A piece of the chain."""
        return models.translator_pieces.part(
            self.config,
            at,
            shape,
            self.smoothing,
            self.training.precision,
            rehearsal or train.WHOLE,
            min(self.replicas, 2),
        )

    def stage_run(self, number: int, rehearsal: "train.Rehearsal") -> "train.Part":
        """On the first micro-batch of rank 0."""
        return self.part(number, self.shape(0, 0), rehearsal)

    @cached_property
    def memory(self) -> train.Holdings:
        parts = partial(self.needed_part, train.rehearsals(self.order, min(self.steps, 2)))
        return train.Rehearsed(self.order, self.steps, parts, self.place)

    def needed_part(self, needed, action: Action, rank: int) -> "train.Part":
        shape = self.shape(rank, action.micro_batch)
        first, *others = (self.part(action.stage, shape, one) for one in needed[action.stage])
        return first.joined(*others) if others else first

    def durations(self) -> dict[str, float]:
        """Of what does not depend on a micro-batch's shape."""
        return {"F": 0, "B": 0, "D": self.disk_ms / (1 if self.profile.textbook else 1000)}

    ticks_per_slot: ClassVar[int] = 1000

    def charged(self) -> dict[str, Any]:
        return super().charged() | {"of_batch": self.of_batch}

    @cached_property
    def of_batch(self) -> dict[tuple[int, int], dict]:
        """(rank, number) -> what a micro-batch costs, and the held-out batch of that number."""
        own = {rank: self.training.own(rank) for rank in range(self.ranks)}
        tables = {
            (rank, n): self.times(self.shape(rank, n))
            for rank in own
            for n in range(len(own[rank]))
        }
        for n, shape in enumerate(self.training.held_out_shapes):
            for rank in own:
                tables[rank, n] = {**tables.get((rank, n), {}), **self.evaluation_times(shape)}
        return tables

    def times(self, shape: tuple[int, int, int]) -> dict[str, Any]:
        if self.profile.textbook:
            return {"F": 1, "B": 2, "U": 0, "C": 0}
        parts = [self.part(at, shape) for at in range(models.translator_pieces.count(self.config))]
        found = {
            kind: [part.seconds(kind, self.profile, self.format) for part in parts]
            for kind in "FBU"
        }
        rows, source, target = shape
        copied = 8 * rows * (source + 2 * target) * (1 if self.pinned and self.workers else 2)
        return found | {"C": HOST.alpha_s + copied / HOST.bytes_per_s}

    def evaluation_times(self, shape: tuple[int, int, int]) -> dict[str, float]:
        if self.profile.textbook:
            return {"L": models.translator_pieces.count(self.config), "T": shape[2]}
        one, two = (
            evaluation_works(replace(self.config, layers=layers), shape, self.beam)
            for layers in (1, 2)
        )
        works = (
            train.Work(*(a + (self.layers - 1) * (b - a) for a, b in zip(*each)))
            for each in zip(one, two)
        )
        return {kind: self.time(work) for kind, work in zip("LT", works)}

    @cached_property
    def lowered(self) -> Plan:
        plan = techniques.replica_plan.with_replicas(
            self.order, self.steps, self.replicas, self.stages, self.training.bucket_bytes
        )
        windows = [
            range(n * self.accumulation, (n + 1) * self.accumulation) for n in range(self.steps)
        ]
        return with_evaluations(
            techniques.data_loader.with_loads(plan, self.training.loading, windows), self.training
        )

    @cached_property
    def peak_bytes(self) -> int:
        """Most that rank 0 holds in a training step, temporaries included: a dry run of two updates
        of its largest micro-batch."""
        return step_peak(
            self.config,
            max(map(self.training.shape, self.training.own(0)), key=prod),
            self.smoothing,
            self.training.precision,
            min(self.accumulation, 2),
            min(self.replicas, 2),
        )

    @cached_property
    def alone_s(self) -> float:
        """The same run on one rank."""
        return self.replace(replicas=1, fault="none").simulated(memory=False).makespan

    relief: ClassVar[str] = (
        "Fewer tokens of an update (batch_tokens), more micro-batches of it (accumulation) or"
        " more ranks (replicas) would need less."
    )

    terms: ClassVar[dict[str, str]] = {"stage": "layer", "micro_batch": "step"}

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        return (
            Quantity("the run", self.profile.unit, lambda t: t.makespan),
            Quantity(
                "speed-up over one rank",
                "times",
                lambda t: self.alone_s / t.makespan if t.clock != "measured" else None,
            ),
            *(
                Quantity(
                    f"of it {name}, slowest rank",
                    self.profile.unit,
                    lambda t, kinds=kinds: spent(t, kinds),
                )
                for name, kinds in SPENT.items()
            ),
            Quantity("exposed communication a step", self.profile.unit, exposed),
            Quantity("loading or waiting for data a step", self.profile.unit, starved),
            Quantity("bytes sent a rank and step", "B", sent_bytes),
            Quantity("train loss", "", lambda t: last(t, "train loss"), exact=False),
            Quantity("held-out loss", "", lambda t: last(t, "held-out loss"), exact=False),
            Quantity("BLEU", "", lambda t: last(t, "BLEU"), exact=False),
        )

    def why(self, trace: Trace) -> Iterable[str]:
        whole, unit = trace.makespan, trace.unit
        told = [
            f"{duration(each, unit)} ({each / whole:.0%}) {name}"
            for name, kinds in SPENT.items()
            if (each := spent(trace, kinds))
        ]
        if self.replicas > 1 and trace.clock != "measured":
            yield (
                f"{self.replicas} ranks are {self.alone_s / whole:.3g} times as fast as one: the"
                f" run takes {duration(whole, unit)} in place of {duration(self.alone_s, unit)},"
                " tests and translations included."
            )
        yield f"Of {duration(whole, unit)} the slowest rank spends {', '.join(told)}."
        if wait := starved(trace):
            what, who = (
                ("waits for its loader", "more workers")
                if self.workers
                else ("loads data itself", "workers beside the compute")
            )
            yield f"A rank {what} for {duration(wait, unit)} of each step: {who} would hide it."


SPENT = {"training": "FBU", "held-out loss": "L", "translating for BLEU": "T"}


def spent(trace: Trace, kinds: str) -> float:
    """Time that the rank which takes longest computes so."""
    times = grouped(
        (span.rank, span.end - span.start)
        for span in trace.spans()
        if span.lane == "compute" and span.kind in kinds
    )
    return trace.units(max(map(sum, times.values()), default=0))


def starved(trace: Trace) -> float:
    """Time a step for which the rank that waits longest loads, or waits for what loads: before a
    batch's first forward."""
    waits = [0] * trace.ranks
    for rank in range(trace.ranks):
        free = 0
        for span in trace.spans(rank):
            if span.lane != "compute":
                continue
            if span.kind == "F":
                waits[rank] += span.start - free
            free = free if span.kind in "DC" else span.end
    return trace.units(max(waits)) / trace.steps


def with_evaluations(plan: Plan, training: "Translation") -> Plan:
    """The plan with what each rank evaluates after some of its updates, and the two messages in
    which ranks agree."""
    ranks, lanes = tuple(range(plan.ranks)), dict(plan.lanes)
    numbers = 4 + data.bleu.COUNTS  # that ranks add up
    for rank in ranks:
        ops, last = [], None
        for op in (*plan.lanes[rank, "compute"], None):
            update = isinstance(op, Compute) and op.step[0].kind == "U"
            if last is not None and not update:
                if (done := last // training.accumulation + 1) in training.evaluated_after:
                    share = training.share(rank)
                    ops += [
                        *(Compute((Action(kind, 0, n),)) for n in share for kind in "LT"),
                        Together(f"evaluation after {done}", "all_reduce", 8 * numbers, ranks),
                        Together(f"decision after {done}", "broadcast", 16, ranks),
                    ]
                last = None
            if update:
                last = op.step[0].micro_batch
            ops += [op] if op else []
        lanes[rank, "compute"] = tuple(ops)
    return Plan(lanes, plan.ranks, plan.steps)


# -- dry runs --------------------------------------------------------------------------------------


@kept
def step_peak(
    config: "models.TranslatorConfig",
    shape: tuple[int, int, int],
    smoothing: float,
    level: str | None,
    micro_batches: int,
    replicas: int,
) -> int:
    """Most bytes of two updates; a window's second micro-batch is as all after it."""
    recipe = models.translator_pieces.recipe_of(
        config,
        shape,
        smoothing,
        level,
        replicas,
        lambda at: models.translator_pieces.TranslatorPiece(config, at),
    )
    order = by_layers(
        Schedule.named("1f1b")(1, micro_batches), [range(models.translator_pieces.count(config))]
    )
    return train.dry_run.dry_run(
        partial(train.train, replace(recipe, schedule=order, steps=2, whole_names=True))
    ).peak_bytes


@kept
def evaluation_works(
    config: "models.TranslatorConfig", shape: tuple[int, int, int], beam: int
) -> tuple[train.Work, train.Work]:
    """What the loss of a held-out batch costs, and its translation."""
    B, S, T = shape

    @torch.no_grad()
    def program(rank):
        model = models.built(lambda: models.translator.Translator(config), train.dry_run.META)
        source, target = (
            torch.empty(B, length, dtype=torch.int64, device=train.dry_run.META)
            for length in (S, T)
        )
        with rank.span(Action("L", 0, 0)):
            models.blocks.word_cross_entropy(model(source, target), target, data.tokens.PAD)
        with rank.span(Action("T", 0, 0)):
            models.decoding.decoded(
                model, source, data.tokens.BEGIN, data.tokens.END, data.tokens.PAD, T, beam=beam
            )

    actions = train.dry_run.dry_run(program).actions
    return actions["0L0"].work, actions["0T0"].work
