"""All-reduce in two levels: inside a node first, so that the slow links between nodes carry little.

    rounds   2 (M - 1) + 2 (K - 1)         of K nodes of M ranks, N = K M
    bytes    2 (M - 1)/M * S inside the node, 2 (K - 1)/K * S/M between nodes, that each rank sends

A reduce-scatter inside each node leaves every rank a share of 1/M; the ranks of one share
all-reduce it on a ring between nodes; an all-gather inside each node brings the shares together.
Source: Sergeev and Del Balso 2018, Horovod (arXiv:1802.05799), whose hierarchical all-reduce this
is.
"""

from dataclasses import dataclass

from ...core import refuse
from ..collective import Collective
from .all_gather import all_gather
from .reduce_scatter import reduce_scatter


@dataclass(frozen=True)
class Hierarchical(Collective):
    name = "hierarchical"
    node_size: int = 8  # fewer ranks are one node

    def rounds(self):
        m = min(self.node_size, self.ranks)
        k = self.ranks // m
        refuse(
            (
                k * m != self.ranks,
                f"{self.ranks} ranks do not fill nodes of {m}: take {k * m} or {(k + 1) * m}"
                " ranks.",
            )
        )
        nodes = [[node * m + local for local in range(m)] for node in range(k)]
        shares = [[share * k + part for part in range(k)] for share in range(m)]
        rails = [[node[share] for node in nodes] for share in range(m)]  # the ranks of one share

        def inside(step):
            return together(step(node, shares) for node in nodes)

        def between(step):
            return together(step(rail, [[c] for c in share]) for rail, share in zip(rails, shares))

        return (
            inside(reduce_scatter)
            + between(reduce_scatter)
            + between(all_gather)
            + inside(all_gather)
        )


def together(several):
    """Collectives of disjoint ranks, round by round at the same time."""
    return [[move for moves in rounds for move in moves] for rounds in zip(*several)]
