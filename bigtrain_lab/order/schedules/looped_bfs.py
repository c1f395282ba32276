"""Looped BFS: GPipe over chunks; a rank runs the whole batch through a chunk before its next chunk.

    stages 0, 2 on rank 0;  1, 3 on rank 1    idle a rank   (p-1)(F+B)/v             for m >= p
    rank 0  0F0 0F1 0F2 2F0 2F1 2F2 ...                     + (v-1)(p-m)(F+B)/v      for m < p
    rank 1   .  1F0 1F1 1F2 3F0 3F1 ...       live chunks   mv, on every rank

It idles as little as interleaving, and holds as much as GPipe. What it gains: a chunk's gradients
are complete after one pass: under sharded data parallelism they, and weights, travel once a batch.
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
        return [
            *(F(stage, m) for stage in own for m in batch),
            *(B(stage, m) for stage in reversed(own) for m in reversed(batch)),
        ]
