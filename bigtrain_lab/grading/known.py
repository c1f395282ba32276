"""Play answers that are known, right and wrong ones.

They need no fence: ranks are threads that take turns (ranks.py), and all scenes run in one
process, forked from the server of the runs. Python in a browser has neither processes nor threads:
there all of it runs where it is asked for, an answer too.

A line of JSON a row, so that a process that dies has told what came before.
"""

import gc
import json
import os
import pickle
import random
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from ..core import grouped
from ..core.later import later
from .box import Row, said_of
from .inside import Left, defined, described, plain, played, seeded
from .text import Piece

with later():
    import torch

    from ..runtime.process import server
    from . import ranks as threads

WALL_S = 600  # of all
CPU_S = 120  # of computing, of a text: on a slow machine too
BROWSER = sys.platform == "emscripten"
FREE = SimpleNamespace(then=lambda run: run())  # in place of Left
IN_TURN = SimpleNamespace(submit=lambda *called: SimpleNamespace(result=partial(*called)))


def rows(
    exercise,
    seed: int,
    known: Mapping[str, str],
    until: Callable[[list[Row]], bool] | None = None,
    names: frozenset[str] | None = None,
    goes_on: bool = False,
    cpu_s: int = CPU_S,
) -> dict[str, list[Row]]:
    """What each of these texts shows, in all scenes, those of these names or until its rows are
    enough. After a scene that raises only where it `goes_on`.

    A text that computes for longer than `cpu_s` ends the process: those after it are missing, and
    its own last row is not there.
    """
    if BROWSER:
        return together(texts_shown(exercise, seed, known, FREE, until, names, goes_on))
    task = str(exercise.folder), seed, dict(known), until, names, goes_on, cpu_s
    with tempfile.TemporaryDirectory(prefix="check-", dir=server.room()) as room:
        (program := Path(room, "program")).write_bytes(pickle.dumps(((*task, room),)))
        (process,) = server.start(1, str(program), __name__)
        try:
            process.join(WALL_S)
        finally:
            process.pulse.kill()
            process.join(5)
            process.close()
        file = Path(room, "rows")
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else ()
        return together((name, row and Row(*row)) for name, *row in map(json.loads, lines))


def together(told) -> dict[str, list[Row]]:
    """What texts_shown says, by text."""
    return {name: [row for row in own if row] for name, own in grouped(told).items()}


class Here:
    """A box without a process of its own: it stops no endless answer, and keeps none from what it
    may not use. Nothing that counts is graded so."""

    def rows(self, exercise, pieces: list[Piece], seed: int, names=None) -> Iterator[Row]:
        return scene_by_scene(exercise, pieces, seed, FREE, names)


# -- the process itself ---------------------------------------------------------------------------


def main(index: int, task: tuple) -> None:
    """All that the process does; leaves by os._exit."""
    folder, seed, known, until, names, goes_on, cpu_s, room = task
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1), os.dup2(quiet, 2)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    exercise = found_in(Path(folder))
    left = Left(*exercise.allows)
    gc.freeze()  # a scene's collector looks at its own alone
    with open(Path(room, "rows"), "w", encoding="utf-8") as file:
        for name, row in texts_shown(exercise, seed, known, left, until, names, goes_on):
            if row is None:
                signal.setitimer(signal.ITIMER_PROF, cpu_s)  # whose signals end the process
                signal.setitimer(signal.ITIMER_REAL, 4 * cpu_s)
            print(json.dumps([name, *(row or ())]), file=file, flush=True)
    os._exit(0)


def texts_shown(exercise, seed, known, left, until, names, goes_on) -> Iterator[tuple]:
    """(name, None) before each text, then (name, row) of each of its scenes."""
    for name, text in known.items():
        yield name, None
        shown = []
        for row in scene_by_scene(exercise, [Piece(1, text)], seed, left, names):
            shown.append(row)
            yield name, row
            if row.raised and not goes_on or until is not None and until(shown):
                break


def found_in(folder: Path):
    """The exercise in a folder, of this library or of somebody's own."""
    from .folder import topic
    from .likeness import Topic

    known = (each for each in Topic.all().values() if each.folder == folder)
    return next(known, None) or topic(folder)


def scene_by_scene(exercise, pieces: list[Piece], seed: int, left, names) -> Iterator[Row]:
    """What a text shows, scene by scene."""
    near = exercise.near
    for name, run in exercise.probe(partial(defined, pieces), seed):
        if names is not None and name not in names:
            continue
        seeded(seed)
        try:
            row = Row(name, plain(left.then(run)), near)
        except BaseException as error:  # noqa: B902  (an answer may raise anything)
            row = Row(name, None, near, *said_of(*described(error), pieces, 0))
        yield row


def in_one_process(exercise, play, make, inputs: dict):
    return exercise.shown(inputs, as_sent(played(play, make(), make, **inputs)))


def on_ranks(exercise, play, make, common: dict, own: list[dict], *again: dict):
    """A scene on ranks that are threads; each defines the answer for itself."""
    with tempfile.TemporaryDirectory() as room:
        files = {"room": room} if exercise.writes else {}
        for each in (common, *again):
            ranks = threads.Ranks(len(own), random.Random(str(each)).random())
            given = [each | mine | files for mine in own]
            try:
                came = ranks.run(
                    lambda group, given=given: play(make(), group, **given[group.rank])
                )
            except threads.Killed:
                came = [None] * len(own)
    return exercise.shown(common, own, as_sent(came), ranks)


def as_sent(came):
    return json.loads(json.dumps(plain(came)))
