"""DualPipeV: in a V, the forward of a chunk overlaps the backward of the other; W fills the drain.

    F0+B1 F1+B0 ...   overlapped pairs, a step each: messages of one hide in the work of the other
    idle a rank       (p-1)(F&B + B - 3W), F&B the time of a pair      for F = I = W, m >= 2p
    live chunks       2p+1 on the last rank, 2p on the others

DualPipe runs micro-batches from both ends of the pipeline, so it holds all weights twice. Cut in
half at its middle it is this V: p ranks for its PP = 2p stages. A backward is whole (B) in a pair,
which hides it, and halved (I, W) in the ramps. Fewer than 2p micro-batches run 2p's order with
gaps. Sources: DeepSeek-AI 2024, DeepSeek-V3 Technical Report (arXiv:2412.19437), section 3.2.1, and
the table of its program DualPipe; the cut is Sea AI Lab's.
"""

from ..schedule import InV


class DualPipeV(InV):
    name = "dualpipe-v"

    def steps(self, rank):
        p, r, m = self.ranks, rank, max(self.micro_batches, 2 * self.ranks)
        below = p - r - 1  # ranks between this one and the turn
        warm_up = ["F0"] * (2 * below) + ["F0", "F1"] * (r + 1) + ["I1", "W", "F1"] * below
        steady = ["F0+B1", "F1+B0"] * (m - 2 * p + r + 1) + ["B1", "F1+B0"] * below
        if not below:
            steady[:1] = ["F0", "B1"]  # apart, its gradient leaves sooner
        drain = (["B1", "B0"] * (r + 1))[: r + 1] + (["I1", "I0"] * (r + 1))[r + 1 :]
        drain += ["W", "I0"] * below + ["W"] * (r + 1)
        return self.numbered(rank, warm_up + steady + drain)
