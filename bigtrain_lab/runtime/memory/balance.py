"""A balance: what is held of each kind, from a list of changes in order; its highest total, and who
was alive then.

    total(t) = sum over kinds of level(t, kind);    peak = max over t of total(t)

A change says: from now on this storage has so many bytes of that kind (or is gone). Who was alive
at the peak is known at any later time from an undo log: for each storage that has changed since the
peak, what it was at the peak, and what it was called then. A new peak empties the log, so a rise
costs nothing and memory stays that of what is alive.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping

from ...core import MEMORY_KINDS, Alive, grouped

APART = (
    "inputs",
    "buffers",
)  # known and told, but part of no sum: hand counts and predictions leave them out
READINGS = 16  # moments told of one span
MOST = 1000  # of a run
MOST_ROWS = 400  # of a list in a log


class Balance:
    """`change(storage, state, wall)`: state is (kind, bytes), or None when it is gone;
    `storage.counted` keeps the last one."""

    def __init__(self):
        self.levels: dict[str, int] = defaultdict(int)  # kind -> bytes now
        self.highest: dict[str, int] = defaultdict(int)  # kind -> the most that there ever was
        self.total = self.peak_bytes = self.peak_wall = self.set_up_bytes = 0
        self._since: dict[object, tuple | None] = {}  # storage -> what it was at the peak
        self.names: dict[
            object, object
        ] = {}  # storage -> its name at the peak, if it has another since
        self._told: list[tuple] | None = None
        self.before: dict[str, int] = {}  # levels when `listen` was called

    def change(self, storage, state: tuple[str, int] | None, wall: int) -> None:
        before = storage.counted
        if state == before:
            return
        storage.counted, levels = state, self.levels
        for counted, sign in ((before, -1), (state, 1)):
            if counted:
                kind, size = counted
                levels[kind] += sign * size
                self.highest[kind] = max(self.highest[kind], levels[kind])
                self.total += sign * size * (kind not in APART)
        if self.total > self.peak_bytes:
            self.peak_bytes, self.peak_wall = self.total, wall
            self._forget()
        elif state is None and self._since.get(storage, self) is None:
            del self._since[storage]  # it came and went since the peak
            self.names.pop(storage, None)
        else:
            self._since.setdefault(storage, before)
        if self._told is not None:
            if before and (not state or before[0] != state[0]):
                self._told.append((wall, before[0], levels[before[0]], self.total))
            if state:
                self._told.append((wall, state[0], levels[state[0]], self.total))

    def steps_begin(self, wall: int) -> None:
        """Set-up is over: its peak is told apart, and the peak is of steps from now on."""
        self.set_up_bytes, self.peak_bytes, self.peak_wall = self.peak_bytes, self.total, wall
        self._forget()

    def _forget(self) -> None:
        self._since.clear()
        self.names.clear()

    def name(self, storage, name: str) -> None:
        """It is called so from now on ("": as it was)."""
        if name and name != storage.maker:
            self.names.setdefault(storage, storage.maker)
            storage.maker = name

    def at_peak(self, alive) -> list[tuple[object, str, int]]:
        """(storage, kind, bytes) of all that the peak was made of, of `alive` now and of those that
        are gone since."""
        states = {storage: storage.counted for storage in alive} | self._since
        return [
            (storage, *state)
            for storage, state in states.items()
            if state and state[0] not in APART
        ]

    # -- readings inside a span --------------------------------------------------------------------

    def listen(self) -> None:
        self._told, self.before = [], dict(self.levels)

    def readings(self) -> tuple[list[str], list[int], list[tuple[int, ...]]]:
        """The kinds that have changed since `listen`, all moments (wall), and the bytes of each
        kind then."""
        told, self._told = self._told or [], None
        kinds = [kind for kind in dict.fromkeys(kind for _, kind, *_ in told) if kind not in APART]
        now, walls, levels = {kind: self.before.get(kind, 0) for kind in kinds}, [], []
        for (wall, kind, level, total), after in zip(told, [*told[1:], None]):
            now[kind] = level
            # The two halves of a change of kind are one moment: the later.
            if kinds and (after is None or (wall, total) != (after[0], after[3])):
                walls.append(wall)
                levels.append(tuple(map(now.get, kinds)))
        return kinds, walls, levels


class Heights:
    """Inside which of its spans a rank tells levels: the first ones, until all `ranks` together
    have told MOST, and those that are higher than all before."""

    def __init__(self, ranks: int = 1):
        self.left, self.highest = MOST // ranks, 0

    def tells(self, top: int, moments: int) -> bool:
        """Of the next span: its highest total, and at how many moments its levels would be told."""
        new, self.highest = top > self.highest, max(top, self.highest)
        tells = new or self.left > 0
        self.left -= tells * moments
        return tells


def with_units(kinds, rows: list[tuple], before: Mapping, told: Mapping) -> tuple[list, list]:
    """The kinds and levels inside an action, with those of weights and gradients where any have
    come or gone since the last boundary, as those of a sharded model do. `before`: kind -> bytes at
    the action's start; `told`: at that boundary."""
    moved = [
        kind
        for kind in ("weights", "gradients")
        if kind not in kinds and before.get(kind, 0) != told.get(kind, 0)
    ]
    levels = tuple(before.get(kind, 0) for kind in moved)
    return [*kinds, *moved], [(*row, *levels) for row in rows] if moved else rows


def read(levels: list[tuple[int, ...]], most: int = READINGS) -> list[int]:
    """Which moments of a span are told: at most so many, the highest and the lowest total among
    them, and none that tells nothing new."""
    chosen = few(range(len(levels)), most, lambda at: sum(levels[at]))
    return [
        at
        for before, at in zip([None, *chosen], chosen)
        if before is None or levels[at] != levels[before]
    ]


def few(moments: list, most: int, height: Callable) -> list:
    """At most so many of these moments, in their order, the highest and the lowest among them."""
    if len(moments) <= most:
        return moments
    step, heights = len(moments) / (most - 2), [height(moment) for moment in moments]
    ends = {heights.index(max(heights)), heights.index(min(heights))}
    return [moments[i] for i in sorted({int(i * step) for i in range(most - 2)} | ends)]


def together(alive: list[Alive], most: int = MOST_ROWS) -> list[Alive]:
    """The largest ones, and all smaller ones of a kind as one: few enough to be written, with the
    same sum."""
    smaller = grouped((a.kind, a) for a in alive[most:])
    return list(alive[:most]) + [
        smaller[kind][0]._replace(
            name=f"{len(smaller[kind])} smaller ones",
            bytes=sum(a.bytes for a in smaller[kind]),
            shape=(),
            dtype="",
            module="",
            made="",
        )
        for kind in MEMORY_KINDS
        if kind in smaller
    ]
