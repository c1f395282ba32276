"""Broadcast along a binomial tree: in each round every rank that has the tensor gives it to one
more.

    rounds   ceil(log2 N)     bytes   rank 0 sends ceil(log2 N) * S, each other rank receives S

Source: Thakur, Rabenseifner and Gropp 2005 (binomial tree).
"""

from ..collective import Collective, Move, Rounds


def broadcast(ranks: int) -> Rounds:
    """Of one chunk from rank 0."""
    return [
        [Move(rank, rank + d, 0) for rank in range(min(d, ranks - d))]
        for d in (1 << bit for bit in range((ranks - 1).bit_length()))
    ]


class Broadcast(Collective):
    name = "broadcast"
    chunks = 1

    def brings(self, rank, chunk):
        return rank == 0

    def rounds(self):
        return broadcast(self.ranks)
