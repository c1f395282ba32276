"""All-reduce along a tree: the whole tensor is summed up to rank 0, and the sum comes down again.

    rounds   2 ceil(log2 N)   bytes   rank 0 receives and sends ceil(log2 N) * S each way

Few rounds, but each carries the whole tensor: good for small ones.
Source: Thakur, Rabenseifner and Gropp 2005 (binomial tree).
"""

from ..collective import Collective, Move
from .broadcast import broadcast


class Tree(Collective):
    name = "tree"
    chunks = 1

    def rounds(self):
        down = broadcast(self.ranks)
        up = [[Move(m.dst, m.src, m.chunk, reduce=True) for m in moves] for moves in reversed(down)]
        return up + down
