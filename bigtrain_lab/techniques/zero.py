"""ZeRO, stages 1 and 2: ranks that hold the same model need not all hold its optimizer's state.

    data parallel   gradients: all-reduce                     every rank steps every parameter
    ZeRO            gradients: reduce-scatter                 a rank steps its 1/N of the elements,
                    parameters: all-gather after the step     and holds the state of those alone

An all-reduce is a reduce-scatter and an all-gather. So the bytes are those of data parallel; what
lies between the two halves is now the step. In stage 2 a rank also drops the gradients of others as
soon as they are summed, and so every backward sends, also when several make one gradient.
`NaiveZero` does stage 1 after the backward. `ZeroOptimizer` sends buckets while it goes on.

Bytes of psi parameters a rank, in mixed precision with Adam, of data parallel 16 psi:
    stage 1   4 psi + 12 psi / N           stage 2   2 psi + 14 psi / N
A step adds 4 psi / N, since the optimizer wants float32 gradients of its float32 masters; stage 2
has up to two buckets of gradients beside. Padding: at most N - 1 elements a bucket. Sent a step:
2 (N-1)/N psi elements, in stage 2 (1 + k) (N-1)/N psi of k backwards.
Source: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 5 and 7.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..runtime.talk.group import Group
from .clip import clip_grad_norm
from .data_parallel import DistributedDataParallel
from .fully_sharded import FullyShardedDataParallel
from .guards import zero as guard
from .reducers import Bucket, buckets_of
from .saved_shards import full_optimizer_state, load_full_optimizer_state
from .shards import Flat, Owned

__all__ = ["FullyShardedDataParallel", "ShardedGradients", "ZeroOptimizer", "shared", "shards_of"]


class NaiveZero:
    """Stage 1 without buckets: all numbers lie in a row, of which each rank steps its N-th part by
    `optimizer_class`. `step` takes each rank's own gradient in every `.grad`."""

    def __init__(self, params, optimizer_class, group, **kwargs):
        self.params, self.group = list(params), group
        self.part = nn.Parameter(self.row(self.params).chunk(group.size)[group.rank].clone())
        self.inner = optimizer_class([self.part], **kwargs)

    def row(self, tensors):
        flat = torch.cat([each.detach().flatten() for each in tensors])
        return nn.functional.pad(flat, (0, -len(flat) % self.group.size))

    def step(self):
        gradient = self.row([p.grad for p in self.params])
        self.part.grad = self.group.reduce_scatter(gradient, "mean")
        self.inner.step()
        whole, end = self.group.all_gather(self.part.detach()), 0
        for p in self.params:
            p.data.copy_(whole[end : end + p.numel()].view_as(p))
            end += p.numel()


class ZeroOptimizer(Optimizer):
    """Any optimizer that works element by element, each rank stepping its part of the elements.

        optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
        loss_fn(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    params           parameters, or dictionaries of a group each, as torch's optimizers take them
    optimizer_class  (groups, **kwargs) -> optimizer; LAMB and LARS sum their norms over the ranks
    stage            1: optimizer state in parts; 2: gradients too
    group            None (torch's default group), a ProcessGroup, or a Group
    bucket_bytes     gradients of a message
    allow_unused     as in DistributedDataParallel

    Gradients are averaged here, so no other data parallel is needed. Rank 0's parameters are
    broadcast. `param_groups` and `state` are of this rank's pieces: each parameter's elements
    here, with as many dimensions as it has. Clip by `clip_grad_norm_`, not by torch's function: a
    rank sees its own part alone. So does torch's GradScaler: take a DynamicLossScaler. Half weights
    get their masters here, in parts: a MixedPrecision prepares the model before, by
    `prepare(model, masters=False)`.
    """

    element_wise = True  # `shared` has tried the optimizer inside
    _step_supports_amp_scaling = True  # lets torch's GradScaler call `step`, which refuses it

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
        groups = guard.groups_of(params)
        every = [p for each in groups for p in each["params"]]
        self.shards = ShardedGradients(
            nn.ParameterList(every), group, stage, bucket_bytes, allow_unused=allow_unused
        )
        pieces = self.shards.pieces
        groups = [each | {"params": [pieces.get(p, p) for p in each["params"]]} for each in groups]
        self.inner = shared(optimizer_class(groups, **kwargs), self.shards.group)
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        self.finished = False

    def add_param_group(self, param_group: dict) -> None:
        guard.refuse_late(hasattr(self, "finished"))
        super().add_param_group(param_group)

    def finish_gradient_synchronization(self) -> None:
        """Return when each piece has its gradient, the mean over the ranks. `step` calls it."""
        if self.shards.begun or not self.finished:
            self.shards.finish_gradient_synchronization()
            self.finished = True

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale the gradients so that the norm of all is at most `max_norm`; returns the norm
        before."""
        self.finish_gradient_synchronization()
        return clip_grad_norm(self.shards.pieces.values(), max_norm, self.shards.group)

    def step(self, closure=None):
        guard.refuse_scaler(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.finish_gradient_synchronization()
        self.shards.follow_weights()
        self.inner.step()
        self.shards.gather_parameters()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.shards.begun:
            self.finish_gradient_synchronization()
        self.inner.zero_grad()
        for each in self.shards.gradients:
            each.home.grad = None
        self.finished = False

    def no_sync(self):
        """Backwards in this context add up on this rank, in stage 1."""
        return self.shards.no_sync()

    def full_state_dict(self) -> dict:
        """The state_dict that `optimizer_class` would have of the whole parameters, on every rank.
        All ranks call it together; `state_dict` is of this rank's pieces."""
        return full_optimizer_state(self.shards, self)

    def load_full_state_dict(self, state_dict: dict) -> None:
        """Load what full_state_dict() returns, or the unsharded optimizer's; on any number of
        ranks."""
        load_full_optimizer_state(self.shards, self, state_dict)

    def state_dict(self) -> dict:
        """Of this rank's pieces, for this rank of as many."""
        return super().state_dict() | {"rank": (self.shards.group.rank, self.shards.group.size)}

    def load_state_dict(self, state_dict: dict) -> None:
        guard.refuse_other_rank(self, state_dict)
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def __reduce_ex__(self, protocol):
        guard.refuse_copy()


@dataclass(eq=False)
class Shard(Bucket):
    """A bucket whose parameters lie side by side in `weights`; `master`, in float32, is what this
    rank steps in place of its part of half weights; `gradient` its part of stage 2's."""

    layout: Flat | None = None
    weights: Tensor | None = None
    master: Tensor | None = None
    gradient: Tensor | None = None


class ShardedGradients(DistributedDataParallel):
    """A module whose gradients come reduced and cut: each rank gets the mean of its pieces.

    pieces           parameter -> its elements on this rank, for an optimizer; float32 where the
                     parameter is half, if it is to have `masters`
    backwards        as in DistributedDataParallel; in stage 2 any number make one gradient
    originals        half parameter -> the values that its piece begins with
    apart            parameters that have a bucket of their own, and so alike pieces wherever they
                     are, such as copies of a tied weight

    After `finish_gradient_synchronization` the gradients are the pieces'; after the optimizer's
    step `gather_parameters` brings every rank the others' pieces. A gradient that has left a
    parameter leaves a stand-in there, which refuses every use.
    """

    def __init__(
        self,
        module: nn.Module,
        group=None,
        stage: int = 1,
        bucket_bytes: int = 25 * 2**20,
        *,
        backwards: int = 1,
        overlap: bool = True,
        allow_unused: bool = False,
        alike: bool = False,
        masters: bool = True,
        originals: Mapping[Tensor, Tensor] = {},
        apart: Collection[Tensor] = (),
    ):
        guard.refuse_stage(stage)
        self.stage, self.originals, self.apart = stage, originals, apart
        self.masters = masters
        self.handles, self.away, self.updates, self.used_before = [], None, 0, set()
        self.pieces: dict[Tensor, nn.Parameter] = {}
        super().__init__(
            module,
            group,
            bucket_bytes,
            backwards=backwards,
            overlap=overlap,
            allow_unused=allow_unused,
            alike=alike,
        )
        for each in self.gradients:
            each.gone = each.home.detach().as_subclass(guard.Gone)
            each.gone.what = f"{each.name} on {guard.who(self)}"
            self.module.get_parameter(each.name).register_hook(partial(self._comes, each))
        self.originals = {}

    @property
    def under_way(self) -> bool:
        return bool(self.handles)

    @property
    def begun(self) -> bool:
        """Whether a gradient has come that is not finished."""
        return self.under_way or any(each.used for each in self.gradients)

    def holdings(self) -> dict[str, dict[str, Tensor]]:
        """The tensors that this rank holds now beside the module's, by kind and name."""
        held = {"gradients": {}, "master": {}}
        for number, shard in enumerate(self.buckets):
            for kind, name, tensor in (
                ("gradients", "bucket", shard.flat),
                ("gradients", "gradients of part", shard.gradient),
                ("master", "part", shard.master),
            ):
                if tensor is not None:
                    held[kind][f"{name} {number}"] = tensor
        return held

    # -- the parameters --------------------------------------------------------------------------

    @torch.no_grad()
    def _place(self) -> None:
        homes = [each.home for each in self.gradients]
        self.buckets = shards_of(
            homes, self.bucket_bytes, self.group.size, self.group.rank, self.apart
        )
        for shard in self.buckets:
            own, layout = [homes[n] for n in shard.members], shard.layout
            shard.weights = torch.zeros(layout.length, dtype=own[0].dtype, device=own[0].device)
            for parameter, view in zip(own, layout.views(shard.weights)):
                parameter.data = view.copy_(parameter)
            values = layout.mine(shard.weights)
            if self.masters and own[0].itemsize < 4:
                values = shard.master = values.float()
            for parameter, value, (start, stop) in zip(own, layout.pieces(values), layout.own):
                if parameter in self.originals:
                    value.view(-1).copy_(self.originals[parameter].flatten()[start:stop])
                piece = nn.Parameter(value)
                vars(piece).update(vars(parameter))  # what is known of it, such as how it is cut
                parameter.piece = self.pieces[parameter] = piece
            for number in shard.members:
                self.gradients[number].buckets.append(shard)
            if self.stage == 1:
                self._make_room(shard)

    @torch.no_grad()
    def follow_weights(self) -> None:
        """Masters of half weights that somebody else has changed begin anew from them."""
        for shard in self.buckets:
            if shard.master is not None:
                mine = shard.layout.mine(shard.weights)
                moved = shard.master.to(mine.dtype) != mine
                shard.master.copy_(torch.where(moved, mine.float(), shard.master))

    @torch.no_grad()
    def gather_parameters(self) -> None:
        """Return when all ranks have all pieces, as their optimizers left them."""
        guard.refuse_moved(self)
        for shard in self.buckets:
            if shard.master is not None:
                shard.layout.mine(shard.weights).copy_(shard.master)
        self.lane.launch(self._gather, f"parameters of batch {self.updates}").wait()
        self.updates += 1

    def _gather(self, group: Group) -> None:
        for number, shard in enumerate(self.buckets):
            group.all_gather(
                shard.layout.mine(shard.weights),
                shard.weights,
                f"parameters of bucket {number} of batch {self.updates}",
            )

    @torch.no_grad()
    def whole_values(self) -> dict[Tensor, Tensor]:
        """Parameter -> its values, in float32 where it is half. All ranks ask together."""
        group, found = self.group.unrecorded(), {}
        for shard in self.buckets:
            values = shard.weights
            if shard.master is not None:
                values = shard.master.new_empty(shard.layout.length)
                group.all_gather(shard.master, values)
            found |= dict(zip(shard.layout.tensors, shard.layout.views(values)))
        return found

    def owned(self) -> list[Owned]:
        """What this rank keeps of each parameter, named as in the module."""
        found = (
            (self.gradients[number], own)
            for shard in self.buckets
            for number, own in zip(shard.members, shard.layout.own)
        )
        return [
            Owned(each.name, tuple(each.home.shape), *own, self.pieces[each.home])
            for each, own in found
        ]

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring every rank the others' pieces after a load; no trace tells of it."""
        for shard in self.buckets:
            mine = shard.layout.mine(shard.weights)
            if shard.master is not None:
                mine.copy_(shard.master)
            self.group.unrecorded().all_gather(mine, shard.weights)

    # -- the gradients ---------------------------------------------------------------------------

    def _make_room(self, shard: Shard) -> None:
        """For the gradients of a bucket."""
        if self.away is shard:  # with those of the backward before
            self._free()
        if shard.flat is None:
            shard.flat = torch.empty_like(shard.weights)
            shard.flat[sum(shard.layout.sizes) :] = 0
            for number, view in zip(shard.members, shard.layout.views(shard.flat)):
                self.gradients[number].view = view.data  # with a count of its own of its writes
        if self.stage == 2 and shard.gradient is None:
            shard.gradient = torch.zeros_like(shard.layout.mine(shard.weights))

    @torch.no_grad()
    def _comes(self, gradient, _) -> None:
        """Before a backward adds to `.grad`."""
        if self.stage == 2 and gradient.used:
            self._next()
        if gradient.home.grad is gradient.gone:
            gradient.home.grad = None

    def _added(self, gradient, parameter) -> None:
        guard.refuse_kept(self, gradient)
        if self.stage == 2:
            self._make_room(gradient.buckets[0])
        super()._added(gradient, parameter)

    def _next(self) -> None:
        """Stage 2: another backward of the same gradient begins."""
        guard.refuse_written(self)
        self._complete()
        self.used_before |= {each for each in self.gradients if each.used}
        self._announce(lambda shard: True)
        self._begin()

    def _complete(self) -> None:
        """Gradients that did not come count as zeros."""
        for shard in self.buckets[self.ready :]:
            self._make_room(shard)
        for each in self.gradients:
            each.keep(1 if each.divided else self.group.size)

    def _launch(self, shard: Shard, label: str) -> None:
        if self.stage == 2:
            self._free()
            self.away = shard
            for number in shard.members:
                each = self.gradients[number]
                each.home.grad, each.view = each.gone, None
                self.writes.pop(each, None)
        self.launched = self.lane.launch(partial(self._reduce, shard, label), label)
        self.handles.append(self.launched)

    def _free(self) -> None:
        """Stage 2: the gradients that left last, once they are summed."""
        if self.away:
            self.handles[-1].settle()
            self.away.flat = self.away = None

    @torch.no_grad()
    def _reduce(self, shard: Shard, label: str, group: Group) -> None:
        """On the lane: this rank's part becomes the sum over the ranks."""
        mine = shard.layout.mine(shard.flat)
        group.reduce_scatter(shard.flat, name=label, out=mine)
        if self.stage == 2:
            shard.gradient += mine

    def _wait(self) -> None:
        for handle in self.handles:
            handle.wait()
        if self.stage == 2:
            self._free()
        self.handles = []

    def _mark(self, shard: Shard) -> None:
        shard.flat.view(self.group.size, -1)[:, :1] = torch.nan  # in each rank's part

    def _marked(self) -> bool:
        """A rank sees its own parts; a NaN of the gradient's own may be in one rank's alone."""
        parts = [part for part in map(self._mean, self.buckets) if not part.is_meta]
        own = any(part[:1].isnan().any() for part in parts)
        return bool(self.group.differing(f"a mark: {own}")) or own

    def _mean(self, shard: Shard) -> Tensor:
        """What this rank has of the bucket's mean."""
        return shard.layout.mine(shard.flat) if self.stage == 1 else shard.gradient

    @torch.no_grad()
    def finish_gradient_synchronization(self) -> list:
        """Return when each piece's `.grad` is the mean over the ranks; call it before the
        optimizer's step."""
        guard.refuse_written(self)
        if self.stage == 2:
            self._complete()
            for each in self.used_before:
                each.used, each.home.grad = True, each.view
            self.used_before = set()
        unused = super().finish_gradient_synchronization()
        for shard in self.buckets:
            part = self._mean(shard)
            part = part if shard.master is None else part.float()
            for number, own in zip(shard.members, shard.layout.pieces(part)):
                each = self.gradients[number]
                each.home.grad = None
                if each not in unused:
                    each.home.grad, self.pieces[each.home].grad = each.gone, own
            shard.gradient = None
        return unused

    def no_sync(self):
        guard.refuse_no_sync(self.stage)
        return super().no_sync()


def shards_of(
    parameters: Sequence[Tensor],
    bucket_bytes: int,
    size: int,
    rank: int,
    apart: Collection[Tensor] = (),
) -> list[Shard]:
    """Buckets of these parameters, given in the order in which gradients come; in the order in
    which they fill."""
    found, own = [], {id(parameter) for parameter in apart}
    for bucket in buckets_of(parameters, bucket_bytes, False):
        runs: list[list[int]] = [[]]
        for number in bucket.members:
            if id(parameters[number]) in own:
                runs += [[number], []]
            else:
                runs[-1].append(number)
        for members in filter(None, runs):
            layout = Flat([parameters[n] for n in members], size, rank)
            found.append(Shard(bucket.kind, 0, layout.length, members, layout=layout))
    return found


def shared(optimizer: Optimizer, group: Group, pieces=lambda parameter: True) -> Optimizer:
    """The optimizer of this rank's pieces, whose norms, if it takes any, are those of the whole
    parameters. Impossible where it looks across elements otherwise."""
    guard.refuse_optimizer(optimizer)
    return optimizer.among(group, pieces) if hasattr(optimizer, "among") else optimizer
