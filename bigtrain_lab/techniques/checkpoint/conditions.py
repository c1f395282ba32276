"""What a function's result depends on beside its arguments, noted once and set again for each later
run.

    random state      of the CPU and of every device that a tensor among the arguments lives on;
                      where it stood before the rerun is put back after it, so that numbers drawn
                      later are those of training without recompute
    autocast          of every type of device: on or off, its number format, its cache
    function modes    torch's TorchFunctionModes, such as a precision policy or a default device
    modules, closures what the function finds beside its arguments (beside.py)
    weights           of a module, or a functools.partial of one, and tensors in a closure: how
                      often each was changed in place. That cannot be undone, so a rerun after they
                      moved is refused: its gradient would be that of neither point

Not noted: generators of one's own (seed them anew in each call), and state that fn changes, such as
batch norm's running averages, which a rerun moves a second time. Cost: microseconds, and 5 kB a
random state. In a chain the layers between which no number was drawn share one; calls of
`checkpoint` know nothing of each other, and each keeps its own. torch makes that tensor without an
operator, so that a ledger that watches operators does not count it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

from ..guards import checkpoint as guard
from .beside import Beside

CPU = torch.device("cpu")
KINDS = [kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)]


class Conditions(NamedTuple):
    random: dict[torch.device, Tensor]
    autocast: dict[str, tuple[torch.dtype, bool]]
    modes: list
    beside: Beside
    weights: list[Tensor] = []
    versions: list[int] = []  # how often each had been changed
    name: str = ""  # whose they are

    @classmethod
    def now(
        cls, tensors: Iterable[Tensor], last: "Conditions | None" = None, fn: Callable | None = None
    ) -> "Conditions":
        """Before the first run of fn, on these tensors. `last`: of the run before in a chain, whose
        random states serve again where they are equal."""
        devices = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
        random = random_states((CPU, *devices))
        if last:
            random = {
                d: last.random[d] if d in last.random and same(state, last.random[d]) else state
                for d, state in random.items()
            }
        return cls(random, autocast(), _get_current_function_mode_stack(), Beside(fn))

    def after(self, fn: Callable, name: str) -> "Conditions":
        """Beside these the weights of fn, and the tensors in its closure, as its first run left
        them."""
        weights = weights_of(fn) + self.beside.tensors
        return (
            self._replace(weights=weights, versions=versions_of(weights), name=name)
            if weights
            else self
        )

    def again(self) -> "Conditions":
        """The same after a later run: an embedding with max_norm changes its own weights each
        time."""
        return self._replace(versions=versions_of(self.weights)) if self.weights else self

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Inside, all is as it was noted; after it, as it was before. Impossible where a weight has
        moved."""
        guard.refuse_moved(self.weights, self.versions, versions_of(self.weights), self.name)
        before = random_states(self.random)
        with ExitStack() as stack:
            stack.enter_context(self.beside.put_back())
            if self.autocast != (present := autocast()):
                for kind in present.keys() - self.autocast.keys():
                    stack.enter_context(torch.autocast(kind, enabled=False))
                for kind, (dtype, cache) in self.autocast.items():
                    stack.enter_context(torch.autocast(kind, dtype, True, cache))
            if self.modes != (present := _get_current_function_mode_stack()):
                stack.enter_context(without(present))
                for mode in self.modes:
                    stack.enter_context(mode)
            set_random_states(self.random)
            try:
                yield
            finally:
                set_random_states(before)


def random_states(devices: Iterable[torch.device]) -> dict[torch.device, Tensor]:
    return {
        d: torch.get_rng_state() if d == CPU else torch.get_device_module(d).get_rng_state(d)
        for d in devices
    }


def same(state: Tensor, other: Tensor) -> bool:
    return state.numpy().tobytes() == other.numpy().tobytes()  # a fifth of torch.equal's time


def set_random_states(states: dict[torch.device, Tensor]) -> None:
    for device, state in states.items():
        if device == CPU:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


def autocast() -> dict[str, tuple[torch.dtype, bool]]:
    """Of each kind of device on which autocast is on: the number format, and whether casts are
    cached."""
    return {
        kind: (torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
        for kind in KINDS
        if torch.is_autocast_enabled(kind)
    }


@contextmanager
def without(modes: list) -> Iterator[None]:
    """Inside, these function modes, all that there are, are set aside."""
    for _ in modes:
        _pop_mode()
    try:
        yield
    finally:
        for mode in modes:
            _push_mode(mode)


def weights_of(fn: Callable) -> list[Tensor]:
    """Those of a module, or of a partial of one. Of a method none: its module may have others,
    whose gradients are done before."""
    if isinstance(fn, partial):
        return [w for part in (fn.func, *fn.args) for w in weights_of(part)]
    if not isinstance(fn, nn.Module):
        return []
    found = [w for w in fn._parameters.values() if w is not None]
    for child in fn._modules.values():
        found += weights_of(child)
    return found


def versions_of(weights: list[Tensor]) -> list[int]:
    try:
        return [w._version for w in weights]
    except RuntimeError:  # made in inference mode, where nothing counts
        return [0] * len(weights)


def learns(fns: Iterable[Callable], tensors: Iterable[Tensor]) -> bool:
    """Whether a backward may have a gradient to find. Functions that are no modules may hold
    weights that nobody sees."""
    return any(t.requires_grad for t in tensors) or any(
        not isinstance(fn, nn.Module) or any(w.requires_grad for w in weights_of(fn)) for fn in fns
    )
