"""Whose gradients each chunk of a collective holds, as a trace tells it, and each round in a
sentence.

A rank reports a scalar when a chunk has come: "holds of round 2 chunk 0", the ranks whose gradients
it has added up, rank r as bit 1 << r; of round 0 what it began with. The messages have the same
names.

A rank of a sliced model reports which part of each matrix it holds: "holds of mlp.up.weight [0:64,
0:256] of [256, 256]".
"""

import re
from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple

from ..core import Scalar, Trace, grouped, ranks as listed
from .collective import Move

HOLDS = "holds of "
ROUND = re.compile(r"round (\d{1,6}) chunk (\d{1,4})$")
PART = re.compile(r"(\S+) \[(\d+):(\d+), (\d+):(\d+)\] of \[(\d+), (\d+)\]$")
MOST = 8  # ranks of which this is told
CHUNKS = 64


class Holdings(NamedTuple):
    """Times in ticks, sets of ranks as whole numbers."""

    start: list[list[int]]  # [rank][chunk]
    changes: list[tuple[int, int, int, int]]  # (tick, rank, chunk, holds from then on)
    moves: list[
        tuple[int, int, int, bool, int, int, int]
    ]  # (src, dst, chunk, reduce, leaves, arrives, holds)
    rounds: list[tuple[int, str]]  # (tick, what happens from then on)


class Part(NamedTuple):
    """Rows `top` to `bottom` and columns `left` to `right` of a matrix, named as its module names
    it."""

    name: str
    top: int
    bottom: int
    left: int
    right: int
    height: int
    width: int

    def __str__(self) -> str:
        return (
            f"{self.name} [{self.top}:{self.bottom}, {self.left}:{self.right}] "
            f"of [{self.height}, {self.width}]"
        )


def parts(trace: Trace) -> dict[str, list[tuple[int, Part]]]:
    """Of each matrix (rank, part), as the ranks reported them."""
    return grouped(
        (told[1], (event.rank, Part(told[1], *map(int, told.groups()[1:]))))
        for event in trace.where(Scalar)
        if event.name.startswith(HOLDS) and (told := PART.search(event.name))
    )


@lru_cache(maxsize=1 << 16)
def place(name: str) -> tuple[int, int]:
    """(round, chunk) of a message's name, or a scalar's."""
    found = ROUND.search(name)
    return (int(found[1]), int(found[2])) if found else (-1, 0)


def holdings(trace: Trace) -> Holdings | None:
    """None where the trace does not tell them."""
    told = [
        (number, chunk, e)
        for e in trace.where(Scalar)
        for number, chunk in (place(e.name),)
        if e.name.startswith(HOLDS)
        if number >= 0 and 0 <= e.value < 1 << trace.ranks and chunk < CHUNKS
    ]
    if not told or trace.ranks > MOST:
        return None
    start = [[0] * (1 + max(chunk for _, chunk, _ in told)) for _ in range(trace.ranks)]
    changes, known = [], defaultdict(list)  # (rank, chunk) -> (round, holds), in time
    for number, chunk, e in told:
        known[e.rank, chunk].append((number, int(e.value)))
        if number:
            changes.append((e.start, e.rank, chunk, int(e.value)))
        else:
            start[e.rank][chunk] = int(e.value)
    moves, rounds = [], defaultdict(list)
    for t in trace.transfers():
        number, chunk = place(t.name)
        if number > 0 and chunk < len(start[0]):
            carried = [held for earlier, held in known[t.src, chunk] if earlier < number]
            moves.append(
                (
                    t.src,
                    t.rank,
                    chunk,
                    t.kind == "reduce",
                    t.start,
                    t.end,
                    carried[-1] if carried else 0,
                )
            )
            rounds[number].append((t.start, Move(t.src, t.rank, chunk, t.kind == "reduce")))
    last = max(rounds, default=0)
    sentences = [
        (
            min(start for start, _ in rounds[n]),
            f"Round {n} of {last}: {in_words(trace.ranks, [move for _, move in rounds[n]])}",
        )
        for n in sorted(rounds)
    ]
    return Holdings(start, changes, moves, sentences)


def in_words(ranks: int, moves: list[Move]) -> str:
    """What a round does."""
    pairs = sorted({move[:2] for move in moves})
    senders, receivers = ({pair[side] for pair in pairs} for side in (0, 1))
    each, rest = divmod(len(moves), len(pairs))
    what = "chunks" if rest else "one chunk" if each == 1 else f"{each} chunks"
    it = "it" if len(moves) == len(pairs) else "them"
    does = "adds" if all(move.reduce for move in moves) else "copies"
    if len(pairs) > 1 and len(receivers) == 1:
        return (
            f"{listed(sorted(senders))} send {what} each to rank {pairs[0][1]}, which {does} them."
        )
    if len(senders) == 1:
        return (
            f"rank {pairs[0][0]} sends {what} to {listed(sorted(receivers))},"
            f" {'and each' if len(receivers) > 1 else 'which'} {does} {it}."
        )
    if all(pair[::-1] in pairs for pair in pairs) and len(pairs) == len(senders):
        twos = ", ".join(f"{a} and {b}" for a, b in pairs if a < b)
        return f"ranks {twos} exchange {what}, and each {does} {it}."
    steps = {(dst - src) % ranks for src, dst in pairs}
    if len(senders) == ranks and steps == {1}:
        return f"every rank sends {what} to the next rank on the ring, which {does} {it}."
    if len(senders) == ranks and steps == {1, ranks - 1}:
        return f"every rank sends {what} to each of its two neighbours, and each {does} {it}."
    (src, dst), *others = pairs
    return (
        f"rank {src} sends {what} to rank {dst}, {', '.join(f'{a} to {b}' for a, b in others)}, and"
        f" each receiver {does} {it}."
    )
