"""A training that ranks evaluate together, that ends by one decision and can be taken up again.

    loss     sum over ranks and micro-batches of the words' losses / all their words
    BLEU     of counts that are added up; each held-out sentence is scored once
    end      rank 0's decision, which all take         last.pt, best.pt   whole at any moment

Two answers in very different styles agree on what is right; one smooths through torch's own
cross-entropy of soft targets.
Source: Papineni et al. 2002, section 2; Post 2018 (arXiv:1804.08771); rename in POSIX.1-2017.
"""

import io
import pickle
import tempfile
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from threading import get_ident
from types import SimpleNamespace

import torch

from ...data.bleu import bleu, counted
from ..box import travelling
from ..fence import Refused
from ..likeness import Scene, Topic, Wrong
from ..ranks import Ranks

RIGHT = """
import os
import torch

def smoothed(logits, target, smoothing):
    log = logits.log_softmax(-1)
    word = -log.gather(-1, target[..., None])[..., 0]
    others = -log[..., 1:].mean(-1)
    keep = target != 0
    return ((1 - smoothing) * word + smoothing * others)[keep].sum()

def save(state, path):
    aside = str(path) + ".partial"
    with open(aside, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)

def answer(group, task, folder):
    net, optimizer = task.model, task.optimizer
    epoch, update, best, waited, scores = 0, 0, -1.0, 0, []
    if (folder / "last.pt").exists():
        state = torch.load(folder / "last.pt")
        net.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epoch, update, best, waited = state["progress"]
    stop = waited >= task.patience
    while not stop:
        for window in task.windows(epoch):
            words = torch.tensor([float(sum((y != 0).sum() for _, y in window))])
            words = group.all_reduce(words)
            for x, y in window:
                (smoothed(net(x), y, task.smoothing) / words[0]).backward()
            for p in net.parameters():
                group.all_reduce(p.grad)
            update += 1
            for each in optimizer.param_groups:
                each["lr"] = task.rate(update)
            optimizer.step()
            optimizer.zero_grad()
        mine = task.held_out[group.rank::group.size]
        counts = sum([task.counts(each) for each in mine], torch.zeros(10).double())
        score = task.score(group.all_reduce(counts))
        scores.append(score)
        epoch += 1
        better = score > best
        best, waited = (score, 0) if better else (best, waited + 1)
        stop = waited >= task.patience
        said = group.broadcast(torch.tensor([float(stop), float(better)]))
        stop, better = bool(said[0]), bool(said[1])
        if group.rank == 0:
            state = {"model": net.module.state_dict(), "optimizer": optimizer.state_dict(),
                     "progress": (epoch, update, best, waited)}
            if better:
                save(state, folder / "best.pt")
            save(state, folder / "last.pt")
    return scores
"""
OTHER = """
import pickle
import torch
import torch.nn.functional as F
from pathlib import Path

class Run:
    def __init__(self, group, task, folder):
        self.group, self.task, self.folder = group, task, Path(folder)
        self.history, self.updates = [], 0

    def resume(self):
        file = self.folder / "last.pt"
        if file.is_file():
            kept = torch.load(file, weights_only=False)
            self.task.model.module.load_state_dict(kept["model"])
            self.task.optimizer.load_state_dict(kept["steps"])
            self.history, self.updates = kept["history"], kept["updates"]

    def over(self):
        if not self.history:
            return False
        best = self.history.index(max(self.history))
        return len(self.history) - 1 - best >= self.task.patience

    def loss(self, x, y):
        z = self.task.model(x)
        s, V = self.task.smoothing, z.shape[-1]
        q = F.one_hot(y, V) * (1 - s) + s / (V - 1)
        q[..., 0] = 0
        every = F.cross_entropy(z.flatten(0, 1), q.flatten(0, 1), reduction="none")
        return every[y.flatten() > 0].sum()

    def epoch(self, number):
        net, size = self.task.model, self.group.size
        for window in self.task.windows(number):
            self.updates += 1
            total = 0
            for x, y in window:
                self.loss(x, y).backward()
                total += y.count_nonzero().item()
            parts = [p.grad.flatten() for p in net.parameters()] + [torch.tensor([total])]
            flat = self.group.all_reduce(torch.cat(parts).double())
            flat, at = flat / flat[-1], 0
            for p in net.parameters():
                p.grad.copy_(flat[at:at + p.numel()].view_as(p))
                at += p.numel()
            for g in self.task.optimizer.param_groups:
                g.update(lr=self.task.rate(self.updates))
            self.task.optimizer.step()
            self.task.optimizer.zero_grad()

    def evaluate(self):
        sums = torch.zeros(10, dtype=torch.float64)
        for at, sentence in enumerate(self.task.held_out):
            if at % self.group.size == self.group.rank:
                sums += self.task.counts(sentence)
        self.group.all_reduce(sums, op="sum")
        return self.task.score(sums)

    def keep(self, name):
        model = self.task.model.module.state_dict()
        kept = {"model": {name: weight.clone() for name, weight in model.items()},
                "steps": self.task.optimizer.state_dict(),
                "history": self.history, "updates": self.updates}
        torch.save(kept, self.folder / ("_" + name))
        (self.folder / ("_" + name)).replace(self.folder / name)

def answer(group, task, folder):
    run, new = Run(group, task, folder), []
    run.resume()
    while True:
        verdict = torch.tensor([1.0 if run.over() else 0.0])
        if group.broadcast(verdict, src=0).item():
            return new
        run.epoch(len(run.history))
        new.append(run.evaluate())
        run.history.append(new[-1])
        if group.rank == 0:
            run.keep("last.pt")
            if max(run.history[:-1], default=-1) < new[-1]:
                run.keep("best.pt")
"""
FLOAT, ADDED = (
    "float(sum((y != 0).sum() for _, y in window))",
    "task.score(group.all_reduce(counts))",
)
TELL = "said = group.broadcast(torch.tensor([float(stop), float(better)]))"
SAID = f"        {TELL}\n        stop, better = bool(said[0]), bool(said[1])\n"
STOP, ZERO = (
    "        stop = waited >= task.patience\n        said",
    "            optimizer.zero_grad()\n",
)
RATE = '            for each in optimizer.param_groups:\n                each["lr"] = task.rate(update)\n'
BACK = "(smoothed(net(x), y, task.smoothing) / words[0]).backward()"
SHARE = "task.held_out[group.rank::group.size]"
ASIDE = '    aside = str(path) + ".partial"\n'
PROGRESS = 'epoch, update, best, waited = state["progress"]'
KEYS = '"model": net.module.state_dict()'
SUMS = "            for p in net.parameters():\n                group.all_reduce(p.grad)\n"
STEP = "            optimizer.step()\n" + ZERO
BETTER = "if better:\n                save"
KEEP, SIZE = "[keep].sum()", "len(task.held_out)"
TOTAL = "words = group.all_reduce(words)"


def indented(text: str) -> str:
    return "".join(f"    {line}" for line in text.splitlines(keepends=True))


def but(*changes: str) -> str:
    """The first right answer with old, new, old, new, ... replaced."""
    text = RIGHT
    for old, new in zip(changes[::2], changes[1::2]):
        assert old in text, old
        text = text.replace(old, new)
    return text


class SpreadEvaluation(Topic):
    name = "spread-evaluation"
    hints = (
        "Which numbers may be added up over ranks, and which may not? Whose word decides?",
        "Words, gradients and n-gram counts are sums; a loss and BLEU are ratios. Let rank 0 tell all what it decides.",
        "Write aside, then rename. Keep the model's own state dict, the optimizer's, the epoch, the update, "
        "the best score and how long it was not beaten.",
    )
    right = {
        "plain": RIGHT,
        "a class": OTHER,
        "divides after": but(
            BACK,
            "smoothed(net(x), y, task.smoothing).backward()",
            "group.all_reduce(p.grad)\n",
            "group.all_reduce(p.grad).div_(words[0])\n",
        ),
        "means": but(
            TOTAL,
            "words = group.all_reduce(words, op='mean')",
            "group.all_reduce(p.grad)",
            "group.all_reduce(p.grad, op='mean')",
        ),
        "in blocks": but(
            SHARE,
            "[each for n, each in enumerate(task.held_out) "
            f"if n * group.size // {SIZE} == group.rank]",
        ),
        "max decides": but(
            TELL, TELL.replace("broadcast", "all_reduce").replace("]))", "]), op='max')")
        ),
    }
    wrong = {
        name: Wrong(sentence, text)
        for name, sentence, text in (
            (
                "noam_per_micro",
                "The schedule runs as often as there are micro-batches: count updates, one a window.",
                but(
                    "                (smoothed",
                    "                update += 1\n                (smoothed",
                    "            update += 1\n            for each",
                    "            for each",
                ),
            ),
            (
                "rate from 0",
                "The first update has the rate of update 0: count updates from 1.",
                but("task.rate(update)", "task.rate(update - 1)"),
            ),
            (
                "rate after the step",
                "Each update uses the rate of the one before: set it before the step.",
                but(RATE, "", ZERO, ZERO + RATE),
            ),
            (
                "rate an epoch",
                "The rate changes once an epoch: it is a function of the update.",
                but("task.rate(update)", "task.rate(epoch + 1)"),
            ),
            (
                "pad_in_loss",
                "The loss averages over padding too: longer batches look easier. Count words only.",
                but(KEEP, ".sum()", FLOAT, "float(sum(y.numel() for _, y in window))"),
            ),
            (
                "pads are learnt",
                "Padding is learnt as a word: leave its losses out of the sum.",
                but(KEEP, ".sum()"),
            ),
            (
                "pads are counted",
                "The sum is over words, but you divide by the padding too: count words only.",
                but(FLOAT, "float(sum(y.numel() for _, y in window))"),
            ),
            (
                "smoothing_on_pad",
                "Label smoothing gives padding some of the mass: spread it over the words only.",
                but("log[..., 1:].mean(-1)", "log.mean(-1)"),
            ),
            (
                "others only",
                "The smoothed mass leaves out the word itself: spread it over all words, that one among them.",
                but(
                    "-log[..., 1:].mean(-1)", "-(log[..., 1:].sum(-1) + word) / (log.shape[-1] - 2)"
                ),
            ),
            (
                "no smoothing",
                "The labels are not smoothed: give task.smoothing of a target's mass to all words.",
                but("task.smoothing)", "0.0)"),
            ),
            (
                "mean_of_means",
                "Each rank divides by its own words, so ranks with few words weigh too much: add up the words of all ranks.",
                but(TOTAL, "words = words * group.size"),
            ),
            (
                "mean of micro-batches",
                "Each micro-batch is divided by its own words: divide all of them by the window's.",
                but("/ words[0])", "/ (y != 0).sum() / len(window) / group.size)"),
            ),
            (
                "no all-reduce",
                "Each rank follows its own gradient, and the ranks drift apart: add up the gradients.",
                but("group.all_reduce(p.grad)", "pass"),
            ),
            (
                "divides twice",
                "The gradient is divided by the number of ranks once too often: words are added up already.",
                but("group.all_reduce(p.grad)", "group.all_reduce(p.grad, op='mean')"),
            ),
            (
                "keeps gradients",
                "An update holds the gradients of those before: clear them after each step.",
                but(ZERO, ""),
            ),
            (
                "steps each micro-batch",
                "There is a step after each micro-batch: make one update of a window.",
                but(
                    f"                {BACK}\n{SUMS}            update += 1\n{RATE}{STEP}",
                    f"                {BACK}\n"
                    + indented(SUMS + RATE.replace("(update)", "(update + 1)") + STEP)
                    + "            update += 1\n",
                ),
            ),
            (
                "mean_of_bleus",
                "BLEU is no mean of the ranks' BLEUs: add n-gram counts and lengths, then score.",
                but(
                    ADDED,
                    "float(group.all_reduce(torch.tensor([task.score(counts)]).double(), op='mean'))",
                ),
            ),
            (
                "mean of sentences",
                "BLEU is no mean over sentences: add n-gram counts and lengths, then score.",
                but(
                    ADDED,
                    "float(group.all_reduce(torch.tensor([sum(task.score(task.counts(each)) for each in mine)])"
                    f".double())) / {SIZE}",
                ),
            ),
            (
                "padding_scored",
                "More sentences are scored than there are: leave shares uneven, and repeat none.",
                but(
                    SHARE,
                    f"[task.held_out[n % {SIZE}] for n in range(group.rank, -(-{SIZE} // group.size) * group.size, "
                    "group.size)]",
                ),
            ),
            (
                "drops the rest",
                "Fewer sentences are scored than there are: the last share may be shorter.",
                but(
                    SHARE,
                    f"task.held_out[:{SIZE} // group.size * group.size][group.rank::group.size]",
                ),
            ),
            (
                "all score all",
                "Each rank scores all sentences, so each counts as often as there are ranks: score a share.",
                but(SHARE, "task.held_out"),
            ),
            (
                "rank 0 scores all",
                "One rank scores all sentences and the others wait: give each rank a share.",
                but(SHARE, "task.held_out if group.rank == 0 else []"),
            ),
            (
                "all ranks write",
                "Every rank writes the same file, one into the other: let rank 0 save.",
                but(
                    "        if group.rank == 0:\n            state",
                    "        if True:\n            state",
                ),
            ),
            (
                "rank 0's third",
                "What is best is judged by a rank's own share of the sentences: add up the counts of all.",
                but(ADDED, "task.score(counts)"),
            ),
            (
                "rank0_decides_alone",
                "Rank 0 stops alone and the others wait in their next all-reduce: broadcast the decision.",
                but(SAID, "        stop = stop and group.rank == 0\n"),
            ),
            (
                "never stops early",
                "The run goes on though nothing got better for task.patience epochs: count them.",
                but(
                    "            if better:\n",
                    "            pass\n        stop = epoch >= 9\n        if group.rank == 0:\n"
                    "            if better:\n",
                ),
            ),
            (
                "patience + 1",
                "The run ends an epoch late: stop once task.patience epochs brought nothing better.",
                but(STOP, STOP.replace(">=", ">")),
            ),
            (
                "first worse ends",
                "The run ends at the first epoch that is not better: wait for task.patience of them.",
                but(STOP, STOP.replace("task.patience", "1")),
            ),
            (
                "against the last",
                "You compare with the epoch before: compare with the best so far.",
                but("(best, waited + 1)", "(score, waited + 1)"),
            ),
            (
                "patience is total",
                "Epochs without a better score add up over the run: a better one begins the count anew.",
                but("(score, 0) if", "(score, waited) if"),
            ),
            (
                "state_dict_of_wrapper",
                "The names in last.pt begin with `module.`, and one process cannot load them: save task.model.module's.",
                but(
                    KEYS,
                    '"model": net.state_dict()',
                    "net.module.load_state_dict(state",
                    "net.load_state_dict(state",
                ),
            ),
            (
                "best is the last",
                "best.pt is written after every epoch: only where one is better.",
                but(BETTER, "if True:\n                save"),
            ),
            (
                "no best.pt",
                "There is no best.pt: save a better model under that name too.",
                but(BETTER, "if False:\n                save"),
            ),
            (
                "best_not_atomic",
                "Killed while it saves, the run has lost its last good checkpoint: write aside, then rename.",
                but(ASIDE, "    aside = path\n", "    os.replace(aside, path)\n", ""),
            ),
            (
                "removes first",
                "Killed while it saves, the run has no checkpoint: rename over the old one, remove nothing.",
                but(ASIDE, ASIDE + "    if path.exists():\n        os.remove(path)\n"),
            ),
            (
                "resume_without_sampler",
                "After a restart the data begins with epoch 0 again: go on with the epoch after the saved one.",
                but(PROGRESS, '_, update, best, waited = state["progress"]'),
            ),
            (
                "repeats the epoch",
                "After a restart the last epoch is trained once more: go on with the one after it.",
                but(PROGRESS, PROGRESS + "\n        epoch -= 1"),
            ),
            (
                "resume_without_optimizer",
                "After a restart the optimizer has forgotten its momentum: save its state too.",
                but('optimizer.load_state_dict(state["optimizer"])', "pass"),
            ),
            (
                "resume_without_update",
                "After a restart the learning rate begins anew: save the number of updates.",
                but(PROGRESS, 'epoch, _, best, waited = state["progress"]'),
            ),
            (
                "resume_without_best",
                "After a restart any score is the best: save the best score.",
                but(PROGRESS, 'epoch, update, _, waited = state["progress"]'),
            ),
            (
                "resume_without_patience",
                "After a restart the epochs without a better score count from 0: save their number.",
                but(PROGRESS, 'epoch, update, best, _ = state["progress"]'),
            ),
            (
                "never resumes",
                "A restart begins from scratch: load last.pt where it is there.",
                but('(folder / "last.pt").exists()', "False"),
            ),
            (
                "resumes from the best",
                "A restart goes on from best.pt: go on from last.pt.",
                but('torch.load(folder / "last.pt")', 'torch.load(folder / "best.pt")'),
            ),
        )
    }

    @staticmethod
    def probe(answer, draw):
        seed, many = draw.randrange(2**31), draw.randint(3, 4)
        carried = cache(lambda: travelling(answer))
        for who, ranks in (("1 rank", 1), (f"{many} ranks", many)):
            trained = cache(lambda ranks=ranks: Trained(ranks, seed).to_the_end(carried()))
            yield from scenes(who, trained)
        yield Scene("1 rank, killed while it saves", lambda: killed(carried(), seed))
        for who, ranks, epochs in (("2 ranks", 2, 3), ("1 rank", 1, 5)):
            again = cache(
                lambda ranks=ranks, epochs=epochs: Trained(ranks, seed).to_the_end(
                    carried(), epochs
                )
            )
            yield from scenes(f"{who}, killed after {epochs} epochs and started again", again)


def scenes(who: str, trained) -> list[Scene]:
    return [
        Scene(who, lambda shown=shown: shown(trained()), ROUNDING)
        for shown in (Trained.updates, Trained.weights, Trained.scores, Trained.files)
    ]


V, SMOOTHING, PATIENCE, WINDOWS, HELD_OUT = 8, 0.1, 2, 2, 13
ROUNDING = 1e-5  # an answer may count words, and smooth, in float32
RIGHT_WORDS = (
    0.3,
    0.55,
    0.4,
    0.95,
    0.65,
    0.8,
    0.5,
)  # share of an epoch's translations: the fourth is the best


DAMAGED = {"model": {"damaged": 0}}


class Killed(BaseException):
    """What ends a run from outside."""


class Net(torch.nn.Module):
    """Each word by itself, in float64."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.table, self.out = torch.nn.Embedding(V, 5), torch.nn.Linear(5, V)
        self.double()

    def forward(self, source):
        return self.out(torch.tanh(self.table(source)))


class Wrapper(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *given):
        return self.module(*given)


class Steps(torch.optim.SGD):
    """Notes the rate of each step."""

    def step(self, closure=None):
        self.rates.append(self.param_groups[0]["lr"])
        return super().step(closure)


def sentences(draw: Random, rows: int, longest: int):
    """Source and target words, padded: the n-th word's translation is the (n + 2)-nd of 1 .. V - 1."""
    source = torch.zeros(rows, longest, dtype=torch.int64)
    for row in source:
        length = draw.randint(1, longest)
        row[:length] = torch.tensor([draw.randint(1, V - 1) for _ in range(length)])
    return source, torch.where(source > 0, (source + 1) % (V - 1) + 1, 0)


@lru_cache(maxsize=1000)
def counts_of(said: str, right: str) -> list[int]:
    return counted([said], [right])


def text(words) -> str:
    return " ".join(f"w{word}" for word in words)


class Trained(Ranks):
    """A training by an answer, and what each rank did. How good the translations are is planned,
    epoch by epoch, so that every run has a turn for the worse, a best and an end."""

    def __init__(self, ranks: int, seed: int, last: int | None = None):
        super().__init__(ranks, seed)
        self.first, self.last, self.scored = seed, last, []
        self.savers: set[int] = set()
        self.epochs, self.tasks = [[] for _ in range(ranks)], [None] * ranks

    def to_the_end(self, carried: bytes, killed_after: int | None = None) -> "Trained":
        """With what it keeps; of a run that goes on where another was killed."""
        with tempfile.TemporaryDirectory() as folder:
            if killed_after is not None:
                with suppress(Killed):
                    Trained(self.size, self.first, killed_after).train(carried, Path(folder))
            self.told = self.train(carried, Path(folder))
            self.kept = {name: loaded(Path(folder) / name) for name in ("last.pt", "best.pt")}
        return self

    def train(self, carried: bytes, folder: Path) -> list:
        def program(_, group):
            numbers[get_ident()], task = group.rank, self.task(group.rank)
            self.tasks[group.rank] = task
            return pickle.loads(carried)(group, task, folder)

        def save(*given, **named):
            self.savers.add(numbers[get_ident()])
            return own(*given, **named)

        numbers, own, torch.save = {}, torch.save, save
        try:
            return self.run(program, None)
        finally:
            torch.save = own

    def task(self, rank: int) -> SimpleNamespace:
        model = Wrapper(Net(self.first))
        optimizer = Steps(model.parameters(), lr=0.1, momentum=0.5)
        optimizer.rates = []
        held_out = [sentences(Random(f"{self.first} {n}"), 1, 6) for n in range(HELD_OUT)]

        def windows(epoch):
            if epoch == self.last and rank == 0:  # which has saved by then
                raise Killed
            if len(self.epochs[rank]) > 12:
                raise Refused(
                    "Your run does not end: stop once task.patience epochs brought nothing better."
                )
            self.epochs[rank].append(epoch)
            draw = Random(f"{self.first} {epoch} {rank}")
            return [
                [sentences(draw, draw.randint(1, 3) + 3 * (rank == 0), 6) for _ in range(2)]
                for _ in range(WINDOWS)
            ]

        def counts(sentence):
            self.scored.append(rank)
            epoch, words = (
                [0, *self.epochs[rank]][-1],
                [word for word in sentence[1][0].tolist() if word],
            )
            draw, chance = (
                Random(f"{self.first} {words}"),
                RIGHT_WORDS[min(epoch, len(RIGHT_WORDS) - 1)],
            )
            drawn = [(draw.random(), draw.randint(1, V - 1)) for _ in words]
            said = [word if luck < chance else other for word, (luck, other) in zip(words, drawn)]
            return torch.tensor(counts_of(text(said), text(words)), dtype=torch.float64)

        def rate(update):
            return 0.3 * (1 + 0.1 * (update % 5)) / (1 + update) ** 0.5

        def score(sums):
            return bleu(torch.as_tensor(sums).flatten().tolist())

        return SimpleNamespace(
            model=model,
            optimizer=optimizer,
            windows=windows,
            rate=rate,
            held_out=held_out,
            counts=counts,
            score=score,
            patience=PATIENCE,
            smoothing=SMOOTHING,
        )

    # -- what a scene shows ----------------------------------------------------------------------------------

    def updates(self) -> dict:
        rates = self.tasks[0].optimizer.rates[: WINDOWS + 2]
        return {"epochs trained": self.epochs[0][:2], "rates": [round(rate, 9) for rate in rates]}

    def weights(self) -> dict:
        """At the end, on each rank."""
        return {
            "weights": [
                torch.cat([p.detach().flatten() for p in task.model.parameters()])
                for task in self.tasks
            ],
            "epochs trained": self.epochs,
        }

    def scores(self) -> dict:
        epochs = max(1, len(self.epochs[0]))
        most = max(self.scored.count(rank) for rank in range(self.size)) / epochs
        share = -(-HELD_OUT // self.size)
        return {
            "sentences scored an epoch": len(self.scored) / epochs,
            "by one rank beyond its share": max(0, most - share),
            "BLEU of each epoch": [[round(float(score), 9) for score in own] for own in self.told],
        }

    def files(self) -> dict:
        shown = {"ranks that save": sorted(self.savers)}
        for name, state in self.kept.items():
            if state is not None and (not isinstance(state, dict) or "model" not in state):
                raise Refused(
                    f'{name} has no "model": save a dictionary with the model\'s own state '
                    "dict under that name."
                )
            weights = state and state["model"]
            shown[f"names in {name}"] = sorted(weights) if weights else None
            flat = [torch.as_tensor(weights[key]).flatten() for key in sorted(weights or ())]
            shown[f"numbers in {name}"] = torch.cat(flat) if flat else None
        return shown


def loaded(path: Path):
    """None where there is none, DAMAGED where it is not whole."""
    if not path.exists():
        return None
    try:
        return torch.load(path, weights_only=False)
    except Exception:
        return DAMAGED


def killed(carried: bytes, seed: int) -> dict:
    """What a kill in the n-th call of torch.save left of the checkpoints that were there before."""
    shown = {}
    for call in (3, 4):
        calls, there, own = [], set(), torch.save

        def save(state, file, *given, _own=own, **named):
            calls.append(file)
            there.update(name for name in ("last.pt", "best.pt") if (room / name).exists())
            if len(calls) < call:
                return _own(state, file, *given, **named)
            with io.BytesIO() as whole:
                _own(state, whole)
                half = whole.getvalue()[: whole.tell() // 2]
            if hasattr(file, "write"):
                file.write(half)
                file.flush()
            else:
                Path(file).write_bytes(half)
            raise Killed

        with tempfile.TemporaryDirectory() as folder:
            room = Path(folder)
            torch.save = save
            try:
                with suppress(Killed):
                    Trained(1, seed).train(carried, room)
            finally:
                torch.save = own
            kept = {name: loaded(room / name) for name in sorted(there)}
        shown[f"after a kill in save {call}"] = {
            name: "gone" if state is None else "damaged" if state is DAMAGED else "whole"
            for name, state in kept.items()
        }
    return shown
