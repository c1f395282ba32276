"""Which plan trains this model fastest on these devices? Search all of them.

A plan is a product dp x pp x tp of the devices, rows of a micro-batch, and what saves memory:
recompute, sequence parallelism, the stages of ZeRO. The model with one of its blocks is run without
values for each way to slice it, with two rows and with three. What a piece of it holds, computes
and sends is affine in the rows. Closed forms then give the time and memory of all plans at once.

    step   = sum of F + B + 2 hops + averaging that no backward hides + update + the longest of
             (m - 1) / (p - s) (sum of F + B + 2 hops from s on)            to and fro
             (m - p + s) (F_s + B_s), and what lies before and after        at stage s
             2 (m - 1) hops                                                 at a port
    memory = state + n (kept of a micro-batch) + the largest backward,    n = min(m, p - s)

Stage s of p stages under 1F1B with m micro-batches; a hop is a message between two stages. State is
weights, gradients and what the optimizer holds, shared among dp replicas by the stages of ZeRO.
Messages of replicas are priced bucket by bucket, and at stage 3 piece by piece. Stages 2 and 3 send
in every backward, one message after the other, so F_s and B_s are then at least what their messages
take. benchmarks/results/plan.md compares plans drawn at random with what the labs predict. Labs
leave inputs of layers out of memory, and so does a search with on_device=False. `scheduled`
simulates one plan, by any schedule, as the labs do. A closed form is at most 3% above that
simulation. So plans are simulated in the order of their closed forms, until the next one is 3%
above the best: no other can be faster.

Cost: a dry run of each way to slice, five of most GPTs, then some 20 microseconds a plan, then 5 to
50 ms for each plan near the best.
Source: Narayanan et al. 2021 (arXiv:2104.04473), section 3; Rajbhandari et al. 2020, ZeRO
(arXiv:1910.02054), sections 3 and 5.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial, reduce
from itertools import accumulate, chain, pairwise, product
from math import ceil, log
from typing import Any, NamedTuple

import numpy as np

from .core import (
    COLLECTIVES,
    TICKS_PER_SECOND,
    Constant,
    Cost,
    Hardware,
    Impossible,
    Wire,
    refuse,
    size,
)
from .core.formats import DType
from .core.later import later
from .core.overtaken import go_on
from .order.plan import collector_paused
from .order.schedule import Action, Schedule, by_layers
from .order.simulate import simulate
from .techniques.precision_levels import LEVELS
from .techniques.reducers import BUCKET_BYTES
from .techniques.replica_plan import with_replicas
from .techniques.weight_shapes import Shapes, Weight
from .train import Acted, DryRun, Optimizer, Work

with later():
    from .train import cut_module, pieces

BYTE = DType("byte", 1)
NO_RATES = "node_size", "protocols", "trees", "multiprocessors"  # what is no rate, and no latency
# The tiles of cuBLAS: NVIDIA, Matrix Multiplication Background, section 2.3
TILES = (256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64)
OVER = 1.03  # times a plan's simulation: no more is its closed form
ROOM = 0, 0, 2  # work of making a bucket: its padding, which has no bytes, is set to 0
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
        how = self.way.recompute
        told = (
            f"dp {self.dp} x pp {self.pp} x tp {self.way.tp}, rows {self.rows}",
            "sequence parallelism" * self.way.sequence_parallel,
            {"none": "", "full": "recompute"}.get(how, f"{how} recompute"),
            f"ZeRO {self.zero}" * (self.zero > 0),
        )
        return ", ".join(filter(None, told))


class Planned(NamedTuple):
    """A plan's time of a step, in seconds, and the memory of its fullest device."""

    plan: Plan
    seconds: float
    bytes: int


class Change(NamedTuple):
    """A change of the machine or of the training. Its best plan, and seconds of as many samples:
    of the best plan `before`, and of this one."""

    name: str
    plan: Plan
    before: float
    seconds: float


# -- a piece of the model --------------------------------------------------------------------------


class Facts(NamedTuple):
    """What a piece computes, calls, sends and holds.

    work          a row each for F, B and U
    called        of F and of B, for each of COLLECTIVES: how many they call, and bytes of all those
    products      of each: 0 of F or 1 of B, then b, m, n, k
    sizes         bytes of each weight
    first, again  bytes at the moments of a backward, beyond those at its start; of one that finds
                  gradients to add to
    update        of an update
    held          bytes that a forward leaves for its backward, of a message, of weights, of
                  gradients, of the optimizer's state and masters, of the largest weight; how many
                  weights there are
    """

    work: np.ndarray
    called: np.ndarray
    products: np.ndarray
    sizes: np.ndarray
    first: np.ndarray
    again: np.ndarray
    update: np.ndarray
    held: np.ndarray

    @staticmethod
    def of(run: DryRun, stage: int, number: int, last: int, held: tuple, message: int) -> "Facts":
        """Of micro-batch `number`; the update is that of the last one. `held`: see run_pieces."""
        weights, gradients, others = held
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
        called = [
            [[call.bytes for call in each.called if call.kind == kind] for kind in COLLECTIVES]
            for each in (forward, backward)
        ]
        return Facts(
            np.array([each.work.on_gpu()[:3] for each in acted]),
            np.array([[(len(sizes), sum(sizes)) for sizes in kinds] for kinds in called]),
            np.array(
                [(b, *of) for b, each in enumerate(acted[:2]) for of in each.products], int
            ).reshape(-1, 5),
            np.array(weights, int),
            levels(backward),
            levels(backward, "gradients"),
            levels(update),
            np.array(
                [
                    *(kept, message, sum(weights), gradients, others),
                    *(max(weights, default=0), len(weights)),
                ]
            ),
        )


def levels(acted: Acted, without: str = "") -> np.ndarray:
    """Bytes that an action holds at its moments, beyond those at its start, from the first change
    on."""
    counted = [at for at, kind in enumerate(acted.kinds) if kind != without]
    start = sum(acted.before.get(acted.kinds[at], 0) for at in counted)
    own = [sum(row[at] for at in counted) - start for row in acted.inside]
    return np.array([0, *np.trim_zeros(own, "f")])


def facts_of(
    step: "pieces.Step",
    sizes: Sequence[int],
    slices: int,
    sequence_parallel: bool,
    recompute: Sequence[str],
) -> dict[str, dict[str, list[Facts]]]:
    """By each recompute, and the name of each piece of a model with one block, its Facts of each
    size of a micro-batch."""
    run, held, messages = pieces.run_pieces(step, sizes, slices, sequence_parallel, recompute)
    count, last = len(sizes), len(recompute) * len(sizes) - 1
    return {
        how: {
            name: [
                Facts.of(run, stage, number, last, own, messages[3 * number + stage])
                for number in range(at * count, (at + 1) * count)
            ]
            for stage, (name, own) in enumerate(zip(PIECES, held))
        }
        for at, how in enumerate(recompute)
    }


def through(one: np.ndarray, other: np.ndarray, number: Any, parts: int = 1) -> np.ndarray:
    """On the line through two values, `number` / `parts` of the way from one to the other. Of
    moments that one of them lacks, the highest."""
    if len(one) != len(other):
        one, other = (each.max(0, keepdims=True) for each in (one, other))
    return one + (other - one) * number // parts


@dataclass(frozen=True)
class Job:
    """What is to be trained: a model of so many `blocks`, `batch` samples a step.
    `run(sizes, way)` is the dry run of its pieces; `slices` says by how many each can be cut, with
    sequence parallelism or without; `recompute`: what of it may be run again."""

    blocks: int
    run: Callable[[tuple[int, ...], Way], dict[str, list[Facts]]]
    slices: Callable[[int, bool], bool]
    batch: int
    dtype: str
    recompute: Sequence[str] = ("none", "selective", "full")

    @cached_property
    def rows(self) -> np.ndarray:
        """All that a micro-batch may have."""
        return np.array(divisors(self.batch))

    @lru_cache(maxsize=1 << 10)  # noqa: B019  (of a frozen value: many searches ask for the same)
    def drawn(self, name: str, way: Way, sizes: tuple[int, int]) -> Facts:
        """Facts of a piece, with a last dim for each number of `rows`, from dry runs of two sizes.
        Beyond 4 slices those of 2 and of 4 tell: what a piece does is also affine in 1 / slices.
        But where launches count, 8 are run: a slice of one head does without a copy."""
        most = 8 if sizes == (1, 1) else 4
        ways = [way._replace(tp=tp) for tp in ((2, 4) if way.tp > most else (way.tp,))]
        lines = [
            [
                through(two[..., None], three[..., None], self.rows - 2)
                for two, three in zip(*self.run(sizes, each)[name])
            ]
            for each in ways
        ]
        *shown, first, again, update, held = (
            [through(four, two, 4 - way.tp, way.tp) for two, four in zip(*lines)]
            if way.tp > most
            else lines[0]
        )
        moments = (each.max(0) for each in (first, again, update))
        return Facts(*shown, *moments, held)


def cut(blocks: int, stages: int) -> list[tuple[tuple[str, int], ...]]:
    """Name and number of the pieces of each stage: left-over blocks go to those just before the
    last."""
    each, over = divmod(blocks, stages)
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
    recompute = "none", "full"

    @cache
    def run(sizes: tuple[int, ...]) -> dict[str, dict[str, list[Facts]]]:
        try:
            return facts_of(step, sizes, 1, False, recompute)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise Impossible(f"The model with one of its {blocks} blocks fails: {error}") from error

    return Job(
        blocks,
        lambda sizes, way: run(sizes)[way.recompute],
        lambda tp, _: tp == 1,
        batch,
        LEVELS[level].format if level else own,
        recompute,
    )


def model_recipe(
    make: Callable,
    plan: Plan,
    batch: int,
    optimizer: str = "adam",
    precision: str = "none",
    learning_rate: float = 1e-3,
    steps: int = 10,
) -> "cut_module.Recipe":
    """The Recipe that trains such a model by a plan, on the samples that `make` gives. Two
    micro-batches are trained here first, cut and whole: Impossible where these differ."""
    level = None if precision == "none" else precision
    rule = Optimizer.named(optimizer).at(learning_rate)
    step, blocks, _ = pieces.of_user(make, rule, level)
    path, _, first = step.block.rpartition(".")
    return cut_module.recipe_of(
        make,
        [f"{path}.{int(first) + at}".lstrip(".") for at in range(blocks)],
        [dict(own)["block"] for own in cut(blocks, plan.pp)],
        plan.rows,
        plan.way.recompute == "full",
        optimizer=rule,
        precision=level,
        steps=steps,
        replicas=plan.dp,
        zero=plan.zero,
        micro_batches=batch // (plan.dp * plan.rows),
    )


# -- all plans -------------------------------------------------------------------------------------


class Search:
    """All plans of a job on so many devices: `.fitting`, the fastest first, those that are too
    `.large` for the memory, and products that are `.refused`, each with the first reason.
    `on_device`: inputs of pieces count, and products by their shapes; labs leave both out."""

    def __init__(
        self,
        job: Job,
        hardware: Hardware,
        devices: int,
        memory_bytes: int | None = None,
        on_device: bool = True,
    ):
        refuse((devices < 1, f"{devices} devices train nothing: take at least one."))
        self.job, self.hardware, self.devices, self.on_device = job, hardware, devices, on_device
        self.memory_bytes = memory_bytes or hardware.memory_bytes
        # each is asked once for the same
        self.facts, self.run, self.ring = map(cache, (self.facts, self.run, self.ring))
        self.refused = {first: why for first in self.products() if (why := self.impossible(first))}

    @property
    def all(self) -> list[Planned]:
        """The fastest first: the same whatever memory a device has."""
        return priced(self.job, self.hardware, self.devices, self.on_device)

    @cached_property
    def fitting(self) -> list[Planned]:
        """The fastest first. Those that may be the fastest are simulated before they are ranked."""
        found = [each for each in self.all if each.bytes <= (self.memory_bytes or float("inf"))]
        told, least, by = [], float("inf"), (self.job, self.hardware, self.devices, self.on_device)
        for each in found:
            if each.seconds > OVER * least:
                break
            told.append(each._replace(seconds=simulated(*by, each.plan)))
            least = min(least, told[-1].seconds)
        return sorted(told + found[len(told) :], key=lambda each: each[1:])

    @cached_property
    def large(self) -> list[Planned]:
        return [each for each in self.all if each.bytes > (self.memory_bytes or float("inf"))]

    @property
    def best(self) -> Planned:
        """The fastest plan; Impossible where none fits."""
        if not self.fitting:
            refuse((not self.large, f"No plan can be: {next(iter(self.refused.values()), '')}"))
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
        least = accumulate((each.bytes for each in self.fitting), min, initial=float("inf"))
        return [each for each, before in zip(self.fitting, least) if each.bytes < before]

    def products(self) -> Iterator[Plan]:
        """The plainest plan of each product."""
        counts = divisors(self.devices)
        yield from (
            Plan(self.devices // (pp * tp), pp, Way(tp), 1, 0)
            for pp, tp in product(counts, counts)
            if self.devices % (pp * tp) == 0
        )

    def plans(self, first: Plan) -> list[Plan]:
        """All of the product of this one, which are `Alike`."""
        dp, pp, (tp, *_), *_ = first
        sequence = {False, tp > 1 and self.job.slices(tp, True)}
        ways = [Way(tp, *how) for how in product(sequence, self.job.recompute)]
        kinds = product(range(4 if dp > 1 else 1), ways, divisors(self.job.batch // dp))
        return [Plan(dp, pp, way, own, zero) for zero, way, own in kinds]

    def impossible(self, plan: Plan) -> str:
        """Why this plan cannot be, or ""."""
        dp, pp, way, *_ = plan
        reasons = (
            (pp > self.job.blocks, f"{pp} stages need as many blocks, and there are fewer."),
            (
                not self.job.slices(way.tp, way.sequence_parallel),
                f"The layers cannot be cut into {way.tp} slices.",
            ),
            (
                self.job.batch % dp,
                f"{dp} replicas cannot share {self.job.batch} samples equally.",
            ),
        )
        return next((why for holds, why in reasons if holds), "")

    def priced(self, plans: Sequence[Plan]) -> list[Planned]:
        """Of plans that are `Alike`."""
        go_on()
        alike = Alike(self, plans)
        return [
            *map(Planned, plans, alike.seconds().ravel().tolist(), alike.bytes().ravel().tolist())
        ]

    def seconds(self, plan: Plan) -> float:
        """Of a step."""
        return self.priced([plan])[0].seconds

    def bytes(self, plan: Plan) -> int:
        """Of the fullest device, at its peak."""
        return self.priced([plan])[0].bytes

    @collector_paused()
    def scheduled(self, plan: Plan, schedule: str, **options: int) -> float:
        """Seconds of a step by this schedule, simulated piece by piece: one replica stands for
        all, its messages at the price of all; one that halves backwards is refused. Beyond 3 pp
        micro-batches a step is affine in them."""
        m, pp = self.job.batch // (plan.dp * plan.rows), plan.pp
        made = partial(Schedule.named(schedule), pp, **options)
        whole = made(micro_batches=m)  # which is refused here, where none of so many can be
        refuse(
            (
                whole.halved,
                f"{schedule} halves backwards, and a plan has them whole: take 1f1b, gpipe,"
                " interleaved or looped-bfs.",
            ),
            (
                whole.stages > self.job.blocks,
                f"{whole.stages} stages need as many blocks, and there are fewer.",
            ),
        )
        cost, stages, layers = self.cost_of(plan, whole)

        def step(count: int) -> float:
            order = by_layers(made(micro_batches=count), layers)
            lowered = with_replicas(order, 1, 1, stages, zero=plan.zero, alone=plan.dp > 1)
            return simulate(lowered, cost).makespan

        if m <= 3 * pp:
            return step(m)
        two, three = step(2 * pp), step(3 * pp)
        return two + (m - 2 * pp) / pp * (three - two)

    def cost_of(
        self, plan: Plan, order: Schedule
    ) -> "tuple[Pieces, dict[int, Shapes], list[range]]":
        """What the pieces cost, the weights of each, and the pieces of each stage of the order."""
        alike, numbers = Alike(self, [plan]), cut(self.job.blocks, order.stages)
        kinds = {name: alike.run(name, plan.zero) for name in PIECES}
        names = [name for each in numbers for name, number in each for _ in range(number)]
        runs = [kinds[name] for name in names]
        shapes = {
            name: Shapes(
                {str(n): Weight((own,), BYTE, True, None) for n, own in enumerate(run.sizes)}
            )
            for name, run in kinds.items()
        }
        ends = [0, *accumulate(sum(number for _, number in each) for each in numbers)]
        layers, slow = [range(*each) for each in pairwise(ends)], self.hardware.overlap_slowdown
        for rank in range(order.ranks) if plan.zero == 2 else ():
            own = [
                n for at, each in enumerate(layers) if order.rank_of(at, 0) == rank for n in each
            ]
            for begun, *_ in Stage([runs[n] for n in own]).buckets:
                run = runs[own[-1 - begun]]
                runs[own[-1 - begun]] = run._replace(
                    backward=run.backward + run.room, back=run.back + slow * run.room
                )
        links = {
            (a, b): wire.link()
            for a, b in product(range(plan.pp), repeat=2)
            if (wire := self.hardware.wire(a * plan.way.tp, b * plan.way.tp))
        }
        cost = Pieces(
            {
                kind: [getattr(run, of).item() for run in runs]
                for kind, of in zip("FBU", ("forward", "backward", "update"))
            },
            dict.fromkeys("FB", int(runs[0].message[0])),
            links=links,
            **self.hardware.clock(1),
            beside={
                kind: [getattr(run, of).item() for run in runs]
                for kind, of in zip("FB", ("ahead", "back"))
            },
            ring=cache(alike.rings[plan.zero > 0].seconds),
        )
        return cost, {at: shapes[name] for at, name in enumerate(names)}, layers

    # -- what would move a plan --------------------------------------------------------------------

    def elasticities(self, plan: Plan) -> list[tuple[Constant, float]]:
        """Of each constant of the hardware, by how many percent it moves the plan's step when it
        grows by one percent: d log step / d log constant. Those that move it most first."""
        step, found, more = self.seconds(plan), [], 1.01
        for each in self.hardware.constants():
            if each.value and each.name not in NO_RATES:
                other = Search(self.job, scaled(self.hardware, each.name, more), self.devices)
                found.append((each, log(other.seconds(plan) / step) / log(more)))
        return sorted(found, key=lambda each: -abs(each[1]))

    def changes(self, jobs: Mapping[str, Job] = {}, least: float = 0.01) -> list[Change]:
        """At most two, of a few of the machine and of the named `jobs`: those that save most, and
        at least this share of a step. Closed forms find them, and each is then simulated, beside
        the best plan as it is."""
        found = sorted(self.others(jobs), key=lambda each: each[2].seconds / each[3])
        before = self.scheduled(self.best.plan, "1f1b")
        told = [
            Change(name, best.plan, before, other.scheduled(best.plan, "1f1b") / samples)
            for name, other, best, samples in found[:2]
        ]
        return [each for each in told if each.seconds < (1 - least) * before]

    def others(self, jobs: Mapping[str, Job]) -> "Iterator[tuple[str, Search, Planned, int]]":
        """What is changed, the search with it, its best plan, and how many times as many samples
        a step has."""
        search = partial(
            Search, devices=self.devices, memory_bytes=self.memory_bytes, on_device=self.on_device
        )
        room = [each for each in self.large if each.bytes <= 2 * self.memory_bytes]
        if room:
            near = 1.01 * min(each.seconds for each in room)
            lean = min((e for e in room if e.seconds <= near), key=lambda each: each.bytes)
            yield f"{size(lean.bytes - self.memory_bytes)} more memory a device", self, lean, 1
        for place, where, fewest in (
            ("inside", "within nodes", 1),
            ("between", "between nodes", self.hardware.node_size),
        ):
            if getattr(self.hardware, place) and self.devices > fewest:
                rates = (
                    (nodes, rate * (2 if (nodes > 1) == (place == "between") else 1))
                    for nodes, rate in self.hardware.collective_bytes_per_s
                )  # of collectives there
                hardware = scaled(self.hardware, f"{place}.bytes_per_s", 2)
                other = search(self.job, replace(hardware, collective_bytes_per_s=tuple(rates)))
                yield f"links twice as fast {where}", other, other.best, 1
        for name, job in {
            **jobs,
            "twice the batch, for as many samples,": replace(self.job, batch=2 * self.job.batch),
        }.items():
            other = search(job, self.hardware)
            with suppress(Impossible):  # none fits, or the device has no such format
                yield name, other, other.best, job.batch // self.job.batch

    # -- what pieces and messages take -------------------------------------------------------------

    def facts(self, name: str, way: Way) -> Facts:
        """Of a piece, with a last dim for each number of `rows`, and the most that is held in place
        of the moments. They are affine in the rows, but for a copy that one row alone does without:
        it is run where launches may bound it, since it needs fewer."""
        found = self.charged(name, way, (2, 3))
        if any(
            self.time(work) > self.time([*work[:2], 0]) for work in found.work[:2, :, 0].tolist()
        ):
            found = Facts(
                *(
                    np.where(self.job.rows == 1, *each)
                    for each in zip(self.charged(name, way, (1, 1)), found)
                )
            )
        return found

    def charged(self, name: str, way: Way, sizes: tuple[int, int]) -> Facts:
        """Facts of a piece. On a device products are charged by their shapes: as FLOPs that take as
        long at the share of the peak that large products reach."""
        facts, hardware = self.job.drawn(name, way, sizes), self.hardware
        work, (of, *shapes) = facts.work * 1.0, facts.products.swapaxes(0, 1)
        if self.on_device and hardware.multiprocessors and "16" in self.job.dtype:
            rate = hardware.matmul_share * hardware.flops_per_s[self.job.dtype]
            apart = rate * product_seconds(hardware, self.job.dtype, *shapes) - 2 * np.prod(
                shapes, 0
            )
            work[:2, 0] += [(apart * (of == at)).sum(0) for at in (0, 1)]
        return facts._replace(work=work, products=0)

    def time(self, work: Iterable, tensors: int = 1) -> Any:
        return Work(*work).seconds(self.hardware, self.job.dtype, tensors)

    def run(self, name: str, way: Way, copying: bool) -> np.ndarray:
        """What a Run says of one piece, of all numbers of `rows`. `copying`: its gradients go to
        their buckets."""
        facts, slow = self.facts(name, way), self.hardware.overlap_slowdown
        kept, message, _, gradients, *_, tensors = facts.held
        (forward, backward, _), none = facts.work, 0 * kept
        if copying:
            backward = backward + [none, 2 * gradients, tensors]
        seconds = np.array([*map(self.time, (forward, backward))])
        room = self.time(backward + np.array(ROOM)[:, None]) - seconds[1]
        calls = sum(
            self.ring(range(way.tp), kind).seconds(called[:, 1], called[:, 0])
            for kind, called in zip(COLLECTIVES, facts.called.swapaxes(0, 1))
        )
        return np.array(
            [
                *seconds + calls,
                *slow * seconds + calls,
                *(room, facts.first, facts.again, facts.update, kept + self.on_device * message),
                *facts.held[1:-1],
            ]
        )

    def ring(self, ranks: range, kind: str) -> "Ring":
        """What a Cost charges a collective of these ranks, in each of its ways."""
        hardware, nodes = self.hardware, len({rank // self.hardware.node_size for rank in ranks})
        wires = {pair: hardware.wire(*pair) for pair in zip(ranks, [*ranks[1:], 0])}
        links = {wire: wire.link() for wire in {*wires.values()} if wire}
        prices = hardware.prices(1) | {
            "links": {pair: links[wire] for pair, wire in wires.items() if wire}
        }
        if hardware.collective_bytes_per_s:
            prices["buses"] = {nodes: Wire("", 0, hardware.bus_bytes_per_s(nodes)).link()}
        cost = Cost({}, **prices, ticks_per_unit=TICKS_PER_SECOND)
        return Ring(*np.array(cost.ways(kind, tuple(ranks)), float).T / TICKS_PER_SECOND)


# -- one plan, or many that are alike: each number below may be an array, of a number a plan -------


class Ring(NamedTuple):
    """Seconds of a collective by each protocol, of which the fastest is taken: the latency, and a
    byte. The first dim of an array is the protocol's."""

    alpha: Any
    gap: Any

    def seconds(self, size_bytes: Any, messages: Any = 1) -> Any:
        """Of so many messages, equally large."""
        return reduce(
            np.minimum,
            (messages * alpha + gap * size_bytes for alpha, gap in zip(self.alpha, self.gap)),
        )


def product_seconds(hardware: Hardware, dtype: str, b: Any, m: Any, n: Any, k: Any) -> np.ndarray:
    """Seconds of b products of (m, k) by (k, n) in half precision. A product is cut into tiles (x,
    y), of which each multiprocessor has one at a time; the best of TILES is taken.

        a tile     max(2 x y k / FLOP/s, 2 (x + y) k / the cache's bytes/s), of a multiprocessor
        a product  max(ceil(tiles / multiprocessors) tile, 2 (m k + k n + m n) / memory's bytes/s)

    Source: NVIDIA, Matrix Multiplication Background, sections 2 and 3."""
    each = hardware.multiprocessors
    rate = hardware.wave_share * hardware.flops_per_s[dtype]
    waves = [
        -(-b * -(-m // x) * -(-n // y) // each)
        * np.maximum(
            2 * x * y * k * each / rate, 2 * (x + y) * k * each / hardware.cache_bytes_per_s
        )
        for x, y in TILES
    ]
    moved = 2 * b * (m * k + k * n + m * n)
    return np.maximum(
        np.min(waves, 0), moved / (hardware.memory_share * hardware.memory_bytes_per_s)
    )


@dataclass(frozen=True)
class Pieces(Cost):
    """Of one replica, piece by piece. `beside`: durations of actions beside messages; `ring`:
    seconds of a message of so many bytes among the replicas."""

    beside: Mapping[str, Sequence[float]] = field(default_factory=dict)
    ring: Callable[[int], float] = float

    def duration(self, step, rank, beside=False):
        ((kind, stage, _),) = step
        prices = self.beside if beside and kind in self.beside else self.durations
        return ceil(prices[kind][stage] * self.ticks_per_unit)

    def collective(self, kind, size_bytes, ranks, lane="compute"):
        return ceil(self.ring(size_bytes) * self.ticks_per_unit)


class Run(NamedTuple):
    """So many equal pieces in a row. Of each, seconds of its forward and backward, and of both
    beside messages (`ahead`, `back`), where all work is slower; how much longer a backward is that
    makes `room` for a bucket; bytes, as of Facts, and `sizes` of the gradients that leave, weight
    by weight."""

    forward: Any
    backward: Any
    ahead: Any
    back: Any
    room: Any
    first: Any
    again: Any
    most: Any
    kept: Any
    message: Any
    weights: Any
    gradients: Any
    others: Any
    largest: Any
    update: Any
    sizes: tuple[int, ...]
    count: int = 1


class Stage:
    """A stage of a pipeline, its pieces in order: `runs`, and `units`, in which the first and the
    last piece of a run stand alone. Seconds of its `forward` and `backward`; bytes of a micro-batch
    (`kept`), of `weights` and `gradients`, and of a message."""

    def __init__(self, runs: Sequence[Run]):
        self.runs, self.message = runs, runs[-1].message
        self.units = [
            run._replace(count=count)
            for run in runs
            for count in (1, *[run.count - 2] * (run.count > 2), 1)[: run.count]
        ]
        self.forward, self.backward, self.kept, self.weights, self.gradients = map(
            self.total, ("forward", "backward", "kept", "weights", "gradients")
        )

    @cached_property
    def buckets(self) -> list[tuple[int, int]]:
        """Of each bucket of gradients the pieces in whose backward it begins and is full, counted
        from the last one, and its bytes."""
        found, each = [], 0
        for run in reversed(self.runs):
            for piece in range(each, each := each + run.count):
                for own in reversed(run.sizes):
                    more = found and found[-1][2] + own <= BUCKET_BYTES
                    begun, _, last = found.pop() if more else (piece, piece, 0)
                    found.append((begun, piece, last + own))
        return found

    def total(self, name: str) -> Any:
        """Of all pieces."""
        return sum(run.count * getattr(run, name) for run in self.runs)


class Turn(NamedTuple):
    """What a stage takes of a step: its first forward, with what it waits for, a forward and a
    backward of each other micro-batch, the last backward, and what follows it. Where it waits for
    no message it takes so much more to `begin` a forward and to `turn` to a backward. So much
    `quick`er is its first backward."""

    first: Any
    forward: Any
    backward: Any
    last: Any
    after: Any
    begin: Any = 0.0
    turn: Any = 0.0
    quick: Any = 0.0


class Alike:
    """Plans of one product, which differ in rows, recompute, sequence parallelism and ZeRO: each
    stage of ZeRO has the same others, in turn. What replicas send:

    ZeRO  messages                                         hidden by
    0     all-reduce of gradients, bucket by bucket        the last backward
    1     reduce-scatter of gradients, bucket by bucket    the last backward
    2     reduce-scatter of gradients, bucket by bucket    each backward, one at a time
    1, 2  all-gather of the new weights                    nothing
    3     all-gather of each piece's weights               the piece before it, each time
          reduce-scatter of its gradients                  the piece after it, in each backward

    Seconds and bytes have a row for each stage of ZeRO.
    """

    def __init__(self, search: Search, plans: Sequence[Plan]):
        self.search, (self.dp, self.pp, (self.tp, *_), *_) = search, plans[0]
        self.zeros = [*dict.fromkeys(plan.zero for plan in plans)]
        plans = plans[: len(plans) // len(self.zeros)]
        self.ways = [*dict.fromkeys(plan.way for plan in plans)]
        self.way = np.array([self.ways.index(plan.way) for plan in plans])
        self.row = np.searchsorted(search.job.rows, [plan.rows for plan in plans])
        self.micro_batches = search.job.batch // (self.dp * search.job.rows[self.row])
        self.rings = [
            search.ring(range(0, self.dp * self.pp * self.tp, self.pp * self.tp), kind)
            for kind in ("all_reduce", "reduce_scatter")
        ]
        self.stages = cache(self.stages)

    def run(self, name: str, zero: int) -> Run:
        """A piece of this name."""
        search, copying, sharers = self.search, self.dp > 1 and zero < 3, self.dp if zero else 1
        told = np.array([search.run(name, way, copying) for way in self.ways])
        facts = [search.facts(name, way) for way in self.ways]
        flops, moved, operators = np.array([each.work[2, :, 0] for each in facts]).T
        update = search.time(
            (flops // sharers, moved // sharers, operators), int(facts[0].held[-1, 0])
        )
        found, sizes = Run(*told[self.way, :, self.row].T, 0, ()), facts[0].sizes[:, 0]
        if not zero:  # of gradients, which may be of another format
            sizes = sizes * int(found.gradients[0]) // max(1, int(found.weights[0]))
        return found._replace(update=update[self.way], sizes=tuple(sizes.tolist()))

    def stages(self, zero: int) -> list[Stage]:
        """Of like pieces the same."""
        one, shapes = (
            {name: self.run(name, zero) for name in PIECES},
            cut(self.search.job.blocks, self.pp),
        )
        found = {
            shape: Stage([one[name]._replace(count=count) for name, count in shape])
            for shape in {*shapes}
        }
        return [found[shape] for shape in shapes]

    # -- time --------------------------------------------------------------------------------------

    def seconds(self) -> np.ndarray:
        """Of a step: the longest of some ways through it. All go with the first micro-batch through
        all stages and back. Then one goes to and fro between stage s and the last one, p - s
        micro-batches a time. Others stay at stage s, from its first backward to its last forward,
        or from its first forward, or to its last backward. The dims are those of stages, of ZeRO
        and of plans."""
        pp, m, stages = self.pp, self.micro_batches, self.stages(self.zeros[0])
        told = Turn(*np.stack([*map(self.turns, self.zeros)], 2))
        hops = np.array([*map(self.hop, range(pp - 1), stages), 0.0 * m])[:, None]
        both, few = told.forward + told.backward, np.arange(pp, 0, -1)[:, None, None]
        others = np.minimum(few, m) - 1  # micro-batches that go in before the first comes back
        rounds = m - 1 - others
        behind = np.cumsum((both + 2 * hops)[::-1], 0)[::-1] - both + told.turn[-1]
        go, back = (
            np.maximum(behind, others * each + told.turn) for each in (told.forward, told.backward)
        )
        stay = go + back - told.turn + rounds * (both + told.begin + told.turn) - behind
        once = np.maximum(
            go + others * told.backward - behind, others * np.maximum(told.backward, hops)
        )
        ports = (m - 1) * hops + rounds * np.roll(hops, 1, 0)
        travel = (m - 1) / few * (both + told.begin + behind)
        longest = np.maximum(ports, np.where(rounds > 0, np.maximum(stay, travel), once)).max(0)
        left = told.last - (m == 1) * told.quick + hops
        done = np.sum(told.first + hops + left, 0) + told.turn[-1] - (m > 1) * told.quick[-1]
        return np.max(done + longest - np.cumsum(left, 0) + left + told.after, 0)

    def hop(self, s: int, stage: Stage) -> Any:
        """Seconds of a message from stage s to the next."""
        wire = self.search.hardware.wire(s * self.tp, (s + 1) * self.tp)
        return wire.alpha_s + stage.message / wire.bytes_per_s if wire else 0 * stage.message

    def turns(self, zero: int) -> np.ndarray:
        """The Turn of each stage; the first dim is that of its numbers."""
        stages, like = self.stages(zero - (zero == 2)), self.micro_batches  # 2 has those of 1
        found = {
            stage: np.stack(np.broadcast_arrays(*self.turn(stage, zero), like)[:-1])
            for stage in {*stages}
        }
        return np.stack([found[stage] for stage in stages], 1)

    def turn(self, stage: Stage, zero: int) -> Turn:
        """By the table of messages."""
        after, ring = stage.total("update"), self.rings[zero > 0]
        if zero in (1, 2):
            after = after + ring.seconds(np.array(stage.buckets)[:, 2]).sum()
        if self.dp == 1:
            return Turn(stage.forward, stage.forward, stage.backward, stage.backward, after)
        ways = self.last_hides, self.last_hides, self.each_hides, self.pieces_hide
        return ways[zero](stage, ring, after)

    def last_hides(self, stage: Stage, ring: Ring, after: Any) -> Turn:
        """A bucket leaves the last backward when it is full. Work is slower once the first has
        left."""
        quick, full, takes = self.sent(stage, ring)
        backward = stage.total("back") - quick
        arrived = np.max(full - quick + np.cumsum(takes[::-1], 0)[::-1], 0)
        after = after + np.maximum(0, arrived - backward)
        return Turn(stage.forward, stage.forward, stage.backward, backward, after)

    def each_hides(self, stage: Stage, ring: Ring, after: Any) -> Turn:
        """A bucket waits until the one before has arrived, and so does the backward. The last
        travels beside the next forward and what leads to a bucket. The first backward is `quick`
        until then."""
        quick, full, takes = self.sent(stage, ring, True)
        backward = full[0] + np.maximum(np.diff(full, axis=0), takes[:-1]).sum(0)
        ahead, after = stage.total("ahead"), after + takes[-1]
        begin = np.maximum(0, takes[-1] - full[0] - ahead)
        return Turn(stage.forward, ahead, backward, backward, after, begin, quick=quick)

    def sent(self, stage: Stage, ring: Ring, each: bool = False) -> tuple[Any, Any, Any]:
        """By how much a backward is quicker before a bucket leaves; when each is full in one that
        is not, and how long it takes. The first dim is the bucket's. `each`: at stage 2."""
        begun, ends, sizes = np.array(stage.buckets).T
        runs, slow = stage.runs[::-1], self.search.hardware.overlap_slowdown
        back, backward, room = (
            np.repeat([getattr(run, name) for run in runs], [run.count for run in runs], 0)
            for name in ("back", "backward", "room")
        )
        room = each * np.bincount(begun, minlength=len(room))[:, None] * room  # made anew each time
        back, backward = back + slow * room, backward + room
        quick = (back - backward)[: ends[0] + 1].sum(0)
        return quick, np.cumsum(back, 0)[ends], ring.seconds(sizes)[:, None]

    def pieces_hide(self, stage: Stage, ring: Ring, after: Any) -> Turn:
        """The weights of a piece arrive beside the piece before it, and its gradients leave beside
        the one after it. Nothing hides the first weights of a forward or backward."""
        takes = [0.0, *(ring.seconds(unit.weights) for unit in stage.units), 0.0]
        forward = backward = 0.0
        for unit, below, above in zip(stage.units, takes, takes[2:]):
            forward = forward + unit.count * np.maximum(unit.ahead, above)
            backward = backward + unit.count * np.maximum(unit.back, below + above)
        ahead, own, following = stage.units[0].ahead, takes[1], takes[2]
        steady = np.maximum(ahead, own + following) - np.maximum(ahead, following)
        last = stage.units[-1]  # beside which nothing is sent the first time
        quick = (len(stage.units) == 1) * (last.back - last.backward)
        return Turn(
            own + forward - (last.ahead - last.forward),
            forward,
            backward,
            backward,
            own + after,
            steady + own,
            takes[-2],
            quick,
        )

    # -- memory ------------------------------------------------------------------------------------

    def bytes(self) -> np.ndarray:
        """Of the fullest device, at its peak: in the first backward, before which no gradient is
        there, or in a later one. Of equal stages the first holds most."""
        stages, m, found = self.stages(self.zeros[0]), self.micro_batches, []
        for stage in dict.fromkeys(stages):
            alive = np.minimum(m, self.pp - stages.index(stage))
            found += [
                self.peak(stage, alive, again=False),
                np.where(m > 1, self.peak(stage, np.minimum(m - 1, alive), again=True), 0),
            ]
        return np.max(found, 0).astype(int)

    def peak(self, stage: Stage, alive: Any, again: bool) -> Any:
        """In a backward for which so many micro-batches are alive, or in the update. `again`: there
        was a backward before it in this step. At stage 2 one bucket fills, and one is on its
        way."""
        dp, growing, units = self.dp, self.dp == 1 and not again, stage.units
        weights, gradients, pieces = stage.weights, stage.gradients, stage.gradients // dp
        masters = gradients > weights  # which are in pieces, and so no weights
        bucket = np.minimum(np.max([unit.largest for unit in units], 0).clip(BUCKET_BYTES), weights)
        several = (self.micro_batches > 2) | (weights > bucket)  # or none has arrived
        buckets = 2 * bucket if again else np.minimum(2 * bucket, weights)
        # weights; gradients in a backward, and in the update; by the stage of ZeRO
        table = (
            (weights, gradients * (not growing), gradients),
            (weights, weights, pieces + np.where(masters, weights, weights - pieces)),
            (weights, pieces * (again & several) + buckets, pieces),
            (np.where(masters, 0, weights // dp), pieces * again, pieces),
        )
        whole, standing, updated = np.array(table)[self.zeros].swapaxes(0, 1)
        zero, kept, new, most = np.array(self.zeros)[:, None], alive * stage.kept, 0, 0
        beside = [0, *(unit.weights for unit in units), 0]
        for unit, below, above in reversed([*zip(units, beside, beside[2:])]):
            inside = np.where(growing, unit.first, unit.again)
            # at stage 3 its weights, those gathered ahead, and gradients that still leave
            alone = np.maximum(
                np.minimum(unit.first, unit.again + unit.weights), 2 * unit.weights - unit.kept
            )
            inside = np.where(zero == 3, alone + unit.weights + below + above, inside)
            most = np.maximum(most, kept + new * growing + inside)
            kept, new = kept - unit.count * unit.kept, new + unit.count * unit.gradients
        sharers = np.where(zero, dp, 1)
        most = np.maximum(
            most + standing, updated + np.max([unit.most for unit in units], 0) // sharers
        )
        return whole + stage.total("others") // sharers + most


@lru_cache(maxsize=1 << 12)
def simulated(job: Job, hardware: Hardware, devices: int, on_device: bool, plan: Plan) -> float:
    """Seconds of a step by 1F1B, message by message; the same whatever memory a device has."""
    return Search(job, hardware, devices, on_device=on_device).scheduled(plan, "1f1b")


@lru_cache(maxsize=16)
@collector_paused()
def priced(job: Job, hardware: Hardware, devices: int, on_device: bool) -> list[Planned]:
    """All plans, the fastest first."""
    search = Search(job, hardware, devices, on_device=on_device)
    return sorted(
        chain.from_iterable(
            search.priced(search.plans(first))
            for first in search.products()
            if first not in search.refused
        ),
        key=lambda each: each[1:],
    )


def scaled(hardware: Hardware, name: str, factor: float) -> Hardware:
    """With this constant so many times as large; "inside.alpha_s" is the wire's."""
    field, _, part = name.partition(".")
    value = getattr(hardware, field)
    if part:
        value = replace(value, **{part: factor * getattr(value, part)})
    elif isinstance(value, Mapping):
        value = {dtype: factor * rate for dtype, rate in value.items()}
    elif name == "collective_bytes_per_s":
        value = tuple((nodes, factor * rate) for nodes, rate in value)
    else:
        value = factor * value
    return replace(hardware, **{field: value})


@lru_cache(maxsize=64)
def divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)
