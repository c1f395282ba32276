"""All-gather on a ring: each rank's chunk travels round, and every rank keeps a copy.

    rounds   N - 1            bytes that each rank sends and receives   (N - 1)/N * S

Round t: rank r sends to r + 1 the chunk that it received last. Rank r begins with chunk r.
Source: Thakur, Rabenseifner and Gropp 2005, the ring algorithm.
"""

from ..collective import Collective, Move, Rounds


def all_gather(members: list[int], chunks: list[list[int]], owner: int = 0) -> Rounds:
    """On a ring of these ranks; `chunks[i]` are one part. Member i begins with part i + owner."""
    n = len(members)
    return [
        [
            Move(members[i], members[(i + 1) % n], chunk)
            for i in range(n)
            for chunk in chunks[(i + owner - t) % n]
        ]
        for t in range(n - 1)
    ]


class AllGather(Collective):
    name = "all-gather"

    def brings(self, rank, chunk):
        return chunk == rank

    def rounds(self):
        return all_gather([*range(self.ranks)], [[chunk] for chunk in range(self.ranks)])
