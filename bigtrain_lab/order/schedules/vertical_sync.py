"""PipeDream with vertical sync: a micro-batch uses one version on all stages, the one that the
first stage had for it.

    w_s(t+1) = w_s(t) - lr * grad_s f(w_0(t-p+1), w_1(t-p+1), ..., w_{p-1}(t-p+1)),
    w(t) = w(0) for t < 0

The gradient is that of one whole model, p-1 updates old everywhere: consistent, and the stalest of
all. No update is lost; the price is p versions on every stage, where stashing alone holds p-s, and
the delay. Source: Narayanan et al. 2019, PipeDream (SOSP 2019), section 3.3, "Vertical Sync".
"""

from ..schedule import Schedule
from .pipedream import PipeDream


class VerticalSync(Schedule):
    name = "pipedream-vertical-sync"
    asynchronous = True
    steps = PipeDream.steps

    def version(self, action):
        return (
            max(0, action.micro_batch - (self.ranks - 1))
            if action.kind in "FB"
            else action.micro_batch
        )
