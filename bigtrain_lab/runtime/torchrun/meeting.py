"""The meeting of ranks that torchrun started: keys of the store that torchrun opened for them.

    here 3       what rank 3 says of itself
    refused      why there will be no run, by the rank that said so first

torchrun ends its ranks when one of them ends. Ranks on other nodes learn the reason here: a rank
that waits also looks for a refusal, says for whom it waits, and gives up when its patience ends.
Only JSON travels, and in it a job of known kinds (attach.py): nothing that came from the store is
ever executed.
"""

import json
import os
import platform
import time
from contextlib import suppress
from datetime import timedelta
from functools import cache, wraps

import torch.distributed as dist

from ...core import Impossible
from ...core.words import ranks
from ..process import border
from ..process.border import Place
from ..record.run import RankFailed
from .peers import Peer

PATIENCE_S = 300.0  # for ranks that are on their way
FIRST_S, AGAIN_S = 10.0, 30.0  # the first word about whom a rank waits for, and each further one
LOOK_S = 0.01


class Meeting:
    """Rank `index` of the `size` ranks of one run, at a store; values are what JSON holds."""

    def __init__(self, store, index: int, size: int):
        self.store, self.index, self.size = store, index, size

    @classmethod
    def of(cls, place: Place, number: int | None = None) -> "Meeting":
        """That of this rank's latest run, or of the run with this number: a script may start
        several."""
        store = store_of(place, border.meeting_point())
        number = number or store.add(f"runs of {place.index}", 0)
        return cls(dist.PrefixStore(f"run {number}", store), place.index, place.ranks)

    def clone(self) -> "Meeting":
        """The same by another connection, for a thread: a store serves one caller at a time."""
        return Meeting(self.store.clone(), self.index, self.size)

    def peek(self, key: str):
        """The value that is there, or None."""
        return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def first(self, key: str, value):
        """Leave a value unless there is one; the one that is there then."""
        return json.loads(self.store.compare_set(key, "", json.dumps(value)))

    def count(self, key: str, more: int = 0) -> int:
        return self.store.add(key, more)

    def post(self, key: str, value) -> None:
        """Leave this rank's value."""
        self.store.set(f"{key} {self.index}", json.dumps(value, default=str))

    def everyones(self, key: str, patience_s: float | None = None) -> list:
        """Each rank's value, by rank. Impossible where a rank cannot take part or does not come in
        time."""
        begun, say_at = time.monotonic(), FIRST_S
        keys = [f"{key} {rank}" for rank in range(self.size)]
        try:
            while late := [rank for rank, each in enumerate(keys) if not self.store.check([each])]:
                if told := self.peek("refused"):
                    raise Impossible(told)
                waited_s = time.monotonic() - begun
                words = f"Rank {self.index} has waited {waited_s:.0f} s for {ranks(late)}"
                if waited_s > (patience_s or PATIENCE_S):
                    raise Impossible(f"{words}: see what their nodes say, and start the run again.")
                if waited_s > say_at:
                    say_at += AGAIN_S
                    say(f"{words}.")
                time.sleep(LOOK_S)
            return [self.peek(each) for each in keys]
        except RuntimeError as error:
            raise Impossible(
                f"Rank {self.index} lost the connection to the store at "
                f"{border.meeting_point()}: rank 0 or its torchrun has ended; "
                "see what it says, and start the run again."
            ) from error

    def refuse(self, error: BaseException) -> bool:
        """Let the other ranks hear why this one cannot take part, unless another was refused
        before. Returns whether it is the first on its machine."""
        kind = "" if isinstance(error, Impossible) else f"{type(error).__name__}: "
        host, reason = platform.node(), f"{kind}{error}"
        self.first("refused", f"Rank {self.index} on {host} cannot take part. {reason}")
        return self.first(f"refused on {host}", self.index) == self.index


def say(sentence: str) -> None:
    """A line on stderr that is whole also beside other ranks' lines."""
    os.write(2, f"bigtrain: {sentence}\n".encode(errors="replace"))


def heard_by_all(start):
    """`start`, each call of which is one run. Under torchrun, every other rank hears what keeps
    this one from taking part."""

    @wraps(start)
    def started(*args, **options):
        if not (place := border.place_given()):
            return start(*args, **options)
        store_of(place, border.meeting_point()).add(f"runs of {place.index}", 1)
        try:
            return start(*args, **options)
        except RankFailed:  # the run had begun
            raise
        except BaseException as error:  # noqa: B902  (nobody may wait for this rank)
            with suppress(RuntimeError):  # the store has gone
                Meeting.of(place).refuse(error)
            raise

    return started


@cache  # rank 0 may hold it, also for later runs
def store_of(place: Place, point: Peer):
    """The store that all ranks meet at; Impossible where it does not answer."""
    try:
        store = dist.TCPStore(
            point.host,
            point.port,
            place.ranks,
            is_master=place.hosts,
            timeout=timedelta(seconds=PATIENCE_S),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        raise Impossible(
            f"Rank {place.index} does not reach the store at {point}"
            f" ({str(error).splitlines()[0][:160]}): see whether rank 0 runs there, and try"
            f" `bigtrain doctor --peer {point}`."
        ) from error
    return dist.PrefixStore(f"bigtrain_lab {place.restart}", store)
