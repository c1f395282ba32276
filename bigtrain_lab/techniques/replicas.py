"""Replicas: N ranks train one model on the mean gradient, and divide its state among them.

    stage                  0             1                 2                3
    ranks divide           nothing       optimizer state   + gradients      + weights
    a part's gradient is   all-reduce    reduce-scatter: each rank keeps its own piece
    sent in                last backw.*  last backward*    every backward   every backward
    after the step         -             all-gather        all-gather       -
    before, after a use    -             -                 -                all-gather, drop

    * of a known schedule; else the first outside no_sync()

Stage 0 is data parallel, 1 to 3 are ZeRO. An all-reduce is a reduce-scatter and an all-gather: the
step lies between the two. A part is a bucket of weights, or at stage 3 those of a unit. They lie
side by side in one flat tensor, of which each rank keeps an equal piece. `Rules` say when something
is sent (replica_rules.py). `Replicas` turns hooks into their events, and carries their operations
out.

    Home      a weight, and what is stepped in its place: a master, this rank's piece   shards.py
    Averaged  a part at stage 0: gradients
    Held      a part at stages 1 to 3: its weights, their gradients, the piece
    Replicas  hooks in, operations on the lane out

At stage 3 a weight is dropped between uses: its storage has no bytes, and it reads as nan in its
shape. A gradient that was taken for a message leaves a stand-in in `.grad`, which refuses all use.

Where the gradient is      before it is sent      mean, after finish_gradient_synchronization()
    stage 0                bucket `flat`          the same place; stepped.grad is a view of it
    stage 1                bucket `flat`          this rank's piece of it -> stepped.grad
    stage 2                bucket `flat`          `mean`, the sum over backwards -> stepped.grad
    stage 3                `unsent`, by weight    `mean`, the sum over backwards -> stepped.grad

Stages 0 to 2 divide by N before they send. Stage 3 divides the sum, but in fp16 it divides before,
against overflow.

Bytes of psi parameters a rank, in mixed precision with Adam:
    stage 0   18 psi                     stage 1   4 psi + 16 psi / N
    stage 2    2 psi + 16 psi / N        stage 3   16 psi / N
Stage 0 keeps gradients in float32 where there are masters. The paper's are half: 16 psi. Of 16 psi
/ N, 4 psi / N are the float32 gradient of the pieces. Stages 2 and 3 keep it from the first
backward on. In a backward stage 3 also stores the gradients of two units. Stage 2 stores those of
two buckets, and more if they come in another order than the parts.
Padding: at most N - 1 elements a part.
Source: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 5 and 7; Zhao et al. 2023,
PyTorch FSDP (arXiv:2304.11277), section 3.
"""

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_map

from ..order.plan import Launch, Together, Wait
from ..order.schedule import Action
from ..runtime.talk.execute import Signal, Work, run
from ..runtime.talk.group import Group
from ..runtime.talk.message import as_bytes
from .flat import Flat
from .guards import replicas as guard
from .reducers import Bucket, Buckets
from .replica_plan import parts_of
from .replica_rules import Call, Drop, Part, Rules, batch_label, name
from .shards import STEPPED, Home


class PartGradients:
    """The gradients of a part. Its members are the places in `homes`, 0, 1, ...

    came    members with a gradient in `flat` that was not sent yet: the next one is added to it
    fresh   members with a gradient from this backward; the part is full when all have one
    used    members with a gradient since the last update
    earlier stage 3: `.grad` of a piece from before this update, which the mean is added to
    unsent  stage 3: member -> its whole gradient, until the unit's backward is over
    """

    includes_earlier = False  # whether the mean has in it what the last update left in `.grad`

    def __init__(self, homes: Sequence[Home], size: int, learns: bool):
        self.homes, self.size, self.learns = homes, size, learns
        self.came: set[int] = set()
        self.fresh: set[int] = set()
        self.used: set[int] = set()
        self.earlier: dict[int, Tensor] = {}
        self.unsent: dict[int, Tensor] = {}

    def forget(self, n: int) -> None:
        """Forget a member's unsent gradient, since somebody set its `.grad` to None."""
        for members in (self.came, self.fresh, self.used):
            members.discard(n)
        self.earlier.pop(n, None)
        self.unsent.pop(n, None)

    def own(self, n: int, tensor: Tensor) -> Tensor:
        """Return the elements of a member's tensor that lie in this part."""
        return tensor.reshape(-1)

    def add(self, n: int, gradient: Tensor) -> None:
        """Add 1/N of a member's gradient to the flat tensor; the sum over ranks is the mean."""
        place, gradient = self.place(n), self.own(n, gradient)
        if n in self.came:
            place.add_(gradient, alpha=1 / self.size)
        else:
            torch.div(gradient, self.size, out=place)
        self.came.add(n)
        self.used.add(n)

    def complete(self, n: int) -> bool:
        """Note a member's gradient, its second one as the first of a new backward. Return whether
        the part is full."""
        if n in self.fresh:
            self.fresh.clear()
        self.fresh.add(n)
        return len(self.fresh) == len(self.homes)

    def leave(self) -> None:
        """Prepare the message: members without a gradient are zeros."""
        for n in {*range(len(self.homes))} - self.came:
            self.place(n).zero_()
        self.came.clear()

    def arrived(self) -> None:
        """Take over the result of the message that was in flight."""

    def hand_over(self, unused: Collection[str]) -> None:
        """Set `.grad` of each stepped tensor to the mean. Where no rank used it, `.grad` stays."""
        for n, (home, own) in enumerate(zip(self.homes, self.means())):
            before = self.earlier.pop(n, guard.real(home.stepped.grad))
            if home.name not in unused:
                before = own if before is None or self.includes_earlier else before.add_(own)
            home.stepped.grad = before
        self.used.clear()


class Averaged(PartGradients):
    """A part at stage 0: a range of the flat tensor of its dtype and device. `views`: each member's
    whole gradient, also where the bucket has a part of it; `starts`: where each begins."""

    includes_earlier = True

    def __init__(self, bucket: Bucket, homes: Sequence[Home], flat: Tensor, views, starts, size):
        super().__init__(homes, size, True)
        self.views, self.flat = views, flat[bucket.start : bucket.stop]
        self.ranges = [(max(0, bucket.start - at), bucket.stop - at) for at in starts]

    def own(self, n: int, tensor: Tensor) -> Tensor:
        first, last = self.ranges[n]
        return tensor.reshape(-1)[first:last]

    def place(self, n: int) -> Tensor:
        return self.own(n, self.views[n])

    def leave(self) -> None:
        for n, home in enumerate(self.homes):
            kept = guard.real(home.stepped.grad)
            if kept is not None and n not in self.came:  # `.grad` is the mean of an earlier update
                self.add(n, kept)
                self.used.discard(n)
        super().leave()

    def means(self) -> Sequence[Tensor]:
        return self.views


class Held(PartGradients):
    """A part at stages 1 to 3.

    weights_flat   its weights, side by side; at stage 3 without bytes between uses
    piece          this rank's elements of them, which its optimizer steps
    flat           whole gradients that are being filled, at stages 1 and 2
    away           whole gradients in flight, which a reduce-scatter reads
    mean           this rank's piece of the mean gradient
    """

    @torch.no_grad()
    def __init__(
        self, part: Part, homes: Sequence[Home], stage: int, group: Group, dtype, nothing: dict
    ):
        weights = [home.weight for home in homes]
        self.stage, self.layout = stage, Flat([w.detach() for w in weights], group.size, group.rank)
        layout, like = self.layout, homes[0].stepped
        values = like.new_zeros(layout.length)
        for home, view in zip(homes, layout.views(values)):
            view.copy_(home.stepped)
        self.weights_flat = values.to(dtype or weights[0].dtype)
        apart = stage == 3 or self.weights_flat is not values
        self.piece = layout.mine(values).clone() if apart else layout.mine(self.weights_flat)
        self.views = layout.tensors = layout.views(self.weights_flat)
        pieces = [nn.Parameter(each, like.requires_grad) for each in layout.pieces(self.piece)]
        kept = zip(homes, pieces, layout.own)
        homes = [replace(home, stepped=p, start=own[0], stop=own[1]) for home, p, own in kept]
        super().__init__(homes, group.size, part.learns)
        kind = self.weights_flat.dtype, self.weights_flat.device
        if stage == 3 and kind not in nothing:
            nothing[kind] = self.weights_flat.new_full((), torch.nan)
        self.nothing = nothing.get(kind)
        self.flat = self.away = self.mean = None
        self.writes = [home.weight._version for home in homes]
        self.show(self.views)
        STEPPED.update({home.weight: home.stepped for home in homes})
        if stage == 1:
            self.make_room()
        if stage == 3:
            self.drop()

    # -- weights -----------------------------------------------------------------------------------

    def show(self, tensors: Iterable[Tensor]) -> None:
        """Let the weights read these tensors: views of `weights_flat`, or nan."""
        for home, tensor in zip(self.homes, tensors):
            home.weight.data = tensor

    def drop(self) -> None:
        guard.refuse_written(self)
        self.nothing.fill_(torch.nan)
        self.show(self.nothing.expand(view.shape) for view in self.views)
        self.weights_flat.untyped_storage().resize_(0)

    def fill(self, group: Group, name: str) -> None:
        """Gather the pieces of all ranks, on the lane."""
        mine = self.layout.mine(self.weights_flat)
        if mine.data_ptr() != self.piece.data_ptr():
            mine.copy_(self.piece)
        group.all_gather(mine, self.weights_flat, name)

    # -- gradients ---------------------------------------------------------------------------------

    def make_room(self) -> None:
        if self.flat is None:
            self.flat = torch.empty_like(self.weights_flat)
            self.flat[sum(self.layout.sizes) :] = 0

    def place(self, n: int) -> Tensor:
        return self.flat[self.layout.starts[n] :][: self.layout.sizes[n]]

    def add(self, n: int, gradient: Tensor) -> None:
        """Add a gradient: to `flat`, at stage 3 to `unsent` until the unit's backward is over."""
        if self.stage < 3:
            self.make_room()
            super().add(n, gradient)
        else:
            self.used.add(n)
            self.unsent[n] = self.unsent[n] + gradient if n in self.unsent else gradient

    def leave(self) -> None:
        if self.stage < 3:
            self.make_room()
            super().leave()
            self.away = self.flat
            self.flat = self.away if self.stage == 1 else None
            return
        zeros, sizes = self.nothing.new_zeros, [*self.layout.sizes]
        sizes += [over] if (over := self.layout.length - sum(sizes)) else []
        found = [self.unsent.pop(n, None) for n in range(len(sizes))]
        found = [zeros(k) if g is None else g.reshape(-1) for g, k in zip(found, sizes)]
        self.away = torch.cat(found) if len(found) > 1 else found[0]
        if self.away.dtype == torch.float16:  # whose sum might overflow
            self.away.div_(self.size)

    def arrived(self) -> None:
        """Keep this rank's piece of the sum; stages 2 and 3 add it to earlier backwards'."""
        mine, self.away = self.layout.mine(self.away), None
        if self.stage == 1:
            self.mean = mine
            return
        own = mine.to(self.piece.dtype, copy=True)
        if self.stage == 3 and mine.dtype != torch.float16:
            own.div_(self.size)
        self.mean = own if self.mean is None else self.mean.add_(own)

    def means(self) -> Sequence[Tensor]:
        mean, self.mean = self.mean, None
        return [] if mean is None else self.layout.pieces(mean.to(self.piece.dtype))


class Averages(Work):
    """All-reduces of fused buckets, for a strategy's program. `flats`: name -> tensor."""

    def __init__(self, all_reduce: Callable):
        self.all_reduce, self.flats = all_reduce, {}

    def together(self, op, group):
        self.all_reduce(self.flats.pop(op.name), group, "sum", op.name)


class Site:
    """A weight's autograd hooks, and where its gradients go. `places`: (part, number in the part),
    several where a weight is cut. `slots`: tensors whose `.grad` is a stand-in until the mean is
    there."""

    def __init__(self, home: Home, places: Sequence[tuple[int, int]], node, replicas: "Replicas"):
        self.home, self.places, self.node = home, places, node
        self.held = [(replicas.held[k], n) for k, n in places]
        slots = (home.weight, home.stepped) if replicas.stage in (1, 2) else (home.stepped,)
        self.slots = {each: guard.on_its_way(each, home.name, replicas) for each in slots}

    def dropped(self) -> bool:
        """Return whether someone removed a stand-in, as zero_grad() does."""
        used = any(n in held.used for held, n in self.held)
        return used and not all(guard.is_gone(slot.grad) for slot in self.slots)


def tell(event: weakref.WeakMethod, number: int, _) -> None:
    """Call an event from a hook. The reference is weak, so that the hook does not keep the replicas
    alive in a cycle through the weight."""
    if method := event():
        method(number)


class Replicas:
    """Hooks of a module that N ranks train, and the messages that they launch.

    homes          each weight with the whole tensor stepped for it, such as a float32 master
    units          weight -> numbers of the units that use it: at stage 3, and for begin(actions)
    bucket_bytes   most bytes of gradients in a message, at stages 0 to 2
    strategy, all_reduce
                   what is sent together, when, and by which messages, at stage 0
    compute_dtype  format in which stage 3 gathers, and sends gradients
    ahead          how many uses ahead stage 3 gathers the weights
    overlap        send a part when it is full; else all at the end
    allow_unused   a parameter that a rank did not use counts as zeros there, and its gradient stays
                   as it is where no rank used it. Otherwise it is refused
    apart          weights that have a part of their own, such as copies of a tied one
    alike          the ranks' weights are equal already: none are sent. Else all take rank 0's

        replicas.rules.begin(actions)        # if a schedule is known
        replicas.needed(action); ...; replicas.done(action)
        replicas.finish_gradient_synchronization()
        optimizer.step()                     # of home.stepped, for home in replicas.homes
        replicas.stepped()
    """

    def __init__(
        self,
        module: nn.Module,
        group: Group,
        stage: int,
        homes: Sequence[Home],
        *,
        units: Mapping[Tensor, Collection[int]] = {},
        bucket_bytes: int = 25 * 2**20,
        strategy: Buckets = Buckets(),
        all_reduce: Callable | None = None,
        compute_dtype: torch.dtype | None = None,
        ahead: int = 1,
        overlap: bool = True,
        allow_unused: bool = False,
        apart: Collection[Tensor] = (),
        alike: bool = False,
    ):
        every = *module.parameters(), *(home.stepped for home in homes), *module.buffers()
        if alike:
            guard.refuse_unlike(module, group)
        else:
            broadcast(dict.fromkeys(every), group)
        self.module, self.group, self.stage = module, group, stage
        self.allow_unused, self.syncing, self.gathered_by_hand = allow_unused, True, False
        weights = [home.stepped if stage == 0 else home.weight for home in homes]
        timed = group.post("replicas") is not None
        parts, buckets = parts_of(
            weights,
            [units.get(home.weight, {0}) for home in homes],
            stage,
            group.size,
            bucket_bytes,
            strategy=strategy,
            timed=timed,
            apart={n for n, w in enumerate(weights) if any(w is each for each in apart)},
            compute_dtype=compute_dtype,
        )
        self.strategy, self.buckets, self.bucket_bytes = strategy, buckets, bucket_bytes
        self.all_reduce = all_reduce or strategy.all_reduce
        self.rules = Rules(
            parts,
            stage,
            range(group.size),
            ahead=ahead,
            overlap=overlap,
            cycles=stage == 0 and timed and bool(strategy.every_ticks),
        )
        members = [[homes[n] for n in part.members] for part in parts]
        nothing: dict[tuple, Tensor] = {}  # a nan of each dtype, which dropped weights expand
        self.flats: dict[tuple, Tensor] = {}
        if stage == 0:
            self.held = self._averaged(members)
        else:
            self.held = [
                Held(part, own, stage, group, compute_dtype, nothing)
                for part, own in zip(parts, members)
            ]
        places: dict[Tensor, list[tuple[int, int]]] = {}  # weight -> (part, its number there)
        at: dict[Tensor, Home] = {}
        for k, held in enumerate(self.held):
            for n, home in enumerate(held.homes):
                at[home.weight] = home
                if held.learns:
                    places.setdefault(home.weight, []).append((k, n))
        self.homes = [at[home.weight] for home in homes if home.weight in at]
        self.frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}
        self.lane, self.handles, self.waits = group.lane(), {}, []
        self.signals: dict[str, Signal] = {}
        self.sites = []
        comes, added = weakref.WeakMethod(self._comes), weakref.WeakMethod(self._added)
        for number, (weight, found) in enumerate(places.items()):
            node = get_gradient_edge(weight).node  # which adds to `.grad`
            node.register_prehook(partial(tell, comes, number))
            weight.register_post_accumulate_grad_hook(partial(tell, added, number))
            self.sites.append(Site(at[weight], found, node, self))
        guard.WRAPPED.update(dict.fromkeys(self.pieces, weakref.ref(self)))

    def _averaged(self, members: Sequence[Sequence[Home]]) -> list[Averaged]:
        """Lay gradients side by side in a flat tensor a dtype, in the order of the backward."""
        places: dict[Tensor, tuple[int, Tensor]] = {}
        for kind in dict.fromkeys(bucket.kind for bucket in self.buckets):
            alike = (own for each, own in zip(self.buckets, members) if each.kind == kind)
            layout = Flat([*dict.fromkeys(home.stepped for home in chain(*alike))], 1, 0)
            self.flats[kind] = flat = torch.zeros(layout.length, dtype=kind[0], device=kind[1])
            places |= zip(layout.tensors, zip(layout.starts, layout.views(flat)))
        return [
            Averaged(
                bucket,
                own,
                self.flats[bucket.kind],
                [places[home.stepped][1] for home in own],
                [places[home.stepped][0] for home in own],
                self.group.size,
            )
            for bucket, own in zip(self.buckets, members)
        ]

    @property
    def pieces(self) -> dict[Tensor, nn.Parameter]:
        """Weight -> what is stepped of it."""
        return {home.weight: home.stepped for home in self.homes}

    @property
    def under_way(self) -> bool:
        """True while a message is in flight."""
        return bool(self.handles)

    @property
    def unfinished(self) -> bool:
        """True while a gradient is not averaged yet."""
        return any(held.used for held in self.held)

    # -- events ------------------------------------------------------------------------------------

    @torch.no_grad()
    def needed(self, action: Action) -> None:
        """Begin an action; return when the weights of its unit are gathered."""
        self._begin_backward()
        self._carry_out(self.rules.needed(action))

    @torch.no_grad()
    def done(self, action: Action) -> None:
        self._settle()
        self._carry_out(self.rules.done(action))

    @torch.no_grad()
    def sends(self, unit: int) -> None:
        """Send the gradients of a unit, whose backward is over (stage 3)."""
        for k in self.rules.parts_of[unit]:
            if self.held[k].learns:
                self._carry_out(self.rules.full(k))

    @torch.no_grad()
    def finish_gradient_synchronization(self) -> set[str]:
        """Wait until each piece's `.grad` is the mean over the ranks; call it before the
        optimizer's step. Returns the names of the parameters that no rank used."""
        guard.refuse_changed(self)
        for number, site in enumerate(self.sites):
            if site.dropped():
                self._comes(number)
        self._settle()
        self._carry_out(self.rules.finished())
        guard.refuse_unseen(self)
        unused = [
            home.name
            for held in self.held
            for n, home in enumerate(held.homes if held.learns else ())
            if n not in held.used and home.weight.numel()
        ]
        unused = [*dict.fromkeys(unused)]
        by_rank = self.group.differing("\n".join(unused), "the gradients of a batch")
        by_none = set(unused).intersection(*(text.split("\n") for text in by_rank))
        for held in self.held:
            held.hand_over(by_none)
        self._begin_backward()
        self.rules.begin()
        guard.refuse_unused(self, unused, by_rank)
        return by_none

    @contextmanager
    def no_sync(self):
        """Backwards in this context add up on this rank; the next one outside averages all."""
        self.syncing, before = False, self.syncing
        try:
            yield
        finally:
            self.syncing = before

    @torch.no_grad()
    def read(self) -> None:
        """Forwards without a backward have ended."""
        self._carry_out(self.rules.read())

    @torch.no_grad()
    def stepped(self) -> None:
        """Call after the optimizer's step; returns when every rank has the new weights."""
        self._carry_out(self.rules.stepped())

    def _comes(self, number: int) -> None:
        """Remove the stand-in before a backward adds to `.grad`."""
        site = self.sites[number]
        if site.dropped():
            for k, n in site.places:
                guard.refuse_dropped(self, k, n)
                self.held[k].forget(n)
        # A second gradient of one weight means that a new backward began. Send what is left of the
        # last one.
        again = any(n in self.held[k].fresh for k, n in site.places)
        if again and self.stage == 2 and not self.rules.known:
            self._carry_out(self.rules.again(), inside=True)
            self._begin_backward()
        for each in site.slots:
            each.grad = guard.real(each.grad)

    @torch.no_grad()
    def _added(self, number: int) -> None:
        """Move a new gradient from `.grad` to its part; send the part if it is full now.
        MixedPrecision may have moved the gradient to the master before."""
        site = self.sites[number]
        weight, stepped = site.home.weight, site.home.stepped
        source = stepped if self.stage == 0 and guard.real(weight.grad) is None else weight
        for k, n in site.places:
            guard.refuse_gradient(self, k, n, source.grad)
            self.held[k].add(n, source.grad)
            if self.stage == 3 and stepped.grad is not None:
                self.held[k].earlier[n] = stepped.grad
        source.grad = None
        for slot, gone in site.slots.items():
            slot.grad = gone
        for k, n in site.places if self.syncing else ():
            if self.held[k].complete(n) and self.stage < 3:
                self._carry_out(self.rules.full(k), inside=True)

    def _begin_backward(self) -> None:
        for held in self.held:
            held.fresh.clear()

    def _carry_out(self, ops: Sequence, inside: bool = False) -> None:
        """Carry out operations. A run may charge a simulated clock. `inside` a backward, wait for
        the data now and charge the clock at `_settle`."""
        for op in ops:
            match op:
                case Drop(k):
                    self.held[k].drop()
                case Launch(label):
                    call = self.rules.calls[label]
                    held = self.held[call.part]
                    if call.op.kind != "all_gather":
                        held.leave()
                    elif self.stage == 3:
                        held.weights_flat.untyped_storage().resize_(held.weights_flat.nbytes)
                    if self.rules.cycles:
                        self._signal(label, call.batch)
                    else:
                        act = partial(self._communicate, call)
                        self.handles[label] = self.lane.launch(act, label)
                case Wait(label):
                    call, handle = self.rules.calls.pop(label), self.handles.pop(label)
                    if inside:
                        handle.settle()
                        self.waits.append(handle)
                    else:
                        handle.wait()
                    if call.op and call.op.kind != "all_gather":
                        self.held[call.part].arrived()
                    elif self.stage == 3:
                        self.held[call.part].show(self.held[call.part].views)

    def _communicate(self, call: Call, group: Group) -> None:
        """On the lane."""
        held = self.held[call.part]
        if self.stage == 0:
            self.all_reduce(held.flat, group, "sum", call.op.name)
        elif call.op.kind == "all_gather":
            held.fill(group, call.op.name)
        else:
            mine = held.layout.mine(held.away)
            group.reduce_scatter(held.away, name=call.op.name, out=mine)

    def _signal(self, label: str, batch: int) -> None:
        """Signal that a part is full to the strategy's program, which the first one starts."""
        self.rules.calls.pop(label)
        if not self.handles:
            self.signals = {name([k], batch): Signal("compute") for k in self.rules.learning}
            program = partial(self._cycle, batch)
            self.handles[batch_label(batch)] = self.lane.launch(program, f"batch {batch}")
        self.group.issue(label, self.signals[label].post)

    def _cycle(self, batch: int, group: Group) -> None:
        """On the lane."""
        ranks, work = tuple(range(group.size)), Averages(self.all_reduce)

        def send(batch, numbers):
            first, last = self.buckets[numbers[0]], self.buckets[numbers[-1]]
            label, flat = name(numbers, batch), self.flats[first.kind][first.start : last.stop]
            work.flats[label] = flat
            return [Together(label, "all_reduce", flat.nbytes, ranks)]

        about = self.buckets, self.bucket_bytes, ranks, send, batch
        program = self.strategy.program(*about)
        run(program, group, work, self.signals, {(group.name, ranks): group})

    def _settle(self) -> None:
        """Charge the modelled clock for the waits inside the action that has ended."""
        while self.waits:
            self.waits.pop(0).wait()

    # -- whole values ------------------------------------------------------------------------------

    @torch.no_grad()
    def follow_weights(self) -> None:
        """Update the master pieces from half weights that were written after the last step."""
        for held in self.held:
            mine = held.layout.mine(held.weights_flat)
            if mine.dtype != held.piece.dtype:
                moved = held.piece.to(mine.dtype) != mine
                held.piece.copy_(torch.where(moved, mine.to(held.piece.dtype), held.piece))

    @torch.no_grad()
    def whole_values(self) -> dict[Tensor, Tensor]:
        """Weight -> its values, in the format that is stepped. All ranks ask together."""
        return {home.weight: home.whole(home.stepped, self.group) for home in self.homes}

    @torch.no_grad()
    def refresh(self) -> None:
        """All-gather the pieces after a load, outside the trace (stages 1 and 2)."""
        if self.stage < 3:
            for held in self.held:
                held.fill(self.group.unrecorded(), "pieces")

    def copied(self, output):
        """Clone outputs of a unit that are views of its weights, whose storage is freed next."""
        own = {held.weights_flat.untyped_storage()._cdata for held in self.held}

        def apart(value):
            if not isinstance(value, Tensor) or value.layout is not torch.strided:
                return value
            return value.clone() if value.untyped_storage()._cdata in own else value

        return tree_map(apart, output)

    @contextmanager
    def all_whole(self):
        """Stage 3: each weight is whole inside, in the format that is stepped. All ranks call it
        together."""
        self.gathered_by_hand = True
        for weight, whole in self.whole_values().items():
            weight.data = whole
        try:
            yield
        finally:
            self.gathered_by_hand = False
            for held in self.held:
                held.writes = [home.weight._version for home in held.homes]
                held.drop()

    def holdings(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors that this rank holds now beside the module's, by kind and name."""
        held = {"gradients": {}, "master": {}, "weights": {}}
        if self.stage == 0:
            held["gradients"] = {f"bucket {k}": each.flat for k, each in enumerate(self.held)}
            return held
        for k, each in enumerate(self.held):
            if each.piece.dtype != each.weights_flat.dtype or self.stage == 3:
                kind = "master" if each.piece.dtype != each.weights_flat.dtype else "weights"
                held[kind][f"piece of part {k}"] = each.piece
            if self.stage == 3:
                held["weights"][f"part {k}"] = each.weights_flat
            parts = {what: getattr(each, what) for what in ("flat", "away", "mean")} | each.unsent
            held["gradients"] |= {
                f"part {k}, {what}": tensor for what, tensor in parts.items() if tensor is not None
            }
        return held


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor], group: Group) -> None:
    """Replace the tensors by those of rank 0."""
    for tensor in tensors if group.size > 1 else ():
        own = group.broadcast(as_bytes(tensor), name="parameters and buffers")
        tensor.copy_(own.view(tensor.dtype).view(tensor.shape))
