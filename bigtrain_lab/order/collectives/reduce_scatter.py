"""Reduce-scatter on a ring: chunks travel round and grow, and each rank ends with one whole sum.

    rounds   N - 1            bytes that each rank sends and receives   (N - 1)/N * S

Round t: rank r sends to r + 1 the chunk that it has just added to. Rank r ends with chunk r.
Source: Thakur, Rabenseifner and Gropp 2005, Optimization of Collective Communication Operations in
MPICH.
"""

from ..collective import Collective, Move, Rounds


def reduce_scatter(members: list[int], chunks: list[list[int]], owner: int = 0) -> Rounds:
    """On a ring of these ranks; `chunks[i]` are one part. Member i ends with part i + owner."""
    n = len(members)
    return [
        [
            Move(members[i], members[(i + 1) % n], chunk, reduce=True)
            for i in range(n)
            for chunk in chunks[(i + owner - 1 - t) % n]
        ]
        for t in range(n - 1)
    ]


class ReduceScatter(Collective):
    name = "reduce-scatter"

    def wants(self, rank, chunk):
        return chunk == rank

    def rounds(self):
        return reduce_scatter([*range(self.ranks)], [[chunk] for chunk in range(self.ranks)])
