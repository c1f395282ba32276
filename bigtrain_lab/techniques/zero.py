"""ZeRO, stages 1 and 2: ranks that hold the same model need not all hold its optimizer's state.

    data parallel   gradients: all-reduce                     every rank steps every parameter
    ZeRO            gradients: reduce-scatter                 a rank steps its 1/N of the elements,
                    parameters: all-gather after the step     and holds the state of those alone

An all-reduce is a reduce-scatter and an all-gather; now the step lies between the two. So stage 1
sends the bytes of data parallel. In stage 2 a rank keeps only its piece of the gradients, and frees
each bucket once it is summed. So every backward outside no_sync() sends, also when several make one
gradient.
`NaiveZero` does stage 1 after the backward. `ZeroOptimizer` sends buckets while the backward runs
(replicas.py, which states the bytes of memory).

Elements sent a rank in a step of m backwards, for psi parameters:
    stage 1   2 (N-1)/N psi     stage 2   (m+1) (N-1)/N psi
Source: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 5 and 7.
"""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from ..runtime.talk.group import Group
from .clip import clip_grad_norm
from .fully_sharded import FullyShardedDataParallel
from .guards import replicas as guard
from .replicas import Replicas
from .saved_shards import full_optimizer_state, load_full_optimizer_state
from .shards import home_of

__all__ = ["FullyShardedDataParallel", "ZeroOptimizer", "shared"]


class NaiveZero:
    """Stage 1 without buckets: all parameters lie in one flat tensor, and each rank steps 1/N of it
    by `optimizer_class`. `step` averages the ranks' `.grad`."""

    def __init__(self, params, optimizer_class, group, **kwargs):
        self.params, self.group = list(params), group
        self.piece = nn.Parameter(self.row(self.params).chunk(group.size)[group.rank].clone())
        self.inner = optimizer_class([self.piece], **kwargs)

    def row(self, tensors):
        flat = torch.cat([each.detach().flatten() for each in tensors])
        return nn.functional.pad(flat, (0, -len(flat) % self.group.size))

    def step(self):
        gradient = self.row([p.grad for p in self.params])
        self.piece.grad = self.group.reduce_scatter(gradient, "mean")
        self.inner.step()
        whole, end = self.group.all_gather(self.piece.detach()), 0
        for p in self.params:
            p.data.copy_(whole[end : end + p.numel()].view_as(p))
            end += p.numel()


class ZeroOptimizer(guard.Uncopied, Optimizer):
    """Any optimizer that works element by element, each rank stepping its piece of the elements.

        optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
        loss_fn(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    params           parameters, or dictionaries of a group each, as torch's optimizers take them
    optimizer_class  (groups, **kwargs) -> optimizer; LAMB and LARS sum their norms over the ranks
    stage            1: optimizer state in pieces; 2: gradients too
    group            None (torch's default group), a ProcessGroup, or a Group
    bucket_bytes     gradients of a message
    allow_unused     as in DistributedDataParallel

    Gradients are averaged here, so no other data parallel is needed. Rank 0's parameters are
    broadcast. Stage 1: run all backwards but the last inside no_sync(). Stage 2 need not.
    `param_groups` and `state` hold this rank's pieces. A piece keeps its parameter's number of
    dimensions. Clip by `clip_grad_norm_`, and scale by a DynamicLossScaler: torch's would see this
    rank's pieces alone, and are refused. Half weights get their masters here, in pieces: a
    MixedPrecision prepares the model before, by `prepare(model, masters=False)`. Between steps
    write to the module's own parameters, alike on all ranks: a write to a piece is refused, and so
    is a norm of one, which would be of this rank's elements alone. A buffer that shares a
    parameter's memory would lose it, and an Embedding with max_norm would scale the rows of each
    rank's samples: take none.
    """

    # The guard need not test this wrapper: `shared` has already tested the inner optimizer.
    element_wise = True

    def __init__(
        self,
        params: Iterable,
        optimizer_class,
        stage: int = 1,
        group=None,
        *,
        bucket_bytes: int = 25 * 2**20,
        allow_unused: bool = False,
        **kwargs,
    ):
        groups = guard.groups_of(params, stage)
        module = nn.ParameterList(p for each in groups for p in each["params"])
        group = Group.of(group)
        guard.refuse_buckets(module, group, bucket_bytes, f"stage {stage}", stage)
        self.replicas = Replicas(
            module,
            group,
            stage,
            [home_of(name, weight) for name, weight in module.named_parameters()],
            bucket_bytes=bucket_bytes,
            allow_unused=allow_unused,
        )
        pieces = self.replicas.pieces
        groups = [each | {"params": [pieces.get(p, p) for p in each["params"]]} for each in groups]
        self.inner = shared(optimizer_class(groups, **kwargs), self.replicas.group)
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        self.finished = False

    def add_param_group(self, param_group: dict) -> None:
        guard.refuse_late(hasattr(self, "finished"))
        super().add_param_group(param_group)

    def finish_gradient_synchronization(self) -> None:
        """Return when each piece has its gradient, the mean over the ranks. `step` calls it."""
        if self.replicas.unfinished or not self.finished:
            self.replicas.finish_gradient_synchronization()
            self.finished = True

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale the gradients so that the norm of all is at most `max_norm`; returns the norm
        before."""
        self.finish_gradient_synchronization()
        return clip_grad_norm(self.replicas.homes, max_norm, self.replicas.group)

    def step(self, closure=None):
        loss = torch.enable_grad()(closure)() if closure is not None else None
        self.finish_gradient_synchronization()
        guard.refuse_edited(self)
        self.replicas.follow_weights()
        self.inner.step()
        self.replicas.stepped()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None, whatever `set_to_none`: a backward refuses old ones."""
        if self.replicas.unfinished:
            self.finish_gradient_synchronization()
        self.inner.zero_grad()
        for home in self.replicas.homes:
            home.weight.grad = None
        self.finished = False

    def no_sync(self):
        """Backwards in this context add up on this rank. Stage 2 keeps whole gradients then."""
        return self.replicas.no_sync()

    def full_state_dict(self) -> dict:
        """The state_dict that `optimizer_class` would have of the whole parameters, on every rank.
        All ranks call it together; `state_dict` is of this rank's pieces."""
        return full_optimizer_state(self.replicas, self)

    def load_full_state_dict(self, state_dict: dict) -> None:
        """Load what full_state_dict() returns, or the unsharded optimizer's; on any number of
        ranks."""
        load_full_optimizer_state(self.replicas, self, state_dict)

    def state_dict(self) -> dict:
        """Of this rank's pieces, for this rank of as many."""
        return super().state_dict() | {"rank": (self.replicas.group.rank, self.replicas.group.size)}

    def load_state_dict(self, state_dict: dict) -> None:
        guard.refuse_other_rank(self, state_dict)
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state


def shared(optimizer: Optimizer, group: Group, pieces=lambda parameter: True) -> Optimizer:
    """Return the optimizer. If it takes norms (LAMB, LARS), sum them over the group. Refuse others
    that mix elements."""
    guard.refuse_optimizer(optimizer)
    return optimizer.among(group, pieces) if hasattr(optimizer, "among") else optimizer
