"""The board on which ranks that torchrun started leave each other notes: a few keys of the store at which they met.

Nothing here blocks in the store: whoever waits looks again and again, so that a rank that never comes is a sentence.
"""

import json
import time

import torch.distributed as dist

from ..core import Impossible

PATIENCE_S = 300.0  # for ranks that are on their way
LOOK_S = 0.01


class Board:
    """`index` of `size` ranks at a store. Values are what JSON holds."""

    def __init__(self, store, index: int, size: int):
        self.store, self.index, self.size = store, index, size

    def clone(self) -> "Board":
        """The same board by a connection of its own, for another thread: a store serves one caller at a time."""
        return Board(self.store.clone(), self.index, self.size)

    def within(self, name) -> "Board":
        """The part of the board that has this name."""
        return Board(dist.PrefixStore(str(name), self.store), self.index, self.size)

    def peek(self, key: str):
        """The note that is there, or None."""
        return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def first(self, key: str, value):
        """Leave a note unless there is one; the one that is there then."""
        return json.loads(self.store.compare_set(key, "", json.dumps(value)))

    def count(self, key: str, more: int = 0) -> int:
        return self.store.add(key, more)

    def everyones(self, key: str, value) -> list:
        """Each rank's value, by rank; Impossible, naming a rank that leaves none."""
        self.store.set(f"{key} {self.index}", json.dumps(value, default=str))
        return [self._await(key, rank) for rank in range(self.size)]

    def _await(self, key: str, rank: int):
        until = time.monotonic() + PATIENCE_S
        while (found := self.peek(f"{key} {rank}")) is None:
            if time.monotonic() > until:
                raise Impossible(f"Rank {self.index} has waited {PATIENCE_S:g} s for rank {rank}, which does not come: "
                                 "see what its node says, and start the run again.")
            time.sleep(LOOK_S)
        return found
