"""PipeDream-2BW: updates for m micro-batches together, so that two versions of the weights are
enough.

    w(t+1) = w(t) - lr * grad f(w(t-1)),        w(-1) = w(0),        f the mean loss of the t-th
                                                                     batch of m micro-batches

Every stage uses version t-1 for batch t: the delay is one update, whatever the depth, and it never
drains. The paper asks for m >= p: when batch t begins on a stage, the last backward of batch t-2
is done there, and has made version t-1. Source: Narayanan et al. 2021, Memory-Efficient
Pipeline-Parallel DNN Training (arXiv:2006.09503), section 3.1.
"""

from dataclasses import dataclass, replace

from ...core import refuse
from ..schedule import Schedule
from .one_f_one_b import one_forward_one_backward
from .pipedream import updating


@dataclass(frozen=True)
class PipeDream2BW(Schedule):
    batch: int | None = None  # micro-batches of one update; None: all of them

    name = "pipedream-2bw"
    asynchronous = True

    def __post_init__(self):
        super().__post_init__()
        refuse(
            (
                self.update_size < self.ranks,
                "PipeDream-2BW needs at least as many micro-batches in an update as ranks:"
                f" {self.update_size} are fewer than {self.ranks}; take {self.ranks} micro-batches"
                f" or {self.update_size} ranks.",
            )
        )

    @property
    def update_size(self):
        return self.batch or self.micro_batches

    def lengthened(self, batches):
        return replace(self, micro_batches=self.micro_batches * batches, batch=self.update_size)

    def steps(self, rank):
        return updating(
            one_forward_one_backward(rank, self.ranks, self.micro_batches), every=self.update_size
        )

    def version(self, action):
        batch = action.micro_batch // self.update_size
        return max(0, batch - 1) if action.kind in "FB" else batch
