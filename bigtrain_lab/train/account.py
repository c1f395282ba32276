"""What a dry run finds, as plain values: a prediction that reads it needs no torch.

    for each action: bytes by kind at its end and inside it, FLOPs, bytes moved, operators
    for each storage: its name, its kind, when it is born and when it dies

dry_run.py finds it; runtime/kept.py keeps it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain
from operator import add, sub
from typing import NamedTuple

from ..core import COLLECTIVES, MEMORY_KINDS, Alive, Inside, Memory, Span, Trace
from ..core.peak import placed
from ..core.trace import ACTION
from ..order.schedule import Action, Step
from ..runtime.memory.balance import Heights, read
from ..runtime.record.log import changed


class Work(NamedTuple):
    """What a device does: FLOPs of products, bytes that its other operators read and write, how
    many operators it starts. `spared_bytes` and `spared_operators`: of these a GPU does without,
    by kernels that a CPU has not."""

    flops: int = 0
    moved_bytes: int = 0
    operators: int = 0
    spared_bytes: int = 0
    spared_operators: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*map(add, self, other))

    def __sub__(self, other: "Work") -> "Work":
        return Work(*(own - less for own, less in zip(self, other)))

    def on_gpu(self, tensors: int = 1) -> "Work":
        """With a GPU's kernels. `tensors`: of an update, in which torch on a GPU launches each
        operator once for all of them (foreach)."""
        launched = -(-(self.operators - self.spared_operators) // max(1, tensors))
        return Work(self.flops, self.moved_bytes - self.spared_bytes, launched)

    def seconds(self, hardware, dtype: str, tensors: int = 1) -> float:
        """On this hardware, with products in this format; `tensors`: see `on_gpu`."""
        work = self.on_gpu(tensors) if hardware.launches_ahead else self
        return hardware.seconds(work.flops, work.moved_bytes, dtype, work.operators)


class Called(NamedTuple):
    """A collective that an action calls when it has done this work. `bytes`: of all the tensor."""

    done: Work
    kind: str
    bytes: int
    name: str


class Acted(NamedTuple):
    """One action. `before`, `after`: kind -> bytes at its start and its end. `inside`: the levels
    of the `kinds` that change at all moments in it, in order; the first `early` of them are of what
    was there before, and only then found to be declared. `products`: (b, m, n, k) of each, b times
    (m, k) by (k, n)."""

    work: Work
    before: dict[str, int]
    after: dict[str, int]
    kinds: tuple[str, ...]
    inside: tuple[tuple[int, ...], ...]
    early: int = 0
    called: tuple[Called, ...] = ()
    products: tuple[tuple[int, int, int, int], ...] = ()

    def from_start(self) -> tuple[tuple[int, ...], ...]:
        """The levels of its kinds at all moments, beyond those at its start."""
        base = [self.before.get(kind, 0) for kind in self.kinds]
        return tuple(tuple(map(sub, row, base)) for row in self.inside)

    def calls(self, time: Callable[[Work], float]) -> tuple[Inside, ...]:
        """The collectives as a Cost has them; `time` prices work."""
        whole = Fraction(time(self.work)) or 1
        return tuple(Inside(Fraction(time(each.done)) / whole, *each[1:]) for each in self.called)


@dataclass(frozen=True)
class DryRun:
    """The dry run of a program. `actions`: by their names, in order. `alive`: the storages of the
    peak, which is in `peak_action`, at its reading number `peak_at` (None: at its end). `rises`:
    (action, what is made, bytes held then) each time that more is held than ever before. `sent`:
    bytes of a message by its site in the program, and of a collective between actions by its name.
    `set_up_bytes`: most bytes held before the first
    action, which are no part of the peak."""

    start: dict[str, int]
    actions: dict[str, Acted]
    alive: tuple[Alive, ...] = ()
    peak_action: str = ""
    peak_at: int | None = None
    rises: tuple[tuple[str, str, int], ...] = ()
    sent: Mapping[str, int] = field(default_factory=dict)
    set_up_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once."""
        return sum(row.bytes for row in self.alive)

    def kinds(self) -> dict[str, int]:
        """kind -> bytes at the peak."""
        sums = total(*({row.kind: row.bytes} for row in self.alive))
        return {kind: sums[kind] for kind in MEMORY_KINDS if kind in sums}

    def seconds(self, name: str, hardware, dtype: str) -> float:
        """Of an action on this hardware."""
        tensors = sum(row.kind == "weights" for row in self.alive) if "U" in name else 1
        return self.actions[name].work.seconds(hardware, dtype, tensors)

    @cached_property
    def moves(self) -> "dict[str, Moves]":
        """What each action does to the levels: asked of a dry run that stays, found once."""
        return {
            name: Moves((difference(now.before, now.after),), now.kinds, now.from_start())
            for name, now in self.actions.items()
        }

    def peak_in(self, span: Span) -> int:
        """The tick of the peak in an action of a run that is like `peak_action`."""
        if self.peak_at is None:
            return span.end
        told = read(self.actions[self.peak_action].inside)
        return placed(span.start, span.end, len(told))[told.index(self.peak_at)]


def with_levels_inside(trace: Trace, inside: Callable) -> Trace:
    """The trace with levels inside each action, at the moments that a run tells of.

    inside   span -> (its Moves, bytes at its start of the kinds there, bytes of other kinds)
    """
    events, heights = [], [Heights(trace.ranks) for _ in range(trace.ranks)]
    for event in trace.events:
        if isinstance(event, Span) and event.lane == "compute" and event.kind not in COLLECTIVES:
            moves, base, others = inside(event)
            told, top = moves.told
            if heights[event.rank].tells(top + sum(base) + others, len(told)):
                told = [
                    (tick, tick, *map(add, base, row))
                    for tick, row in zip(placed(event.start, event.end, len(told)), told)
                ]
                rank, lane, _, name, *_ = event
                events += [
                    Memory(rank, lane, kind, name, at, size, True)
                    for _, at, kind, size in changed(moves.kinds, told)
                ]
        events.append(event)
    return Trace.of(events, **trace.header())


@dataclass(frozen=True)
class Moves:
    """What a step does to a rank's levels: `ends`, the change at its end by each action; `inside`,
    the levels of `kinds` at all moments, as from its start."""

    ends: tuple[dict[str, int], ...]
    kinds: tuple[str, ...]
    inside: tuple[tuple[int, ...], ...]

    @cached_property
    def told(self) -> tuple[list[tuple[int, ...]], int]:
        """The levels at the moments that are told, and the highest total."""
        return [self.inside[at] for at in read(self.inside)], max(map(sum, self.inside), default=0)


class Holdings:
    """What ranks hold, here nothing: the one way to what a Cost says of memory, and to a trace. A
    subclass says what each rank starts with, and of each of its steps what changes since the last
    one, and what the step does."""

    def start(self, rank: int) -> dict[str, int]:
        return {}

    def steps(self, rank: int) -> Iterable[tuple[Step, dict[str, int], Moves]]:
        return ()

    def held(self, ranks: int, kinds: Sequence[str] = MEMORY_KINDS) -> dict[str, dict]:
        """What a Cost says of memory: `resident` before the first action, and the `changes` of
        these kinds at the end of each."""
        changes, resident, known = {}, {}, {}
        for rank in range(ranks):
            resident[rank] = tuple(self.start(rank).items())
            for step, before, moves in self.steps(rank):
                for action, end in zip(step, moves.ends):
                    key = tuple(before.items()), id(end)
                    if key not in known:
                        change = total(before, end)
                        known[key] = tuple((k, change[k]) for k in kinds if k in change)
                    changes[rank, action], before = known[key], {}
        return {"changes": changes, "resident": resident}

    def looked_into(self, trace: Trace) -> Trace:
        """The trace with levels inside each action, the highest among them."""
        held = [Counter(self.start(rank)) for rank in range(trace.ranks)]
        to_come = [iter(self.steps(rank)) for rank in range(trace.ranks)]

        def inside(span):
            (_, before, moves), now = next(to_come[span.rank]), held[span.rank]
            now.update(before)
            base = [now[kind] for kind in moves.kinds]
            others = now.total() - sum(base)
            for change in moves.ends:
                now.update(change)
            return moves, base, others

        return with_levels_inside(trace, inside)


class Likened(Holdings):
    """A run, each of whose actions is like one of a dry run. `dry`: rank -> its dry run; `like`: an
    action of the run -> the one there; `work`: the actions of each rank, in order."""

    def __init__(self, dry: Callable[[int], DryRun], like: Callable[[Action], Action], work):
        self.dry, self.like = dry, like
        self.work, self._moves = [[*actions] for actions in work], {}

    def start(self, rank):
        return self.dry(rank).start

    def steps(self, rank):
        dry, known = self.dry(rank), self._moves
        level = dry.start
        for action in self.work[rank]:
            now = dry.actions[name := str(self.like(action))]
            if (key := (id(level), name)) not in known:
                known[key] = difference(level, now.before)
            yield (action,), known[key], dry.moves[name]
            level = now.after

    def looked_into(self, trace: Trace) -> Trace:
        """And with all that is alive at the peak of each rank."""
        first: dict[tuple[int, str], Span] = {}
        for span in trace.where(Span, lane="compute"):
            if place := ACTION.fullmatch(span.name):
                action = Action(span.kind, *map(int, place.group(1, 3)))
                first.setdefault((span.rank, str(self.like(action))), span)
        trace = super().looked_into(trace)
        alive = [row for rank in range(trace.ranks) for row in self.alive(rank, first)]
        return Trace.of([*trace.events, *alive], **trace.header())

    def alive(self, rank: int, spans: Mapping[tuple[int, str], Span]) -> Iterator[Alive]:
        """The storages of a rank's peak. `spans`: (rank, action of the dry run) -> the first like
        it."""
        dry = self.dry(rank)
        span = spans.get((rank, dry.peak_action))
        at = dry.peak_in(span) if span else 0  # it was when the model was made
        for row in dry.alive:
            made = spans.get((rank, row.made))
            yield row._replace(rank=rank, start=at, made=made.name if made else row.made)


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """kind -> how many bytes more."""
    return {
        kind: more
        for kind in {**before, **after}
        if (more := after.get(kind, 0) - before.get(kind, 0))
    }


def total(*changes: Mapping[str, int]) -> dict[str, int]:
    return {
        kind: more
        for kind in dict.fromkeys(chain(*changes))
        if (more := sum(change.get(kind, 0) for change in changes))
    }


# -- storage by storage ---------------------------------------------------------------------------


class Held(NamedTuple):
    """One storage: alive at the moments born <= t < dies. `name`: what made it, or the weight that
    it is. `made`: the action in which it was born, "" before the first. `kind`: what it became,
    where it was not a temporary all its life."""

    name: str
    kind: str
    bytes: int
    born: int
    dies: int
    made: str
    module: str = ""


class Moment(NamedTuple):
    """Something is born or grows, or an action ends ("end")."""

    action: str
    name: str


class Account:
    """All storages of a dry run, in the order of birth, and the `moments` at which one is born."""

    def __init__(self, rows: tuple[Held, ...], moments: tuple[Moment, ...]):
        self.rows, self.moments = rows, moments

    @cached_property
    def levels(self) -> list[int]:
        """Bytes alive at each moment."""
        changes = [0] * (len(self.moments) + 1)
        for row in self.rows:
            changes[row.born] += row.bytes
            changes[row.dies] -= row.bytes
        return list(accumulate(changes[:-1]))

    @property
    def peak_bytes(self) -> int:
        return max(self.levels)

    @property
    def peak_moment(self) -> int:
        return self.levels.index(self.peak_bytes)

    def peak_of(self, step: int) -> int:
        """Peak of one training step, counted from 0."""
        return max(
            level
            for level, moment in zip(self.levels, self.moments)
            if moment.action[2:] == str(step)  # as "0B1"
        )

    def alive(self, moment: int) -> list[Held]:
        """What is alive then, largest first."""
        return sorted(
            (row for row in self.rows if row.born <= moment < row.dies),
            key=lambda row: -row.bytes,
        )

    def at_peak(self) -> list[Held]:
        return self.alive(self.peak_moment)

    def kinds(self, moment: int) -> dict[str, int]:
        """kind -> bytes alive then."""
        return total(*({row.kind: row.bytes} for row in self.alive(moment)))

    def after(self, action: str) -> dict[str, int]:
        """kind -> bytes at the end of an action, such as "0B0", the first step's backward."""
        return self.kinds(self.moments.index(Moment(action, "end")))
