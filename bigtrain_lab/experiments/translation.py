"""A translator's training, whole: what the course's techniques are when they serve one task.

    update     batch of ~ N tokens -> micro-batches, shared by replicas -> mean over its tokens
               -> clip -> Adam at Noam's rate
    epoch      every rank evaluates its share of the held-out batches; sums of losses, words and
               n-grams are added
               one decision, rank 0's, goes to all: is this the best so far, does the run end
               one rank saves; the run can be taken up again from there

A loss that each rank divides by its own words, a BLEU that is a mean over ranks, a rank that stops
alone: each is a mistake that trains on without a word. Here only counts travel, and what is decided
is decided once.
Cost beside the training: the forward of the held-out words, their translation word by word (as long
as an epoch's training in the run that this course takes as its example), 112 bytes in an all-reduce
and 16 in a broadcast, and a checkpoint.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from .. import data, models, runtime, techniques, train
from ..core import refuse
from ..core.later import np, torch
from ..order import Action, Schedule, by_layers


def adam(weights):
    return torch.optim.Adam(weights, betas=(0.9, 0.98), eps=1e-9)


def small() -> "models.TranslatorConfig":
    """Learns numbers and dates of 8 digits in some 500 updates."""
    return models.TranslatorConfig(2, 64, 4, inner=128, longest=64, embedding_scale=8.0)


@dataclass(frozen=True, kw_only=True)
class Translation:
    """
    pairs         what is translated
    config        sizes; padding is the pairs' own
    vocabulary    rows of each table, where the pairs have fewer words
    epochs        that it takes; or so many `updates`
    batch_tokens  of an update, of all replicas and micro-batches together, padding included
    accumulation  micro-batches of an update on each replica
    learning_rate update, from 1 on -> rate
    evaluate_every, save_every  updates; None: an epoch. Each evaluation saves too
    watched       what is the best and when to stop: "bleu", or the held-out "loss"
    patience      evaluations without a better one after which the run ends
    beam          prefixes that decoding keeps; 1 is greedy
    rows          sentences that are translated together
    evaluators    replicas that evaluate, the first ones; None: all
    loading       how workers load micro-batches
    bucket_bytes  gradients that travel in one message
    directory     of best.pt and last.pt; None: nothing is saved
    resume        go on from last.pt, if it is there
    """

    pairs: "data.parallel.Parallel"
    learning_rate: Callable[[int], float]
    config: "models.TranslatorConfig" = field(default_factory=small)
    vocabulary: int = 0
    replicas: int = 1
    accumulation: int = 1
    batch_tokens: int = 1024
    epochs: int = 10
    updates: int | None = None
    smoothing: float = 0.1
    clip: float | None = 1.0
    precision: str | None = None
    optimizer: Callable = field(default=adam)
    seed: int = 0
    watched: str = "bleu"
    patience: int = 5
    beam: int = 1
    length_penalty: float = 0.6
    rows: int = 64
    evaluators: int | None = None
    evaluate_every: int | None = None
    save_every: int | None = None
    loading: "techniques.data_loader.Loading" = field(
        default_factory=lambda: techniques.data_loader.Loading()
    )
    bucket_bytes: int = 25 * 2**20
    directory: str | Path | None = None
    resume: bool = False

    def __post_init__(self):
        always = ("replicas", "accumulation", "epochs", "patience", "beam", "rows")
        optional = ("updates", "evaluators", "evaluate_every", "save_every")
        given = [name for name in optional if getattr(self, name) is not None]
        models.config.require_counts(**{name: getattr(self, name) for name in (*always, *given)})
        refuse(
            (
                self.watched not in ("bleu", "loss"),
                f"watched is {self.watched!r}: choose bleu or loss.",
            ),
            (
                not self.pairs.held_out,
                f"{self.pairs.name} holds no pair out: give some, to see what is learned.",
            ),
            (
                not 0 <= self.smoothing < 1,
                f"smoothing is {self.smoothing!r}: give a share from 0 to below 1.",
            ),
            (
                self.resume and self.directory is None,
                "resume goes on from a directory's last.pt, and directory is None: "
                "name the one that the run saved in.",
            ),
        )

    @cached_property
    def sizes(self) -> "models.TranslatorConfig":
        return replace(
            self.config,
            vocabulary=max(self.vocabulary, len(self.pairs.vocabulary)),
            padding=data.tokens.PAD,
        )

    @cached_property
    def order(self) -> Schedule:
        """Of each replica, layer by layer."""
        return by_layers(
            Schedule.named("1f1b")(1, self.accumulation),
            [range(models.translator_pieces.count(self.config))],
        )

    @property
    def steps(self) -> int:
        """Updates of a run."""
        return self.updates or self.epochs * len(self.batches)

    @cached_property
    def batches(self) -> "data.batches.Batches":
        return data.batches.Batches(
            self.pairs.encoded(longest=self.config.longest),
            self.batch_tokens,
            self.replicas * self.accumulation,
            self.seed,
        )

    @cached_property
    def held_out(self) -> list[list[int]]:
        """The held-out pairs that are evaluated together."""
        pairs = self.pairs.encoded(held_out=True)
        short = [n for n, pair in enumerate(pairs) if max(map(len, pair)) < self.config.longest]
        refuse(
            (
                not short,
                f"No held-out pair of {self.pairs.name} has at most "
                f"{self.config.longest} tokens: take a longer `longest`.",
            )
        )
        return [
            [short[at] for at in rows]
            for rows in data.batches.in_order([pairs[n] for n in short], self.rows)
        ]

    def share(self, replica: int) -> list[int]:
        """The held-out batches that a replica evaluates: each is in one share."""
        sharing = min(self.evaluators or self.replicas, self.replicas)
        if replica >= sharing:
            return []
        return [
            *techniques.distributed_sampler.DistributedSampler(
                self.held_out, replica, sharing, shuffle=False, last="uneven"
            )
        ]

    @property
    def recipe(self) -> "train.Recipe":
        return train.Recipe(
            model=lambda at: models.translator_pieces.TranslatorPiece(self.sizes, at, self.seed),
            data=self.sample,
            weights=self.shares,
            loss=self.loss,
            optimizer=self.optimizer,
            clip=self.clip,
            learning_rate=self.learning_rate,
            precision=self.precision,
            replicas=self.replicas,
            schedule=self.order,
            steps=self.steps,
            whole_names=True,
            bucket_bytes=self.bucket_bytes,
        )

    def loss(self, logits, targets):
        return models.blocks.word_cross_entropy(logits, targets, data.tokens.PAD, self.smoothing)

    def sample(self, micro_batch: int) -> "train.Sample":
        source, target, (so_far,) = self.batches.sample(micro_batch)
        return train.Sample(
            source, target, (source, so_far, models.Noise(self.seed, 0, micro_batch))
        )

    def words(self, sample: "train.Sample") -> int:
        """Those of a micro-batch's loss, by its number: no device is waited for."""
        *_, noise = sample.context
        return self.batches.words(noise.micro_batch)

    def shares(self, window) -> list[float]:
        """Of each micro-batch in the mean over the words of all."""
        words = [self.words(sample) for sample in window]
        return [count / sum(words) for count in words]

    def own(self, rank: int) -> list[int]:
        """The micro-batches of a rank, in order."""
        return [*range(rank, self.replicas * self.accumulation * self.steps, self.replicas)]

    def shape(self, micro_batch: int) -> tuple[int, int, int]:
        """(B, S, T): lengths with their ends."""
        return shape_of(
            [self.batches.pairs[number] for number in self.batches.sentences(micro_batch)]
        )

    @cached_property
    def held_out_shapes(self) -> list[tuple[int, int, int]]:
        pairs = self.pairs.encoded(held_out=True)
        return [shape_of([pairs[number] for number in batch]) for batch in self.held_out]

    @cached_property
    def evaluated_after(self) -> set[int]:
        every = self.evaluate_every or len(self.batches)
        return {*range(every, self.steps + 1, every), self.steps}

    def program(self, rank) -> "dict[str, np.ndarray]":
        """What a rank runs: final weights, losses, and of each evaluation a row, whose columns are
        Evaluation.COLUMNS."""
        recipe, lens = self.recipe, Evaluation(self, rank)
        windows = [window[rank.index :: self.replicas] for window in recipe.windows]
        loader = techniques.data_loader.Loader(recipe.data, windows, self.loading, rank)
        trained = train.train(replace(recipe, data=loader), rank, lens)
        return recipe.arrays(trained.weights, trained.losses, trained.replica) | {
            "evaluations": np.array(lens.rows)
        }

    def run(self, **options) -> "runtime.Run":
        """Start the ranks; options as for `launch`."""
        asked = {
            "ranks": self.replicas,
            "steps": self.steps,
            "mesh": self.recipe.mesh,
            "name": "translation",
        }
        return runtime.launch(self.program, **asked | options)


def shape_of(pairs) -> tuple[int, int, int]:
    """Of a micro-batch of these pairs; of none, of a row of padding."""
    if not pairs:
        return 1, 1, 1
    return (
        len(pairs),
        1 + max(len(source) for source, _ in pairs),
        1 + max(len(target) for _, target in pairs),
    )


class Evaluation(train.Lens):
    """Looks at the held-out pairs now and then, keeps the best, stops when none gets better, saves,
    and says how far each rank is. No ledger follows it."""

    COLUMNS = ("update", "train loss", "held-out loss", "BLEU", "best")

    def __init__(self, asked: Translation, rank):
        self.asked, self.rank = asked, rank
        self.group = rank.group("dp") if asked.replicas > 1 else rank.group()
        self.rows: list[list[float]] = []
        self.sums = self.zeros(2)  # losses and words since the last evaluation
        asked.held_out  # noqa: B018  (raises Impossible)

    def zeros(self, size: int) -> "torch.Tensor":
        return torch.zeros(size, dtype=torch.float64, device=self.group.device)

    # -- the loop ----------------------------------------------------------------------------------

    def begin(self, training) -> int:
        self.model = models.translator_pieces.joined(training.stages, self.asked.sizes)
        self.whole = copy(training)  # its pieces joined
        self.whole.stages = {0: self.model}
        last = Path(self.asked.directory or "") / "last.pt"
        if not (self.asked.resume and self.asked.directory and last.exists()):
            return 0
        state, origin = techniques.saved.load(last), self.asked.batches.origin
        guard = techniques.saved.guard
        with guard.read(last):
            guard.refuse_other(state.get("data", origin), origin, last)
            done = techniques.saved.restore(state, self.whole, self.group.rank, last)
            self.rows = state["rows"].view(len(state["rows"]), len(self.COLUMNS)).tolist()
            own = state["sums"][
                self.group.rank :: self.group.size
            ]  # of fewer ranks than saved, each
            self.sums = own.view(-1, 2).sum(0).to(self.group.device)  # has several
        return self.asked.steps if self.rows and self.waited() >= self.asked.patience else done

    def window(self, number, stages, samples):
        self.words = [self.asked.words(sample) for sample in samples]
        return super().window(number, stages, samples)

    def ended(self, number, training, losses) -> bool:
        self.sums += self.sums.new_tensor(
            [sum(loss * words for loss, words in zip(losses, self.words)), sum(self.words)]
        )
        done, steps = number + 1, self.asked.steps
        if done * 10 // steps > number * 10 // steps:
            filled = done * 20 // steps
            print(
                f"rank {self.rank.index}  [{'#' * filled:.<20}]  {done} of {steps} updates "
                f" loss {losses[-1]:.3f}",
                flush=True,
            )
        stop = best = False
        if evaluates := done in self.asked.evaluated_after:
            stop, best = self.decided(self.evaluated(done, training))
        saves = evaluates or self.asked.save_every and done % self.asked.save_every == 0
        if self.asked.directory and saves:
            self.save(done, best)
        return stop

    # -- evaluation --------------------------------------------------------------------------------

    def evaluated(self, done: int, training) -> list[float]:
        """A row without its last column: sums over all ranks, and what they say."""
        with self.rank.aside(), torch.no_grad(), training.precision:
            sums = self.zeros(2 + data.bleu.COUNTS)
            for number in self.asked.share(self.group.rank):
                sums += sums.new_tensor(self.of_batch(number))
            sums, self.sums = torch.cat([self.sums, sums]), self.zeros(2)
            sums = self.group.all_reduce(sums, name=f"evaluation after {done}").tolist()
        return [done, sums[0] / sums[1], sums[2] / sums[3], data.bleu.bleu(sums[4:])]

    def of_batch(self, number: int) -> list[float]:
        """Sum of losses, words, and the counts of BLEU of one held-out batch."""
        asked, pairs = self.asked, self.asked.pairs.encoded(held_out=True)
        sample = data.batches.padded([pairs[each] for each in asked.held_out[number]])
        source, target, so_far = (
            part.to(self.rank.device) for part in (sample.inputs, sample.targets, *sample.context)
        )
        with self.rank.span(Action("L", 0, number)):
            loss = float(asked.loss(self.model(source, so_far), target))
        with self.rank.span(Action("T", 0, number)):
            said = self.translated(source)
        texts = [asked.pairs.vocabulary.decode(ids) for ids in said.tolist()]
        right = [asked.pairs.held_out[each][1] for each in asked.held_out[number]]
        words = data.batches.tokens_of(sample)
        return [loss * words, words, *data.bleu.counted(texts, right, asked.pairs.chinese)]

    def translated(self, source):
        asked = self.asked
        longest = min(asked.config.longest, source.shape[1] + 50)  # Vaswani et al., section 6.1
        return models.decoding.decoded(
            self.model,
            source,
            data.tokens.BEGIN,
            data.tokens.END,
            data.tokens.PAD,
            longest,
            beam=asked.beam,
            length_penalty=asked.length_penalty,
        )

    def waited(self) -> int:
        """Evaluations since the best."""
        column, sign = (3, 1) if self.asked.watched == "bleu" else (2, -1)
        scores = np.array([sign * row[column] for row in self.rows])
        return len(scores) - 1 - int(np.where(np.isnan(scores), -np.inf, scores).argmax())

    def decided(self, row: list[float]) -> tuple[bool, bool]:
        """Whether the run ends, and whether this evaluation is the best: rank 0 says so to all."""
        self.rows.append([*row, 0.0])
        waited = self.waited()
        decision = self.sums.new_tensor([waited >= self.asked.patience, not waited])
        self.group.broadcast(decision, 0, name=f"decision after {int(row[0])}")
        stop, best = map(bool, decision.tolist())
        self.rows[-1][-1] = float(best)
        for name, value in zip(self.COLUMNS[1:4], row[1:]):
            self.rank.log(name, value)
        if self.group.rank == 0:
            done, train_loss, loss, score = row
            print(
                f"epoch {done / len(self.asked.batches):.2f}: train loss {train_loss:.3f}, held-out"
                f" loss {loss:.3f}, BLEU {score:.2f}, learning rate "
                f"{self.asked.learning_rate(int(done)):.3g}"
                f"{', the best' * best}{'; the run ends' * stop}",
                flush=True,
            )
        return stop, best

    # -- checkpoints -------------------------------------------------------------------------------

    def save(self, done: int, best: bool) -> None:
        epoch, place = self.asked.batches.place(done)
        with self.rank.aside():
            state = techniques.saved.state_of(
                self.whole,
                self.group,
                done,
                epoch=epoch,
                place=place,
                data=self.asked.batches.origin,
                sums=techniques.saved.gathered(self.sums, self.group),
                rows=torch.tensor(self.rows, dtype=torch.float64),
            )
            if self.group.rank == 0:
                for name in ("best.pt", "last.pt") if best else ("last.pt",):
                    techniques.saved.save(Path(self.asked.directory) / name, state)
