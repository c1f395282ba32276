"""What a function's result depends on beside its arguments: noted once, set again for each rerun.

    random state      of torch on the CPU and on each device of a tensor among the arguments, of
                      Python and of NumPy, where the first run drew. After the rerun the state of
                      before is set again: later numbers are plain training's
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

Not noted: generators of your own (seed them in each call), globals, and other state that the
function changes, such as a number or a list: a number that it counts up shows how often it ran, and
must not decide what it returns. torch.utils.checkpoint notes neither buffers nor other generators.
Cost: 5 kB a random state of torch, 25 kB one of Python, where the first run drew; torch makes its
own without an operator, so a ledger does not count it. The buffers that are written, and vectors;
during the first run a copy of every buffer.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import CellType, FunctionType, MethodType

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

from ..guards import checkpoint as guard

CPU = torch.device("cpu")
HOST = {
    "python": (random.getstate, random.setstate),
    "numpy": (np.random.get_state, np.random.set_state),
    CPU: (torch.get_rng_state, torch.set_rng_state),
}
KINDS = [kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)]


class Conditions:
    """Conditions under which `fn` runs now, on these tensors."""

    def __init__(self, tensors: Iterable[Tensor], fn: Callable | None = None, name: str = ""):
        self.name, self.moved = name, {}
        devices = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
        self.random = random_states({*HOST, *devices})
        self.autocast, self.modes = autocast(), _get_current_function_mode_stack()
        self.places: list[tuple[dict, dict]] = []  # a module's own dictionary, what was in it
        # a module's buffers, a name, torch's count of its changes in place, a copy; after the first
        # run those that fn may have written to
        self.buffers: list[tuple[dict, str, int | None, Tensor]] = []
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
        self.buffers += [
            (own[1], name, changes(each), each.detach().clone())
            for name, each in own[1].items()
            if each is not None
        ]
        if counts:
            self.weights += [weight for weight in own[0].values() if weight is not None]
        for child in module._modules.values():  # module.modules() takes five times as long
            if child is not None:
                self._note(child, counts)

    def ran(self) -> None:
        """End the first run. Keep the values from before it of the buffers that it wrote to, and of
        vectors: batch norm's operator does not count its changes of them."""
        now = random_states(self.random)
        self.random = {of: state for of, state in self.random.items() if not same(state, now[of])}
        self.buffers = [
            (own, name, count, values)
            for own, name, count, values in self.buffers
            if changes(own.get(name)) != count or values.dim() == 1 and values.is_floating_point()
        ]
        self._count()

    def _count(self) -> None:
        """Note each weight's, and each closure tensor's, number of changes in place."""
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
            for own, name, _, values in self.buffers:
                stack.callback(own.update, {name: own.get(name)})
                own[name] = values.clone()
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
        self._count()  # an embedding with max_norm changes its own weights each time


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
        parts = (
            *(cell.cell_contents for cell in cells),
            *(fn.__defaults__ or ()),
            *(fn.__kwdefaults__ or {}).values(),
        )
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


def changes(buffer: Tensor | None) -> int | None:
    """Return torch's count of changes in place; inference tensors have none."""
    return None if buffer is None or buffer.is_inference() else buffer._version


def random_states(of: Iterable[torch.device | str]) -> dict[torch.device | str, Tensor | tuple]:
    """Return the states of global generators: "python", "numpy", and torch's of devices."""
    return {each: generator(each)[0]() for each in of}


def set_random_states(states: dict[torch.device | str, Tensor | tuple]) -> None:
    for each, state in states.items():
        generator(each)[1](state)


def generator(of: torch.device | str) -> tuple[Callable, Callable]:
    """Return what reads the state of a generator, and what sets it."""
    if of in HOST:
        return HOST[of]
    on = torch.get_device_module(of)
    return partial(on.get_rng_state, of), partial(on.set_rng_state, device=of)


def same(state: Tensor | tuple, now: Tensor | tuple) -> bool:
    """Return whether nobody drew in between; of Python's and NumPy's generators the words come
    second."""
    return (
        torch.equal(state, now)
        if isinstance(state, Tensor)
        else state[2:] == now[2:] and bool(np.all(state[1] == now[1]))
    )


def autocast() -> dict[str, tuple[torch.dtype, bool]]:
    """Return the number format, and whether casts are cached, of each kind of device on which
    autocast is on."""
    return {
        kind: (torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
        for kind in KINDS
        if torch.is_autocast_enabled(kind)
    }
