"""A collective is data: rounds of moves of chunks between ranks. Its messages, times and picture
follow from them.

    Move(src=1, dst=2, chunk=0, reduce=True)      rank 2 adds rank 1's chunk 0 to its own
    Move(src=1, dst=2, chunk=0)                   rank 2 replaces its chunk 0 by rank 1's

A tensor is cut into chunks as torch.tensor_split cuts it. All moves of a round carry what their
senders had when the round began. `provenance` replays the moves with sets of ranks in place of
numbers, and so finds what each chunk holds, and every mistake, without a tensor.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

from ..core import ByFields, Family, Impossible
from ..core.impossible import refuse_counts


class Move(NamedTuple):
    """One chunk from one rank to another, which adds it to its own (`reduce`) or replaces its
    own."""

    src: int
    dst: int
    chunk: int
    reduce: bool = False


Rounds = list[list[Move]]


@dataclass(frozen=True)
class Collective(ByFields, Family, ABC, family="bigtrain_lab.order.collectives"):
    """Subclass, set `name`, write `rounds()`; one with settings is a frozen dataclass of its own.
    It is an all-reduce unless `brings` or `wants` say otherwise."""

    ranks: int

    def __post_init__(self):
        refuse_counts("collective", {each.name: getattr(self, each.name) for each in fields(self)})

    @property
    def chunks(self) -> int:
        """The number of parts that the tensor is cut into."""
        return self.ranks

    @abstractmethod
    def rounds(self) -> Rounds:
        """The moves of each round."""

    def brings(self, rank: int, chunk: int) -> bool:
        """Whether the rank has a part of the chunk's sum at the start."""
        return True

    def wants(self, rank: int, chunk: int) -> bool:
        """Whether the rank must have the chunk's sum at the end."""
        return True

    @cached_property
    def checked(self) -> Rounds:
        """rounds(), of Moves; Impossible, in a sentence, where it is something else."""
        who = f"{type(self).__name__}.rounds()"
        try:
            rounds = [[Move(*move) for move in moves] for moves in self.rounds()]
        except Impossible:
            raise
        except Exception as error:
            raise Impossible(
                f"{who} failed with {type(error).__name__}: {error}; "
                "let it return lists of Move(src, dst, chunk, reduce)."
            ) from error
        for number, moves in enumerate(rounds, 1):
            seen = set()
            for src, dst, chunk, _ in moves:
                if (
                    not all(isinstance(rank, int) and 0 <= rank < self.ranks for rank in (src, dst))
                    or src == dst
                ):
                    raise Impossible(
                        f"In round {number} rank {src} sends to rank {dst}: "
                        f"name two different ranks of 0 to {self.ranks - 1}."
                    )
                if not isinstance(chunk, int) or not 0 <= chunk < self.chunks:
                    raise Impossible(
                        f"In round {number} rank {src} sends chunk {chunk}, and there are "
                        f"chunks 0 to {self.chunks - 1}: send one of them."
                    )
                if (src, dst, chunk) in seen:
                    raise Impossible(
                        f"In round {number} rank {src} sends chunk {chunk} to rank {dst} twice:"
                        " send it once."
                    )
                seen.add((src, dst, chunk))
        return rounds


def sizes(elements: int, chunks: int) -> list[int]:
    """Elements of each chunk, as torch.tensor_split cuts: the first ones are one longer."""
    each, longer = divmod(elements, chunks)
    return [each + 1] * longer + [each] * (chunks - longer)


Held = list[list[int]]  # [rank][chunk] -> the ranks whose gradients it holds, rank r as bit 1 << r


def ranks_in(held: int) -> list[int]:
    return [rank for rank in range(held.bit_length()) if held >> rank & 1]


def provenance(collective: Collective, rounds: Rounds | None = None) -> Iterator[Held]:
    """What each rank's chunks hold, at the start and after each round, by other rounds where such
    are given.

    Impossible, naming round and rank, where a rank sends what it has not, a gradient is added
    twice, or a chunk's sum does not come home.
    """
    ranks, chunks = range(collective.ranks), range(collective.chunks)
    held = [
        [1 << rank if collective.brings(rank, chunk) else 0 for chunk in chunks] for rank in ranks
    ]
    yield held
    for number, moves in enumerate(collective.checked if rounds is None else rounds, 1):
        before, held = held, [list(own) for own in held]
        for src, dst, chunk, reduce in moves:
            coming = before[src][chunk]
            if not coming:
                raise Impossible(
                    f"In round {number} rank {src} sends chunk {chunk} to rank {dst} and has "
                    "nothing of it: let it receive the chunk first."
                )
            if reduce and (twice := ranks_in(held[dst][chunk] & coming)):
                raise Impossible(
                    f"After round {number} rank {dst}'s chunk {chunk} holds rank {twice[0]}'s"
                    " gradient twice: replace the chunk instead of adding, or send another."
                )
            held[dst][chunk] = held[dst][chunk] | coming if reduce else coming
        yield held
    wholes = [
        sum(1 << rank for rank in ranks if collective.brings(rank, chunk)) for chunk in chunks
    ]
    for rank in ranks:
        for chunk, whole in enumerate(wholes):
            if collective.wants(rank, chunk) and (missing := ranks_in(whole & ~held[rank][chunk])):
                raise Impossible(
                    f"After the last round rank {rank}'s chunk {chunk} lacks rank {missing[0]}'s"
                    " gradient: add a move that brings it there."
                )


def check(collective: Collective) -> Rounds:
    """The rounds of a collective that is right; Impossible where it is not."""
    for _ in provenance(collective):
        pass
    return collective.checked
