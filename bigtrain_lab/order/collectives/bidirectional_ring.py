"""Ring all-reduce in both directions at once: half as many rounds, the same bytes.

    rounds   2 floor(N / 2)   bytes that each rank sends and receives   2 (N - 1)/N * S

Chunk c is summed on rank c: it grows towards c along both halves of the ring, and its sum goes
back the same ways. A round of two messages a rank pays latency once.
Source: derived from the ring of Patarasuk and Yuan 2009, by sending both ways.
"""

from ..collective import Collective, Move


class BidirectionalRing(Collective):
    name = "bidirectional-ring"

    def rounds(self):
        n, up, down = self.ranks, self.ranks // 2, (self.ranks - 1) // 2  # hops from either side
        to = [
            [
                Move((c + side * d) % n, (c + side * (d - 1)) % n, c, reduce=True)
                for side, far in ((1, up), (-1, down))
                if d <= far
                for c in range(n)
            ]
            for d in range(up, 0, -1)
        ]
        return to + [[Move(m.dst, m.src, m.chunk) for m in moves] for moves in reversed(to)]
