"""PipeDream: 1F1B that never drains; each backward is followed at once by its own update.

So stage s runs the forward of micro-batch t on weights that p-1-s updates have not reached yet.
With weight stashing the backward uses the very version that its forward used, and the run is the
recurrence

    w_s(t+1) = w_s(t) - lr * grad_s f(w_0(t-p+1), w_1(t-p+2), ..., w_{p-1}(t)),
    w(t) = w(0) for t < 0

at the price of p-s versions on stage s. Without it the backward meets newer weights than its
forward did, and the gradient is that of no function. Source: Narayanan et al. 2019, PipeDream (SOSP
2019), section 3.3.
"""

from dataclasses import dataclass

from ..schedule import Schedule, U
from .one_f_one_b import one_forward_one_backward


def updating(steps: list, every: int) -> list:
    """The order with an update behind each backward that completes `every` micro-batches."""
    ends = [
        (
            step,
            (
                [U(a.stage, a.micro_batch)]
                if a.kind == "B" and (a.micro_batch + 1) % every == 0
                else []
            ),
        )
        for step in steps
        for a in step
    ]
    return [part for step, update in ends for part in (step, *update)]


@dataclass(frozen=True)
class PipeDream(Schedule):
    stashing: bool = True

    name = "pipedream"
    asynchronous = True

    def steps(self, rank):
        return updating(one_forward_one_backward(rank, self.ranks, self.micro_batches), every=1)

    def version(self, action):
        if action.kind == "F" or (action.kind == "B" and self.stashing):
            return max(0, action.micro_batch - (self.ranks - 1 - action.stage))
        return action.micro_batch
