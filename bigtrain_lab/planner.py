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
Beside the labs' own predictions times without ZeRO are within 1.5%, memory within 10%; with ZeRO
small models, which are bound by launches, are up to 40% off: `Search.simulated` tells exactly.

Cost: some 120 dry runs of a piece, then a millisecond a plan of a hundred pieces.
Source: Narayanan et al. 2021 (arXiv:2104.04473), section 3; Rajbhandari et al. 2020, ZeRO
(arXiv:1910.02054), sections 3 and 5.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, NamedTuple

from .core import Cost, Impossible
from .core.hardware import TICKS_PER_SECOND, Hardware, Wire
from .core.peak import readings
from .core.words import size
from .experiments.combined import Combined
from .experiments.pipeline import slice_run
from .models import GPTConfig, split
from .techniques.checkpoint import checkpoint
from .train.dry_run import Work
from .train.optimizer import Optimizer
from .train.recipe import Recipe
from .train.rehearsal import Part

BUCKET_BYTES = Recipe.bucket_bytes


class Way(NamedTuple):
    """What changes what a piece of the model holds and computes."""

    tp: int = 1
    sequence_parallel: bool = False
    recompute: bool = False
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
        told += ["recompute"] * self.way.recompute
        return ", ".join(told + [f"ZeRO {self.zero}"] * bool(self.zero))


class Planned(NamedTuple):
    """A plan's time of a step, in seconds, and the memory of its fullest device."""

    plan: Plan
    seconds: float
    bytes: int


class Piece:
    """A piece of the model one way. `runs`: its dry runs of two and of three rows. What they show
    is affine in the rows, but for a copy that one row alone does without; at 2 and at 4 `slices`
    (`wider`) also in 1 / slices."""

    def __init__(self, runs: Sequence[Part], wider: Sequence[Part] = (), slices: int = 2):
        self.runs, self.wider, self.slices = runs, wider, slices

    def at(self, rows: int, amount: Callable[[Part], int]) -> int:
        two, three = map(amount, self.runs)
        here = two + (rows - 2) * (three - two)
        if not self.wider:
            return here
        two, three = map(amount, self.wider)
        there = two + (rows - 2) * (three - two)
        return there + (here - there) * (4 - self.slices) // self.slices

    def work(self, kind: str, rows: int) -> Work:
        return Work(*(self.at(rows, lambda part, n=n: part.work(kind)[n]) for n in range(3)))

    def calls(self, kind: str, rows: int) -> list[tuple[str, int]]:
        """Kind and bytes of the collectives that an action calls."""
        return [
            (call.kind, self.at(rows, lambda part, n=n: part.usual(kind).called[n].bytes))
            for n, call in enumerate(self.runs[0].usual(kind).called)
        ]

    def state(self, kind: str) -> int:
        """Bytes that stay from step to step."""
        return self.at(1, lambda part: part.usual("U").before.get(kind, 0))

    def kept(self, rows: int) -> int:
        """Bytes that a forward leaves for its backward."""
        return self.at(
            rows, lambda part: total(part.usual("F").after) - total(part.usual("F").before)
        )

    def most(self, kind: str, rows: int) -> int:
        """Bytes that an action holds at most, beyond what was there at its start: at each of its
        moments they are affine."""
        moments = range(len(self.runs[0].usual(kind).inside))
        return max(
            (self.at(rows, lambda part, n=n: level(part, kind, n)) for n in moments), default=0
        )


def level(part: Part, kind: str, moment: int) -> int:
    acted = part.usual(kind)
    return sum(acted.inside[moment]) - sum(acted.before.get(each, 0) for each in acted.kinds)


def total(held: Mapping[str, int]) -> int:
    return sum(held.values())


@dataclass(frozen=True)
class Job:
    """What is to be trained: a model as a list of `pieces`, pieces of one name alike; `batch`
    samples a step. `run(name, rows, way)` is the dry run of a piece; `cut(stages)` says where a
    pipeline cuts the list, and `slices`, by how many each piece can be cut."""

    pieces: tuple[str, ...]
    run: Callable[[str, int, Way], Part]
    cut: Callable[[int], Sequence[tuple[int, int]]]
    slices: Callable[[int], bool]
    batch: int
    dtype: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of_gpt(
        config: GPTConfig, batch: int, optimizer: str = "adam", precision: str = "none"
    ) -> "Job":
        """A GPT of these sizes."""
        places = {"embedding": 0, "block": 1, "head": config.pieces - 1}
        level = None if precision == "none" else precision

        def run(name: str, rows: int, way: Way) -> Part:
            return slice_run(
                config,
                places[name],
                places[name] + 1,
                rows,
                Optimizer.named(optimizer),
                replicas=1 + way.replicated,
                slices=way.tp,
                precision=level,
                recompute=checkpoint if way.recompute else None,
                sequence_parallel=way.sequence_parallel,
            )

        return Job(
            ("embedding", *["block"] * config.layers, "head"),
            run,
            lambda stages: split(config, stages),
            lambda tp: config.heads % tp == 0 and config.vocabulary % tp == 0,
            batch,
            "bfloat16" if level == "bf16" else str(config.dtype).removeprefix("torch."),
            {
                "layers": config.layers,
                "width": config.width,
                "heads": config.heads,
                "sequence": config.sequence,
                "vocabulary": config.vocabulary,
                "optimizer": optimizer,
                "precision": precision,
            },
        )


class Search:
    """All plans of a job on so many devices: `.fitting`, the fastest first, and `.refused`, each
    with the first reason why not."""

    def __init__(self, job: Job, hardware: Hardware, devices: int, memory_bytes: int | None = None):
        if devices < 1:
            raise Impossible(f"{devices} devices train nothing: take at least one.")
        self.job, self.hardware, self.devices = job, hardware, devices
        self.memory_bytes = memory_bytes or hardware.memory_bytes
        self._known: dict[tuple, Any] = {}  # pieces, stages, rings and ends of steps
        self.fitting: list[Planned] = []
        self.refused: dict[Plan, str] = {}
        for plan in self.plans():
            if why := self.impossible(plan):
                self.refused[plan] = why
                continue
            found = Planned(plan, self.seconds(plan), self.bytes(plan))
            if self.memory_bytes and found.bytes > self.memory_bytes:
                self.refused[plan] = (
                    f"It needs {size(found.bytes)} of {size(self.memory_bytes)} a device."
                )
            else:
                self.fitting.append(found)
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
            least = min(map(self.bytes, (p for p in self.refused if not self.impossible(p))))
            raise Impossible(
                f"No plan fits {self.devices} devices of {size(self.memory_bytes)}: the leanest"
                f" needs {size(least)}. Take more devices, or a smaller model."
            )
        return self.fitting[0]

    @cached_property
    def frontier(self) -> list[Planned]:
        """Plans that none beats in both time and memory, the fastest first."""
        found, least = [], float("inf")
        for each in self.fitting:
            if each.bytes < least:
                found.append(each)
                least = each.bytes
        return found

    def lab(self, plan: Plan) -> Combined:
        """The lab that runs this plan; Impossible where its settings do not reach so far."""
        return Combined(
            **self.job.settings,
            hardware=self.hardware.name,
            replicas=plan.dp,
            pipeline=plan.pp,
            slices=plan.way.tp,
            rows=plan.rows,
            micro_batches=self.job.batch // plan.rows,
            zero=plan.zero,
            recompute=plan.way.recompute,
            sequence_parallel=plan.way.sequence_parallel,
        )

    def simulated(self, plan: Plan) -> Planned:
        """The plan's time and memory action by action, as its lab predicts them."""
        trace = self.lab(plan).predict()
        most = max(read.bytes for rank in range(trace.ranks) for read in readings(trace, rank))
        return Planned(plan, trace.step_time, most)

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
            savings = product({False, tp > 1}, (False, True), range(4 if dp > 1 else 1))
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
            sliced = way._replace(tp=tp)
            key = name, sliced, "runs"
            return self.once(key, lambda: tuple(self.job.run(name, n, sliced) for n in (2, 3)))

        about = (2, 4) if way.tp > 4 else (way.tp,)
        return self.once((name, way), lambda: Piece(*map(runs, about), slices=way.tp))

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

    def stages(self, plan: Plan) -> list["Stage"]:
        """The stages of the plan's pipeline; those of like pieces are one."""
        return self.once(
            plan[1:4],
            lambda: [
                self.once(
                    (self.job.pieces[first:last], plan.way, plan.rows),
                    lambda f=first, to=last: Stage.of(self, self.job.pieces[f:to], plan),
                )
                for first, last in self.job.cut(plan.pp)
            ],
        )

    def hop(self, stage: "Stage", s: int, plan: Plan) -> float:
        """Seconds of a message from stage s to the next."""
        wire = self.hardware.wire(s * plan.way.tp, (s + 1) * plan.way.tp)
        last = s == plan.pp - 1 or wire is None
        return 0.0 if last else wire.alpha_s + stage.message_bytes / wire.bytes_per_s

    def seconds(self, plan: Plan) -> float:
        """Of a step."""
        stages, pp, m = self.stages(plan), plan.pp, self.job.batch // (plan.dp * plan.rows)
        ends = [self.end(plan, stage) for stage in stages]
        hops = [self.hop(stage, s, plan) for s, stage in enumerate(stages)]
        both = [
            max(stage.forward + stage.backward + end.slower * stage.work, end.busy)
            for stage, end in zip(stages, ends)
        ]
        period, after = max(both), 0.0
        for s in reversed(range(pp)):
            after += both[s] + 2 * hops[s]
            if m > pp - s:
                period = max(period, after / (pp - s))
        done = (m - 1) * period + sum(
            stage.forward + stage.backward + 2 * hop + end.last
            for stage, hop, end in zip(stages, hops, ends)
        )
        step = 0.0
        for stage, hop, end in zip(stages, hops, ends):
            step = max(step, done + end.after)
            done -= stage.backward + end.last + hop
        return step

    def end(self, plan: Plan, stage: "Stage") -> "End":
        around = plan.dp, plan.pp * plan.way.tp, plan.zero
        return self.once((id(stage), *around), lambda: End.of(self, stage, *around))

    # -- memory ------------------------------------------------------------------------------------

    def bytes(self, plan: Plan) -> int:
        """Of the fullest device, at its peak: in the first backward, before which no gradient is
        there, or in a later one."""
        m, most = self.job.batch // (plan.dp * plan.rows), 0
        for s, stage in enumerate(self.stages(plan)):
            alive = min(m, plan.pp - s)
            later = min(m - 1, alive)
            most = max(most, stage.peak_bytes(plan.dp, plan.zero, alive, False))
            if later:
                most = max(most, stage.peak_bytes(plan.dp, plan.zero, later, True))
        return most


@dataclass(frozen=True, eq=False)
class Stage:
    """A stage of a pipeline, its pieces in order. Seconds of its `forward` and `backward`, and of
    their `work` without collectives; of each piece the backward's work and collectives (`pieces`),
    and bytes: `kept` of a micro-batch, `inside` a backward at most, `weights`, `gradients`."""

    forward: float
    backward: float
    work: float
    pieces: tuple[tuple[float, float], ...]
    kept: tuple[int, ...]
    inside: tuple[int, ...]
    weights: tuple[int, ...]
    gradients: tuple[int, ...]
    others: int  # bytes of state that is neither
    update_bytes: int  # that an update holds at most
    message_bytes: int
    updates: tuple[tuple[Work, int], ...]  # and the tensors of each

    @staticmethod
    def of(search: Search, names: Sequence[str], plan: Plan) -> "Stage":
        way, rows, neighbours = plan.way, plan.rows, range(plan.way.tp)

        def seconds(piece: Piece, kind: str) -> tuple[float, float]:
            work = piece.work(kind, rows).seconds(search.hardware, search.job.dtype)
            calls = piece.calls(kind, rows)
            return work, sum(search.collective(*call, neighbours) for call in calls)

        def facts(name: str) -> tuple:
            piece = search.piece(name, way)
            return (
                seconds(piece, "F"),
                seconds(piece, "B"),
                piece.kept(rows),
                piece.most("B", rows),
                piece.state("weights"),
                piece.state("gradients"),
                piece.state("master") + piece.state("optimizer"),
                piece.most("U", rows),
                piece.at(rows, lambda part: part.message_bytes("F")),
                (piece.work("U", 1), piece.runs[0].tensors),
            )

        found = [search.once((name, way, rows), lambda n=name: facts(n)) for name in names]
        forward, backward, kept, inside, weights, gradients, others, most, sent, updates = zip(
            *found
        )
        return Stage(
            sum(map(sum, forward)),
            sum(map(sum, backward)),
            sum(work for work, _ in forward + backward),
            backward,
            kept,
            inside,
            weights,
            gradients,
            sum(others),
            max(most),
            sent[-1],
            updates,
        )

    def peak_bytes(self, dp: int, zero: int, alive: int, again: bool) -> int:
        """In the last backward for which all earlier micro-batches are alive, or in the update.
        `again`: gradients of an earlier backward are there."""
        gradients = sum(self.gradients)
        state = self.others // (dp if zero else 1) + sum(self.weights) // (dp if zero == 3 else 1)
        if zero == 3:
            state += 2 * max(self.weights)
        shared = gradients // (dp if zero > 1 else 1)
        kept, new, most = alive * sum(self.kept), 0, 0
        for at in reversed(range(len(self.kept))):
            whole = {2: min(new, 2 * BUCKET_BYTES), 3: min(new, max(self.gradients))}
            held = shared * again + whole.get(zero, 0 if again else new)
            most = max(most, kept + held + self.inside[at])
            kept -= self.kept[at]
            new += self.gradients[at]
        return state + max(most, shared + self.update_bytes // (dp if zero else 1))


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
        sharers, update = dp if zero else 1, 0.0
        for (flops, moved, operators), tensors in stage.updates:
            work = Work(flops // sharers, moved // sharers, operators)
            update += work.seconds(search.hardware, search.job.dtype, tensors)
        if dp == 1:
            return End(0.0, update)
        ranks, slow = range(0, dp * apart, apart), search.hardware.overlap_slowdown - 1
        kind = "reduce_scatter" if zero else "all_reduce"
        gather = sum(search.collective("all_gather", own, ranks) for own in stage.weights)
        # The last backward, piece by piece from its end: a bucket leaves when it is full.
        now, sent, waiting = 0.0, 0.0, 0
        for gradient, (work, calls) in zip(stage.gradients[::-1], stage.pieces[::-1]):
            now += work + calls + (slow * work if sent else 0.0)
            waiting += gradient
            bucket = gradient if zero == 3 else BUCKET_BYTES
            full, waiting = divmod(waiting, bucket)
            if full:
                sent = max(now, sent) + full * search.collective(kind, bucket, ranks)
        if waiting:
            sent = max(now, sent) + search.collective(kind, waiting, ranks)
        after = max(0.0, sent - now) + update + (gather if zero in (1, 2) else 0.0)
        if zero < 2:
            return End(now - stage.backward, after)
        scatter = sum(search.collective(kind, own, ranks) for own in stage.gradients)
        return End(now - stage.backward, after, slow, scatter + 2 * gather * (zero == 3))


@lru_cache(maxsize=64)
def divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)
