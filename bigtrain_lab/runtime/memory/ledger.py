"""The ledger: every storage that an operator returns or autograd saves, once, with its kind, what
made it, where, and its end.

    with Ledger(model, optimizer) as ledger:
        train()
    ledger.peak_bytes, ledger.peak("activations"), ledger.at_peak(), print(ledger.table())

A storage is born when an operator returns one that was not there, and dead when its last tensor is:
torch tells both, the one to a dispatch mode, the other to a weak reference. So views, in-place
results and shared storages count once, whole. Workspaces inside a kernel are not seen. Nor is a
storage that neither an operator returns nor autograd saves: a random state (torch.get_rng_state(),
5,056 bytes each, as kept to recompute a dropout), a torch.UntypedStorage without a tensor, a tensor
over memory that others own (frombuffer, from_dlpack; from_numpy's is seen, since an operator
returns it). What other threads allocate is not seen, but for the backwards that this one starts. A
function of torch.compile runs uncompiled, since torch compiles nothing under a dispatch mode (one
first called there stays so). What torch.func's transforms save is a temporary. Ledgers may look on
inside one another, and inside a run: each sees all. Other hooks on saved tensors (torch's
save_on_cpu) come between, since autograd asks the innermost ones alone: such hooks inside hide from
the ledger what they keep, and such hooks around it rest while it looks. And an observer changes
what it sees: where a dispatch mode looks on, torch's backward makes a few tensors anew that it else
writes in place (the sum of two gradients of one tensor, the zeros behind a gather), so an
unobserved peak may be a little lower.

Kinds, the first that holds:
    weights, master, stashed, gradients, optimizer, queued, communication, inputs, buffers
                   what the program declares to hold
    recomputed     made or saved with gradients on while a backward runs (so with create_graph, all
                   that it makes)
    activations    saved by autograd, as long as its graph lives
    temporaries    everything else
Inputs (declared, or made before the ledger and then saved) and buffers are told apart and are part
of no sum.

A coarse ledger knows what is declared and what autograd saves, and nothing else: an operator takes
no longer under it. It has no temporaries, and what autograd has let go is an input to it.

Cost: about 15 us an operator on one core (benchmarks/ledger.py), no bytes on the device. Source:
torch.utils._python_dispatch (TorchDispatchMode) and torch.autograd.graph.saved_tensors_hooks;
torch.distributed._tools.mem_tracker is its peer.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from math import inf
from numbers import Real

import torch
from torch import nn

from ...core import MEMORY_KINDS, Alive, refuse, size
from . import owned
from .balance import APART, Balance
from .capacity import out_of_memory
from .places import Places
from .storages import Storage, Storages, storage_of

MOST_EVENTS = 100_000  # before they are balanced, where nobody asks


class Ledger:
    """Alone: around a training loop, with the modules and optimizers whose tensors have a kind of
    their own.

    watched          modules and optimizers, any number. A parameter that only an optimizer has, a
                     float32 copy of one of lower precision, is a master weight.
    capacity_bytes   the operator that would make the sum larger raises OutOfMemory, and its bytes
                     do not count; `rank` and `relief` are for the sentence. `refused`: all that was
                     alive then, and what was asked for, if nothing grew since
    device, operate  meta: storages without memory count too. What to call in place of each
                     operator, by (operator, args, kwargs)
    coarse           only what autograd saves and what is declared is met, as of most runs: no
                     temporaries, and no operator takes longer
    """

    def __init__(
        self,
        *watched,
        capacity_bytes: int | None = None,
        rank: int | None = None,
        relief: str = "",
        wall: Callable[[], int] = time.monotonic_ns,
        device: torch.device | None = None,
        operate: Callable | None = None,
        balance: Balance | None = None,
        coarse: bool = False,
    ):
        owned.refuse_strange(watched)
        refuse(
            (
                capacity_bytes is not None
                and not (isinstance(capacity_bytes, Real) and 0 < capacity_bytes < inf),
                f"capacity_bytes is {capacity_bytes!r}: give the bytes of the device as a number,"
                " such as 2 * 10**9, or None for no limit.",
            )
        )
        device = device or owned.device(watched)
        self.holdings: Callable = partial(owned.of, watched) if watched else dict
        self._watched, self._wall = watched, wall
        self._limit, self._rank, self._relief = capacity_bytes, rank, relief
        self._places = Places(self._weight_name)
        self._seen, self._balance = (
            Storages(wall, self._places, self._grows, device, operate, coarse),
            balance or Balance(),
        )
        self._held: set[Storage] = set()  # what was declared at the last look
        self._settling, self.looked = False, wall()
        self.told = dict.fromkeys(MEMORY_KINDS, 0)  # kind -> bytes, as `changes` said last
        self._active: ExitStack | None = None
        self.coarse = coarse
        self._stepping = False
        self.refused: list[Alive] = []

    # -- asking ------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """Held now."""
        return self._settled().total

    @property
    def peak_bytes(self) -> int:
        """The most that was held at once."""
        return self._settled().peak_bytes

    def now(self, kind: str) -> int:
        """Bytes of one kind now."""
        return self._settled().levels[known_kind(kind)]

    def peak(self, kind: str) -> int:
        """The most bytes of one kind; kinds need not have their peaks at the same time."""
        return self._settled().highest[known_kind(kind)]

    def at_peak(self, of: Balance | None = None) -> list[Alive]:
        """All that was alive when the most was held, the largest first; `start` is that moment on
        the wall clock (ns). `of`: in this balance, of several."""
        balance = of or self._settled()
        return self._told(
            balance.at_peak(list(self._seen.known.values())), balance.peak_wall, balance.names
        )

    def _told(self, rows: list[tuple[Storage, str, int]], wall: int, names: dict) -> list[Alive]:
        # in one order, whatever the addresses
        return sorted(
            (
                Alive(
                    self._rank or 0,
                    "compute",
                    kind,
                    words(names.get(s, s.maker)),
                    wall,
                    count,
                    tuple(s.shape),
                    str(s.dtype).removeprefix("torch."),
                    s.module,
                    s.made,
                )
                for s, kind, count in rows
            ),
            key=lambda a: (-a.bytes, a.kind, a.name, *a[6:]),
        )

    def table(self, rows: int = 20) -> str:
        """What was alive at the peak, as text: the sums by kind, then the largest storages."""
        alive = self.at_peak()
        sums = {kind: sum(a.bytes for a in alive if a.kind == kind) for kind in MEMORY_KINDS}
        lines = [f"{size(self.peak_bytes)} at the peak, in {len(alive)} storages"]
        lines += [
            f"  {size(count):>9}  {kind}"
            for kind, count in sorted(sums.items(), key=lambda item: -item[1])
            if count
        ]
        if apart := [f"{kind} {size(self.peak(kind))}" for kind in APART if self.peak(kind)]:
            lines.append(f"  beside these, in no sum: {', '.join(apart)}")
        lines += [
            "",
            (
                f"{'bytes':>9}  {'kind':<12} {'what':<32} {'shape':<20} {'dtype':<9}"
                f" {'made in':<28} when"
            ),
        ]
        lines += [
            f"{size(a.bytes):>9}  {a.kind:<12} {a.name:<32} {'x'.join(map(str, a.shape)):<20}"
            f" {a.dtype:<9} {a.module:<28} {a.made}".rstrip()
            for a in alive[:rows]
        ]
        if alive[rows:]:
            lines.append(
                f"{size(sum(a.bytes for a in alive[rows:])):>9}  in {len(alive) - rows} smaller"
                " ones"
            )
        return "\n".join(lines)

    def aside(self):
        """A context for what is no part of the training, such as a look at its gradients: what is
        made within is not seen."""
        return self._seen.aside() if self._active else nullcontext()

    @contextmanager
    def only(self, replica: int):
        """What is born within is this replica's alone, of several whose training is one program.
        What it declares is found where any of it is left."""
        self._seen.of = replica
        yield
        left = {storage: count for storage, _, count, _ in self._seen.events}
        self._settled(any(left.values()), ended=False)
        self._seen.of = None

    def ignore(self, tensor: torch.Tensor) -> None:
        """It was made just now, and is not to be counted."""
        self._seen.record(tensor.untyped_storage(), tensor, "ignored")

    def forget(self) -> None:
        """Let go of all storages and tensors that it knows, at its end. What it is made of leads
        back to it, so they would else stay until the collector finds them."""
        self.holdings, self._watched, self._balance = dict, (), Balance()
        for known in (self._held, self._seen.known, self._seen.events):
            known.clear()

    # -- on and off --------------------------------------------------------------------------------

    def __enter__(self) -> "Ledger":
        refuse(
            (self._active, "This ledger is active already: make another one for what is inside.")
        )
        self._settled()  # what is held already
        self.refuse_too_much("")
        for module in self._watched:
            if isinstance(module, nn.Module):
                self._places.name(module)
        with self._seen.start() as stack:
            for handle in owned.hooks(
                self._watched, self.became_gradient, self._update_begins, self._update_ends
            ):
                stack.callback(handle.remove)
            self._active = stack.pop_all()
        return self

    def __exit__(self, *error) -> None:
        active, self._active = self._active, None
        active.__exit__(*error)
        self._settled()
        self.refused = self.refused if error[0] else []

    def refuse_too_much(self, action: str) -> None:
        """OutOfMemory where more is held than the limit: what was declared may never have been
        seen to grow."""
        if self._limit is not None and self._seen.total > self._limit:
            raise out_of_memory(
                self._limit, self._levels(), rank=self._rank, action=action, relief=self._relief
            )

    def _grows(self, storage: Storage, more: int) -> None:
        if len(self._seen.events) > MOST_EVENTS:
            self._settled(ended=False)
        if (
            self._limit is not None
            and more > 0
            and storage.kind not in APART
            and self._seen.total + more > self._limit
        ):
            levels = self._levels()
            held = [
                (s, s.kind, s.bytes + more * (s is storage))
                for s in list(self._seen.known.values())
                if s.kind not in APART
            ]
            self.refused = self._told(held, self._wall(), {})
            raise out_of_memory(
                self._limit,
                levels,
                rank=self._rank,
                action=storage.made,
                asked_bytes=more,
                name=words(storage.maker),
                module=storage.module,
                relief=self._relief,
            )
        self.refused = []

    def _levels(self) -> dict[str, int]:
        """Bytes by kind, of those that count."""
        return {
            kind: level
            for kind, level in self._settled(ended=False).levels.items()
            if kind not in APART
        }

    # -- kinds that are declared -------------------------------------------------------------------

    def _settled(self, look: bool = True, ended: bool = True) -> Balance:
        """The balance of all that has happened. A storage that is found declared counts as that
        since the last such look; without a look, all are taken to be declared as they were. Before
        an action has ended what it no longer declares is still in its hands.
        """
        if self._settling:
            return self._balance
        self._settling = True
        try:
            balance, moved, declared = self._balance, [], self._declared() if look else []
            for storage, kind, name in declared:
                counted = storage.counted[0] if storage.counted else kind
                if not storage.declared == kind == counted or storage.maker != name:
                    self._declare(storage, kind, name, moved)
            while self._seen.events:
                storage, own, count, wall = self._seen.events.popleft()
                balance.change(
                    storage, None if count is None else (storage.declared or own, count), wall
                )
            if look:
                now = {storage for storage, _, _ in declared} | (set() if ended else self._held)
                shown = None, self._seen.of or 0  # of other replicas nothing is declared now
                moved += [(each, "", "") for each in self._held - now if each.of in shown]
                self._held = now
            self.looked = self._wall()
            for storage, kind, name in moved:
                self._rename(storage, kind, name)
                if storage.counted:
                    balance.change(storage, (storage.kind, storage.counted[1]), self.looked)
        finally:
            self._settling = False
        return balance

    def _declared(self) -> list[tuple[Storage, str, str]]:
        """(storage, kind, name), each storage once, by the first kind that has it."""
        found = {}
        with torch._C.DisableTorchFunction():  # no mode of precision is asked at each question
            for kind, name, tensor in owned.held(self.holdings()):
                for part in owned.plain(tensor):
                    storage = part.untyped_storage()
                    known = self._seen.known.get(storage._cdata)
                    if known is None and self._seen.counts(storage):
                        known = self._seen.record(storage, part, name or kind)
                        known.declared, known.bytes = kind, storage.nbytes()
                        self._seen.total += known.bytes * (kind not in APART)
                        self._balance.change(known, (kind, known.bytes), self.looked)
                    if known is not None:
                        found.setdefault(known, (known, kind, name))
        return list(found.values())

    def _declare(self, storage: Storage, kind: str, name: str, moved: list) -> None:
        """It is found declared: at once, for all that has happened since the last look too, unless
        it was of another declared kind."""
        if storage.declared and storage.declared != kind:
            moved.append((storage, kind, name))  # from one to another: from now on
        else:
            self._rename(storage, kind, name)
        if storage.counted and storage.declared == kind != storage.counted[0]:
            self._balance.change(storage, (kind, storage.counted[1]), self.looked)

    def _rename(self, storage: Storage, kind: str, name: str) -> None:
        """Its declared kind ("": its own again) and name, and with it the running sum, of which
        kinds APART are no part."""
        self._balance.name(storage, name)
        was_apart, storage.declared = storage.kind in APART, kind
        if self._seen.known.get(storage.key) is storage:
            self._seen.total += storage.bytes * (was_apart - (storage.kind in APART))

    @property
    def pending(self) -> bool:
        """Whether anything was made since the last look at all that happened."""
        return any(count and storage.counted is None for storage, _, count, _ in self._seen.events)

    def became_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """It is this weight's from now on; the next look will find it declared."""
        for part in owned.plain(gradient):
            known = self._seen.known.get(part.untyped_storage()._cdata)
            if known is not None and not known.declared:
                self._rename(known, "gradients", f"{name} gradient")
                self._held.add(known)

    def _update_begins(self) -> None:
        self._seen.action = self._seen.action or "update"

    def _update_ends(self) -> None:
        """The state that an optimizer made in its first step is known before anything of it can
        go."""
        self._settled()
        self._seen.action = self._seen.action.removeprefix("update")

    def _weight_name(self, weight: torch.Tensor) -> str:
        known = (
            self._seen.known.get(storage._cdata)
            if (storage := storage_of(weight)) is not None
            else None
        )
        return (
            known.maker
            if known is not None and known.declared == "weights" and isinstance(known.maker, str)
            else ""
        )

    # -- in a run --------------------------------------------------------------------------------

    def begin(self, action: str = "", look: bool = True) -> None:
        """At an action's start. `look`: whether what is declared may have changed."""
        self._settled(look)
        if not self._stepping:
            self._balance.steps_begin(self._wall())
            self._stepping = True
        self._seen.action = action
        self._balance.listen()

    def end(self, look: bool = True) -> tuple[list[str], list[int], list[tuple[int, ...]]]:
        """At an action's end: the kinds that rose or fell inside, the moments (wall ns), and the
        bytes of each kind then."""
        self._settled(look)
        self._seen.action = ""
        return self._balance.readings()

    @property
    def before(self) -> dict[str, int]:
        """kind -> bytes at the start of the last action, of those that count."""
        return {kind: size for kind, size in self._balance.before.items() if kind not in APART}

    @property
    def highest_bytes(self) -> int:
        """The peak, as of the last look; 0 where it is coarse: it knows no whole level."""
        return 0 if self.coarse else self._balance.peak_bytes

    @property
    def highest_wall(self) -> int:
        """When it was first reached (ns)."""
        return self._balance.peak_wall

    def changes(self, look: bool = True) -> list[tuple[str, int]]:
        """(kind, bytes) of each kind whose bytes are not those of the last call. `look`: whether
        anything has happened since `end`."""
        levels = (self._settled() if look else self._balance).levels
        changed = [(kind, levels[kind]) for kind in MEMORY_KINDS if levels[kind] != self.told[kind]]
        self.told |= changed
        return changed


def words(maker) -> str:
    """An operator's name without its library, where that is torch's own; a declared tensor's name
    as it is."""
    return maker if isinstance(maker, str) else maker._schema.name.removeprefix("aten::")


def known_kind(kind: str) -> str:
    refuse(
        (
            kind not in owned.HELD_KINDS,
            f"There is no kind of memory {kind!r}: choose from {', '.join(owned.HELD_KINDS)}.",
        )
    )
    return kind
