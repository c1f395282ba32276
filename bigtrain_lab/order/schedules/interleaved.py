"""Interleaved 1F1B: each rank holds v chunks of the model, so the pipeline fills in chunk-sized
steps.

    p = 2, v = 2      stage 0, 2 on rank 0;  1, 3 on rank 1        idle a rank   (p-1)(F+B)/v
    rank 0  0F0 0F1 2F0 2F1 ...                      live chunks   pv + p - 1 on rank 0, where m > p
    rank 1   .  1F0 1F1 3F0 ...                             messages      (pv-1)/(p-1) times as many

Micro-batches go round in groups of p: chunk 0 of the group, then chunk 1, ...; backwards in the
opposite order of chunks. F and B are those of a whole rank: a chunk costs 1/v of them. Source:
Narayanan et al. 2021, Efficient Large-Scale Language Model Training (arXiv:2104.04473), section
2.2.
"""

from dataclasses import dataclass

from ...core import refuse
from ..schedule import B, F, Schedule


@dataclass(frozen=True)
class Interleaved(Schedule):
    chunks: int = 2

    name = "interleaved"

    def __post_init__(self):
        super().__post_init__()
        below = self.micro_batches // self.ranks * self.ranks
        refuse(
            (
                below != self.micro_batches,
                f"Interleaving goes round in groups of {self.ranks} ranks, which do not divide"
                f" {self.micro_batches} micro-batches: take"
                f" {f'{below} or ' * (below > 0)}{below + self.ranks}.",
            )
        )

    def steps(self, rank):
        p, v = self.ranks, self.chunks
        total = self.micro_batches * v

        def place(k, backwards):
            """The k-th piece of work: its stage and micro-batch."""
            group, within = divmod(k, p * v)
            chunk, micro_batch = divmod(within, p)
            return (v - 1 - chunk if backwards else chunk) * p + rank, group * p + micro_batch

        forwards = [F(*place(k, False)) for k in range(total)]
        backwards = [B(*place(k, True)) for k in range(total)]
        warm_up = min(total, (v - 1) * p + 2 * (p - rank - 1))
        return [
            *forwards[:warm_up],
            *(step for pair in zip(forwards[warm_up:], backwards) for step in pair),
            *backwards[total - warm_up :],
        ]
