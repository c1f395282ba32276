"""The board on which ranks that torchrun started leave notes: keys of the store they met at.

A rank joins first of all, before it loads an experiment or reads its settings. The others know its
process from then on:

    process 3    host, pid and start of rank 3
    refused      why there will be no run, by the rank that said so first
    left 3       rank 3 has said its last word

No call blocks in the store. A rank that waits also looks for a refusal and for ended processes,
says whom it waits for, and leaves a refusal itself when its patience ends. Only JSON travels:
nothing that came from the store is ever executed.
"""

import atexit
import json
import os
import platform
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import cache, wraps

import torch.distributed as dist

from ...core import Impossible
from ..failure.wait_graph import ranks
from ..process import border
from ..process.border import Place
from ..process.pulse import is_alive, this_process
from . import peers
from .offset import machine

PATIENCE_S = 300.0  # for ranks that are on their way
FIRST_S, AGAIN_S = 10.0, 30.0  # the first word about whom a rank waits for, and each further one
LOOK_S, PROCESSES_S = 0.01, 0.25  # between looks at a note, and at processes
BEAT_S, SILENT_S = 2.0, 60.0  # a rank on another machine that has not beaten for so long has ended
ANSWER_S = 10.0  # for the store to take a connection, before this rank says so and tries again
MEND = "see what their nodes say, and start the run again."
STAY_S = 30.0  # for the last words of ranks whose end cannot be seen


class Refused(Impossible):
    """Another rank cannot take part, so that no rank runs."""


class Board:
    """`index` of `size` ranks at a store; values are what JSON holds. `job`: the whole job's
    part."""

    def __init__(self, store, index: int, size: int, job: "Board | None" = None):
        self.store, self.index, self.size, self.job = store, index, size, job or self

    def clone(self) -> "Board":
        """The same board by another connection, for a thread: a store serves one caller at a
        time."""
        job = self.job.clone() if self.job is not self else None
        return Board(self.store.clone(), self.index, self.size, job)

    def run(self, number: int) -> "Board":
        """The part for one run: a script may start several, one after the other."""
        return Board(dist.PrefixStore(f"run {number}", self.store), self.index, self.size, self.job)

    def post(self, key: str, value) -> None:
        """Leave a note. Others see it a moment later, and a rank's notes in their order."""
        self.store.set(key, json.dumps(value, default=str))

    def peek(self, key: str):
        """The note that is there, or None."""
        return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def first(self, key: str, value):
        """Leave a note unless there is one; the one that is there then."""
        return json.loads(self.store.compare_set(key, "", json.dumps(value)))

    def count(self, key: str, more: int = 0) -> int:
        return self.store.add(key, more)

    def everyones(self, key: str, value) -> list:
        """Each rank's value, by rank."""
        keys = [f"{key} {rank}" for rank in range(self.size)]
        self.post(keys[self.index], value)
        self.wait(lambda: self.store.check(keys), lambda rank: self.store.check([keys[rank]]))
        return [self.peek(each) for each in keys]

    def of_rank_0(self, key: str, value=None):
        """Rank 0's value, on every rank."""
        if self.index == 0:
            self.post(key, value)
        self.wait(lambda: self.store.check([key]), lambda rank: rank != 0)
        return self.peek(key)

    def refuse(self, reason: str) -> dict:
        """Leave why this rank cannot take part, unless a refusal is there; the one that is
        there."""
        told = f"Rank {self.index} on {platform.node()} cannot take part. {reason}"
        return self._refuse(self.index, told, reason)

    # -- waiting -----------------------------------------------------------------------------------

    def wait(self, done, has_come, patience_s: float | None = None, mend: str = MEND) -> None:
        """Return when `done()`. Refused where a rank cannot take part, has ended, or does not come
        in time. `has_come(rank)` says whose part is there."""
        patience_s = patience_s or PATIENCE_S
        begun, beats = time.monotonic(), {}
        look_at, say_at = begun, begun + FIRST_S
        try:
            while not done():
                if note := self.peek("refused"):
                    if done():  # all came before the refusal: this rank finds the reason itself
                        return
                    raise Refused(note["told"])
                now = time.monotonic()
                waited = f"Rank {self.index} has waited {now - begun:.0f} s for"
                if now >= look_at:
                    look_at = now + PROCESSES_S
                    for rank in [rank for rank in range(self.size) if not has_come(rank)]:
                        self._refuse_ended(rank, beats)
                if now >= say_at:
                    say_at = now + AGAIN_S
                    say(f"{waited} {self._described(has_come)}.")
                if now - begun > patience_s:
                    self._refuse(self.index, f"{waited} {self._described(has_come)}: {mend}")
                time.sleep(LOOK_S)
        except RuntimeError as error:
            raise Refused(
                f"Rank {self.index} lost the connection to the store at "
                f"{border.meeting_point()}: rank 0 or its torchrun has ended; "
                "see what it says, and start the run again."
            ) from error

    def _refuse_ended(self, rank: int, beats: dict) -> None:
        """Leave a refusal for a rank that has joined and ended."""
        if not (process := self.job.peek(f"process {rank}")):
            return
        if (ended := self._has_ended(process)) is None:
            now, beat = time.monotonic(), self.job.count(f"beat {rank}")
            was, since = beats.get(rank, (None, now))
            if was != beat:
                beats[rank] = beat, now
            ended = was == beat and now - since > SILENT_S
        if ended:
            host, pid, _ = process["process"]
            self._refuse(
                rank,
                f"Rank {rank} (process {pid} on {host}) ended before the run began: "
                "see what it printed.",
            )

    def _refuse(self, rank: int, told: str, reason: str = "") -> dict:
        return self.first("refused", {"rank": rank, "told": told, "reason": reason})

    def _described(self, has_come) -> str:
        """All ranks that have not come, in words."""
        late = [rank for rank in range(self.size) if not has_come(rank)]
        never, told = [], []
        for rank in late:
            if process := self.job.peek(f"process {rank}"):
                host, pid, _ = process["process"]
                told.append(f"rank {rank} (process {pid} on {host} is not ready)")
            else:
                never.append(rank)
        if never:
            told.insert(0, f"{ranks(never)} ({'has' if len(never) == 1 else 'have'} not started)")
        return " and ".join(told)

    @staticmethod
    def _has_ended(process: dict) -> bool | None:
        """Whether that process has ended; None where this one cannot see it."""
        here = process["process"][0] == platform.node() and process["processes"] == machine()
        return not is_alive(process["process"]) if here else None

    # -- joining and leaving -----------------------------------------------------------------------

    def introduce(self) -> None:
        """Let the others know this process."""
        about = {"process": this_process(), "processes": machine()}
        self.job.post(f"process {self.index}", about)

    def stay(self, waits: bool) -> None:
        """This rank has said its last word. If it `waits`, return when all others have, too."""
        try:
            self.job.post(f"left {self.index}", True)
            until = time.monotonic() + STAY_S
            others = {rank for rank in range(self.size) if rank != self.index} if waits else set()
            while others and time.monotonic() < until:
                others = {rank for rank in others if not self._has_left(rank)}
                time.sleep(LOOK_S)
        except (RuntimeError, KeyboardInterrupt):
            pass  # the store has gone, or somebody will not wait

    def _has_left(self, rank: int) -> bool:
        if self.job.store.check([f"left {rank}"]):
            return True
        process = self.job.peek(f"process {rank}")
        return bool(process and self._has_ended(process))


def say(sentence: str) -> None:
    """A line on stderr that is whole also beside other ranks' lines."""
    os.write(2, f"bigtrain: {sentence}\n".encode(errors="replace"))


# -- the job's board -------------------------------------------------------------------------------


@cache  # a process joins once, and rank 0 keeps its store for later runs
def join(place: Place, point: peers.Peer) -> Board:
    """The board of the job that this process is a rank of.

    The process waits at its exit for the others' last words: torchrun ends all ranks with the first
    that fails, and rank 0's process may hold the store."""
    store = dist.PrefixStore(f"bigtrain_lab {place.restart}", store_of_all(place, point))
    board = Board(store, place.index, place.ranks)
    board.introduce()
    done = threading.Event()
    beating = threading.Thread(target=beat, args=(board, done), daemon=True)
    beating.start()

    @atexit.register
    def leave() -> None:
        board.stay(waits=place.agent or place.hosts)
        done.set()
        beating.join()

    return board


def beat(board: Board, done: threading.Event) -> None:
    """Show ranks on other machines that this process lives."""
    with suppress(RuntimeError):  # the store has gone
        own = board.clone()
        while not done.wait(BEAT_S):
            own.count(f"beat {board.index}", 1)


def run_of(place: Place) -> Board:
    """The board of this rank's latest run."""
    job = join(place, border.meeting_point())
    return job.run(job.count(f"runs of {place.index}"))


def heard_by_all(start):
    """`start`, each call of which is one run. Under torchrun, every other rank hears what keeps
    this one from taking part."""

    @wraps(start)
    def started(*args, **options):
        if not (place := border.place_given()):
            return start(*args, **options)
        join(place, border.meeting_point()).count(f"runs of {place.index}", 1)
        try:
            return start(*args, **options)
        except BaseException as error:  # noqa: B902  (nobody may wait for this rank)
            with suppress(RuntimeError):  # the store has gone
                run_of(place).refuse(reason_of(error))
            raise

    return started


def reason_of(error: BaseException) -> str:
    return str(error) if isinstance(error, Impossible) else f"{type(error).__name__}: {error}"


def store_of_all(place: Place, point: peers.Peer):
    """The store that the ranks meet at; Impossible where it does not answer."""
    begun, say_at, answered = time.monotonic(), FIRST_S, False
    try:
        address = peers.resolve(point)
    except peers.Unreachable as error:
        raise unreached(place, point, error) from error
    while True:
        try:
            if not place.hosts:
                peers.connect(address, point.port)  # torch's own attempts say nothing
                answered = True
            return dist.TCPStore(
                point.host,
                point.port,
                place.ranks,
                is_master=place.hosts,
                timeout=timedelta(seconds=ANSWER_S),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except (peers.Unreachable, RuntimeError) as error:
            waited = time.monotonic() - begun
            ended = answered and isinstance(error, peers.Unreachable)
            if place.hosts or ended or waited > PATIENCE_S:
                raise unreached(place, point, error) from error
        if waited > say_at:
            say_at += AGAIN_S
            say(
                f"Rank {place.index} has waited {waited:.0f} s for rank 0, "
                f"which does not answer at {point}."
            )
        time.sleep(0.1)


def unreached(place: Place, point: peers.Peer, error: Exception) -> Impossible:
    why = str(error).splitlines()[0][:160]
    if place.hosts:
        return Impossible(
            f"Rank 0 cannot open the store at {point} ({why}): "
            "let MASTER_ADDR be its own address, and MASTER_PORT a free port."
        )
    return Impossible(
        f"Rank {place.index} does not reach rank 0 at {point} ({why}): "
        f"try `bigtrain doctor --peer {point}` on its node."
    )
