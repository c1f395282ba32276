"""A training on ranks that share a folder, whose translations are planned epoch by epoch: a turn
for the worse, a best and an end. It may be killed, before an epoch or in a save, and started
again."""

import io
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import get_ident
from types import SimpleNamespace
from unittest.mock import patch

import torch

from ....data.bleu import bleu, counted
from ...fence import Refused
from ...ranks import Ranks
from ...trainings import flat

VOCABULARY, LONGEST = 8, 6
# Of each epoch's translations, as a share: the sixth is as good as the fourth, and no better.
RIGHT_WORDS = (0.3, 0.55, 0.4, 0.95, 0.65, 0.95, 0.5)


class Killed(BaseException):
    """What ends a run from outside."""


def play(answer, ranks, seed, held_out, windows, killed_before, killed_in_save) -> dict:
    """What each rank did and the checkpoints at the end. Where a run is killed before an epoch, or
    ends earlier, of the run that goes on; where it is killed in a save, of the checkpoints that
    were there."""
    with TemporaryDirectory() as room:
        given = answer, Path(room), ranks, seed, held_out, windows
        done, there = {}, set()
        with suppress(Killed):
            done = train(*given, killed_before, killed_in_save, there)
        if killed_before is not None:
            done = train(*given, None, None, there)
        if killed_in_save is None:
            there = {"last.pt", "best.pt"}
        return done | {"files": {name: checkpoint(Path(room, name)) for name in sorted(there)}}


def train(
    answer, folder, ranks, seed, held_out, many, killed_before, killed_in_save, there
) -> dict:
    """`there`: gets the names of the checkpoints that are there when something is saved."""
    models, rates, scored, saved, own = {}, [], [], [], torch.save
    epochs, ranks_of = [[] for _ in range(ranks)], {}
    sentences = [translation(Random(f"{seed} {n}"), 1) for n in range(held_out)]

    def program(mine, group):
        rank = ranks_of[get_ident()] = group.rank
        torch.manual_seed(seed)
        layers = torch.nn.Embedding(VOCABULARY, 5), torch.nn.Tanh(), torch.nn.Linear(5, VOCABULARY)
        models[rank] = model = torch.nn.DataParallel(torch.nn.Sequential(*layers).double())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        if rank == 0:
            optimizer.register_step_pre_hook(
                lambda *_: rates.append(optimizer.param_groups[0]["lr"])
            )

        def windows(epoch):
            if epoch == killed_before and rank == 0:  # which has saved by then
                raise Killed
            if len(epochs[rank]) > 12:
                raise Refused(
                    "Your run does not end: stop once task.patience epochs brought nothing better."
                )
            epochs[rank].append(epoch)
            draw = Random(f"{seed} {epoch} {rank}")
            return [
                [translation(draw, draw.randint(1, 3) + 3 * (rank == 0)) for _ in range(2)]
                for _ in range(many)
            ]

        def counts(sentence):
            scored.append(rank)
            words = [word for word in sentence[1][0].tolist() if word]
            chance = RIGHT_WORDS[min([0, *epochs[rank]][-1], len(RIGHT_WORDS) - 1)]
            draw = Random(f"{seed} {words}")
            said = []
            for word in words:
                luck, other = draw.random(), draw.randint(1, VOCABULARY - 1)
                said.append(word if luck < chance else other)
            texts = [[" ".join(f"w{word}" for word in each)] for each in (said, words)]
            return torch.tensor(counted(*texts), dtype=torch.float64)

        task = SimpleNamespace(
            model=model,
            optimizer=optimizer,
            windows=windows,
            rate=lambda update: 0.3 * (1 + 0.1 * (update % 5)) / (1 + update) ** 0.5,
            held_out=sentences,
            counts=counts,
            score=lambda sums: bleu(torch.as_tensor(sums).flatten().tolist()),
            patience=2,
            smoothing=0.1,
        )
        return [float(score) for score in mine(group, task, folder)]

    def save(state, file, *given, **named):
        saved.append(ranks_of[get_ident()])
        there.update(name for name in ("last.pt", "best.pt") if (folder / name).exists())
        if len(saved) != killed_in_save:
            return own(state, file, *given, **named)
        own(state, whole := io.BytesIO())
        half = whole.getvalue()[: whole.tell() // 2]
        if hasattr(file, "write"):
            file.write(half)
            file.flush()
        else:
            Path(file).write_bytes(half)
        raise Killed

    with patch.object(torch, "save", save):
        scores = Ranks(ranks, seed).run(program, answer)
    return {
        "rates": rates,
        "epochs": epochs,
        "scored": scored,
        "scores": scores,
        "savers": sorted(set(saved)),
        "weights": [flat(models[rank].parameters()).tolist() for rank in range(ranks)],
    }


def translation(draw: Random, rows: int):
    """Source and target words, padded: the n-th word's translation is the (n + 2)-nd."""
    source = torch.zeros(rows, LONGEST, dtype=torch.int64)
    for row in source:
        length = draw.randint(1, LONGEST)
        row[:length] = torch.tensor([draw.randint(1, VOCABULARY - 1) for _ in range(length)])
    return source, torch.where(source > 0, (source + 1) % (VOCABULARY - 1) + 1, 0)


def checkpoint(path: Path) -> dict | str:
    if not path.exists():
        return "gone"
    try:
        state = torch.load(path, weights_only=False)
    except Exception:
        return "damaged"
    if not isinstance(state, dict) or "model" not in state:
        raise Refused(
            f'{path.name} has no "model": save a dictionary with the model\'s own state dict under'
            " that name."
        )
    names = sorted(state["model"])
    return {"names": names, "numbers": flat(state["model"][name] for name in names).tolist()}
