"""Replicas: N ranks train one model on the mean gradient, and divide its state among them.

    stage                  0             1                 2                3
    ranks divide           nothing       optimizer state   + gradients      + weights
    a part's gradient is   all-reduce    reduce-scatter: each rank keeps its own piece
    sent in                last backw.*  last backward*    every backward** every backward
    after the step         -             all-gather        all-gather       -
    before, after a use    -             -                 -                all-gather, drop

    *  of a known schedule; else the first outside no_sync()
    ** outside no_sync()

Stage 0 is data parallel, 1 to 3 are ZeRO. An all-reduce is a reduce-scatter and an all-gather: the
step lies between the two. A part is what one message carries: a bucket of weights, or at stage 3
those of a unit. `Rules` say when something is sent (replica_rules.py). `Replicas` turns hooks into
their events, and carries their operations out.

    Home      a weight, and what is stepped in its place: a master, this rank's piece   shards.py
    Held      weights side by side, their gradients, this rank's piece of both
    Site      where a weight's gradient goes, once a backward has brought it
    Replicas  hooks in, operations on the lane out

A gradient is divided by N into its place in a flat tensor, so that the sum over ranks is the mean.
Stage 3 does so for a whole unit at once, when its backward is over.

    stage             0             1              2, 3
    flat tensor of    a dtype       a part         a part
    it stays          always        always         until its message has arrived
    mean              all of it     own piece      own piece, added up over the backwards

A gradient that was taken for a message leaves a stand-in in `.grad`, which refuses all use. At
stage 3 a weight is dropped between uses: its storage has no bytes, and it reads as nan in its
shape.

Bytes of psi parameters a rank, in mixed precision with Adam:
    stage 0   18 psi                     stage 1   4 psi + 16 psi / N
    stage 2    2 psi + 16 psi / N        stage 3   16 psi / N
Stage 0 keeps gradients in float32 where there are masters. The paper's are half: 16 psi. Of 16 psi
/ N, 4 psi / N are the float32 gradient of the pieces. Stages 2 and 3 keep it from the first
backward on. In a backward they also store the whole gradients of two parts. Stage 2 stores more if
they come in another order than the parts. Stage 3 stores a unit's twice for a moment.
Padding: at most N - 1 elements a part.
Source: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 5 and 7; Zhao et al. 2023,
PyTorch FSDP (arXiv:2304.11277), section 3.
"""

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_map_only

from ..core import grouped
from ..order.plan import Launch, Together, Wait
from ..order.schedule import Action
from ..runtime.memory.saved import replaced
from ..runtime.talk.execute import Signal, Work, run
from ..runtime.talk.group import Group
from ..runtime.talk.message import as_bytes
from .flat import Flat
from .guards import replicas as guard
from .guards.gone import Piece, WeightPiece, is_gone, real
from .guards.optimizers import PIECES
from .prepared_model import way_of
from .reducers import Buckets
from .replica_plan import parts_of
from .replica_rules import Call, Drop, Rules, batch_label, name
from .shards import CUTS, STEPPED, Home


class Held:
    """Weights of one dtype and device on this rank, side by side, and their gradients. At stage 0
    all of a kind; else those of a part.

    homes          each weight, and what this rank steps of it
    layout         where each lies; at stage 0 it is cut for one rank, since nothing is divided
    weights_flat   the weights, at stages 1 to 3; at stage 3 without bytes between uses
    piece          this rank's elements of them, which its optimizer steps
    flat           gradients divided by N that are being filled, at stages 0 to 2
    unsent         stage 3: member -> its gradient, until the unit's backward is over
    away           whole gradients divided by N, in flight
    mean           this rank's piece of the mean gradient
    came           members with a gradient that was not sent, to which the next one is added
    seen           torch's count of writes to `piece`, when it was last gathered
    """

    @torch.no_grad()
    def __init__(
        self, homes: Sequence[Home], stage: int, group: Group, dtype, nothing: dict[tuple, Tensor]
    ):
        self.homes, self.stage, self.size = [*homes], stage, group.size
        self.weights_flat = self.nothing = self.piece = self.flat = self.away = self.mean = None
        self.came: set[int] = set()
        self.unsent: dict[int, Tensor] = {}
        tensors = [(home.weight if stage else home.stepped).detach() for home in homes]
        self.layout = Flat(tensors, *((group.size, group.rank) if stage else (1, 0)))
        self.like = homes[0].stepped.new_empty(0, dtype=dtype or tensors[0].dtype)
        if stage:
            self._divide(nothing)
        if stage < 2:
            self.make_room()
            self.away = self.flat

    def _divide(self, nothing: dict[tuple, Tensor]) -> None:
        """Lay the weights side by side, and step this rank's piece alone. `nothing`: a nan of each
        dtype, which dropped weights expand."""
        layout, like = self.layout, self.homes[0].stepped
        values = like.new_zeros(layout.length)
        for home, view in zip(self.homes, layout.views(values)):
            view.copy_(home.stepped)
        self.weights_flat = values.to(self.like.dtype)
        own = layout.mine(values)
        self.piece = own.clone() if self.stage == 3 or values is not self.weights_flat else own
        self.views = layout.tensors = layout.views(self.weights_flat)
        kind = WeightPiece if self.size > 1 else nn.Parameter
        pieces = [kind(each, like.requires_grad) for each in layout.pieces(self.piece)]
        self.homes = [
            replace(home, stepped=piece, start=start, stop=stop)
            for home, piece, (start, stop) in zip(self.homes, pieces, layout.own)
        ]
        STEPPED.update({home.weight: home.stepped for home in self.homes})
        self.seen = self.piece._version
        self.show(self.views)
        if self.stage == 3:
            like = self.weights_flat
            self.nothing = nothing.setdefault(
                (like.dtype, like.device), like.new_full((), torch.nan)
            )
            self.drop()

    # -- weights -----------------------------------------------------------------------------------

    def show(self, tensors: Iterable[Tensor]) -> None:
        """Let the weights read these tensors: views of `weights_flat`, or nan."""
        for home, tensor in zip(self.homes, tensors):
            home.weight.data = tensor

    def drop(self) -> None:
        self.show(self.nothing.expand(view.shape) for view in self.views)
        self.weights_flat.untyped_storage().resize_(0)

    def fill(self, group: Group, name: str) -> None:
        """Gather the pieces of all ranks, on the lane."""
        mine = self.layout.mine(self.weights_flat)
        if mine.data_ptr() != self.piece.data_ptr():
            mine.copy_(self.piece)
        group.all_gather(mine, self.weights_flat, name)
        self.seen = self.piece._version

    # -- gradients ---------------------------------------------------------------------------------

    def make_room(self) -> None:
        if self.flat is None:
            self.flat = self.like.new_empty(self.layout.length)
            self.flat[sum(self.layout.sizes) :] = 0

    def place(self, n: int) -> Tensor:
        return self.flat[self.layout.starts[n] :][: self.layout.sizes[n]]

    def add(self, n: int, gradient: Tensor) -> None:
        """Add 1/N of a member's gradient to the flat tensor; the sum over ranks is the mean."""
        if self.stage == 3:
            self.unsent[n] = self.unsent[n] + gradient if n in self.came else gradient
        elif n in self.came:
            self.place(n).add_(gradient.reshape(-1), alpha=1 / self.size)
        else:
            self.make_room()
            torch.div(gradient.reshape(-1), self.size, out=self.place(n))
        self.came.add(n)

    def leave(self, members: set[int]) -> None:
        """Prepare the message: members without a gradient are zeros. At stage 0 `.grad` may be the
        mean of an earlier update, of which each rank sends 1/N."""
        if self.stage == 3:
            self.away, self.came, self.unsent = self.joined(), set(), {}
            return
        self.make_room()
        for n in members - self.came:
            kept = None if self.stage else real(self.homes[n].stepped.grad)
            if kept is None:
                self.place(n).zero_()
            else:
                self.add(n, kept)
        if self.stage == 2:
            self.away, self.flat, self.came = self.flat, None, set()

    def joined(self) -> Tensor:
        """Lay the gradients of a unit side by side in one operation, at stage 3. Its message leaves
        when its backward is over, so that none need be in its place before."""
        sizes = [*self.layout.sizes, self.layout.length - sum(self.layout.sizes)]
        found = {n: gradient.reshape(-1) for n, gradient in self.unsent.items()}
        rows = [
            found[n] if n in found else self.like.new_zeros(size) for n, size in enumerate(sizes)
        ]
        return torch.cat(rows).div_(self.size)

    def arrived(self) -> None:
        """Add this rank's piece of the sum to that of earlier backwards, at stages 2 and 3."""
        own, self.away = self.layout.mine(self.away).to(self.piece.dtype, copy=True), None
        self.mean = own if self.mean is None else self.mean.add_(own)

    def hand_over(self, unused: Collection[str]) -> None:
        """Set `.grad` of each stepped tensor to the mean. Where no rank used it, `.grad` stays; at
        stage 0 it is the mean of what the ranks have there."""
        mean = self.layout.mine(self.flat) if self.stage < 2 else self.mean
        if mean is not None:
            cut = self.layout.pieces if self.stage else self.layout.views
            for home, own in zip(self.homes, cut(mean.to(self.homes[0].stepped.dtype))):
                kept = real(home.stepped.grad)
                if own.stride() != home.stepped.stride():  # fused optimizers read both in one order
                    own = torch.empty_like(home.stepped, dtype=own.dtype).copy_(own)
                is_part = self.stage and self.size > 1 or CUTS.get(home.weight)
                own = own.as_subclass(Piece) if is_part else own
                home.stepped.grad = (
                    kept if home.name in unused and (self.stage or kept is None) else own
                )
        self.mean = None
        self.came.clear()


class Site:
    """Where a weight's gradients go: from `.grad` of `source` to member `n` of `held`, whose
    messages are `parts`. `slots`: tensors whose `.grad` is a stand-in until the mean is there.
    `used`: it got a gradient since the last update. `node`: of the graph, which torch forgets with
    its hook if nobody refers to it."""

    def __init__(self, held: Held, n: int, parts: Sequence[int], replicas: "Replicas"):
        self.held, self.n, self.parts, self.used = held, n, parts, False
        self.home = home = held.homes[n]
        self.source, self.node = home.weight, get_gradient_edge(home.weight).node
        slots = (home.weight, home.stepped) if replicas.stage in (1, 2) else (home.stepped,)
        self.slots = {each: guard.on_its_way(each, home.name, replicas) for each in slots}

    def dropped(self) -> bool:
        """Return whether someone removed a stand-in, as zero_grad() does."""
        return self.used and not all(is_gone(slot.grad) for slot in self.slots)


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
    alone          weights that have a part each, such as copies of a tied one
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
        alone: Collection[Tensor] = (),
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
        parts = parts_of(
            weights,
            [units.get(home.weight, {0}) for home in homes],
            stage,
            group.size,
            bucket_bytes,
            strategy=strategy,
            timed=timed,
            alone={n for n, w in enumerate(weights) if any(w is each for each in alone)},
            compute_dtype=compute_dtype,
        )
        self.strategy, self.parts, self.bucket_bytes = strategy, parts, bucket_bytes
        self.all_reduce = all_reduce or strategy.all_reduce
        self.rules = Rules(
            parts,
            stage,
            range(group.size),
            ahead=ahead,
            overlap=overlap,
            cycles=stage == 0 and timed and bool(strategy.every_ticks),
        )
        self.lane, self.handles, self.waits = group.lane(), {}, []
        self.held, self.sites, at, nothing = [], [], {}, {}
        self.held_of: dict[int, Held] = {}  # part -> where it lies
        self.numbers = [set() for _ in parts]  # part -> numbers of its sites
        # parts that lie in one flat tensor
        kinds = grouped((k if stage else part.kind, k) for k, part in enumerate(parts))
        for own in kinds.values():
            members = [*dict.fromkeys(n for k in own for n in parts[k].members)]
            held = Held([homes[n] for n in members], stage, group, compute_dtype, nothing)
            self.held.append(held)
            self.held_of |= dict.fromkeys(own, held)
            at |= {home.weight: home for home in held.homes}
            for n, member in enumerate(members if parts[own[0]].learns else ()):
                self._watch(held, n, [k for k in own if member in parts[k].members])
        self.homes = [at[home.weight] for home in homes if home.weight in at]
        self._begin_backward()
        self.wrapped = guard.described(self)
        guard.WRAPPED.update(dict.fromkeys(self.pieces, weakref.ref(self)))
        if stage:
            PIECES.update(dict.fromkeys(self.pieces.values(), group.size))

    def _watch(self, held: Held, n: int, parts: Sequence[int]) -> None:
        """Hook a weight, which is member `n` of `held`: before and after a gradient is added. The
        hooks of a half weight that has a master call ours, after they have moved the gradient."""
        site, number = Site(held, n, parts, self), len(self.sites)
        comes, added = (
            partial(tell, weakref.WeakMethod(each), number) for each in (self._comes, self._added)
        )
        if way := way_of(site.home.weight):
            site.source, way.next = way.master, (comes, added)
        else:
            site.node.register_prehook(comes)
            site.home.weight.register_post_accumulate_grad_hook(added)
        self.sites.append(site)
        for k in parts:
            self.numbers[k].add(number)

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
        return any(site.used for site in self.sites)

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
            if self.parts[k].learns:
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
        guard.refuse_without_effect(self)
        unused = [
            site.home.name for site in self.sites if not site.used and site.home.weight.numel()
        ]
        order = " ".join(f"{unit}{kind}" for kind, unit in self.rules.uses[: self.rules.at])
        by_rank = self.group.differing("\n".join([order, *unused]), "the gradients of a batch")
        by_none = set(unused).intersection(*(text.split("\n") for text in by_rank))
        for held in self.held:
            held.hand_over(by_none)
        for site in self.sites:
            site.used = False
            if self.stage in (1, 2) and site.home.name not in by_none:
                site.home.weight.grad = site.slots[site.home.weight]
        self._begin_backward()
        self.rules.begin()
        guard.refuse_batch(self, unused, by_rank)
        return by_none

    def no_sync(self):
        """Backwards in this context add up on this rank; the next one outside averages all."""
        return replaced(self, "syncing", lambda _: False)

    @torch.no_grad()
    def stepped(self) -> None:
        """Call after the optimizer's step; returns when every rank has the new weights."""
        self._carry_out(self.rules.stepped())

    def _comes(self, number: int) -> None:
        """Remove the stand-in before a backward adds to `.grad`."""
        site = self.sites[number]
        if site.dropped():
            guard.refuse_dropped(self, site)
            site.held.came.discard(site.n)
            site.used = False
            self._begin_backward()
        # A second gradient of one weight means that a new backward began. Send what is left of the
        # last one.
        elif any(number not in self.missing[k] for k in site.parts):
            if self.stage == 2 and not self.rules.known:
                self._carry_out(self.rules.again(), inside=True)
            self._begin_backward()
        for each in site.slots:
            each.grad = real(each.grad)

    @torch.no_grad()
    def _added(self, number: int) -> None:
        """Move a new gradient from `.grad` to its place; send the parts that are full now."""
        site = self.sites[number]
        source = site.source
        guard.refuse_gradient(self, site, source.grad)
        site.held.add(site.n, source.grad)
        source.grad, site.used = None, True
        for slot, gone in site.slots.items():
            slot.grad = gone
        for k in site.parts if self.syncing else ():
            self.missing[k].discard(number)
            if not self.missing[k] and self.stage < 3:
                self._carry_out(self.rules.full(k), inside=True)

    def _begin_backward(self) -> None:
        # part -> sites without a gradient from this backward
        self.missing = [{*numbers} for numbers in self.numbers]

    def _carry_out(self, ops: Sequence, inside: bool = False) -> None:
        """Carry out operations. A run may charge a simulated clock. `inside` a backward, wait for
        the data now and charge the clock at `_settle`."""
        for op in ops:
            match op:
                case Drop(k):
                    self.held_of[k].drop()
                case Launch(label):
                    call = self.rules.calls[label]
                    held = self.held_of[call.part]
                    if call.op.kind != "all_gather":
                        held.leave({self.sites[number].n for number in self.numbers[call.part]})
                    elif self.stage == 3:
                        held.weights_flat.untyped_storage().resize_(held.weights_flat.nbytes)
                    if self.rules.cycles:
                        self._signal(label, call.batch)
                    else:
                        self.handles[label] = self.lane.launch(
                            partial(self._communicate, call), label
                        )
                case Wait(label):
                    call, handle = self.rules.calls.pop(label), self.handles.pop(label)
                    if inside:
                        handle.settle()
                        self.waits.append(handle)
                    else:
                        handle.wait()
                    if self.stage > 1 and call.op.kind == "reduce_scatter":
                        self.held_of[call.part].arrived()
                    elif self.stage == 3:
                        self.held_of[call.part].show(self.held_of[call.part].views)

    def _communicate(self, call: Call, group: Group) -> None:
        """On the lane."""
        held, part = self.held_of[call.part], self.parts[call.part]
        if self.stage == 3 and not (self.rules.known or call.batch):  # messages differ in size
            guard.refuse_orders(group, group.differing(call.op.name, call.op.name))
        if self.stage == 0:
            self.all_reduce(held.flat[part.start : part.stop], group, "sum", call.op.name)
        elif call.op.kind == "all_gather":
            held.fill(group, call.op.name)
        else:
            group.reduce_scatter(held.away, name=call.op.name, out=held.layout.mine(held.away))

    def _signal(self, label: str, batch: int) -> None:
        """Signal that a part is full to the strategy's program, which the first one starts."""
        self.rules.calls.pop(label)
        if not self.handles:
            self.signals = {name([k], batch): Signal("compute") for k in self.rules.learning}
            self.handles[batch_label(batch)] = self.lane.launch(
                partial(self._cycle, batch), f"batch {batch}"
            )
        self.group.issue(label, self.signals[label].post)

    def _cycle(self, batch: int, group: Group) -> None:
        """On the lane."""
        ranks, work, flats = tuple(range(group.size)), Work(), {}

        def send(batch, numbers):
            first, last = self.parts[numbers[0]], self.parts[numbers[-1]]
            flat = self.held_of[numbers[0]].flat[first.start : last.stop]
            flats[label := name(numbers, batch)] = flat
            return [Together(label, "all_reduce", flat.nbytes, ranks)]

        work.together = lambda op, on: self.all_reduce(flats.pop(op.name), on, "sum", op.name)
        program = self.strategy.program(self.parts, self.bucket_bytes, ranks, send, batch)
        run(program, group, work, self.signals, {(group.name, ranks): group})

    def _settle(self) -> None:
        """Charge the modelled clock for the waits inside the action that has ended."""
        while self.waits:
            self.waits.pop(0).wait()

    # -- whole values ------------------------------------------------------------------------------

    @torch.no_grad()
    def follow_weights(self) -> None:
        """Update the master pieces from half weights that were written after the last step, at
        stages 1 and 2."""
        for held in self.held if self.stage in (1, 2) else ():
            mine = held.layout.mine(held.weights_flat)
            if mine.dtype != held.piece.dtype:
                moved = held.piece.to(mine.dtype) != mine
                held.piece.copy_(torch.where(moved, mine.to(held.piece.dtype), held.piece))
                held.seen = held.piece._version

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

        def cloned(value: Tensor) -> Tensor:
            is_view = value.layout is torch.strided and value.untyped_storage()._cdata in own
            return value.clone() if is_view else value

        return tree_map_only(Tensor, cloned, output)

    @contextmanager
    def all_whole(self):
        """Stage 3: each weight is whole inside, in the format that is stepped. All ranks call it
        together."""
        guard.refuse_inside(self)
        self._carry_out(self.rules.discard())
        for weight, whole in self.whole_values().items():
            weight.data = whole
        try:
            with replaced(self, "gathered_by_hand", lambda _: True):
                yield
        finally:
            for held in self.held:
                held.drop()
            self.wrapped = guard.described(self)

    def holdings(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors that this rank holds now beside the module's, by kind and name."""
        found: dict[str, dict] = {"gradients": {}, "master": {}, "weights": {}}
        for k, held in enumerate(self.held):
            masters = held.piece is not None and held.piece.dtype != held.like.dtype
            kinds = {"piece": "master" if masters else "weights", "weights_flat": "weights"}
            for what, kind in (
                kinds | dict.fromkeys(("flat", "away", "mean"), "gradients")
            ).items():
                if (tensor := getattr(held, what)) is not None:
                    found[kind][f"part {k}, {what}"] = tensor
            found["gradients"] |= {f"part {k}, {n}": each for n, each in held.unsent.items()}
        return found


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor], group: Group) -> None:
    """Replace the tensors by those of rank 0."""
    for tensor in tensors if group.size > 1 else ():
        own = group.broadcast(as_bytes(tensor).clone(), name="parameters and buffers")
        tensor.copy_(own.view(tensor.dtype).view(tensor.shape))
