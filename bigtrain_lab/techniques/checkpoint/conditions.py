"""What a function's result depends on beside its arguments: noted once, set again for each rerun.

    random state      of the CPU, and of each device of a tensor among the arguments. After the
                      rerun the state of before is set again: later numbers are plain training's
    autocast          of each type of device: on or off, its number format, its cache
    function modes    torch's TorchFunctionModes, such as a precision policy or a default device.
                      MixedPrecision.backward sets its policy itself, for torch's own checkpoint
    modules           the weights and buffers of each module that the function reaches, and whether
                      it trains. A backward may find others than a forward in
                      torch.func.functional_call had, or one on another version of the weights
                      (weight_versions.py)
    buffers written   by the function, such as batch norm's running averages and spectral norm's
                      vectors: a rerun starts from copies of the values before, and throws its own
                      changes away
    closures          the values of the function's free variables; Python reads them in each call
    changes in place  of weights and of tensors in a closure. They cannot be undone. A rerun after
                      one is refused, since its gradient would be that of neither point

Not noted: generators of your own, of Python and of NumPy (seed them in each call), globals, and
other state that the function changes, such as a number that it counts up.
Cost: 5 kB a random state, which torch makes without an operator, so a ledger does not count it. The
buffers that are written; during the first run a copy of every buffer.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import CellType, FunctionType, MethodType

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

from ..guards import checkpoint as guard

CPU = torch.device("cpu")
KINDS = [kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)]


class Conditions:
    """Conditions under which `fn` runs now, on these tensors."""

    def __init__(self, tensors: Iterable[Tensor], fn: Callable | None = None, name: str = ""):
        self.name, self.moved = name, {}
        self.random = random_states(
            {CPU, *(t.device for t in tensors if t.device.type not in ("cpu", "meta"))}
        )
        self.autocast, self.modes = autocast(), _get_current_function_mode_stack()
        self.places: list[tuple[dict, dict]] = []  # a module's own dictionary, what was in it
        # a module's buffers, their counts of changes in place, copies; after the first run those
        # that fn wrote to
        self.buffers: list[tuple[dict, list[int | None], dict]] = []
        self.cells: list[tuple[CellType, object]] = []  # a closure's cell, what it held
        self.weights: list[Tensor] = []  # whose changes in place a rerun refuses
        for found in reached(fn):
            if isinstance(found, nn.Module):
                self._note(found, isinstance(fn, nn.Module | partial))
            elif isinstance(found, CellType):
                self.cells.append((found, found.cell_contents))
            else:
                self.weights.append(found)

    def _note(self, module: nn.Module, counts: bool) -> None:
        own = module._parameters, module._buffers
        self.places += [(each, {**each}) for each in own if each]
        self.places.append((vars(module), {"training": module.training}))
        copies = {name: each.detach().clone() for name, each in own[1].items() if each is not None}
        self.buffers.append((own[1], changes(own[1]), copies))
        if counts:
            self.weights += [weight for weight in own[0].values() if weight is not None]
        for child in module._modules.values():  # module.modules() takes five times as long
            if child is not None:
                self._note(child, counts)

    def ran(self) -> None:
        """Note each weight's, and each closure tensor's, number of changes in place. After the
        first run, keep the values from before it of the buffers that it wrote to. A module's are
        taken together: batch norm's operator does not count its changes, the module does."""
        self.buffers = [each for each in self.buffers if changes(each[0]) != each[1]]
        with suppress(RuntimeError):  # those made in inference mode have no count
            self.moved = {each: each._version for each in self.weights}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Set what was noted, for the time of a rerun; then set again what was there before."""
        guard.refuse_moved(self.moved.items(), self.name)
        before = random_states(self.random)
        with ExitStack() as stack:
            for own, noted in self.places:
                if any(own.get(name) is not noted[name] for name in noted):
                    stack.callback(own.update, {**own})
                    own.update(noted)
            for own, _, values in self.buffers:
                stack.callback(own.update, {**own})
                own.update({name: value.clone() for name, value in values.items()})
            for cell, noted in self.cells:
                if cell.cell_contents is not noted:
                    stack.callback(setattr, cell, "cell_contents", cell.cell_contents)
                    cell.cell_contents = noted
            if self.autocast != (present := autocast()):
                for kind in present.keys() - self.autocast.keys():
                    stack.enter_context(torch.autocast(kind, enabled=False))
                for kind, (dtype, cache) in self.autocast.items():
                    stack.enter_context(torch.autocast(kind, dtype, True, cache))
            if self.modes != (present := _get_current_function_mode_stack()):
                for mode in reversed(present):  # torch has no public name for this
                    _pop_mode()
                    stack.callback(_push_mode, mode)
                for mode in self.modes:
                    stack.enter_context(mode)
            stack.callback(set_random_states, before)
            set_random_states(self.random)
            yield
        self.ran()  # an embedding with max_norm changes its own weights each time


def reached(fn, seen: frozenset[int] = frozenset()) -> Iterator[nn.Module | Tensor | CellType]:
    """Yield the modules and tensors that a function, method or partial refers to, and the closure
    cells that contain one."""
    if isinstance(fn, nn.Module | Tensor):
        yield fn
        return
    seen, parts = seen | {id(fn)}, ()
    if isinstance(fn, partial):
        parts = fn.func, *fn.args, *fn.keywords.values()
    elif isinstance(fn, MethodType):
        parts = fn.__self__, fn.__func__
    elif isinstance(fn, FunctionType):
        cells = [cell for cell in fn.__closure__ or () if cell != CellType()]
        yield from (cell for cell in cells if isinstance(cell.cell_contents, nn.Module | Tensor))
        held = [cell.cell_contents for cell in cells]
        parts = *held, *(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()
    elif isinstance(fn, list | tuple) and fn and isinstance(fn[0], nn.Module):
        parts = fn
    for part in parts:
        if id(part) not in seen:  # a function may have itself in its closure
            yield from reached(part, seen)


def learns(fns: Iterable[Callable], tensors: Iterable[Tensor]) -> bool:
    """Tell whether a backward may find a gradient. A function that is no module may use weights
    that cannot be found."""
    return any(t.requires_grad for t in tensors) or any(
        not isinstance(fn, nn.Module) or any(w.requires_grad for w in fn.parameters()) for fn in fns
    )


def changes(buffers: dict[str, Tensor | None]) -> list[int | None]:
    """Return torch's counts of changes in place; inference tensors have none."""
    return [
        None if each is None or each.is_inference() else each._version for each in buffers.values()
    ]


def random_states(devices: Iterable[torch.device]) -> dict[torch.device, Tensor]:
    return {
        d: torch.get_rng_state() if d == CPU else torch.get_device_module(d).get_rng_state(d)
        for d in devices
    }


def set_random_states(states: dict[torch.device, Tensor]) -> None:
    for device, state in states.items():
        if device == CPU:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


def autocast() -> dict[str, tuple[torch.dtype, bool]]:
    """Return the number format, and whether casts are cached, of each kind of device on which
    autocast is on."""
    return {
        kind: (torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
        for kind in KINDS
        if torch.is_autocast_enabled(kind)
    }
