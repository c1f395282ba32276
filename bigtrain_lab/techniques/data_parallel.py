"""Data parallelism: each rank has the whole model and a part of the batch; gradients are averaged.

    g = 1/N sum_r g_r       g_r: the gradient of rank r's samples; weights start, and stay, alike

    backward   ... layer 3 | layer 2 | layer 1 |
    lane           [ bucket 0 ][ bucket 1 ]...        a bucket leaves when its last gradient is in

`NaiveDataParallel` sends each gradient by itself, after the backward. What is fast: gradients come
in reverse order of the layers. They lie side by side in flat tensors, cut into buckets; a full
bucket is all-reduced on a lane of its own while the backward goes on. Large buckets pay the latency
less often; small ones leave earlier.

Cost a step, for gradients of S bytes: a rank sends and receives 2 (N-1)/N S. Exposed is what the
backward does not overlap. Memory: S for the buckets. Each `.grad` is a view of its bucket, so there
is no second copy; zero_grad(set_to_none=True) does not free the buckets.
Source: Li et al. 2020, PyTorch Distributed (arXiv:2006.15704), section 3.2.
"""

from collections.abc import Callable

import torch
from torch import nn

from ..runtime.talk.group import Group
from .guards import replicas as guard
from .prepared_model import masters_of
from .reducers import Buckets
from .replicas import Replicas
from .shards import Home


class NaiveDataParallel(nn.Module):
    """The module; `.grad` is the mean over the ranks after `finish_gradient_synchronization`, zeros
    where no rank used the parameter."""

    def __init__(self, module, group):
        super().__init__()
        self.module, self.group = module, group
        for tensor in [*module.parameters(), *module.buffers()]:
            group.broadcast(tensor.detach())

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self):
        for p in self.module.parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                self.group.all_reduce(p.grad, "mean")


class DistributedDataParallel(guard.Uncopied, nn.Module):
    """The module; `.grad` is the mean over the ranks after `finish_gradient_synchronization`.

        model = DistributedDataParallel(model)
        loss_fn(model(x), y).backward()
        model.finish_gradient_synchronization()
        optimizer.step()

    group         None (torch's default group), a ProcessGroup, or a Group
    bucket_bytes  the most bytes of a message; a larger parameter has one of its own
    strategy      what is sent together and when: Buckets(), Buckets(split=True) which cuts a
                  parameter where its bucket is full, FusedCycle(every_ticks) or PushPull()
    all_reduce    (tensor, group, op, name) -> tensor: sums a bucket in place, such as
                  ring_all_reduce; without it the strategy's, which is the backend's own or
                  push_pull
    overlap       launch a bucket when it is full; else all of them at the end
    allow_unused  a parameter that a rank did not use counts as zeros there, and its `.grad` stays
                  as it is where no rank used it. Otherwise it is refused
    alike         the ranks' weights are equal already: none are sent

    The mean weighs all ranks alike: multiply a rank's mean loss by N n_r / sum_r n_r where its
    number of samples n_r differs. Parameters, frozen ones too, and buffers come once from rank 0;
    afterwards each rank's buffers are its own. A batch norm sees its rank's samples alone, as in
    torch's, so it trains otherwise than on the whole batch. Ranks with one seed drop the same units
    of their own samples: after this call, seed each rank apart. Each `.grad` is a view of a bucket,
    of a weight that is not contiguous a copy: clone what you keep beyond the step.
    """

    def __init__(
        self,
        module: nn.Module,
        group=None,
        bucket_bytes: int = 25 * 2**20,
        *,
        strategy: Buckets = Buckets(),
        all_reduce: Callable | None = None,
        overlap: bool = True,
        allow_unused: bool = False,
        alike: bool = False,
    ):
        super().__init__()
        self.module, self.group = module, Group.of(group)
        guard.refuse_buckets(module, self.group, bucket_bytes, f"{strategy}")
        masters = masters_of([module])
        homes = [Home(name, p, masters.get(p, p)) for name, p in module.named_parameters()]
        self.replicas = Replicas(
            module,
            self.group,
            0,
            homes,
            bucket_bytes=bucket_bytes,
            strategy=strategy,
            all_reduce=all_reduce,
            overlap=overlap,
            allow_unused=allow_unused,
            alike=alike,
        )

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self) -> set[str]:
        """Wait until each gradient is the mean over the ranks; call it before the optimizer's step.
        Returns the names of the parameters that no rank used."""
        return self.replicas.finish_gradient_synchronization()

    def no_sync(self):
        """Backwards in this context add up on this rank; the next one outside averages all."""
        return self.replicas.no_sync()
