"""Looped BFS: GPipe over chunks; each rank runs all micro-batches through a chunk before it turns to its next one.

    p = 2, v = 2      stage 0, 2 on rank 0;  1, 3 on rank 1        idle a rank   (p-1)(F+B)/v           for m >= p
    rank 0  0F0 0F1 0F2 2F0 2F1 2F2 ...                                          + (v-1)(p-m)(F+B)/v    for m < p
    rank 1   .  1F0 1F1 1F2 3F0 3F1 ...                            live chunks   mv, on every rank

It idles as little as interleaving, and its memory is GPipe's. What it gains is that a chunk's gradients are complete all
at once, m chunks early: under sharded data parallelism they travel, and weights are gathered, once a chunk and batch.
F and B are those of a whole rank: a chunk costs 1/v of them.
Source: Lamy-Poirier 2022, Breadth-First Pipeline Parallelism (arXiv:2211.05953), section 3.
"""

from dataclasses import dataclass

from ..schedule import B, F, Schedule


@dataclass(frozen=True)
class LoopedBFS(Schedule):
    chunks: int = 2

    name = "looped-bfs"

    def steps(self, rank):
        own, batch = range(rank, self.stages, self.ranks), range(self.micro_batches)
        return [*(F(s, m) for s in own for m in batch), *(B(s, m) for s in reversed(own) for m in reversed(batch))]
