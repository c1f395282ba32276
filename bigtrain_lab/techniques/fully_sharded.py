"""ZeRO stage 3: no rank stores a whole layer; an all-gather assembles it just before its use.

    forward    [unit 0][unit 1][unit 2]         backward   [unit 2][unit 1][unit 0]
    lane     g0 g1      g2        g2 (again)                g1     r2 g0   r1      r0
    g: all-gather a unit's weights, while the unit before computes; the use over, they are freed
    r: reduce-scatter its gradient, while the next unit computes; each rank keeps its piece

A unit is one or more modules that are gathered together. Its parameters lie in one flat tensor, of
which each rank keeps an equal piece. Autograd saves views of that tensor for the backward. After
the forward its storage is resized to 0 bytes; before the backward it is resized and gathered again.
So the saved views are valid when they are read. `NaiveUnit` reaches the same by a checkpoint around
a gather, and runs each forward twice. `FullyShardedDataParallel` runs it once, and gathers ahead:
its hooks report the start and end of each use to `Replicas` (replicas.py).

Elements sent a rank, for psi parameters: 3 (N-1)/N psi. Weights are gathered twice, gradients
summed once; data parallel sends 2 (N-1)/N psi. Memory: 1/N of parameters, gradients and optimizer
state, and two neighbouring units whole. Time: the messages, less what computation overlaps.
Source: Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054), sections 5.3 and 7.2.2; Zhao et al. 2023,
PyTorch FSDP (arXiv:2304.11277), section 3.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.func import functional_call
from torch.utils._pytree import tree_map, tree_map_only

from ..order.schedule import Action
from ..runtime.memory.saved import in_backward, replaced
from ..runtime.talk.group import Group
from .checkpoint import checkpoint
from .clip import clip_grad_norm
from .guards import replicas as guard
from .replicas import Replicas
from .shards import home_of
from .units import units_of


class NaiveUnit(nn.Module):
    """A module of which each rank keeps 1/N of the parameters, in `piece`. The forward gathers
    them, and a checkpoint frees them; its rerun in the backward gathers them again. `piece.grad` is
    the mean. It costs one more forward, and no message overlaps with computation."""

    def __init__(self, module, group):
        super().__init__()
        named = dict(module.named_parameters())
        self.inner, self.group = [module], group  # in a list: its weights are not this module's
        self.shapes = {name: p.shape for name, p in named.items()}
        flat = torch.cat([p.detach().flatten() for p in named.values()])
        flat = nn.functional.pad(flat, (0, -len(flat) % group.size))
        self.piece = nn.Parameter(flat.chunk(group.size)[group.rank].clone())
        for p in named.values():
            p.data = p.new_empty(0)

    def forward(self, *inputs):
        return checkpoint(self.run, self.piece, *inputs)

    def run(self, piece, *inputs):
        whole, end, weights = _Gathered.apply(piece, self.group), 0, {}
        for name, shape in self.shapes.items():
            weights[name] = whole[end : end + shape.numel()].view(shape)
            end += shape.numel()
        return functional_call(self.inner[0], weights, inputs)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, piece, group):
        ctx.group = group
        return group.all_gather(piece)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.group.reduce_scatter(gradient, "mean"), None


class FullyShardedDataParallel(guard.Uncopied, nn.Module):
    """The module, of whose parameters each rank keeps a piece: `model.parameters()`.

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
    allow_unused   a parameter, of a unit that all ranks use, that a rank did not use counts as
                   zeros there, and its `.grad` stays as it is where no rank used it. Otherwise it
                   is refused
    alike          the ranks' weights are equal already: none are sent. Else all take rank 0's

    All ranks use the same units in the same order. Ranks that differ are refused in the first step,
    and in a recorded run in any; later, without a record, gloo ends the process where the sizes of
    two units meet. What is compiled inside runs as it is written. The mean weighs all ranks alike.
    The optimizer works element by element; LAMB and LARS are given group= and pieces=lambda p:
    True. With more ranks than elements some pieces are empty. Frozen parameters are gathered too.
    They cost no gradient. Buffers are each rank's own. Clip by `clip_grad_norm_`, and scale by a
    DynamicLossScaler with the group: torch's would see this rank's pieces alone, and are refused,
    as is any norm of a piece outside the optimizer's step.
    The module's own parameters read as nan between uses. They must not be written to, in a forward
    neither. Hooks of gradients belong to them, since no backward reaches a piece.
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
        guard.refuse_units(module, self.group, compute_dtype, units)
        self.units = [
            Unit(number, *each) for number, each in enumerate(units_of(module, units or ()))
        ]
        self.replicas = Replicas(
            module,
            self.group,
            3,
            [home_of(name, p) for name, p in module.named_parameters()],
            units={p: {unit.number} for unit in self.units for p in unit.named.values()},
            compute_dtype=compute_dtype,
            allow_unused=allow_unused,
            alike=alike,
        )
        self.replicas.rules.uses = [("F", unit.number) for unit in self.units] + [
            ("B", unit.number) for unit in reversed(self.units)
        ]
        self.recorded = None  # whether the forward under way is for a backward
        self.begun: dict[Unit, None] = {}  # whose backward began, and whose gradients are not sent
        for unit in self.units:
            for part in unit.modules:
                part.register_forward_pre_hook(
                    partial(self._forward_begins, unit), prepend=True, with_kwargs=True
                )
                part.register_forward_hook(
                    partial(self._forward_ends, unit), with_kwargs=True, always_call=True
                )
        guard.watch(self)

    def forward(self, *args, **kwargs):
        guard.refuse_changed(self.replicas)
        watch = nullcontext() if self.replicas.rules.numbers else guard.Watch(self)
        learns = replaced(self, "recorded", lambda _: torch.is_grad_enabled())
        with learns, watch, guard.as_written():
            return self.module(*args, **kwargs)

    def _open(self, unit: "Unit", kind: str) -> None:
        """Begin a use of a unit; return when its parameters are gathered. `kind`: F forward, B
        backward, R forward again in a backward (checkpoint), E forward without a backward."""
        unit.use = Action(kind, unit.number, 0)
        self.replicas.needed(unit.use)

    def _close(self, unit: "Unit") -> None:
        use, unit.use = unit.use, None
        self.replicas.done(use)

    # -- hooks -------------------------------------------------------------------------------------

    def _forward_begins(self, unit: "Unit", module, args, kwargs):
        """Open the unit before a forward of one of its modules, and watch the inputs' gradients."""
        if self.compute_dtype:
            args, kwargs = cast_inputs(self.compute_dtype, module, args, kwargs)
        again = in_backward()
        if not again:
            self._flush()
        call = Call(unit, unit.use is None)
        if call.opened:
            recorded = torch.is_grad_enabled() if self.recorded is None else self.recorded
            self._open(unit, "R" if again else "F" if recorded else "E")
        unit.calls.append(call)
        if torch.is_grad_enabled():
            args, kwargs = tree_map(call.input, (args, kwargs))
            if call.inputs:
                register_multi_grad_hook(call.inputs, partial(self._backward_ends, call))
        return args, kwargs

    def _forward_ends(self, unit: "Unit", module, args, kwargs, output):
        """Close the unit after the forward, also after an error; watch the outputs' gradients."""
        output = self.replicas.copied(output)
        if not unit.calls:
            return output
        call = unit.calls.pop()
        if torch.is_grad_enabled():
            made = guard.tensors_in(output, module)
            given = {id(value._base) for value in call.inputs}
            # If a view output is later changed in place, its gradient arrives at the base. So hook
            # the base too.
            bases = {
                id(base): base
                for base in (tensor._base for tensor in made)
                if base is not None and base.grad_fn and id(base) not in given
            }
            for tensor in (*made, *bases.values()):
                tensor.register_hook(partial(self._backward_begins, call))
            unit.pending += bool(made) and not in_backward()
        call.inputs.clear()
        if call.opened and not unit.backwards:
            self._close(unit)
        return output

    def _backward_begins(self, call: "Call", gradient) -> None:
        """Open the unit when the backward reaches an output of the call."""
        guard.refuse_graph(self)
        unit = call.unit
        if not call.backward:
            call.backward = True
            unit.backwards += 1
            self.begun[unit] = None
            if not unit.use:
                self._open(unit, "B")

    def _backward_ends(self, call: "Call", gradients) -> None:
        """Count a backward as over when all inputs of the call have their gradients.

        Those of the weights are complete then. The views of the inputs are made first in the unit's
        forward. Autograd runs later nodes first, so all weight gradients precede theirs."""
        unit = call.unit
        if call.backward:
            call.backward = False
            unit.backwards -= 1
            unit.pending = max(0, unit.pending - 1)
            if not unit.backwards:
                self._end_backward(unit)

    def _end_backward(self, unit: "Unit") -> None:
        if unit.use:
            self._close(unit)
        if not unit.pending:  # it waits for the backward of no other call
            self.begun.pop(unit, None)
            self.replicas.sends(unit.number)

    def _flush(self) -> None:
        """Close the units whose backward ended without its hook: no input needed a gradient. Called
        when no backward runs.

        For example the first unit, whose inputs are token ids. Its gradients leave at the next
        forward or at finish_gradient_synchronization()."""
        for unit in [*self.begun]:
            unit.pending = unit.backwards = 0
            self._end_backward(unit)

    # -- gradients ---------------------------------------------------------------------------------

    def finish_gradient_synchronization(self) -> None:
        """Return when each piece's `.grad` is the mean over the ranks; call it before the
        optimizer's step."""
        self._flush()
        self.replicas.finish_gradient_synchronization()

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale the gradients so that the norm of the whole gradient is at most `max_norm`; returns
        the norm before. All ranks call it."""
        return clip_grad_norm(self.replicas.homes, max_norm, self.group)

    # -- names and states --------------------------------------------------------------------------

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's pieces, by the names that the module has."""
        pieces = self.replicas.pieces
        for name, p in self.module.named_parameters(prefix, recurse, remove_duplicate):
            yield name, pieces[p]

    def full_state_dict(self) -> dict[str, Tensor]:
        """The module's state_dict, of whole tensors in the pieces' format, on every rank. All ranks
        call it together."""
        with self.replicas.all_whole():
            return self.module.state_dict()

    def load_full_state_dict(self, state: dict, strict: bool = True):
        """Load a state_dict of the module, such as full_state_dict() returns; each rank keeps its
        piece. All ranks load the same."""
        with self.replicas.all_whole(), torch.no_grad():
            told = self.module.load_state_dict(state, strict)
            for home in self.replicas.homes:
                home.stepped.copy_(home.part(home.weight))
        return told


@dataclass(eq=False)
class Unit:
    """Modules that are gathered together, and the names of their parameters."""

    number: int
    modules: list[nn.Module]
    named: dict[str, nn.Parameter]
    use: Action | None = None  # for which its weights are whole now
    calls: list["Call"] = field(default_factory=list)  # forwards under way
    backwards: int = 0  # calls whose backward is under way
    pending: int = 0  # calls whose backward has not ended


@dataclass(eq=False)
class Call:
    """One forward of a module of a unit. `opened`: it found the unit closed; `backward`: one is
    under way in what it computed."""

    unit: Unit
    opened: bool
    backward: bool = False
    inputs: list[Tensor] = field(default_factory=list)

    def input(self, value):
        """Replace an input that needs a gradient by a view, so that a hook sees this call only."""
        if not (isinstance(value, Tensor) and value.requires_grad):
            return value
        self.inputs.append(value.view_as(value))
        return self.inputs[-1]


def cast_inputs(dtype: torch.dtype, module: nn.Module, args: tuple, kwargs: dict):
    """Cast floating inputs to this format, as a hook."""
    return tree_map_only(
        Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, (args, kwargs)
    )
