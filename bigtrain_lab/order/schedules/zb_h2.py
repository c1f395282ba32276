"""ZB-H2: ZB-H1 with twice the warm-up, so that no rank idles within its own window when F = I = W.

    idle within the longest window   (p-1)(F+I-2W)          for m >= 2p-1
    live micro-batches               min(m, 2p-1), on every rank

The ranks begin and end one after the other, so by the measure of the makespan idle time remains:
there the bubble is not gone but moved outside the windows, where the next step (without a flush of
all ranks) may use it. Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism (arXiv:2401.10241),
sections 2 and 4.
"""

from ..schedule import Schedule
from .zb_h1 import split_backward


class ZBH2(Schedule):
    name = "zb-h2"

    def steps(self, rank):
        return split_backward(rank, self.micro_batches, 2 * (self.ranks - rank - 1), 2 * rank)
