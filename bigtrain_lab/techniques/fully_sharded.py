"""ZeRO stage 3: no rank keeps a whole layer; all ranks put one together shortly before it is used.

    forward    [unit 0][unit 1][unit 2]         backward   [unit 2][unit 1][unit 0]
    lane     g0 g1      g2        g2 (again)                g1     r2 g0   r1      r0
    g: all-gather the unit's weights, while the unit before is at work; they are freed after it
    r: reduce-scatter its gradient, while the next unit is at work; each rank keeps its part

A unit is some modules whose parameters lie in one flat tensor, of which each rank keeps an equal
part. What autograd saved of the weights are views of that tensor's storage: it is emptied between
uses and filled again for the backward, and nobody sees the difference. `NaiveUnit` is the same by a
checkpoint around a gather; `FullyShardedDataParallel` runs no forward twice, and gathers ahead.

Bytes sent a rank: (N-1)/N of 3 psi, for psi bytes of parameters: gathered twice, gradients once;
data parallel sends 2 psi of these. Memory: parameters, gradients and optimizer state of 1/N, and
two neighbouring units whole. Time: what of the messages a unit's work does not cover.
Source: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 5.3 and 7.2.2; Zhao et al. 2023,
PyTorch FSDP (arXiv:2304.11277), section 3.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.func import functional_call
from torch.utils._pytree import tree_map

from ..runtime.talk.group import Group
from .checkpoint import checkpoint
from .clip import clip_grad_norm
from .guards import fully_sharded as guard
from .layerwise import wide
from .shards import Flat, Owned
from .units import units_of


class NaiveUnit(nn.Module):
    """A module of which each rank keeps the N-th part of all numbers. A forward gathers them, and a
    checkpoint lets them go; its rerun in the backward gathers them again, and the part's `.grad` is
    the mean. It costs one more forward, and no message runs beside the work."""

    def __init__(self, module, group):
        super().__init__()
        named = dict(module.named_parameters())
        self.inner, self.group = [module], group  # in a list: its weights are not this module's
        self.shapes = {name: p.shape for name, p in named.items()}
        flat = torch.cat([p.detach().flatten() for p in named.values()])
        flat = nn.functional.pad(flat, (0, -len(flat) % group.size))
        self.part = nn.Parameter(flat.chunk(group.size)[group.rank].clone())
        for p in named.values():
            p.data = p.new_empty(0)

    def forward(self, *inputs):
        return checkpoint(self.run, self.part, *inputs)

    def run(self, part, *inputs):
        whole, end, weights = _Gathered.apply(part, self.group), 0, {}
        for name, shape in self.shapes.items():
            weights[name] = whole[end : end + shape.numel()].view(shape)
            end += shape.numel()
        return functional_call(self.inner[0], weights, inputs)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, group):
        ctx.group = group
        return group.all_gather(part)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.group.reduce_scatter(gradient, "mean"), None


class FullyShardedDataParallel(nn.Module):
    """The module, of whose parameters each rank keeps a part; `model.parameters()` are the pieces.

        model = FullyShardedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters())
        loss_fn(model(x), y).backward()              # once, or several times
        model.finish_gradient_synchronization()      # each piece's .grad is the mean over the ranks
        model.clip_grad_norm_(1.0)
        optimizer.step(); optimizer.zero_grad()

    group          None (torch's default group), a ProcessGroup, or a Group
    compute_dtype  format in which units are gathered, compute and send gradients, such as
                   torch.bfloat16; floating inputs are cast to it. Pieces stay float32 or float64
    units          modules that are gathered whole; what they do not hold is cut by default: see
                   `units_of`. A module computes with its weights in its own forward only, and what
                   depends on them leaves it as its output or as an attribute
    allow_unused   a parameter that a rank did not use counts as zeros there, and its `.grad` stays
                   as it is where no rank used it. Otherwise it is refused
    alike          the ranks' weights are equal already: none are sent. Else all take rank 0's

    All ranks use the same units in the same order. The mean weighs all ranks alike. The optimizer
    works element by element; LAMB and LARS are given group= and pieces=lambda p: True. With more
    ranks than elements some pieces are empty. Frozen parameters are gathered too; they cost no
    gradient where all of a unit is frozen. Buffers are each rank's own. Clip by `clip_grad_norm_`,
    not by torch's function, and scale by a DynamicLossScaler with the group, not by torch's
    GradScaler: both would see this rank's pieces alone. The module's own parameters are empty
    between uses: what is done to them then, as by torch.nn.init, changes nothing.
    """

    def __init__(
        self,
        module: nn.Module,
        group=None,
        compute_dtype: torch.dtype | None = None,
        *,
        units: Sequence[nn.Module] | None = None,
        allow_unused: bool = False,
        alike: bool = False,
    ):
        super().__init__()
        self.module, self.group, self.compute_dtype = module, Group.of(group), compute_dtype
        guard.refuse(module, self.group, compute_dtype, units)
        cut = units_of(module, units or ())
        guard.refuse_formats(cut)
        self.units = [
            Unit(number, *each, self.group, compute_dtype, alike) for number, each in enumerate(cut)
        ]
        self.pieces = {
            p: piece for unit in self.units for p, piece in zip(unit.parameters, unit.pieces)
        }
        if not alike:
            for buffer in module.buffers():
                self.group.broadcast(buffer, name="buffers")
        self.allow_unused, self.whole = allow_unused, False
        self.lane, self.counts = self.group.lane(), Counter()
        forward = [(unit, "F") for unit in self.units]
        self.order = Order([*forward, *((unit, "B") for unit in reversed(self.units))])
        self.reading = Order([(unit, "E") for unit in self.units])  # of an evaluation
        self.recorded = None  # whether the forward under way is for a backward
        self.ahead: Unit | None = None  # is being gathered for what comes next
        self.sent: Gradients | None = None  # are on their way
        self.left: dict[Unit, None] = {}  # a backward is, or was, at them
        self.due: dict[Unit, None] = {}  # whose gradient waits for another backward of the unit
        for unit in self.units:
            for part in unit.modules:
                part.register_forward_pre_hook(
                    partial(self._enters, unit), prepend=True, with_kwargs=True
                )
                part.register_forward_hook(
                    partial(self._leaves, unit), with_kwargs=True, always_call=True
                )
        guard.watch(self)

    def forward(self, *args, **kwargs):
        guard.refuse_changed(self)
        guard.refuse_dropped(self)
        before, self.recorded = self.recorded, torch.is_grad_enabled()
        try:
            with nullcontext() if self.counts else guard.Watch(self):
                return self.module(*args, **kwargs)
        finally:
            if not self.recorded and not before:
                self._discard()
                self.reading.end()
            self.recorded = before

    def __getstate__(self):
        guard.refuse_copy()

    # -- a unit's parameters come and go -----------------------------------------------------------

    @torch.no_grad()
    def _open(self, unit: "Unit", kind: str) -> None:
        """Return when its parameters are there; what comes next is being gathered then. kind: F, B,
        R (a forward again, for the backward), E (no backward will follow)."""
        if self.ahead is not unit:
            self._discard()
        if unit.coming is None:
            self._gather(unit, kind)
        unit.coming.wait()
        unit.coming = self.ahead = None
        for p, view in zip(unit.parameters, unit.views):
            p.data = view
        unit.there, unit.kind, unit.at = True, kind, unit.label
        following = self._order(kind).follow((unit, kind))
        if following and not following[0].there and kind != "R":  # then a unit waits beside it
            self._gather(*following)

    @torch.no_grad()
    def _close(self, unit: "Unit") -> None:
        """Free its parameters."""
        for p in unit.parameters:
            p.data = unit.nothing
        unit.whole.untyped_storage().resize_(0)
        unit.there = False
        following = self._order(unit.kind).next
        if following and following[0] is unit and self.ahead is None:
            self._gather(*following)

    def _gather(self, unit: "Unit", kind: str) -> None:
        unit.label = f"{unit.number}{kind}{self.counts[unit, kind]}"
        self.counts[unit, kind] += 1
        unit.whole.untyped_storage().resize_(unit.whole_bytes)
        name = f"parameters of {unit.label}"
        unit.coming, self.ahead = self.lane.launch(partial(unit.gather, name), name), unit

    def _discard(self) -> None:
        """What was gathered ahead is not what comes."""
        if self.ahead is not None:
            self.ahead.coming.wait()
            self.ahead.whole.untyped_storage().resize_(0)
            self.ahead.coming = self.ahead = None

    def _order(self, kind: str) -> "Order":
        return self.reading if kind == "E" else self.order

    @contextmanager
    def opened(self, number: int, kind: str):
        """A unit's parameters are there inside; kind "F" or "B". After a B its gradient leaves. Its
        modules' own hooks do nothing meanwhile."""
        unit = self.units[number]
        self._open(unit, kind)
        unit.spanned = True
        try:
            yield
        finally:
            unit.spanned = False
            self._close(unit)
            if kind == "B":
                self._send(unit)

    @property
    def under_way(self) -> bool:
        """Whether something was launched on the lane that nobody has waited for."""
        return self.ahead is not None or self.sent is not None

    # -- hooks, where nobody opens units -----------------------------------------------------------

    def _enters(self, unit: "Unit", module, args, kwargs):
        """Before a forward of one of its modules."""
        if self.compute_dtype:
            args, kwargs = tree_map(partial(cast, self.compute_dtype), (args, kwargs))
        if unit.spanned or self.whole:
            return args, kwargs
        again = in_backward()
        if not again:
            self._flush()
        call = Call(unit, not unit.there)
        if call.opened:
            recorded = torch.is_grad_enabled() if self.recorded is None else self.recorded
            self._open(unit, "R" if again else "F" if recorded else "E")
        unit.calls.append(call)
        if torch.is_grad_enabled():
            args, kwargs = tree_map(call.input, (args, kwargs))
            if call.inputs:
                register_multi_grad_hook(call.inputs, partial(self._backward_leaves, call))
        return args, kwargs

    def _leaves(self, unit: "Unit", module, args, kwargs, output):
        """After it; also where it failed."""
        output = unit.apart(output)
        if unit.spanned or not unit.calls:
            return output
        call = unit.calls.pop()
        if torch.is_grad_enabled():
            made = guard.tensors_in(output, module)
            given = {id(value._base) for value in call.inputs}
            # a change in place of a view goes past the view's own node
            bases = {
                id(base): base
                for base in (tensor._base for tensor in made)
                if base is not None and base.grad_fn and id(base) not in given
            }
            for tensor in (*made, *bases.values()):
                tensor.register_hook(partial(self._backward_enters, call))
            unit.pending += bool(made) and not in_backward()
        call.inputs.clear()
        if call.opened and not unit.backwards:
            self._close(unit)
        return output

    def _backward_enters(self, call: "Call", gradient) -> None:
        """Before a backward passes what the call returned."""
        guard.refuse_graph(self)
        unit = call.unit
        if not unit.spanned and not call.backward:
            call.backward = True
            unit.backwards += 1
            self.left[unit] = None
            if not unit.there:
                self._open(unit, "B")

    def _backward_leaves(self, call: "Call", gradients) -> None:
        """After all that the call computed: its inputs have their gradients."""
        unit = call.unit
        if call.backward:
            call.backward = False
            unit.backwards -= 1
            unit.pending = max(0, unit.pending - 1)
            if not unit.backwards:
                self._end_backward(unit)

    def _end_backward(self, unit: "Unit") -> None:
        self.left.pop(unit, None)
        if unit.there:
            self._close(unit)
        if unit.pending:
            self.due[unit] = None
        else:
            self._send(unit)

    def _flush(self) -> None:
        """No backward is under way: units at which one ended without a word are closed."""
        for unit in [*self.left, *(unit for unit in self.due if unit not in self.left)]:
            unit.pending = unit.backwards = 0
            self._end_backward(unit)

    # -- gradients ---------------------------------------------------------------------------------

    @torch.no_grad()
    def _send(self, unit: "Unit") -> None:
        """At most one unit's gradient is on its way."""
        self.due.pop(unit, None)
        if unit.learns:
            guard.refuse_sparse(self, unit)
            self._take()
            self.sent = Gradients(unit, self.lane, guard.writes(self))

    @torch.no_grad()
    def _take(self) -> None:
        sent, self.sent = self.sent, None
        if sent is not None:
            sent.add_up()

    def finish_gradient_synchronization(self) -> None:
        """Return when each piece's `.grad` is the mean over the ranks; call it before the
        optimizer's step."""
        guard.refuse_changed(self)
        self._flush()
        self._take()
        self._discard()
        self.order.end()
        unused = [name for unit in self.units for name in unit.unused()]
        guard.refuse_unused(self, unused)
        unused = set(unused)
        if self.allow_unused:
            by_rank = self.group.differing("\n".join(sorted(unused)), "the unused parameters")
            unused.intersection_update(*(text.split("\n") for text in by_rank))
        for unit in self.units:
            unit.forget(unused)

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale the gradients so that the norm of the whole gradient is at most `max_norm`; returns
        the norm before. All ranks call it."""
        return clip_grad_norm(self.parameters(), max_norm, self.group)

    # -- names and states --------------------------------------------------------------------------

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's pieces, by the names that the module has."""
        for name, p in self.module.named_parameters(prefix, recurse, remove_duplicate):
            yield name, self.pieces[p]

    def owned(self) -> list[Owned]:
        """What this rank keeps of each parameter, named as in the module."""
        return [
            Owned(name, tuple(view.shape), *own, piece)
            for u in self.units
            for name, view, own, piece in zip(u.names, u.views, u.flat.own, u.pieces)
        ]

    def refresh(self) -> None:
        """After a load nothing is left to do: units are gathered before they are used."""

    def full_state_dict(self) -> dict[str, Tensor]:
        """The module's state_dict, of whole tensors in the pieces' format, on every rank. All ranks
        call it together."""
        with self._all_whole(filled=True):
            return self.module.state_dict()

    def load_full_state_dict(self, state: dict, strict: bool = True):
        """Load a state_dict of the module, such as full_state_dict() returns; each rank keeps its
        part. All ranks load the same."""
        with self._all_whole(filled=not strict) as flats, torch.no_grad():
            told = self.module.load_state_dict(state, strict)
            for unit, flat in zip(self.units, flats):
                unit.shard.copy_(unit.flat.mine(flat))
        return told

    def whole_values(self) -> dict[Tensor, Tensor]:
        """Parameter -> its values, in the pieces' format. All ranks ask together."""
        with self._all_whole(filled=True) as flats:
            return {
                p: view
                for unit, flat in zip(self.units, flats)
                for p, view in zip(unit.parameters, unit.flat.views(flat))
            }

    def expect(self, uses: Iterable[tuple[int, str]]) -> None:
        """The units, by number and kind, that will be opened up to the next update."""
        self.order = Order([(self.units[number], kind) for number, kind in uses if kind in "FB"])

    @contextmanager
    def _all_whole(self, filled: bool):
        """Each parameter is a whole tensor inside; gives the flat tensors, one a unit."""
        guard.refuse_inside(self)
        flats = [unit.shard.new_zeros(unit.flat.length) for unit in self.units]
        for unit, flat in zip(self.units, flats):
            if filled:
                self.group.unrecorded().all_gather(unit.shard, flat)
            for p, view in zip(unit.parameters, unit.flat.views(flat)):
                p.data = view
        self.whole = True
        try:
            yield flats
        finally:
            self.whole = False
            for unit in self.units:
                for p in unit.parameters:
                    p.data = unit.nothing

    def holdings(self) -> dict[str, dict[str, Tensor]]:
        """The tensors that this rank holds now, by kind of memory and by name."""
        held = {
            "weights": {},
            "master": {},
            "gradients": {},
            "buffers": dict(self.module.named_buffers()),
        }
        for unit in self.units:
            masters = unit.shard.dtype != unit.whole.dtype
            held["master" if masters else "weights"][f"part of unit {unit.number}"] = unit.shard
            held["weights"][f"unit {unit.number}"] = unit.whole
            grads = zip(unit.names, unit.parameters, unit.pieces)
            held["gradients"] |= {
                f"{name} gradient": each.grad
                for name, p, piece in grads
                for each in (p, piece)
                if each.grad is not None
            }
        if self.sent:
            number = self.sent.unit.number
            held["gradients"] |= {
                f"gradient of unit {number}": self.sent.flat,
                f"part of the gradient of unit {number}": self.sent.part,
            }
        return held


class Unit:
    """Modules that are gathered together. `shard` is this rank's part of their parameters, `whole`
    all of them: its storage is empty unless they are `there` or `coming`."""

    def __init__(
        self,
        number: int,
        modules: list[nn.Module],
        named: dict[str, nn.Parameter],
        group: Group,
        compute_dtype: torch.dtype | None,
        alike: bool,
    ):
        self.number, self.modules = number, modules
        self.names, self.parameters = [*named], [*named.values()]
        self.flat = Flat([p.detach() for p in self.parameters], group.size, group.rank)
        full = self.parameters[0].detach().new_zeros(self.flat.length)
        for p, view in zip(self.parameters, self.flat.views(full)):
            view.copy_(p.detach())
        if not alike:
            group.broadcast(full, name=f"parameters of unit {number}")
        self.shard = self.flat.mine(full).to(wide(full.dtype), copy=True)
        self.whole = full.new_empty(self.flat.length, dtype=compute_dtype or full.dtype)
        self.whole_bytes, self.nothing = self.whole.nbytes, self.whole.new_empty(0)
        self.views = self.flat.views(self.whole)
        self.learns = any(p.requires_grad for p in self.parameters)
        self.pieces = [
            nn.Parameter(piece, requires_grad=p.requires_grad)
            for piece, p in zip(self.flat.pieces(self.shard), self.parameters)
        ]
        self.flat.tensors = self.views  # the parameters' own tensors go
        self.whole.untyped_storage().resize_(0)
        for p, piece in zip(self.parameters, self.pieces):
            vars(piece).update(vars(p))  # what is known of it, such as how it is cut
            p.piece, p.data = piece, self.nothing
        self.there, self.coming = False, None
        self.kind = self.at = ""  # for what it is there, and the name of that
        self.label = ""  # of what is coming
        self.spanned = False  # somebody else opens and closes it
        self.calls: list[Call] = []  # forwards under way
        self.backwards = 0  # calls whose backward is under way
        self.pending = 0  # calls whose backward has not ended
        self.used: set[str] = set()  # parameters that got a gradient since the last update
        self.new: set[str] = set()  # those whose piece had none before

    def gather(self, name: str, group: Group) -> None:
        """On the lane."""
        own = self.shard
        if own.dtype != self.whole.dtype:
            own = self.flat.mine(self.whole).copy_(own)
        group.all_gather(own, self.whole, name=name)

    def apart(self, output):
        """What a call returned; views of the parameters, which are about to go, are copied."""

        def copied(value):
            if not isinstance(value, Tensor) or value.layout is not torch.strided:
                return value
            return value.clone() if value.untyped_storage()._cdata == home else value

        home = self.whole.untyped_storage()._cdata  # by data_ptr() all meta tensors would be one
        return tree_map(copied, output)

    def unused(self) -> list[str]:
        return [
            name
            for name, p in zip(self.names, self.parameters)
            if p.requires_grad and name not in self.used
        ]

    def forget(self, unused: set[str]) -> None:
        """A gradient is whole. The zeros that came for what no rank used are none."""
        for name, piece in zip(self.names, self.pieces):
            if name in unused & self.new:
                piece.grad = None
        self.used, self.new, self.pending = set(), set(), 0
        self.calls.clear()


class Gradients:
    """Of a unit's parameters, on their way: `flat` the whole ones, `part` what this rank keeps."""

    def __init__(self, unit: Unit, lane, writes: int):
        self.writes = writes  # to the pieces, before
        self.unit, self.name = unit, f"gradients of {unit.at}"
        self.part = torch.empty_like(unit.shard)
        found = []
        for name, p, view in zip(unit.names, unit.parameters, unit.views):
            if p.grad is not None:
                unit.used.add(name)
                found.append(p.grad.reshape(-1))
            else:
                found.append(p.new_zeros(view.shape).view(-1))
            p.grad = None
        if over := unit.flat.length - sum(unit.flat.sizes):
            found.append(unit.whole.new_zeros(over))
        self.flat = torch.cat(found) if len(found) > 1 else found[0]
        del found
        self.launched = lane.launch(self.reduce, self.name)

    def reduce(self, group: Group) -> None:
        """On the lane. The sum of float16 would overflow, so its terms are divided."""
        if self.flat.dtype == torch.float16:
            self.flat.div_(group.size)
        self.part.copy_(group.reduce_scatter(self.flat, name=self.name))
        if self.flat.dtype != torch.float16:
            self.part.div_(group.size)

    def add_up(self) -> None:
        """Wait, and add this rank's part to its pieces' gradients."""
        self.launched.wait()
        self.flat = None
        self.unit.new |= {
            name for name, piece in zip(self.unit.names, self.unit.pieces) if piece.grad is None
        }
        for piece, own in zip(self.unit.pieces, self.unit.flat.pieces(self.part)):
            if piece.requires_grad:
                piece.grad = own if piece.grad is None else piece.grad.add_(own)


class Order:
    """In which order units are used, learnt anew from where it is another than before."""

    def __init__(self, expected: list[tuple]):
        self.expected, self.at = expected, 0

    def follow(self, use: tuple) -> tuple | None:
        """This (unit, kind) is used now; returns what comes next."""
        if self.next is None and use in self.expected[:1]:
            self.expected += self.expected  # one more backward, like those before
        if self.next != use:
            self.expected[self.at :] = [use]
        self.at += 1
        return self.next

    @property
    def next(self) -> tuple | None:
        return self.expected[self.at] if self.at < len(self.expected) else None

    def end(self) -> None:
        """The next use is the first again."""
        del self.expected[self.at :]
        self.at = 0


@dataclass(eq=False)
class Call:
    """One forward of a module of a unit. `opened`: it found the unit closed; `backward`: one is
    under way in what it computed."""

    unit: Unit
    opened: bool
    backward: bool = False
    inputs: list[Tensor] = field(default_factory=list)

    def input(self, value):
        """A view of an input that needs a gradient, so that only this call's uses count."""
        if not (isinstance(value, Tensor) and value.requires_grad):
            return value
        self.inputs.append(value.view_as(value))
        return self.inputs[-1]


def cast(dtype: torch.dtype, value):
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if floating else value


def in_backward() -> bool:
    # torch has no public name for it; without it a recompute would count as a forward
    return torch._C._current_graph_task_id() != -1
