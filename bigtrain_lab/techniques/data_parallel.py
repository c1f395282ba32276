"""Data parallelism: each rank has the whole model and a part of the batch; gradients are averaged.

    g = 1/N sum_r g_r       g_r: the gradient of rank r's samples; weights start, and stay, alike

    backward   ... layer 3 | layer 2 | layer 1 |
    lane           [ bucket 0 ][ bucket 1 ]...        a bucket leaves when its last gradient is in

`NaiveDataParallel` sends each gradient by itself, after the backward. What is fast: gradients come
in reverse order of the layers. They lie side by side in flat tensors, cut into buckets; a full
bucket is all-reduced on a lane of its own while the backward goes on. Large buckets pay the latency
less often; small ones leave earlier.

Cost a step: 2 (N-1)/N bytes of gradients sent and received a rank, of which the part is exposed
that the backward does not cover. Memory: no copy of the gradients, since each is a view of its
bucket; they stay while zero_grad(set_to_none=True) drops them.
Source: Li et al. 2020, PyTorch Distributed (arXiv:2006.15704), section 3.2.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from ..order.plan import Together
from ..runtime.talk.execute import Signal, Work, run
from ..runtime.talk.group import Group
from ..runtime.talk.message import as_bytes
from .guards import data_parallel as guard
from .guards.optimizers import AVERAGING
from .prepared_model import masters_of, note_anew
from .reducers import Bucket, Buckets, name


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


class DistributedDataParallel(nn.Module):
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
    backwards     how many backward passes make one gradient: a parameter is ready at its last one
    overlap       launch a bucket when it is full; else all of them at the end
    allow_unused  a parameter that a rank did not use counts as zeros there, and its `.grad` stays
                  as it is where no rank used it. Otherwise it is refused
    alike         the ranks' weights are equal already: none are sent

    The mean weighs all ranks alike: multiply a rank's mean loss by N n_r / sum_r n_r where its
    number of samples n_r differs. Parameters, frozen ones too, and buffers come once from rank 0;
    afterwards each rank's buffers are its own. Ranks with one seed drop the same units of their own
    samples: after this call, seed each rank apart.
    """

    def __init__(
        self,
        module: nn.Module,
        group=None,
        bucket_bytes: int = 25 * 2**20,
        *,
        strategy: Buckets = Buckets(),
        all_reduce: Callable | None = None,
        backwards: int = 1,
        overlap: bool = True,
        allow_unused: bool = False,
        alike: bool = False,
    ):
        super().__init__()
        self.module, self.group = module, Group.of(group)
        guard.refuse(module, self.group, bucket_bytes, backwards, strategy)
        if alike:
            guard.refuse_unlike(module, self.group)
        else:
            broadcast([*module.parameters(), *module.buffers()], self.group)
        self.all_reduce, self.backwards = all_reduce or strategy.all_reduce, backwards
        self.overlap, self.allow_unused = overlap, allow_unused
        learnt = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        masters = masters_of([module])
        self.gradients = [Gradient(name, masters.get(p, p)) for name, p in reversed(learnt.items())]
        self.timed = self.group.post("data parallel") is not None
        homes = [each.home for each in self.gradients]
        self.strategy, self.bucket_bytes = strategy, bucket_bytes
        self.buckets = strategy.pieces(homes, bucket_bytes, self.timed)
        self._place()
        self.lane, self.syncing, self.batch = self.group.lane(), True, -1
        self.writes = {}  # gradient -> torch's count of writes to it when its backward ended
        self._begin()
        for each in self.gradients:
            learnt[each.name].register_post_accumulate_grad_hook(partial(self._added, each))
        AVERAGING.add(self)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def __getstate__(self):
        guard.refuse_copy()

    @property
    def under_way(self) -> bool:
        """Whether a message may be on its way that nobody has waited for."""
        return self.launched is not None

    def holdings(self) -> dict[str, dict[str, Tensor]]:
        """The tensors that this rank holds beside the module's, by kind of memory and by name."""
        return {"gradients": {f"bucket {i}": each.flat for i, each in enumerate(self.buckets)}}

    def _place(self) -> None:
        """Give each gradient its place in a bucket."""
        self.flats = place(self.gradients, self.buckets)

    def _begin(self) -> None:
        self.batch, self.launched, self.ready = self.batch + 1, None, 0
        self.signals = {name([k], self.batch): Signal("compute") for k in range(len(self.buckets))}
        for each in self.gradients:
            each.count, each.used, each.divided = 0, False, False
        for bucket in self.buckets:
            bucket.missing = len(bucket.members)

    @torch.no_grad()
    def _added(self, gradient: "Gradient", parameter: Tensor) -> None:
        """A backward has added to `.grad`: keep it in the bucket, which may be full now."""
        guard.refuse_gradient(self, gradient)
        gradient.used, gradient.count = True, gradient.count + self.syncing
        last = self.syncing and self.overlap and gradient.count == self.backwards
        gradient.keep(self.group.size if last else 1)
        if last:
            for bucket in gradient.buckets:
                bucket.missing -= 1
            self._announce(lambda bucket: not bucket.missing)
        if gradient.view is not None:
            self.writes[gradient] = gradient.view._version

    def _announce(self, full: Callable) -> None:
        """Launch the buckets up to the first that is not full: in one order on all ranks."""
        for bucket in self.buckets[self.ready :]:
            if not full(bucket):
                break
            self._launch(bucket, name([self.ready], self.batch))
            self.ready += 1

    def _launch(self, bucket: Bucket, label: str) -> None:
        """Tell the lane, which carries out one program for all buckets of the batch."""
        self.launched = self.launched or self.lane.launch(self._average, f"batch {self.batch}")
        self.group.issue(label, self.signals[label].post)

    def _wait(self) -> None:
        self.launched.wait()

    def _mark(self, bucket: Bucket) -> None:
        bucket.flat[0] = torch.nan

    def _marked(self) -> bool:
        """Whether a bucket begins with a mark, or a NaN of the gradient's own: on all ranks
        alike."""
        return any(
            bucket.flat[:1].isnan().any() for bucket in self.buckets if not bucket.flat.is_meta
        )

    def _average(self, group: Group) -> None:
        """On the lane: carry out the program of the strategy."""
        ranks, work = tuple(range(group.size)), Averages(self.all_reduce)

        def send(numbers):
            first, last = self.buckets[numbers[0]], self.buckets[numbers[-1]]
            label, flat = name(numbers, self.batch), self.flats[first.kind][first.start : last.stop]
            work.flats[label] = flat
            return [Together(label, "all_reduce", flat.nbytes, ranks)]

        program = self.strategy.program(
            self.batch, self.buckets, self.bucket_bytes, self.timed, ranks, send
        )
        run(program, group, work, self.signals, {(group.name, ranks): group})

    @torch.no_grad()
    def finish_gradient_synchronization(self) -> list["Gradient"]:
        """Return when each gradient is the mean over the ranks; call it before the optimizer's
        step. What it returns no rank used."""
        unused = [each for each in self.gradients if not each.used and each.view.numel()]
        guard.refuse_replaced(self)
        guard.refuse_written(self)
        for each in self.gradients:
            each.keep(1 if each.divided else self.group.size)
        if not self.allow_unused:
            for each in unused:  # all ranks will meet it, and only then ask each other
                self._mark(each.buckets[0])
        self._announce(lambda bucket: True)
        self._wait()
        note_anew(self.module, [each.home for each in self.gradients])
        batch = self.batch
        self._begin()
        if not self.allow_unused and not self._marked():
            return []
        names = "\n".join(each.name for each in unused)
        by_rank = self.group.differing(names, f"the gradients of batch {batch}")
        guard.refuse_unused(self, unused, by_rank)
        missing = [set(text.split("\n")) for text in by_rank]
        for each in unused:
            if any(each.name not in names for names in missing):
                each.home.grad = each.view
        return [each for each in unused if all(each.name in names for names in missing)]

    @contextmanager
    def no_sync(self):
        """Backwards in this context add up on this rank; the next one outside averages all."""
        self.syncing, before = False, self.syncing
        try:
            yield
        finally:
            self.syncing = before


class Averages(Work):
    """What a lane does with the flat tensor of each name."""

    def __init__(self, all_reduce: Callable):
        self.all_reduce, self.flats = all_reduce, {}

    def together(self, op, group):
        self.all_reduce(self.flats.pop(op.name), group, "sum", op.name)


@dataclass(eq=False)
class Gradient:
    """Of a parameter: `home` is what the optimizer steps, the parameter or its master."""

    name: str
    home: Tensor
    view: Tensor | None = None  # its place in the flat tensor
    buckets: list[Bucket] = field(default_factory=list)
    count: int = 0  # backwards that added to it
    used: bool = False
    divided: bool = False  # it is this rank's part of the mean
    gone: Tensor | None = None  # what stands in `.grad` where it has left

    def keep(self, over: int) -> None:
        """Let `.grad` be the view, divided by `over`; where there is none the view is zero. A new
        gradient is divided as it is copied. One that has left has no view."""
        if self.view is None:
            return
        self.divided = self.divided or over > 1
        if self.home.grad is None or self.home.grad is self.gone:
            self.view.zero_()
        elif self.home.grad is not self.view:
            torch.div(self.home.grad, over, out=self.view)
            self.home.grad = self.view
        elif over > 1:
            self.view.div_(over)


def place(gradients: list[Gradient], buckets: list[Bucket]) -> dict[tuple, Tensor]:
    """Make the flat tensors by kind, and each gradient a view of its part."""
    flats = {}
    for kind in dict.fromkeys(bucket.kind for bucket in buckets):
        own = [each for each in gradients if (each.home.dtype, each.home.device) == kind]
        sizes = [each.home.numel() for each in own]
        flats[kind] = flat = torch.zeros(sum(sizes), dtype=kind[0], device=kind[1])
        for each, part in zip(own, flat.split(sizes)):
            each.view = part.view(each.home.shape).data  # with a count of its own of its writes
        for bucket in buckets:
            if bucket.kind == kind:
                bucket.flat = flat[bucket.start : bucket.stop]
                for number in bucket.members:
                    gradients[number].buckets.append(bucket)
    return flats


@torch.no_grad()
def broadcast(tensors: Sequence[Tensor], group: Group) -> None:
    """Replace the tensors by those of rank 0, in one message."""
    if group.size == 1:
        return
    tensors = sorted(tensors, key=lambda tensor: -tensor.itemsize)  # so that each is aligned
    flat = torch.cat([as_bytes(tensor) for tensor in tensors])
    group.broadcast(flat, name="parameters and buffers")
    for tensor, part in zip(tensors, flat.split([tensor.nbytes for tensor in tensors])):
        tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
