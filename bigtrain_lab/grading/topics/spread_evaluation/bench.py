"""A training on one of some ranks that share a folder, whose translations are planned epoch by
epoch: a turn for the worse, a best and an end. It may be killed, before an epoch, in a save or
before a rename, and started again."""

import io
import os
import sys
from pathlib import Path
from random import Random
from threading import get_ident
from types import SimpleNamespace

import torch

from ....data.bleu import bleu, counted
from ...trainings import flat, refuse

VOCABULARY, LONGEST, MOST_EPOCHS = 8, 6, 12
# Of each epoch's translations, as a share: the first two say nothing; the seventh is as good as the
# fifth, and no better.
RIGHT_WORDS = (0, 0, 0.55, 0.4, 0.95, 0.65, 0.95, 0.5)
FILES = "best.pt", "last.pt"
SAVE = torch.save


class Saves:
    """In place of torch.save, on each rank's own thread: counts, and is killed. It hears each
    rename. Whoever writes into a checkpoint itself changes it as a rename would."""

    of = {}  # a rank's thread -> its saves

    def __init__(self, folder: Path, group, killed_in: int | None, killed_before: int | None):
        self.folder, self.group, self.count, self.renames = folder, group, 0, 0
        self.killed_in, self.killed_before = killed_in, killed_before

    def __enter__(self):
        self.of[get_ident()], torch.save = self, self.save
        return self

    def __exit__(self, *_):
        del self.of[get_ident()]
        if not self.of:
            torch.save = SAVE

    @classmethod
    def heard(cls, event: str, told: tuple):
        """A checkpoint is about to become another."""
        self = cls.of.get(get_ident())
        if not self or event not in ("open", "os.rename"):
            return
        writes = event == "os.rename" or (
            told[2] & (os.O_WRONLY | os.O_RDWR)
            and isinstance(told[0], (str, os.PathLike))
            and Path(told[0]).name in FILES
        )
        self.renames += bool(writes)
        if writes and self.renames == self.killed_before:
            self.group.kill()

    @classmethod
    def save(cls, state, file, *given, **named):
        self = cls.of[get_ident()]
        self.count += 1
        if self.count != self.killed_in:
            return SAVE(state, file, *given, **named)
        there = [name for name in FILES if (self.folder / name).exists()]
        (self.folder / "there").write_text(" ".join(there), encoding="utf-8")
        SAVE(state, whole := io.BytesIO())
        half = whole.getvalue()[: whole.tell() // 2]
        if hasattr(file, "write"):
            file.write(half)
            file.flush()
        else:
            Path(file).write_bytes(half)
        self.group.kill()


sys.addaudithook(Saves.heard)


def play(
    answer,
    group,
    room,
    seed,
    own_seed,
    held_out,
    windows,
    kill_epoch,
    kill_save,
    kill_rename,
    asked=None,
    reads=False,
) -> dict:
    """What this rank did, and the checkpoints at the end. `asked`: what of it is compared. `reads`:
    the checkpoints alone, of those that were there when a save was cut off."""
    folder = Path(room)
    if reads:
        there = folder / "there"
        return files(folder, there.read_text(encoding="utf-8").split() if there.exists() else FILES)
    torch.manual_seed(seed)
    layers = torch.nn.Embedding(VOCABULARY, 5), torch.nn.Tanh(), torch.nn.Linear(5, VOCABULARY)
    layers[2].weight.data *= 16  # the first gradients are longer than 1
    model = torch.nn.DataParallel(torch.nn.Sequential(*layers).double())
    optimizer = torch.optim.SGD(
        [{"params": [*layer.parameters()]} for layer in layers[::2]], lr=0.1, momentum=0.5
    )
    rates, epochs, scored, gradients = [], [], [], []
    modes = {model: [], model.module: []}  # whether it trains, at each forward
    for module, own in modes.items():
        module.register_forward_pre_hook(lambda each, _, own=own: own.append(each.training))

    def note(*_):
        rates.append(optimizer.param_groups[0]["lr"])
        gradients.append(
            flat(p.detach() * 0 if p.grad is None else p.grad for p in model.parameters())
        )

    optimizer.register_step_pre_hook(note)

    def trained(epoch):
        if epoch == kill_epoch and group.rank == 0:  # which has saved by then
            group.kill()
        refuse(
            (
                len(epochs) > MOST_EPOCHS,
                "Your run does not end: stop once task.patience epochs brought nothing better.",
            )
        )
        epochs.append(epoch)
        draw = Random(f"{own_seed} {epoch}")
        return [
            [translation(draw, draw.randint(1, 3) + 3 * (group.rank == 0)) for _ in range(2)]
            for _ in range(windows - epoch % 2)
        ]

    def counts(sentence):
        scored.append(sentence)
        return counts_of(sentence, [0, *epochs][-1], seed)

    def score(sums):
        """As on machines of other kinds: another last digit on each rank, and in each epoch."""
        digit = 1e-9 * group.rank * len(epochs)
        return bleu(torch.as_tensor(sums).flatten().tolist()) * (1 + digit)

    task = SimpleNamespace(
        model=model,
        optimizer=optimizer,
        windows=trained,
        rate=lambda update: 0.3 * (1 + 0.1 * (update % 5)) / (1 + update) ** 0.5,
        held_out=[translation(Random(f"{seed} {n}"), 1) for n in range(held_out)],
        counts=counts,
        score=score,
        patience=2,
        smoothing=0.1,
    )
    with Saves(folder, group, kill_save, kill_rename) as saves:
        scores = [float(each) for each in answer(group, task, folder)]
    return {
        "rates": rates,
        "gradient": gradients[:1],
        "epochs": epochs,
        "scored": len(scored),
        "scores": scores,
        "saves": saves.count,
        "not in training mode": modes[model.module].count(False),
        "past the wrapper": len(modes[model.module]) - len(modes[model]),
        "weights": flat(model.parameters()),
    } | (files(folder, FILES) if group.rank == 0 else {})


def counts_of(sentence, epoch: int, seed: int) -> torch.Tensor:
    """Those of the translation that this epoch brings."""
    words = [word for word in sentence[1][0].tolist() if word]
    chance, draw = RIGHT_WORDS[min(epoch, len(RIGHT_WORDS) - 1)], Random(f"{seed} {words}")
    said = []
    for word in words if chance else ():
        luck, other = draw.random(), draw.randint(1, VOCABULARY - 1)
        said.append(word if luck < chance else other)
    texts = [[" ".join(f"w{word}" for word in each)] for each in (said, words)]
    return torch.tensor(counted(*texts), dtype=torch.float64)


def translation(draw: Random, rows: int):
    """Source and target words, each padded by itself."""
    source, target = torch.zeros(2, rows, LONGEST, dtype=torch.int64)
    for row in (*source, *target):
        length = draw.randint(1, LONGEST)
        row[:length] = torch.tensor([draw.randint(1, VOCABULARY - 1) for _ in range(length)])
    return source, target


def files(folder: Path, names) -> dict:
    return {"files": {name: checkpoint(folder / name) for name in names}}


def checkpoint(path: Path) -> dict | str:
    if not path.exists():
        return "gone"
    try:
        state = torch.load(path, weights_only=False)
    except Exception:
        return "damaged"
    refuse(
        (
            not isinstance(state, dict) or "model" not in state,
            f'{path.name} has no "model": save a dictionary with the model\'s own state dict under'
            " that name.",
        )
    )
    names = sorted(state["model"])
    return {"names": names, "numbers": flat(state["model"][name] for name in names)}
