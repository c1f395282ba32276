"""Which plan trains this model fastest on these devices? Search all of them.

A plan is a product dp x pp x tp of the devices, rows of a micro-batch, and what saves memory:
recompute, sequence parallelism, the stages of ZeRO. Each piece of the model is run once without
values for each way to slice it. What it holds, computes and sends is affine in the rows, so two
dry runs tell all sizes. Closed forms then give each plan's time and memory.

    period = max over s of  max(F_s + B_s,  (sum of F + B + 2 hops from s on) / (p - s))
    step   = sum of F + B + 2 hops + (m - 1) period + averaging that no backward hides + update
    memory = state + n (kept of a micro-batch) + the largest backward,    n = min(m, p - s)

Stage s of p stages under 1F1B with m micro-batches; a hop is a message between two stages. State is
weights, gradients and what the optimizer holds, shared among dp replicas by the stages of ZeRO.
Beside the labs' own predictions times without ZeRO are 0.3% off on average and 2.5% at worst, with
ZeRO 2.3% and 16%; memory is 6% off on average, and 31% at worst (benchmarks/results/plan.md): the
lab `plan` simulates its best plans before it names one.

Cost: some 60 dry runs of a piece, then a fraction of a millisecond a plan.
Source: Narayanan et al. 2021 (arXiv:2104.04473), section 3; Rajbhandari et al. 2020, ZeRO
(arXiv:1910.02054), sections 3 and 5.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import groupby, product
from typing import Any, NamedTuple

import numpy as np

from .core import Cost, Impossible
from .core.hardware import TICKS_PER_SECOND, Hardware, Wire
from .core.words import size
from .order.schedule import Schedule
from .order.simulate import simulate
from .techniques.reducers import BUCKET_BYTES
from .train.account import Acted, Work
from .train.rehearsal import Part


class Way(NamedTuple):
    """What changes what a piece of the model holds and computes. `recompute`: "none", "selective"
    (of attention's core only) or "full"."""

    tp: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    replicated: bool = False


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


class Facts(NamedTuple):
    """What a piece computes, calls, sends and holds. `work`: a row each for F, B and U. `forward`,
    `backward`: bytes of the collectives that they call. `inside`, `update`: bytes that B and U hold
    at their moments, beyond those at their start. `held`: bytes that a forward leaves for its
    backward, of weights, of gradients, of the optimizer's state and masters, and of a message."""

    work: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    inside: np.ndarray
    update: np.ndarray
    held: np.ndarray

    @staticmethod
    def of(part: Part) -> "Facts":
        forward, backward, update = acted = [*map(part.usual, "FBU")]
        state = update.before
        kept = sum(forward.after.values()) - sum(forward.before.values())
        others = state.get("master", 0) + state.get("optimizer", 0)
        weights, gradients = state["weights"], state.get("gradients", 0)
        message = part.message_bytes("F")
        return Facts(
            np.array([each.work for each in acted]),
            *(np.array([call.bytes for call in each.called], int) for each in acted[:2]),
            *map(levels, acted[1:]),
            np.array([kept, weights, gradients, others, message]),
        )

    def at_most(self) -> "Facts":
        return self._replace(inside=self.inside.max(), update=self.update.max())


def levels(acted: Acted) -> np.ndarray:
    """Bytes that an action holds at its moments, beyond those at its start."""
    start = sum(acted.before.get(kind, 0) for kind in acted.kinds)
    return np.array([0, *(sum(moment) - start for moment in acted.inside)])


class Piece:
    """A piece of the model one way. `runs`: its dry runs of two and of three rows. What they show
    is affine in the rows, but for a copy that one row alone does without; at 2 and at 4 `slices`
    (`wider`) also in 1 / slices. A replica copies its gradients to their buckets besides."""

    def __init__(
        self,
        runs: Sequence[Part],
        wider: Sequence[Part] = (),
        slices: int = 2,
        replicated: bool = False,
    ):
        self.lines = [[*zip(*map(Facts.of, pair))] for pair in (runs, wider) if pair]
        self.slices, self.replicated, self.tensors = slices, replicated, runs[0].tensors
        self.kinds = [[call.kind for call in runs[0].usual(kind).called] for kind in "FB"]

    def at(self, rows: int) -> Facts:
        """With the most that is held in place of the moments."""
        here, *wider = (
            [two + (rows - 2) * (three - two) for two, three in line] for line in self.lines
        )
        for there in wider:
            here = [*map(self.between, here, there)]
        found = Facts(*here).at_most()
        if self.replicated:
            found.work[1] += 0, 2 * found.held[2], self.tensors
        return found

    def between(self, two: np.ndarray, four: np.ndarray) -> np.ndarray:
        """From 2 and 4 slices; of moments that one of them lacks, from the highest."""
        if two.shape != four.shape:
            two, four = two.max(), four.max()
        return four + (two - four) * (4 - self.slices) // self.slices


@dataclass(frozen=True)
class Job:
    """What is to be trained: a model as a list of `pieces`, pieces of one name alike; `batch`
    samples a step. `run(name, rows, way)` is the dry run of a piece; `cut(stages)` says where a
    pipeline cuts the list, and `slices`, by how many each piece can be cut; `recompute`: what of it
    may be run again."""

    pieces: tuple[str, ...]
    run: Callable[[str, int, Way], Part]
    cut: Callable[[int], Sequence[tuple[int, int]]]
    slices: Callable[[int], bool]
    batch: int
    dtype: str
    recompute: Sequence[str] = ("none", "selective", "full")


class Search:
    """All plans of a job on so many devices: `.fitting`, the fastest first, those that are too
    `.large` for the memory, and `.refused`, which cannot be, each with the first reason."""

    def __init__(self, job: Job, hardware: Hardware, devices: int, memory_bytes: int | None = None):
        if devices < 1:
            raise Impossible(f"{devices} devices train nothing: take at least one.")
        self.job, self.hardware, self.devices = job, hardware, devices
        self.memory_bytes = memory_bytes or hardware.memory_bytes
        self._known: dict[tuple, Any] = {}  # pieces, stages, rings and ends of steps
        self.fitting: list[Planned] = []
        self.large: list[Planned] = []
        self.refused: dict[Plan, str] = {}
        for plan in self.plans():
            if why := self.impossible(plan):
                self.refused[plan] = why
                continue
            found = Planned(plan, self.seconds(plan), self.bytes(plan))
            fits = not self.memory_bytes or found.bytes <= self.memory_bytes
            (self.fitting if fits else self.large).append(found)
        self.fitting.sort(key=lambda each: (each.seconds, each.bytes))

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

    # -- all plans ---------------------------------------------------------------------------------

    def plans(self) -> Iterator[Plan]:
        counts = divisors(self.devices)
        for pp, tp in product(counts, counts):
            if self.devices % (pp * tp):
                continue
            dp = self.devices // (pp * tp)
            if self.job.batch % dp:
                yield Plan(dp, pp, Way(tp), 1, 0)
                continue
            savings = product({False, tp > 1}, self.job.recompute, range(4 if dp > 1 else 1))
            for (cut, again, zero), rows in product(savings, divisors(self.job.batch // dp)):
                yield Plan(dp, pp, Way(tp, cut, again, dp > 1 and zero < 3), rows, zero)

    def impossible(self, plan: Plan) -> str:
        """Why this plan cannot be, or ""."""
        if plan.pp > len(self.job.pieces) - 2:
            return f"{plan.pp} stages need as many blocks, and there are fewer."
        if not self.job.slices(plan.way.tp):
            return f"The layers cannot be cut into {plan.way.tp} slices."
        if self.job.batch % plan.dp:
            return f"{plan.dp} replicas cannot share {self.job.batch} samples equally."
        return ""

    # -- time --------------------------------------------------------------------------------------

    def piece(self, name: str, way: Way) -> Piece:
        """From dry runs: beyond 4 slices those of 2 and of 4 tell."""

        def runs(tp: int) -> tuple[Part, Part]:
            sliced = way._replace(tp=tp, replicated=False)
            key = name, sliced, "runs"
            return self.once(key, lambda: tuple(self.job.run(name, n, sliced) for n in (2, 3)))

        about = (2, 4) if way.tp > 4 else (way.tp,)
        return self.once(
            (name, way), lambda: Piece(*map(runs, about), slices=way.tp, replicated=way.replicated)
        )

    def collective(self, kind: str, size_bytes: float, ranks: range) -> float:
        """Seconds in a ring of these ranks, from what a Cost charges for two sizes."""

        def line() -> tuple[float, float]:
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
            return first / TICKS_PER_SECOND, (other - first) / 10**9 / TICKS_PER_SECOND

        alpha, gap = self.once((kind, ranks), line)
        return alpha + gap * size_bytes

    def stages(self, plan: Plan, count: int) -> list["Stage"]:
        """So many, of like pieces the same."""

        def shapes() -> list[tuple]:
            return [
                tuple((name, len([*own])) for name, own in groupby(self.job.pieces[first:last]))
                for first, last in self.job.cut(count)
            ]

        return [
            self.once((shape, *plan[2:4]), lambda shape=shape: Stage.of(self, shape, plan))
            for shape in self.once(count, shapes)
        ]

    def pipe(self, plan: Plan) -> "Pipe":
        """Its stages and hops; stages of like pieces are one."""

        def made() -> "Pipe":
            stages = self.stages(plan, plan.pp)
            wires = [
                self.hardware.wire(s * plan.way.tp, (s + 1) * plan.way.tp)
                for s in range(plan.pp - 1)
            ]
            hops = [
                wire.alpha_s + stage.message_bytes / wire.bytes_per_s if wire else 0.0
                for wire, stage in zip(wires, stages)
            ]
            first = {stage: s for s, stage in reversed([*enumerate(stages)])}
            return Pipe(stages, [*hops, 0.0], first)

        return self.once(plan[1:4], made)

    def seconds(self, plan: Plan) -> float:
        """Of a step."""
        m, pp = self.job.batch // (plan.dp * plan.rows), plan.pp
        stages, hops, first = self.pipe(plan)
        ends = {stage: self.end(plan, stage) for stage in first}
        both = {
            stage: max(stage.forward + stage.backward + end.slower * stage.work, end.busy)
            for stage, end in ends.items()
        }
        period, after, done = max(both.values()), 0.0, 0.0
        for s, stage in reversed([*enumerate(stages)]):
            after += both[stage] + 2 * hops[s]
            done += stage.forward + stage.backward + 2 * hops[s] + ends[stage].last
            if m > pp - s:
                period = max(period, after / (pp - s))
        done += (m - 1) * period
        step = 0.0
        for stage, hop in zip(stages, hops):
            step = max(step, done + ends[stage].after)
            done -= stage.backward + ends[stage].last + hop
        return step

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

        def step(count: int) -> float:
            order = made(micro_batches=count)
            stages = self.stages(plan, order.stages)
            times = {
                "F": [stage.forward for stage in stages],
                "B": [stage.backward for stage in stages],
                "U": [sum(self.end(plan, stage)[:2]) for stage in stages],
            }
            sent = dict.fromkeys("FB", stages[0].message_bytes)
            prices = self.hardware.clock(1) | {"links": links}
            return simulate(order, Cost(times, sent, **prices)).step_time

        if m <= 3 * pp:
            return step(m)
        two, three = step(2 * pp), step(3 * pp)
        return two + (m - 2 * pp) / pp * (three - two)

    def end(self, plan: Plan, stage: "Stage") -> "End":
        around = plan.dp, plan.pp * plan.way.tp, plan.zero
        return self.once((id(stage), *around), lambda: End.of(self, stage, *around))

    # -- memory ------------------------------------------------------------------------------------

    def bytes(self, plan: Plan) -> int:
        """Of the fullest device, at its peak: in the first backward, before which no gradient is
        there, or in a later one. Of equal stages the first holds most."""
        m, most = self.job.batch // (plan.dp * plan.rows), 0
        for stage, s in self.pipe(plan).first.items():
            alive = min(m, plan.pp - s)
            most = max(most, stage.peak_bytes(plan.dp, plan.zero, alive, False))
            if later := min(m - 1, alive):
                most = max(most, stage.peak_bytes(plan.dp, plan.zero, later, True))
        return most


class Pipe(NamedTuple):
    """The stages of a pipeline, seconds of a message from each to the next, and the first of those
    that are alike."""

    stages: list["Stage"]
    hops: list[float]
    first: dict["Stage", int]


class Run(NamedTuple):
    """So many equal pieces in a row. Of each, seconds of work and of collectives, forward and
    backward, and bytes: `inside` a backward at most, `most` in an update."""

    count: int
    forward: float
    forward_calls: float
    backward: float
    backward_calls: float
    inside: int
    most: int
    kept: int
    weights: int
    gradients: int
    others: int
    message: int
    update: Work
    tensors: int

    def seconds(self, pieces: int, alone: int, slow: float) -> float:
        """Of so many backwards, of which all after `alone` run beside messages."""
        slowed = max(0, pieces - alone) * slow
        return pieces * (self.backward + self.backward_calls) + slowed * self.backward


@dataclass(frozen=True, eq=False)
class Stage:
    """A stage of a pipeline, its pieces in order. Seconds of its `forward` and `backward`, and of
    their `work` without collectives; bytes of a micro-batch (`kept`), of state and of a message."""

    runs: tuple[Run, ...]
    forward: float
    backward: float
    work: float
    kept: int
    weights: int
    gradients: int
    others: int
    message_bytes: int

    @staticmethod
    def of(search: Search, shape: Sequence[tuple[str, int]], plan: Plan) -> "Stage":
        way, rows, neighbours = plan.way, plan.rows, range(plan.way.tp)

        def one(name: str) -> Run:
            piece = search.piece(name, way)
            found = piece.at(rows)
            *works, update = (Work(*each) for each in found.work.tolist())
            times = []
            for work, kinds, sizes in zip(works, piece.kinds, (found.forward, found.backward)):
                times.append(work.seconds(search.hardware, search.job.dtype))
                calls = zip(kinds, sizes.tolist())
                times.append(sum(search.collective(*call, neighbours) for call in calls))
            most = int(found.inside), int(found.update)
            return Run(1, *times, *most, *found.held.tolist(), update, piece.tensors)

        runs = [
            search.once((name, way, rows), lambda n=name: one(n))._replace(count=count)
            for name, count in shape
        ]

        def total(*names: str) -> Any:
            return sum(run.count * getattr(run, name) for run in runs for name in names)

        return Stage(
            tuple(runs),
            total("forward", "forward_calls"),
            total("backward", "backward_calls"),
            total("forward", "backward"),
            *map(total, ("kept", "weights", "gradients", "others")),
            runs[-1].message,
        )

    def peak_bytes(self, dp: int, zero: int, alive: int, again: bool) -> int:
        """In the last backward for which all earlier micro-batches are alive, or in the update.
        `again`: gradients of an earlier backward are there. In a run activations go and gradients
        come, up to a `limit`: the most is at an end, or where they reach it."""
        state = self.others // (dp if zero else 1) + self.weights // (dp if zero == 3 else 1)
        if zero == 3:
            state += 2 * max(run.weights for run in self.runs)
        shared = self.gradients // (dp if zero > 1 else 1)
        limit = {2: 2 * BUCKET_BYTES, 3: max(run.gradients for run in self.runs)}.get(
            zero, 0 if again else self.gradients
        )
        kept, new, most = alive * self.kept, 0, 0
        for run in reversed(self.runs):
            reached = max(0, limit - new) // run.gradients if run.gradients > run.kept else 0
            for done in {min(reached, run.count - 1), min(reached + 1, run.count - 1)}:
                gradients = min(limit, new + done * run.gradients)
                most = max(most, kept - done * run.kept + gradients + run.inside)
            kept -= run.count * run.kept
            new += run.count * run.gradients
        update = max(run.most for run in self.runs) // (dp if zero else 1)
        return state + max(most + shared * again, shared + update)


class End(NamedTuple):
    """The end of a stage's step. What its last backward takes longer beside messages of replicas;
    what follows it: messages that it does not hide, the update, new weights; at stages 2 and 3 of
    ZeRO the share by which all work is `slower`, and the seconds for which a micro-batch keeps the
    links `busy`."""

    last: float
    after: float
    slower: float = 0.0
    busy: float = 0.0

    @staticmethod
    def of(search: Search, stage: Stage, dp: int, apart: int, zero: int) -> "End":
        sharers = dp if zero else 1
        update = sum(
            run.count
            * Work(flops // sharers, moved // sharers, operators).seconds(
                search.hardware, search.job.dtype, run.tensors
            )
            for run in stage.runs
            for flops, moved, operators in [run.update]
        )
        if dp == 1:
            return End(0.0, update)
        ranks, slow = range(0, dp * apart, apart), search.hardware.overlap_slowdown - 1
        kind = "reduce_scatter" if zero else "all_reduce"

        def each(kind: str, size: str) -> float:
            """Seconds of a collective for each piece."""
            return sum(
                run.count * search.collective(kind, getattr(run, size), ranks) for run in stage.runs
            )

        # The last backward from its end, run by run: a bucket leaves when it is full.
        now, sent, waiting = 0.0, 0.0, 0
        for run in reversed(stage.runs):
            own = run.gradients
            bucket = own if zero == 3 else BUCKET_BYTES
            full, left = divmod(waiting + run.count * own, bucket)
            alone = 0 if sent else -(-(bucket - waiting) // own)  # pieces beside no message
            if full:
                takes = search.collective(kind, bucket, ranks)
                sent += full * takes
                for number in {1, min(full, (waiting + (run.count - 1) * own) // bucket + 1)}:
                    pieces = -(-(number * bucket - waiting) // own)
                    ready = now + run.seconds(pieces, alone, slow)
                    sent = max(sent, ready + (full - number + 1) * takes)
            now, waiting = now + run.seconds(run.count, alone, slow), left
        if waiting:
            sent = max(now, sent) + search.collective(kind, waiting, ranks)
        after = (
            max(0.0, sent - now)
            + update
            + (each("all_gather", "weights") if zero in (1, 2) else 0.0)
        )
        if zero < 2:
            return End(now - stage.backward, after)
        gathers = 2 * each("all_gather", "weights") * (zero == 3)
        return End(now - stage.backward, after, slow, each(kind, "gradients") + gathers)


@lru_cache(maxsize=64)
def divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)
