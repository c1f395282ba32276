"""The ring all-reduce as it is executed fast: what one rank sends and receives, in its order.

    turn    0 .. N-2     a chunk comes from the left, is added to ours, and goes on to the right
            N-1 .. 2N-3  a whole sum comes from the left, replaces ours, and goes on to the right

The moves are those of the collective Ring. Each of the N chunks is cut into parts, so that one is
added while others travel. The technique executes this order, and a plan that holds it predicts its
times.

Cost: 2 (N-1) turns; 2 (N-1)/N of the tensor sent, and received, by each rank.
Source: Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms, section 3.
"""

from functools import lru_cache
from typing import NamedTuple

from .collective import Move, sizes
from .collectives.ring import Ring
from .plan import Message, Recv, Send

PART_BYTES = 4 * 2**20  # smaller ones cost more calls than their overlap saves


class Part(NamedTuple):
    """A message of the elements start to stop; `whole`: with it the sum is that of all ranks."""

    op: Send | Recv
    start: int
    stop: int
    whole: bool


@lru_cache(64)
def pipelined_ring(
    rank: int, ranks: int, elements: int, itemsize: int, name: str, part_bytes: int = PART_BYTES
) -> tuple[list[Part], list[Part]]:
    """What a rank does to all-reduce so many elements: what it sends at first, then what it
    receives and sends by turns. Messages are named as those of the collective Ring; parts without
    elements are left out."""
    chunks, rounds = sizes(elements, ranks), Ring(ranks).rounds()
    sends = [next(move for move in moves if move.src == rank) for moves in rounds]
    receives = [next(move for move in moves if move.dst == rank) for moves in rounds]
    parts = max(1, -(-chunks[0] * itemsize // part_bytes))

    def part(way, other: int, move: Move, turn: int, number: int) -> Part:
        start = sum(chunks[: move.chunk])
        begin, end = (start + chunks[move.chunk] * at // parts for at in (number, number + 1))
        about = f"{name} round {turn + 1} chunk {move.chunk}" + f" part {number}" * (parts > 1)
        message = Message(
            about, "reduce" if move.reduce else "copy", (end - begin) * itemsize, move.chunk
        )
        return Part(way(other, message), begin, end, turn == ranks - 2)

    def send(turn: int, number: int) -> Part:
        return part(Send, sends[turn].dst, sends[turn], turn, number)

    def receive(turn: int, number: int) -> Part:
        return part(Recv, receives[turn].src, receives[turn], turn, number)

    first, then = [send(0, number) for number in range(parts if rounds else 0)], []
    for turn in range(len(rounds)):
        for number in range(parts):
            then.append(receive(turn, number))
            if turn + 1 < len(rounds):
                then.append(send(turn + 1, number))
    return tuple([part for part in order if part.start < part.stop] for order in (first, then))
