"""ZB-V: two half-sized chunks a rank, laid in a V, so that no rank idles within its own window.

    stages 0, 3 on rank 0;  1, 2 on rank 1         for F = I = W, m >= 2p-1:
    rank 0   0F0 0F1 0F2  .  3F0 3I0 3W0 0I0 ...   idle within the longest window   0
    rank 1    .  1F0 2F0 1F1 2F1 2I0 2W0 ...       idle of the makespan             p-1 chunk slots
                                                   live chunks, on every rank       2p
A micro-batch enters and turns into its loss on the same rank, so gradients are back as early as
forwards left. 2p chunks are p micro-batches, as on 1F1B's rank 0; ZB-H2 needs almost twice that.
Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism (arXiv:2401.10241), section 6.
"""

from ..schedule import InV


class ZBV(InV):
    name = "zb-v"

    def steps(self, rank):
        p, r, m = self.ranks, rank, max(self.micro_batches, 2 * self.ranks - 1)
        warm_up = ["F0"] * (2 * (p - r) - 1) + ["F1", "F0"] * r + ["F1", "I1", "W1"] * (p - r)
        steady = ["F0", "I0", "W0", "F1", "I1", "W1"] * (m - 2 * p + 1 + r)
        last = ["I0", "W0", "F1", "I1", "W1"] * (p - r - 1)
        drain = ["I0", "I1"] * r + ["I0", "W0"] * (p - r) + ["W1"] * r + ["W0"] * r
        return self.numbered(rank, warm_up + steady + last + drain)
