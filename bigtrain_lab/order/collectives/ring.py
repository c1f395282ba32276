"""Ring all-reduce: a reduce-scatter makes each sum on one rank, an all-gather copies it to all.

    rounds   2 (N - 1)        bytes that each rank sends and receives   2 (N - 1)/N * S
    time     2 (N - 1) alpha + 2 (N - 1)/N * S * beta

No port ever passes more than 2S each way, however many ranks there are; latency grows with N.
Source: Patarasuk and Yuan 2009, Bandwidth Optimal All-reduce Algorithms for Clusters of
Workstations, section 3.
"""

from ..collective import Collective
from .all_gather import all_gather
from .reduce_scatter import reduce_scatter


class Ring(Collective):
    name = "ring"

    def rounds(self):
        ring, chunks = [*range(self.ranks)], [[chunk] for chunk in range(self.ranks)]
        return reduce_scatter(ring, chunks, owner=1) + all_gather(ring, chunks, owner=1)
