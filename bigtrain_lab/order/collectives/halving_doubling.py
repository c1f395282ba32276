"""Recursive halving and doubling: few rounds, the bytes of a ring.

    rounds   2 log2 N         bytes that each rank sends and receives   2 (N - 1)/N * S
    else     2 log2 P + 2     P the largest power of two below N; N - P ranks give their tensor S to
                              a partner before and get the sum from it after

A rank gives half of its chunks to the rank N/2 away and adds the other half of that rank's, then a
quarter N/4 away, until it has one whole sum; the way back doubles what it has.
Source: Thakur, Rabenseifner and Gropp 2005 (Rabenseifner's algorithm).
"""

from ..collective import Collective, Move


class HalvingDoubling(Collective):
    name = "halving-doubling"

    @property
    def chunks(self):
        return 1 << (self.ranks.bit_length() - 1)

    def rounds(self):
        size, extra = self.chunks, range(self.chunks, self.ranks)
        give = (
            [[Move(rank, rank - size, c, reduce=True) for rank in extra for c in range(size)]]
            if extra
            else []
        )
        far = [size >> bit for bit in range(1, size.bit_length())]  # N/2, N/4, ..., 1
        halve = [
            [
                Move(rank, rank ^ d, c, reduce=True)
                for rank in range(size)
                for c in range(size)
                if c & -2 * d == (rank ^ d) & -2 * d and c & d == (rank ^ d) & d
            ]
            for d in far
        ]
        steps = give + halve  # the way back is the same way
        return steps + [[Move(m.dst, m.src, m.chunk) for m in moves] for moves in reversed(steps)]
