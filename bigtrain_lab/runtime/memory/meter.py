"""Which bytes a rank holds, by kind, at action boundaries, and how activations rise and fall inside
an action.

    activations    distinct storages that autograd packed inside spans and whose graph still lives,
                   less every storage that the program says it holds, inputs and buffers included
    all kinds      storages of the tensors that the program says it holds (Rank.watch)

A storage counts once, whole, however many views, names or kinds share it; the first kind in
core.MEMORY_KINDS' order has it. What torch.func's transforms save inside a span is not seen
(saved.py says why).
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from ...core import MEMORY_KINDS, Impossible
from .balance import APART, few
from .owned import plain
from .saved import Observer

READINGS = 32  # inside one span
HELD_KINDS = (*MEMORY_KINDS, *APART)  # APART: known, hence no activations, but not reported


def storage_of(tensor: torch.Tensor) -> tuple[int, int]:
    """(address, bytes) of the tensor's storage; the address is its identity while it lives."""
    storage = tensor.untyped_storage()
    return 0 if storage.device.type == "meta" else storage.data_ptr(), storage.nbytes()


def held(holdings: Mapping[str, Iterable]) -> Iterator[tuple[str, str, torch.Tensor]]:
    """(kind, name or "", tensor) of all that is declared, in the kinds' order; Impossible where a
    kind is unknown."""
    if unknown := set(holdings) - set(HELD_KINDS):
        raise Impossible(
            f"Cannot watch {', '.join(sorted(unknown))}: name the kinds of memory"
            f" {', '.join(HELD_KINDS)}."
        )
    for kind in HELD_KINDS:
        tensors = holdings.get(kind, ())
        for name, tensor in (
            tensors.items()
            if isinstance(tensors, Mapping)
            else (("", tensor) for tensor in tensors)
        ):
            if tensor is not None:
                yield kind, name, tensor


class Meter:
    """Give it `holdings`, a function -> {kind: tensors, or {name: tensor}}; ask `changes()` at
    action boundaries."""

    highest_bytes, refused = 0, ()  # it knows no moment but these: a Ledger does

    def __init__(self, wall: Callable[[], int] = time.monotonic_ns):
        self.holdings: Callable[[], Mapping[str, Iterable]] = dict
        self._wall = wall
        self._last = dict.fromkeys(MEMORY_KINDS, 0)
        self._alive: dict[int, list[int]] = {}  # address -> [saved objects, bytes]
        self._bytes = 0  # of all that are alive
        self._dead: deque[tuple[list[int], int]] = deque()  # addresses let go, and when
        self._held: set[int] = set()
        self._readings: list[tuple[int, int]] | None = None
        self._counted = 0  # activations as last read inside a span

    # -- action boundaries -------------------------------------------------------------------------

    def changes(self) -> list[tuple[str, int]]:
        """(kind, bytes) of each kind whose bytes are not those of the last call."""
        sizes = self._measure()
        changed = [(kind, sizes[kind]) for kind in MEMORY_KINDS if sizes[kind] != self._last[kind]]
        self._last = sizes
        return changed

    def _measure(self) -> dict[str, int]:
        sizes, self._held = dict.fromkeys(MEMORY_KINDS, 0), set()
        for kind, _, tensor in held(self.holdings()):
            for address, size in map(storage_of, plain(tensor)):
                if address not in self._held:
                    self._held.add(address)
                    if kind in sizes:
                        sizes[kind] += size
        self._settle()
        declared = sum(self._alive[a][1] for a in self._held if a in self._alive)
        sizes["activations"] += self._bytes - declared
        return sizes

    # -- inside an action --------------------------------------------------------------------------

    def begin(self, action: str = ""):
        """At a span's start: returns the hooks to be active during it."""
        self._counted = self._measure()[
            "activations"
        ]  # what arrived since the last boundary is held
        self._readings = []
        return Observer(self._saved, self._died).looking()

    def end(self) -> dict[str, list[tuple[int, int]]]:
        """At a span's end: (wall ns, bytes) of "activations", at most READINGS of them, the highest
        and lowest among them."""
        self._settle()
        readings = few(self._readings or [], READINGS, lambda reading: reading[1])
        self._readings = None
        return {"activations": readings} if readings else {}

    def _read(self, address: int, change: int, wall: int) -> None:
        self._bytes += change
        if address not in self._held and self._readings is not None:
            self._counted += change
            self._readings.append((wall, self._counted))

    def _saved(self, tensor: torch.Tensor) -> list[int]:
        self._settle()  # an address that was freed may be this one again
        stored = [
            (address, size) for address, size in map(storage_of, plain(tensor)) if address
        ]  # an empty or a fake tensor is nowhere
        for address, size in stored:
            if entry := self._alive.get(address):
                entry[0] += 1
            else:
                self._alive[address] = [1, size]
                self._read(address, size, self._wall())
        return [address for address, _ in stored]

    def _died(self, addresses: list[int]) -> None:
        """A saved tensor was let go, in whichever thread, perhaps in the middle of a count."""
        self._dead.append((addresses, self._wall()))

    def _settle(self) -> None:
        """Count what was let go."""
        while self._dead:
            addresses, wall = self._dead.popleft()
            for address in addresses:
                entry = self._alive[address]
                entry[0] -= 1
                if not entry[0]:
                    del self._alive[address]
                    self._read(address, -entry[1], wall)
