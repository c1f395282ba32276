"""GPipe: cut the batch into m micro-batches, do all forwards, then all backwards, then one update.

    rank 0  F0 F1 F2 F3 .  .  B0 B1 B2 B3        idle a rank       (p-1)(F+B)
    rank 1  .  F0 F1 F2 F3 B0 B1 B2 B3 .         idle share        (p-1)/(m+p-1)
                                                 live micro-batches  m, on every rank
The paper also recomputes: a rank keeps m inputs and the activations of one micro-batch, and runs
each forward twice. This order keeps all activations. Source: Huang et al. 2019, GPipe
(arXiv:1811.06965), section 2.3. (Its figure 2 runs the backwards from the last micro-batch to the
first; either order has the same idle time and the same peak.)
"""

from ..schedule import B, F, Schedule, U


class GPipe(Schedule):
    name = "gpipe"

    def steps(self, rank):
        batch = range(self.micro_batches)
        return [
            *(F(rank, m) for m in batch),
            *(B(rank, m) for m in batch),
            U(rank, self.micro_batches - 1),
        ]
