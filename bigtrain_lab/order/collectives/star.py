"""All-reduce by one server: every rank sends its tensor to rank 0, which adds them and sends the
sum back.

    rounds   2                bytes   (N - 1) S into rank 0's port and as many out of it

The server's port is the bottleneck: it passes 2 (N - 1) S while the others pass 2 S. N workers with
a server of their own are N + 1 ranks here, and pass 2 N S. Source: Li et al. 2014, Scaling
Distributed Machine Learning with the Parameter Server (OSDI), one server.
"""

from ..collective import Collective, Move


class Star(Collective):
    name = "star"
    chunks = 1

    def rounds(self):
        others = range(1, self.ranks)
        up = [Move(rank, 0, 0, reduce=True) for rank in others]
        return [up, [Move(0, rank, 0) for rank in others]] if others else []
