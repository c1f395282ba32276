"""Which plan trains this model fastest on these devices? Search all of them.

A plan is a product dp x pp x tp of the devices, rows of a micro-batch, and what saves memory:
recompute, sequence parallelism, the stages of ZeRO. The model with one of its blocks is run without
values for each way to slice it, with two rows and with three. What a piece of it holds, computes
and sends is affine in the rows. Closed forms then give the time and memory of all plans at once.

    period = max over s of  max(F_s + B_s,  (sum of F + B + 2 hops from s on) / (p - s))
    step   = sum of F + B + 2 hops + (m - 1) period + averaging that no backward hides + update
    memory = state + n (kept of a micro-batch) + the largest backward,    n = min(m, p - s)

Stage s of p stages under 1F1B with m micro-batches; a hop is a message between two stages. State is
weights, gradients and what the optimizer holds, shared among dp replicas by the stages of ZeRO.
Stages 2 and 3 send in every backward, one message after the other, so F_s and B_s are then at
least what their messages take. Beside the labs' own predictions of 64 plans drawn at random, times
are 0.1% off on average and 1.7% at worst, with ZeRO 0.2% and 0.9%; memory is 2% off on average and
10% at worst (benchmarks/results/plan.md). Labs leave inputs of layers out of memory, and so does a
search with inputs=False.

Cost: some 15 dry runs, then some 20 microseconds a plan.
Source: Narayanan et al. 2021 (arXiv:2104.04473), section 3; Rajbhandari et al. 2020, ZeRO
(arXiv:1910.02054), sections 3 and 5.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from .core import Cost, Impossible
from .core.hardware import TICKS_PER_SECOND, Hardware, Wire
from .core.later import later
from .core.words import size
from .order.plan import collector_paused
from .order.schedule import Action, Schedule
from .order.simulate import simulate
from .techniques.precision_levels import LEVELS
from .techniques.reducers import BUCKET_BYTES
from .train.account import Acted, DryRun, Work
from .train.optimizer import Optimizer

with later():
    from .train import pieces

PIECES = "before", "block", "after"  # of a model; its ends lie beside a row of blocks


class Way(NamedTuple):
    """What changes what a piece of the model holds and computes. `recompute`: "none", "selective"
    (of attention's core only) or "full"."""

    tp: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"


class Plan(NamedTuple):
    """`rows`: samples of a micro-batch."""

    dp: int
    pp: int
    way: Way
    rows: int
    zero: int

    def __str__(self) -> str:
        told = [f"dp {self.dp} x pp {self.pp} x tp {self.way.tp}, rows {self.rows}"]
        told += ["sequence parallelism"] * self.way.sequence_parallel
        how = self.way.recompute
        told += [{"full": "recompute"}.get(how, f"{how} recompute")] * (how != "none")
        return ", ".join(told + [f"ZeRO {self.zero}"] * bool(self.zero))


class Planned(NamedTuple):
    """A plan's time of a step, in seconds, and the memory of its fullest device."""

    plan: Plan
    seconds: float
    bytes: int


# -- a piece of the model --------------------------------------------------------------------------


class Facts(NamedTuple):
    """What a piece computes, calls, sends and holds.

    work               a row each for F, B and U
    forward, backward  bytes of the collectives that they call
    first, again       bytes at the moments of a backward, beyond those at its start; of one that
                       finds gradients to add to
    update             of an update
    held               bytes that a forward leaves for its backward, of a message, of weights, of
                       gradients, of the optimizer's state and masters, of the largest weight, and
                       of a bucket on average
    """

    work: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    first: np.ndarray
    again: np.ndarray
    update: np.ndarray
    held: np.ndarray

    @staticmethod
    def of(
        run: DryRun, stage: int, number: int, last: int, held: "pieces.Held", message: int
    ) -> "Facts":
        """Of micro-batch `number`; the update is that of the last one."""
        forward, backward, update = acted = [
            run.actions[str(Action(*each))]
            for each in (("F", stage, number), ("B", stage, number), ("U", stage, last))
        ]
        before = run.actions[str(Action(*("B", stage - 1) if stage else ("F", 0), number))].before
        kept = sum(
            size - before.get(kind, 0)
            for kind, size in backward.before.items()
            if kind not in ("weights", "master", "gradients", "optimizer")
        )
        weights = held.weights or (0,)
        state = sum(weights), held.gradients, held.others
        return Facts(
            np.array([each.work for each in acted]),
            *(np.array([call.bytes for call in each.called], int) for each in acted[:2]),
            levels(backward),
            levels(backward, "gradients"),
            levels(update),
            np.array([kept, message, *state, max(weights), bucket_bytes(weights)]),
        )


def bucket_bytes(weights: Sequence[int]) -> int:
    """The mean of the buckets that a long row of such pieces makes. A weight that does not fit into
    one begins the next; one that is larger has its own."""
    copies = -(-8 * BUCKET_BYTES // max(1, sum(weights)))
    if copies > 32:
        return BUCKET_BYTES
    buckets, filled = copies * sum(own > BUCKET_BYTES for own in weights), 0
    for own in (own for own in [*weights] * copies if own <= BUCKET_BYTES):
        filled += own
        if filled > BUCKET_BYTES:
            buckets, filled = buckets + 1, own
    return int(copies * sum(weights) / (buckets + filled / BUCKET_BYTES))


def levels(acted: Acted, without: str = "") -> np.ndarray:
    """Bytes that an action holds at its moments, beyond those at its start, from the first change
    on."""
    counted = [at for at, kind in enumerate(acted.kinds) if kind != without]
    start = sum(acted.before.get(acted.kinds[at], 0) for at in counted)
    own = [sum(row[at] for at in counted) - start for row in acted.inside]
    return np.array([0, *np.trim_zeros(own, "f")])


class Runs(NamedTuple):
    """The dry run of a piece: Facts of each size of a micro-batch, the kinds of collectives that
    its F and its B call, and how many weights it has."""

    facts: tuple[Facts, ...]
    kinds: tuple[tuple[str, ...], ...]
    tensors: int


def runs_of(step: "pieces.Step", sizes: Sequence[int], way: Way) -> dict[str, Runs]:
    """Of each piece of a model with one block, by its name."""
    run, held, messages = pieces.run_pieces(step, sizes, *way)
    found, last = {}, len(sizes) - 1
    for stage, (name, own) in enumerate(zip(PIECES, held)):
        called = (run.actions[str(Action(kind, stage, 0))].called for kind in "FB")
        found[name] = Runs(
            tuple(
                Facts.of(run, stage, number, last, own, messages[3 * number + stage])
                for number in range(last + 1)
            ),
            tuple(tuple(call.kind for call in calls) for calls in called),
            len(own.weights),
        )
    return found


class Piece:
    """A piece of the model one way, from its dry runs of two and of three rows. What they show is
    affine in the rows, but for a copy that one row alone does without (`single`). Where there are
    two, of 2 and of 4 `slices`, it is also affine in 1 / slices."""

    def __init__(self, runs: Sequence[Runs], slices: int, single: Sequence[Runs] = ()):
        self.runs, self.slices, self.single = runs, slices, single
        self.kinds, self.tensors = runs[0].kinds, runs[0].tensors

    def at(self, rows: Iterable[int]) -> Facts:
        """With a last dim for each number of rows, and the most that is held in place of the
        moments."""
        rows = np.array(rows)
        found = self.between([[line(each, rows) for each in zip(*run.facts)] for run in self.runs])
        if not self.single:
            return found
        one = self.between([[each[..., None] for each in run.facts[0]] for run in self.single])
        return Facts(*(np.where(rows == 1, *each) for each in zip(one, found)))

    def between(self, lines: Sequence[Sequence[np.ndarray]]) -> Facts:
        """From 2 and 4 slices."""
        here = [*lines[0]]
        for at, pair in enumerate(zip(*lines) if len(lines) > 1 else ()):
            two, four = alike_moments(pair)
            here[at] = four + (two - four) * (4 - self.slices) // self.slices
        found = Facts(*here)
        most = {what: getattr(found, what).max(0) for what in ("first", "again", "update")}
        return found._replace(**most)


def line(sizes: Sequence[np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Through the values of two rows and of three."""
    two, three = (each[..., None] for each in alike_moments(sizes))
    return two + (rows - 2) * (three - two)


def alike_moments(pair: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """As they are; of moments that one of them lacks, the highest."""
    one, other = pair
    return pair if len(one) == len(other) else [each.max(0, keepdims=True) for each in pair]


@dataclass(frozen=True)
class Job:
    """What is to be trained: a model of so many `blocks`, `batch` samples a step.
    `run(sizes, way)` is the dry run of its pieces; `slices` says by how many each can be cut;
    `recompute`: what of it may be run again."""

    blocks: int
    run: Callable[[tuple[int, ...], Way], dict[str, Runs]]
    slices: Callable[[int], bool]
    batch: int
    dtype: str
    recompute: Sequence[str] = ("none", "selective", "full")

    def cut(self, stages: int) -> list[tuple[tuple[str, int], ...]]:
        """Name and number of the pieces of each stage: left-over blocks go to those just before the
        last."""
        each, over = divmod(self.blocks, stages)
        return [
            (
                *[("before", 1)] * (s == 0),
                ("block", each + (stages - 1 - over <= s < stages - 1)),
                *[("after", 1)] * (s == stages - 1),
            )
            for s in range(stages)
        ]


def model_job(make: Callable, batch: int, optimizer: str = "adam", precision: str = "none") -> Job:
    """The training of a model of one's own, whose layers are not sliced. `make()`: a module,
    (inputs, targets) with samples along dim 0, and a loss(output, targets). Its blocks are like
    children side by side in a ModuleList or a Sequential."""
    level = None if precision == "none" else precision
    step, blocks, own = pieces.of_user(make, Optimizer.named(optimizer).at(0.1), level)

    def run(sizes: tuple[int, ...], way: Way) -> dict[str, Runs]:
        try:
            return runs_of(step, sizes, way)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise Impossible(f"The model with one of its {blocks} blocks fails: {error}") from error

    dtype = LEVELS[level].format if level else own
    return Job(blocks, run, lambda tp: tp == 1, batch, dtype, ("none", "full"))


# -- all plans -------------------------------------------------------------------------------------


class Search:
    """All plans of a job on so many devices: `.fitting`, the fastest first, those that are too
    `.large` for the memory, and products that are `.refused`, each with the first reason. `inputs`:
    whether the inputs of pieces count, as on a device; what labs tell leaves them out."""

    @collector_paused()
    def __init__(
        self,
        job: Job,
        hardware: Hardware,
        devices: int,
        memory_bytes: int | None = None,
        inputs: bool = True,
    ):
        if devices < 1:
            raise Impossible(f"{devices} devices train nothing: take at least one.")
        self.job, self.hardware, self.devices, self.inputs = job, hardware, devices, inputs
        self.memory_bytes = memory_bytes or hardware.memory_bytes
        self._known: dict[tuple, Any] = {}  # pieces, what they take, and rings
        self.refused: dict[Plan, str] = {}
        alike: dict[tuple, list[Plan]] = {}
        for first in self.products():
            if why := self.impossible(first):
                self.refused[first] = why
                continue
            for zero in range(4 if first.dp > 1 else 1):
                own = alike.setdefault((first.pp, zero, first.dp > 1), [])
                own += self.plans(first, zero)
        priced = [found for plans in filter(None, alike.values()) for found in self.priced(plans)]
        priced.sort(key=lambda each: each[1:])
        limit = self.memory_bytes or float("inf")
        self.fitting = [each for each in priced if each.bytes <= limit]
        self.large = [each for each in priced if each.bytes > limit]

    def once(self, key: tuple, make: Callable[[], Any]) -> Any:
        """What was made for this key."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    @property
    def best(self) -> Planned:
        """The fastest plan; Impossible where none fits."""
        if not self.fitting:
            if not self.large:
                raise Impossible(f"No plan can be: {next(iter(self.refused.values()))}")
            raise Impossible(
                f"No plan fits {self.devices} devices of {size(self.memory_bytes)}: the leanest"
                f" needs {size(min(each.bytes for each in self.large))}. Take more devices, or a"
                " smaller model."
            )
        return self.fitting[0]

    @cached_property
    def larger(self) -> Planned | None:
        """The fastest of those that are too large, where it is faster than all that fit."""
        fastest = min(self.large, key=lambda each: each.seconds, default=None)
        return fastest if fastest and fastest.seconds < self.fitting[0].seconds else None

    @cached_property
    def frontier(self) -> list[Planned]:
        """Plans that none beats in both time and memory, the fastest first."""
        found, least = [], float("inf")
        for each in self.fitting:
            if each.bytes < least:
                found.append(each)
                least = each.bytes
        return found

    def products(self) -> Iterator[Plan]:
        """The plainest plan of each product."""
        counts = divisors(self.devices)
        for pp, tp in product(counts, counts):
            if self.devices % (pp * tp) == 0:
                yield Plan(self.devices // (pp * tp), pp, Way(tp), 1, 0)

    def plans(self, first: Plan, zero: int) -> Iterator[Plan]:
        """All of this product."""
        for cut, again in product({False, first.way.tp > 1}, self.job.recompute):
            way = Way(first.way.tp, cut, again)
            for rows in divisors(self.job.batch // first.dp):
                yield Plan(first.dp, first.pp, way, rows, zero)

    def impossible(self, plan: Plan) -> str:
        """Why this plan cannot be, or ""."""
        if plan.pp > self.job.blocks:
            return f"{plan.pp} stages need as many blocks, and there are fewer."
        if not self.job.slices(plan.way.tp):
            return f"The layers cannot be cut into {plan.way.tp} slices."
        if self.job.batch % plan.dp:
            return f"{plan.dp} replicas cannot share {self.job.batch} samples equally."
        return ""

    def priced(self, plans: Sequence[Plan]) -> list[Planned]:
        """Of plans that are `Alike`."""
        alike = Alike(self, plans)
        return [*map(Planned, plans, alike.seconds().tolist(), alike.bytes().tolist())]

    def seconds(self, plan: Plan) -> float:
        """Of a step."""
        return self.priced([plan])[0].seconds

    def bytes(self, plan: Plan) -> int:
        """Of the fullest device, at its peak."""
        return self.priced([plan])[0].bytes

    def scheduled(self, plan: Plan, schedule: str, **options: int) -> float:
        """Seconds of a step by another schedule, simulated. Beyond 3 pp micro-batches a step is
        affine in them. What a replica sends beside a backward follows it here."""
        m, pp = self.job.batch // (plan.dp * plan.rows), plan.pp
        links = {}
        for a, b in product(range(pp), range(pp)):
            wire = self.hardware.wire(a * plan.way.tp, b * plan.way.tp)
            if wire and (a - b) % pp in (1, pp - 1):
                links[a, b] = wire.link()

        made = partial(Schedule.named(schedule), pp, **options)
        made(micro_batches=m)  # which is refused here, where none of so many can be
        alike = Alike(self, [plan])

        def step(count: int) -> float:
            order = made(micro_batches=count)
            stages = alike.stages(order.stages)
            turns = [alike.turn(stage) for stage in stages]
            times = {
                "F": [stage.forward.item() for stage in stages],
                "B": [stage.backward.item() for stage in stages],
                "U": [(turn.last - turn.backward + turn.after).item() for turn in turns],
            }
            sent = dict.fromkeys("FB", stages[0].message.item())
            prices = self.hardware.clock(1) | {"links": links}
            return simulate(order, Cost(times, sent, **prices)).step_time

        if m <= 3 * pp:
            return step(m)
        two, three = step(2 * pp), step(3 * pp)
        return two + (m - 2 * pp) / pp * (three - two)

    # -- what pieces and messages take -------------------------------------------------------------

    @cached_property
    def rows(self) -> np.ndarray:
        """All that a micro-batch may have."""
        return np.array(divisors(self.job.batch))

    @cached_property
    def wires(self) -> np.ndarray:
        """Latency and seconds of a byte, inside a node and between nodes."""
        both = self.hardware.inside, self.hardware.between
        return np.array([(w.alpha_s, 1 / w.bytes_per_s) if w else (0.0, 0.0) for w in both])

    def piece(self, name: str, way: Way) -> Piece:
        """From dry runs: beyond 4 slices those of 2 and of 4 tell. One row is run where launches
        may bound it, since it needs fewer."""

        def run(*sizes: int) -> list[Runs]:
            ways = [way._replace(tp=tp) for tp in ((2, 4) if way.tp > 4 else (way.tp,))]
            return [
                self.once((each, sizes), lambda w=each: self.job.run(sizes, w))[name]
                for each in ways
            ]

        def made() -> Piece:
            found = Piece(run(2, 3), way.tp)
            forward, backward, _ = found.at([1]).work[..., 0].tolist()
            if any(self.time(work) > self.time([*work[:2], 0]) for work in (forward, backward)):
                found = Piece(found.runs, way.tp, run(1, 1))
            return found

        return self.once((name, way), made)

    def facts(self, name: str, way: Way) -> Facts:
        """Of a piece, of all numbers of `rows`."""
        return self.once((name, way, "facts"), lambda: self.piece(name, way).at(self.rows))

    def time(self, work: Iterable[int], tensors: int = 1) -> float:
        return Work(*work).seconds(self.hardware, self.job.dtype, tensors)

    def run(self, name: str, way: Way, copying: bool) -> np.ndarray:
        """What a Run says of one piece, of all numbers of `rows`. `copying`: its gradients go to
        their buckets."""
        piece, facts = self.piece(name, way), self.facts(name, way)
        forward, backward, _ = facts.work
        kept, message, _, gradients, *_, bucket = facts.held
        if copying:
            backward = backward + [0 * gradients, 2 * gradients, 0 * gradients + piece.tensors]

        def calls(kinds: Sequence[str], sizes: np.ndarray) -> Any:
            rings = [self.ring(range(way.tp), kind) for kind in kinds]
            return sum((ring.seconds(each) for ring, each in zip(rings, sizes)), 0 * kept)

        most = facts.first, facts.again, facts.update, kept + self.inputs * message
        return np.array(
            [
                [*map(self.time, forward.T.tolist())],
                calls(piece.kinds[0], facts.forward),
                [*map(self.time, backward.T.tolist())],
                calls(piece.kinds[1], facts.backward),
                *np.broadcast_arrays(*most, *facts.held[1:-1]),
                np.maximum(bucket, BUCKET_BYTES // 2),
            ]
        )

    def update(self, name: str, way: Way, sharers: int) -> float:
        """Seconds of a piece's update, of which each of so many replicas does its share."""
        flops, moved, operators = self.facts(name, way).work[2, :, 0].tolist()
        work = flops // sharers, moved // sharers, operators
        return self.time(work, self.piece(name, way).tensors)

    def ring(self, ranks: range, kind: str = "all_gather") -> "Ring":
        """What a Cost charges a collective of these ranks, from two sizes."""

        def made() -> Ring:
            wires = {pair: self.hardware.wire(*pair) for pair in zip(ranks, [*ranks[1:], 0])}
            nodes = len({rank // self.hardware.node_size for rank in ranks})
            prices = self.hardware.prices(1) | {
                "links": {pair: wire.link() for pair, wire in wires.items() if wire}
            }
            if self.hardware.collective_bytes_per_s:
                bus = Wire("", 0, self.hardware.bus_bytes_per_s(nodes))
                prices["buses"] = {nodes: bus.link()}
            cost = Cost({}, **prices, ticks_per_unit=TICKS_PER_SECOND)
            first, other = (cost.collective(kind, count, ranks) for count in (0, 10**9))
            return Ring(first / TICKS_PER_SECOND, (other - first) / 10**9 / TICKS_PER_SECOND)

        return self.once((kind, ranks), made)


# -- one plan, or many that are alike: each number below may be an array, of a number a plan -------


class Ring(NamedTuple):
    """Seconds of a collective: its latency, and of each byte."""

    alpha: Any
    gap: Any

    def seconds(self, size_bytes: Any, messages: Any = 1) -> Any:
        return messages * self.alpha + self.gap * size_bytes


class Run(NamedTuple):
    """So many equal pieces in a row. Of each, seconds of work and of collectives, forward and
    backward, and bytes, as of Facts."""

    forward: Any
    forward_calls: Any
    backward: Any
    backward_calls: Any
    first: Any
    again: Any
    most: Any
    kept: Any
    message: Any
    weights: Any
    gradients: Any
    others: Any
    largest: Any
    bucket: Any
    update: Any = 0.0
    count: int = 1

    def beside(self, slow: float) -> tuple[Any, Any]:
        """Seconds of a forward and of a backward beside messages."""
        return (
            self.forward * slow + self.forward_calls,
            self.backward * slow + self.backward_calls,
        )


class Stage:
    """A stage of a pipeline, its pieces in order. Seconds of its `forward`, `backward` and
    `update`; bytes of a micro-batch (`kept`), of state and of a message."""

    def __init__(self, runs: Sequence[Run]):
        def total(*names: str) -> Any:
            return sum(run.count * getattr(run, name) for run in runs for name in names)

        self.runs, self.message = runs, runs[-1].message
        self.forward, self.backward = (
            total(way, f"{way}_calls") for way in ("forward", "backward")
        )
        self.kept, self.weights, self.gradients, self.others, self.update = map(
            total, ("kept", "weights", "gradients", "others", "update")
        )


class Turn(NamedTuple):
    """What a stage takes of a step: its first forward, then a forward and a backward of each
    micro-batch, the last backward, and what follows it. The first stage waits for weights to
    `begin`, and the last one takes so much more to `turn` back the first time; all others have
    their weights by then, and messages beside them."""

    first: Any
    forward: Any
    backward: Any
    last: Any
    after: Any
    begin: Any = 0.0
    turn: Any = 0.0


class Alike:
    """Plans with equally many stages and one stage of ZeRO, all of replicas or all of none."""

    def __init__(self, search: Search, plans: Sequence[Plan]):
        self.search, (_, self.pp, _, _, self.zero) = search, plans[0]
        self.kinds = [*dict.fromkeys((plan.dp, plan.way) for plan in plans)]
        number = {kind: at for at, kind in enumerate(self.kinds)}
        self.kind = np.array([number[plan.dp, plan.way] for plan in plans])
        self.row = np.searchsorted(search.rows, [plan.rows for plan in plans])
        self.dp = self.each(lambda dp, way: dp)
        self.micro_batches = search.job.batch // (self.dp * search.rows[self.row])
        self.tp, self.replicated = self.each(lambda dp, way: way.tp), bool(self.dp[0] > 1)
        self.ring = Ring(
            *(self.each(lambda dp, way, at=at: self.replicas(dp, way)[at]) for at in range(2))
        )

    def each(self, of: Callable[[int, Way], float]) -> np.ndarray:
        """Of each plan, what replicas and way say."""
        return np.array([of(*kind) for kind in self.kinds])[self.kind]

    def replicas(self, dp: int, way: Way) -> Ring:
        apart = self.pp * way.tp
        return self.search.ring(range(0, dp * apart, apart))

    def run(self, name: str) -> Run:
        """A piece of this name."""
        search, copying = self.search, self.replicated and self.zero < 3

        def one(way: Way) -> np.ndarray:
            return search.once((name, way, copying), lambda: search.run(name, way, copying))

        def update(dp: int, way: Way) -> float:
            about = name, way, dp if self.zero else 1
            return search.once((*about, "update"), lambda: search.update(*about))

        values = np.array([one(way) for _, way in self.kinds])[self.kind, :, self.row]
        return Run(*values.T, self.each(update))

    def stages(self, count: int) -> list[Stage]:
        """So many; of like pieces the same."""
        found: dict[tuple, Stage] = {}
        one = {name: self.run(name) for name in PIECES}
        for shape in (shapes := self.search.job.cut(count)):
            if shape not in found:
                found[shape] = Stage([one[name]._replace(count=count) for name, count in shape])
        return [found[shape] for shape in shapes]

    # -- time --------------------------------------------------------------------------------------

    def seconds(self) -> np.ndarray:
        """Of a step: the first micro-batch goes through all stages, then one ends each period."""
        stages, pp, m = self.stages(self.pp), self.pp, self.micro_batches
        turns = {stage: self.turn(stage) for stage in stages}
        hops = [self.hop(s, stage) for s, stage in enumerate(stages[:-1])] + [0.0]
        both = {stage: turn.forward + turn.backward for stage, turn in turns.items()}
        period, after, done = np.max([*both.values()], 0), 0.0, 0.0
        for s, stage in reversed([*enumerate(stages)]):
            after = after + both[stage] + 2 * hops[s]
            done = done + turns[stage].first + turns[stage].last + 2 * hops[s]
            period = np.where(m > pp - s, np.maximum(period, after / (pp - s)), period)
        done = done + turns[stages[0]].begin + turns[stages[-1]].turn + (m - 1) * period
        step = np.zeros(len(m))
        for stage, hop in zip(stages, hops):
            step = np.maximum(step, done + turns[stage].after)
            done = done - turns[stage].last - hop
        return step

    def hop(self, s: int, stage: Stage) -> np.ndarray:
        """Seconds of a message from stage s to the next."""
        node = self.search.hardware.node_size
        apart = s * self.tp // node != (s + 1) * self.tp // node
        alpha, gap = self.search.wires[apart * 1].T
        return alpha + gap * stage.message

    def turn(self, stage: Stage) -> Turn:
        """Beside messages of replicas all work is slower."""
        plain = stage.forward, stage.backward
        if not self.replicated:
            return Turn(stage.forward, *plain, stage.backward, stage.update)
        slow = self.search.hardware.overlap_slowdown
        if self.zero == 3:
            return self.gathering(stage.runs, slow, stage.update)
        gathers = 0.0
        if self.zero:  # the new weights, bucket by bucket
            gathers = self.ring.seconds(stage.weights, np.ceil(stage.weights / BUCKET_BYTES))
        if self.zero == 2:
            return self.scattering(stage, slow, stage.update + gathers)
        last, exposed = self.sending(stage.runs, slow)
        return Turn(stage.forward, *plain, last, exposed + stage.update + gathers)

    def sent(self, run: Run) -> Any:
        """Bytes of a piece's gradients: with stages of ZeRO they travel as its weights are."""
        return run.weights if self.zero else run.gradients

    def takes(self, size_bytes: Any) -> Any:
        """Seconds of a message of gradients: an all-reduce is two passes of a ring."""
        return self.ring.seconds(size_bytes) * (1 if self.zero else 2)

    def sending(self, runs: Sequence[Run], slow: float) -> tuple[Any, Any]:
        """Seconds of the last backward, and of the messages that it does not hide: from its end,
        run by run, a bucket leaves when it is full. Work is slower once the first has left."""
        now, sent, waiting, bucket = 0.0, 0.0, 0, self.takes(BUCKET_BYTES)
        for run in reversed(runs):
            own = np.maximum(self.sent(run), 1)
            plain, slowed = run.beside(1)[1], run.beside(slow)[1]
            alone = np.where(sent > 0, 0, -(-(BUCKET_BYTES - waiting) // own))

            def passed(pieces: Any, plain=plain, slowed=slowed, alone=alone) -> Any:
                beside = np.maximum(0, pieces - alone)
                return (pieces - beside) * plain + beside * slowed

            full, left = np.divmod(waiting + run.count * own, BUCKET_BYTES)
            busy = sent + full * bucket
            for number in (
                1,
                np.minimum(full, (waiting + (run.count - 1) * own) // BUCKET_BYTES + 1),
            ):
                ready = now + passed(-(-(number * BUCKET_BYTES - waiting) // own))
                busy = np.maximum(busy, ready + (full - number + 1) * bucket)
            sent, waiting = np.where(full > 0, busy, sent), left
            now = now + passed(run.count)
        sent = np.where(waiting > 0, np.maximum(now, sent) + self.takes(waiting), sent)
        return now, np.maximum(0.0, sent - now)

    def scattering(self, stage: Stage, slow: float, after: Any) -> Turn:
        """Stage 2: a bucket waits until the one before has arrived, and so does the backward. Of
        those that a piece fills the last one travels beside what follows."""
        begun, waiting, flying, lead, quick, backward = False, 0, 0.0, 0.0, 0.0, 0.0
        for at, run in reversed([*enumerate(stage.runs)]):
            (_, plain), (_, slowed) = run.beside(1), run.beside(slow)
            own, takes = np.maximum(run.weights, 1), self.takes(run.bucket)
            filled = waiting + run.count * own
            full = -(-filled // run.bucket) - (at > 0)  # one is open until the next weight comes
            alone = np.minimum(run.count, np.maximum(1, -(-(run.bucket - waiting) // own)))
            alone = np.where(
                begun, 0, np.where(full > 0, alone, run.count)
            )  # pieces until one left
            hidden = np.minimum(full, run.count)
            beside = flying + np.maximum(hidden - 1, 0) * takes
            left = np.maximum((filled if at == 0 else full * run.bucket) - hidden * run.bucket, 0)
            lead, quick = lead + alone * slowed, quick + alone * (slowed - plain)
            backward = backward + alone * slowed + self.ring.gap * left
            backward = backward + np.maximum((run.count - alone) * slowed, beside)
            begun, flying, waiting = (
                begun | (full > 0),
                np.where(full > 0, takes, 0.0),
                filled - full * run.bucket,
            )
        left = self.takes(np.minimum(filled, run.bucket))
        slowed = sum(run.count * run.beside(slow)[0] for run in stage.runs)
        forward = np.maximum(slowed, left - lead)
        quick = np.where(self.micro_batches > 1, [0 * quick, quick], [quick, 0 * quick])
        return Turn(
            stage.forward, forward, backward, backward - quick[0], left + after, 0.0, -quick[1]
        )

    def gathering(self, runs: Sequence[Run], slow: float, update: Any) -> Turn:
        """Stage 3: the weights of a piece arrive beside the piece before it, and its gradients
        leave beside the one after it. Nothing hides the first weights of a forward or backward."""
        takes = [0.0, *(self.takes(run.weights) for run in runs), 0.0]
        forward = backward = 0.0
        for run, below, own, above in zip(runs, takes, takes[1:], takes[2:]):
            ahead, back = run.beside(slow)
            forward = forward + (run.count - 1) * np.maximum(ahead, own) + np.maximum(ahead, above)
            if run.count == 1:
                backward = backward + np.maximum(back, above + below)
            else:
                backward = backward + np.maximum(back, above + own) + np.maximum(back, own + below)
                backward = backward + (run.count - 2) * np.maximum(back, 2 * own)
        ahead, following = runs[0].beside(slow)[0], takes[1 if runs[0].count > 1 else 2]
        steady = np.maximum(ahead, takes[1] + following) - np.maximum(ahead, following)
        every = forward + steady + takes[1], backward + takes[-2]
        return Turn(forward, *every, backward, takes[1] + update, takes[1], takes[-2])

    # -- memory ------------------------------------------------------------------------------------

    def bytes(self) -> np.ndarray:
        """Of the fullest device, at its peak: in the first backward, before which no gradient is
        there, or in a later one. Of equal stages the first holds most."""
        most, seen = np.zeros(len(self.dp)), set()
        for s, stage in enumerate(self.stages(self.pp)):
            if stage in seen:
                continue
            seen.add(stage)
            alive = np.minimum(self.micro_batches, self.pp - s)
            most = np.maximum(most, self.peak(stage, alive, again=False))
            later = np.minimum(self.micro_batches - 1, alive)
            most = np.where(later > 0, np.maximum(most, self.peak(stage, later, again=True)), most)
        return most.astype(int)

    def peak(self, stage: Stage, alive: Any, again: bool) -> Any:
        """In a backward for which so many micro-batches are alive, or in the update. `again`: there
        was a backward before it in this step."""
        dp, zero, runs = self.dp, self.zero, stage.runs
        sharers, growing = dp if zero else 1, not self.replicated and not again
        pieces = stage.gradients // dp  # of the mean gradient
        weights, updated = stage.weights, stage.gradients
        if zero:  # of which masters are in pieces, and so no weights
            halved = stage.gradients > weights
            updated = pieces + (np.where(halved, weights, weights - pieces) if zero == 1 else 0)
            weights = np.where(halved, 0, weights // dp) if zero == 3 else weights
        standing = 0 if growing else stage.gradients
        if zero == 1:
            standing = stage.weights
        elif zero:
            standing = pieces * again
        if zero == 2:  # one bucket fills, and one is on its way
            largest = np.max([run.largest for run in runs], 0)
            bucket = np.minimum(np.maximum(BUCKET_BYTES, largest), stage.weights)
            several = (self.micro_batches > 2) | (stage.weights > bucket)  # or none has arrived
            standing = standing * several + (
                2 * bucket if again else np.minimum(2 * bucket, stage.weights)
            )
        kept, new, most = alive * stage.kept, 0, 0
        for at, run in reversed([*enumerate(runs)]):
            inside = run.first if growing else run.again
            for done in {0, min(1, run.count - 1), run.count - 1}:
                if zero == 3:
                    inside = self.of_unit(runs, at, done)
                gradients = (new + done * run.gradients) * growing
                most = np.maximum(most, kept - done * run.kept + gradients + inside)
            kept, new = kept - run.count * run.kept, new + run.count * run.gradients
        update = np.max([run.most for run in runs], 0) // sharers
        return weights + stage.others // sharers + np.maximum(most + standing, updated + update)

    @staticmethod
    def of_unit(runs: Sequence[Run], at: int, done: int) -> Any:
        """Bytes of a unit's backward at stage 3, that of a piece of a run: its weights and those
        gathered ahead, gradients that still leave, and its own, for a moment twice."""
        run = runs[at]
        ahead = run if done < run.count - 1 else runs[at - 1] if at else None
        away = run if done else runs[at + 1] if at + 1 < len(runs) else None
        others = sum(each.weights for each in (ahead, away) if each)
        inside = np.minimum(run.first, run.again + run.weights)
        return run.weights + others + np.maximum(inside, 2 * run.weights - run.kept)


@lru_cache(maxsize=64)
def divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)
