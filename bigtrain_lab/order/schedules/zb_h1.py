"""ZB-H1: the backward is split, and its second half, which nobody waits for, fills the bubbles.

    I  dL/dx, which the stage before waits for        idle a rank   (p-1)(F+I-W)          for m >= p
    W  dL/dw, which only U waits for                                       (p-1)(F+I-W) + (p-m)W for
                                                                           m < p
                                                      live micro-batches   min(m, p), on every rank
    rank r delays its W by r micro-batches: it may, since it warms up with r fewer than rank 0

Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism (arXiv:2401.10241), section 2 and figure 2.
"""

from ..schedule import Action, Schedule, U


def split_backward(rank: int, micro_batches: int, warm_up: int, delay: int) -> list:
    """Warm-up forwards, then F I W in turns, each W `delay` micro-batches behind its I; one update
    at the end."""
    steps = [(Action("F", rank, m),) for m in range(min(warm_up, micro_batches))]
    for m in range(micro_batches + delay):
        if warm_up + m < micro_batches:
            steps.append((Action("F", rank, warm_up + m),))
        if m < micro_batches:
            steps.append((Action("I", rank, m),))
        if 0 <= m - delay:
            steps.append((Action("W", rank, m - delay),))
    return [*steps, U(rank, micro_batches - 1)]


class ZBH1(Schedule):
    name = "zb-h1"

    def steps(self, rank):
        return split_backward(rank, self.micro_batches, self.ranks - rank - 1, rank)
