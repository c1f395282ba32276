"""What happens to storages, told as it happens: each is born, grows, is saved by autograd, is let
go, and ends. Where it is coarse, an observer hears of what autograd saves alone.

    born    an operator returned a storage that was not there      a dispatch mode sees what each
                                                                   operator returns
    saved   autograd keeps it for a backward                       hooks on saved tensors
    ended   its last tensor is gone                                a weak reference, in whichever
                                                                   thread and at once

A storage is known by the address of torch's StorageImpl while it lives. Of an operator, its schema
says whether it can return something new at all: views and in-place results are skipped. Two ways to
get a storage are no operator's results, and are heard of by name: Tensor.set_ to a storage that no
tensor had (a load, a deepcopy), and UntypedStorage.resize_ of an empty one.
"""

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)
from torch.utils._pytree import tree_leaves

from .balance import APART
from .owned import plain
from .places import Places
from .saved import Observer, hooks_away, in_backward, replaced

JOINED = torch._C.DispatchKey.CompositeImplicitAutograd  # of one that is several others
SEES, GROWS, PASSES = "a new storage", "a storage that may be new or of another size", "nothing new"
GROWING = ("set_", "resize_", "resize_as_", "_resize_output_")


class Storage(weakref.ref):
    """One storage and what is known of it; as a weak reference it hears of its end.

    key, bytes        the address of its StorageImpl, and how many it has
    own, declared     its kind by what happens to it, and the one that the program declares, which
                      wins ("": none)
    saved, before     how many tensors of it autograd keeps; whether it was there before anyone
                      looked
    counted           (kind, bytes) as the balance has it
    of                the replica whose alone it is, of several in one dry run; else None
    maker, shape, dtype, module, made    the operator that returned it, of what, in which module,
                                         during which action
    """

    __slots__ = (
        "key",
        "bytes",
        "own",
        "declared",
        "saved",
        "before",
        "counted",
        "of",
        "maker",
        "shape",
        "dtype",
        "module",
        "made",
    )
    __eq__, __hash__ = object.__eq__, object.__hash__

    @property
    def kind(self) -> str:
        return self.declared or self.own


class _Mode(TorchDispatchMode):
    def __init__(self, returned: Callable, grown: Callable, operate: Callable | None):
        super().__init__()
        self._returned, self._grown, self._operate, self._effects = returned, grown, operate, {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if torch.is_inference_mode_enabled() and operator.has_kernel_for_dispatch_key(JOINED):
            with self:  # in that mode torch itself takes no operator apart
                return operator._op_dk(JOINED, *args, **(kwargs or {}))
        effect = self._effects.get(operator)
        if effect is None:
            effect = self._effects[operator] = effect_of(operator)
        if effect is GROWS:
            return self._grown(operator, args, kwargs or {}, self._operate)
        if self._operate:
            out = self._operate(operator, args, kwargs or {})
        else:
            out = operator(*args, **kwargs) if kwargs else operator(*args)
        if effect is SEES:
            self._returned(out, operator)
        return out

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that torch would put around each operator costs a third of all


# Torch's compiler is not to compile the ledger itself, nor what it calls: said of the code, that
# costs nothing.
set_code_exec_strategy(
    _Mode.__torch_dispatch__.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
)


def effect_of(operator) -> str:
    """What an operator may return, by its schema: a view or an in-place result is marked as an
    alias there."""
    schema = operator._schema
    name, written = (
        schema.name.removeprefix("aten::"),
        [a for a in schema.arguments if a.alias_info and a.alias_info.is_write],
    )
    if (
        name in GROWING
        or any(a.is_out for a in written)
        or written
        and operator.namespace != "aten"
    ):  # a user's may grow what it writes
        return GROWS
    if name == "lift_fresh" or any(value.alias_info is None for value in schema.returns):
        return SEES
    return PASSES


class Storages:
    """While active, notes (storage, its own kind, bytes or None at its end, wall) in `events`, in
    order.

    grows     called with (storage, bytes more) before that is noted; may raise: then the operator
              does, and these bytes are not counted
    device    on a GPU only its storages count; on a CPU all do, and on meta those without memory
              too
    operate   called in place of each operator, with (operator, args, kwargs)
    coarse    no operator is seen: a storage is met when autograd saves it; let go, it is an input,
              which is no part of the sum
    """

    def __init__(
        self,
        wall: Callable[[], int],
        places: Places,
        grows: Callable,
        device: torch.device,
        operate: Callable | None = None,
        coarse: bool = False,
    ):
        self.known: dict[int, Storage] = {}
        self.events: deque[tuple] = deque()
        self.total = 0  # of all that counts, at once
        self.action, self.of = "", None
        self._wall, self._places, self._grows = wall, places, grows
        self._coarse, self._unsaved = coarse, "inputs" if coarse else "temporaries"
        self._cuda, self._meta = device.type == "cuda", device.type == "meta"
        self._mode = _Mode(self._returned, self._grown, operate)
        self._observer = Observer(self._saved, self._let_go)

    def start(self) -> ExitStack:
        """Begin; the stack's close ends it."""
        with ExitStack() as stack:
            stack.enter_context(self._observer.looking())
            if self._coarse:
                return stack.pop_all()
            stack.enter_context(self._places.following())
            stack.enter_context(replaced(torch.UntypedStorage, "resize_", self._resizing))
            stack.enter_context(replaced(torch.Tensor, "set_", self._setting))
            if self._meta:
                with torch.device("meta"):  # torch notes which functions make tensors at the first
                    torch.empty(0)  # call in such a context: before one of them is replaced
                stack.enter_context(replaced(torch, "tensor", self._filling))
            stack.enter_context(self._mode)
            return stack.pop_all()

    # -- births, growth, ends ----------------------------------------------------------------------

    def _returned(self, out, operator) -> None:
        if isinstance(out, torch.Tensor):
            for part in plain(out):
                self._meet(part, operator)
        elif isinstance(out, (tuple, list)):
            for part in out:
                self._returned(part, operator)

    def _meet(self, tensor: torch.Tensor, maker) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.known and (count := self.counts(storage, born=True)):
            running = in_backward()
            born = self.record(storage, tensor, maker)
            recorded = (
                running and torch.is_grad_enabled() and not self._observer.transforms
            )  # whose backwards are recorded always
            born.own = "recomputed" if recorded else "temporaries"
            born.module = self._places.path or (self._places.of_node() if running else "")
            born.made = self.action or (
                "backward" if running else "forward" if self._places.path else ""
            )
            self._count(born, count)

    def counts(self, storage: torch.UntypedStorage, born: bool = False) -> int:
        """Its bytes if it is to be counted; one of a meta or a fake tensor has no address."""
        if (
            self._meta
        ):  # of the host's, those that actions make: a batch that was loaded is on the device too
            return storage.nbytes() if storage.device.type == "meta" or born and self.action else 0
        counted = storage.is_cuda if self._cuda else storage.device.type != "meta"
        return storage.nbytes() if counted and storage.data_ptr() else 0

    def record(self, storage: torch.UntypedStorage, tensor: torch.Tensor, maker) -> Storage:
        """A storage that is not known: its entry, of no bytes yet."""
        born = self.known[storage._cdata] = Storage(storage, self._died)
        born.key, born.bytes, born.maker, born.shape, born.dtype = (
            storage._cdata,
            0,
            maker,
            tensor.shape,
            tensor.dtype,
        )
        born.declared = born.module = born.made = ""
        born.saved, born.own, born.before, born.counted = 0, self._unsaved, False, None
        born.of = self.of
        return born

    def _count(self, storage: Storage, count: int) -> None:
        """It has so many bytes from now on."""
        more = count - storage.bytes
        self._grows(storage, more)
        if storage.kind not in APART:
            self.total += more
        storage.bytes = count
        self.events.append((storage, storage.own, count, self._wall()))

    def _died(self, storage: Storage) -> None:
        """Its last tensor is gone, in whichever thread: one line that cannot be interrupted in the
        middle, then a note."""
        if self.known.get(storage.key) is storage:
            del self.known[storage.key]
        if storage.kind not in APART:
            self.total -= storage.bytes
        self.events.append((storage, storage.own, None, self._wall()))

    def _grown(self, operator, args, kwargs, operate: Callable | None):
        """`out=`, set_, resize_, and what users write: a storage that was there may have grown, and
        one that is not known may be new."""
        given = tree_leaves((args, kwargs))
        sizes = {s._cdata: s.nbytes() for s in map(storage_of, given) if s is not None}
        out = operate(operator, args, kwargs) if operate else operator(*args, **kwargs)
        for tensor in (*tree_leaves(out), *given):
            storage = storage_of(tensor) if isinstance(tensor, torch.Tensor) else None
            if storage is None:
                continue
            if known := self.known.get(storage._cdata):
                if known.bytes != storage.nbytes():
                    self._count(known, storage.nbytes())
            elif (
                sizes.get(storage._cdata) != storage.nbytes()
            ):  # one that was there, and is no larger, was made by someone else
                self._returned(tensor, operator)
        return out

    def _looking(self) -> bool:
        """Whether what is made now is met: not aside, nor in another thread, where the mode is not,
        but these names are replaced."""
        return self._mode in _get_current_dispatch_mode_stack()

    def _resizing(self, original):
        def resize_(storage, *args):
            before = storage.nbytes()
            result = original(storage, *args)
            if (known := self.known.get(storage._cdata)) and known.bytes != storage.nbytes():
                self._count(known, storage.nbytes())
            elif not before and not known and self._looking():
                with _disable_current_modes():
                    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                self._meet(whole, "resize_")
            return result

        return resize_

    def _setting(self, original):
        def set_(tensor, *args, **kwargs):
            source = storage_of(args[0] if args else kwargs.get("source"))
            new = (
                source is not None and torch._C._storage_Use_Count(source._cdata) == 1
            )  # nothing has it but this Python object
            result = original(tensor, *args, **kwargs)
            if new and self._looking():
                self._returned(tensor, "set_")
            return result

        return set_

    def _filling(self, original):
        """torch.tensor on meta, which no operator returns."""

        def tensor(*args, **kwargs):
            result = original(*args, **kwargs)
            if result.is_meta and self._looking():
                self._returned(result, "lift_fresh")
            return result

        return tensor

    # -- what autograd saves -----------------------------------------------------------------------

    def _saved(self, tensor: torch.Tensor) -> list[Storage]:
        kept = []
        for part in plain(tensor):
            storage = part.untyped_storage()
            known = self.known.get(storage._cdata)
            if known is None and self.counts(storage):
                known = self.record(storage, part, "a saved tensor")
                known.own, known.before = (
                    ("activations", False) if self._coarse else ("inputs", True)
                )
                known.made = self.action
                self._count(known, storage.nbytes())
            if known is not None:
                known.saved += 1
                if known.saved == 1 and not known.before and known.own != "recomputed":
                    self._becomes(known, "recomputed" if in_backward() else "activations")
                kept.append(known)
        return kept

    def _let_go(self, kept: list[Storage]) -> None:
        for storage in kept:
            storage.saved -= 1
            if (
                not storage.saved and not storage.before and self.known.get(storage.key) is storage
            ):  # a name keeps it
                self._becomes(storage, self._unsaved)

    def _becomes(self, storage: Storage, own: str) -> None:
        """It is of this kind from now on, by what happens to it."""
        was_apart, storage.own = storage.kind in APART, own
        more = storage.bytes * (was_apart - (storage.kind in APART))
        self.total += more  # not interrupted in the middle
        self.events.append((storage, own, storage.bytes, self._wall()))

    @contextmanager
    def aside(self):
        """Nothing that is born within is met; what was met before is still heard of when it
        ends."""
        with nullcontext() if self._coarse else _disable_current_modes(), hooks_away():
            yield


def storage_of(value) -> torch.UntypedStorage | None:
    if isinstance(value, torch.Tensor):
        parts = plain(value)
        return parts[0].untyped_storage() if len(parts) == 1 else None
    value = getattr(value, "_untyped_storage", value)  # of torch.FloatStorage and its like
    return value if isinstance(value, torch.UntypedStorage) else None
