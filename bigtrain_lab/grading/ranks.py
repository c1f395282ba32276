"""Ranks that take turns in one process, so that an exercise on messages shows who waits for whom.

    turns     one rank runs until it waits; a seed chooses who is next, so a run repeats itself
    round     of a message: one more than the latest that its sender had received
    sharing   nothing: each rank has a copy of the answer, as a process would

Cost: two thread switches a turn. An answer sees a Group.
"""

import pickle
import random
from collections import defaultdict, deque
from threading import Semaphore, Thread

import torch

from .box import travelling
from .fence import Refused


class Over(BaseException):
    """The run has ended while this rank waited."""


class Ranks:
    """`size` ranks, and what was seen of their messages.

    sent, received   bytes of each rank       rounds    the longest chain of messages
    changed          whether a tensor changed between its isend and its recv
    left, far        messages that nobody received, and those between ranks that are no neighbours
    altered          is added to the first number that rank 0 sends
    """

    def __init__(self, size: int, seed: float, altered: float = 0):
        self.size, self.altered, self._draw = size, altered, random.Random(seed)
        self.sent, self.received, self._round = [0] * size, [0] * size, [0] * size
        self.rounds, self.changed, self.far, self._over = 0, False, 0, False
        self._ways, self._waits, self._back = defaultdict(deque), {}, Semaphore(0)
        self._go = [Semaphore(0) for _ in range(size)]

    @property
    def left(self) -> int:
        return sum(map(len, self._ways.values()))

    def run(self, program, answer) -> list:
        """What program(answer, group) returned on each rank. Refused where no rank can go on."""
        carried, self._returned, self._error = travelling(answer), [None] * self.size, None
        self._alive = list(range(self.size))
        for rank in range(self.size):
            own = pickle.loads(carried)
            Thread(target=self._rank, args=(rank, program, own), daemon=True).start()
        while self._alive and self._error is None:
            if ready := [rank for rank in self._alive if self._can_go(rank)]:
                self._turn(self._draw.choice(ready))
            else:
                self._error = Refused(self._stuck())
        self._over = True
        for rank in self._alive[:]:
            self._turn(rank)
        if self._error is not None:
            raise self._error
        return self._returned

    def _rank(self, rank: int, program, answer) -> None:
        self._go[rank].acquire()
        try:
            if not self._over:
                self._returned[rank] = program(answer, Group(self, rank))
        except BaseException as error:  # noqa: B902  (an answer may raise anything)
            self._error = error if self._error is None else self._error
        self._alive.remove(rank)
        self._back.release()

    def _turn(self, rank: int) -> None:
        self._go[rank].release()
        self._back.acquire()

    def _can_go(self, rank: int) -> bool:
        call, peer, way = self._waits.get(rank, ("", 0, None))
        return not call or bool(self._ways[way]) == (call == "recv")

    def _until(self, rank: int, call: str, peer: int, way: tuple) -> None:
        """Let others run until a message is there (recv), or has been taken (finish)."""
        self._waits[rank] = call, peer, way
        self._back.release()
        self._go[rank].acquire()
        if self._over:
            raise Over
        del self._waits[rank]

    def _stuck(self) -> str:
        path, rank = [], min(self._alive)
        while rank not in path and rank in self._alive:
            path.append(rank)
            call, rank, _ = self._waits[rank]
        if rank not in self._alive:
            return (f"Rank {path[-1]} waits in {call} for rank {rank}, which has ended: "
                    "each message needs one isend and one recv.")
        circle = " > ".join(map(str, (*path[path.index(rank):], rank)))
        return (f"No rank can go on, each waits in {self._waits[rank][0]} for the next of the cycle "
                f"{circle}: let each send before it waits.")


class Group:
    """What a rank of the exercise talks through, by the rules of `runtime.Group`.

    isend posts a tensor and does not wait; recv waits for the next message of a rank and returns
    it in a new tensor; finish waits until all that this rank sent has been received.
    """

    def __init__(self, ranks: Ranks, rank: int):
        self.rank, self.size, self._ranks = rank, ranks.size, ranks

    def isend(self, tensor, dst: int, name="", site="", tag=0) -> None:
        ranks, dst = self._ranks, self._peer(dst, "sends to")
        if type(tensor) is not torch.Tensor:
            raise Refused(f"Rank {self.rank} sends a {type(tensor).__name__}: send a tensor.")
        wire = tensor.detach().clone()
        if ranks.altered and self.rank == 0 and wire.numel() and not ranks.sent[0]:
            wire.view(-1)[0] += ranks.altered
        ranks.sent[self.rank] += wire.nbytes
        ranks.far += (dst - self.rank) % self.size not in (1, self.size - 1)
        ranks.rounds = max(ranks.rounds, ranks._round[self.rank] + 1)
        ranks._ways[self.rank, dst, str(name), site, tag].append(
            (ranks._round[self.rank] + 1, wire, tensor.detach(), tensor.detach().clone()))

    def recv(self, src: int, name="", site="", tag=0) -> torch.Tensor:
        ranks, src = self._ranks, self._peer(src, "receives from")
        way = src, self.rank, str(name), site, tag
        if not ranks._ways[way]:
            ranks._until(self.rank, "recv", src, way)
        number, wire, tensor, before = ranks._ways[way].popleft()
        ranks._round[self.rank] = max(ranks._round[self.rank], number)
        ranks.received[self.rank] += wire.nbytes
        ranks.changed |= not torch.equal(tensor, before)
        return wire

    def finish(self) -> None:
        for way in [way for way in self._ranks._ways if way[0] == self.rank]:
            if self._ranks._ways[way]:
                self._ranks._until(self.rank, "finish", way[1], way)

    def _peer(self, peer, does: str) -> int:
        if peer not in range(self.size) or peer == self.rank:
            raise Refused(f"Rank {self.rank} {does} rank {peer}: "
                          f"name another of the ranks 0 to {self.size - 1}.")
        return int(peer)
