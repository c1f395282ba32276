"""Which plan trains this model fastest on these devices?

The student's plan, a product dp x pp x tp with what saves memory, is a run of the lab `combined`,
each device with the memory that is asked for. Its rivals are the planner's: of each stage of ZeRO
the fastest that fits, and the fastest of all that does not. They are simulated action by action,
and a plan is measured by the best of them.

    regret = step of the student's plan / step of the best
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from typing import Any, ClassVar

from .. import models, techniques, train
from ..core import Hardware, Trace, counted, duration, knob, refuse, size
from ..core.later import later, np, torch
from ..data.published import Step
from ..order import fullest_bytes
from ..runtime.kept import kept
from .combined import Combined
from .experiment import Quantity
from .on_hardware import profiles

with later():
    from .. import planner

TRIES = 4  # plans of a stage of ZeRO, of which one fits that closed forms let in
ONCE = threading.Lock()  # who comes second finds what is simulated


class PlanACluster(Combined):
    name: ClassVar[str] = "plan"
    question: ClassVar[str] = "Which plan trains this model fastest on these devices?"
    rivals_by: ClassVar[str] = "plan"
    tells_late: ClassVar[bool] = True
    answers: ClassVar[tuple[str, ...]] = (
        "step time",
        "step, times that of the best plan",
        "peak memory, fullest rank",
    )
    must_exist: ClassVar[tuple[str, ...]] = ("replicas", "micro_batches", *Combined.must_exist)
    schedule: ClassVar[str] = "1f1b"

    devices: int = knob(
        8,
        "devices of the plan: dp is what pp and tp leave of them; more than 8 are predicted only",
        low=1,
        high=64,
        logarithmic=True,
    )
    batch: int = knob(
        16, "samples of a step, whatever the plan", low=1, high=512, unit="samples", more=True
    )
    varied: ClassVar[dict] = {
        "width": 64,
        "sequence": 32,
        "pipeline": {"default": 4, "more": False},
        "slices": {"default": 1, "more": False},
        "rows": {"default": 1, "more": False},
        "zero": {"default": 1, "more": False},
        "recompute": {"default": False},
        "sequence_parallel": {"default": False},
        "memory_mb": {"default": 3.0, "high": 10**6},
        "hardware": {"default": "rtx3090-pcie", "choices": lambda: profiles()[1:], "more": True},
    }

    # -- the plan that the settings say ------------------------------------------------------------

    replicas: ClassVar[int]
    micro_batches: ClassVar[int]

    @cached_property
    def replicas(self) -> int:
        """dp, of all devices."""
        copies, left = divmod(self.devices, self.pipeline * self.slices)
        refuse(
            (
                left or not copies,
                f"{self.pipeline} stages of {self.slices} slices do not fill"
                f" {counted(self.devices, 'device')}: take a product that divides them.",
            )
        )
        return copies

    @cached_property
    def micro_batches(self) -> int:
        """Of all replicas."""
        count, left = divmod(self.batch, self.rows)
        refuse(
            (
                left or count % self.replicas,
                f"{self.batch} samples do not make equally many micro-batches of {self.rows} for"
                f" {counted(self.replicas, 'replica')}: take other rows, or fewer replicas.",
            )
        )
        return count

    @cached_property
    def combined(self) -> Combined:
        """The same training in the settings of the lab that runs it."""
        return Combined(**{name: getattr(self, name) for name in Combined.model_fields})

    def dry(self, rank: int, steps: int = 0):
        return self.combined.dry(rank, steps)

    def predict(self) -> Trace:
        """The same whatever memory a device has."""
        roomy = self.replace(memory_mb=0.0)
        trace = traced(roomy, self.members(roomy.model_dump()), self.profile)
        return replace(trace, settings=self.told)

    # -- the planner's plans -----------------------------------------------------------------------

    @property
    def search(self) -> "planner.Search":
        """All plans of this training on these devices."""
        job = gpt_job(
            self.config, self.batch, self.optimizer, self.precision, recompute=("none", "full")
        )
        return searched(job, self.profile, self.devices, self.capacity_bytes)

    @staticmethod
    def settings_of(plan: "planner.Plan") -> dict[str, Any]:
        """The settings that say this plan."""
        return {
            "pipeline": plan.pp,
            "slices": plan.way.tp,
            "rows": plan.rows,
            "zero": plan.zero,
            "recompute": plan.way.recompute == "full",
            "sequence_parallel": plan.way.sequence_parallel,
        }

    def simulated_by(self, plan: dict[str, Any]) -> tuple[float, int]:
        """What a plan of these settings takes and needs."""
        own = {name: getattr(self, name) for name in Combined.model_fields}
        settings = (
            own
            | plan
            | {
                "fault": "none",
                "memory_mb": 0.0,  # which changes neither
                "micro_batches": self.batch // plan["rows"],
                "replicas": self.devices // (plan["pipeline"] * plan["slices"]),
            }
        )
        return simulated(tuple(settings.items()), self.members(settings), repr(self.profile))

    @cached_property
    def contenders(self) -> dict[str, dict[str, Any]]:
        """Plan -> its settings: of each stage of ZeRO the fastest that fits, as simulated."""
        found, room = {}, self.capacity_bytes or float("inf")
        with ONCE:
            for stage in range(4):
                plans = (each.plan for each in self.search.fitting if each.plan.zero == stage)
                settings = {str(plan): self.settings_of(plan) for plan in islice(plans, TRIES)}
                fits = (name for name, own in settings.items() if self.simulated_by(own)[1] <= room)
                found |= {name: settings[name] for name in islice(fits, 1)}
        return found

    def rivals(self) -> dict[str, dict[str, Any]]:
        """The plan of the settings, the contenders, and what would be fastest with more memory."""
        own = {name: getattr(self, name) for name in self.settings_of(next(self.search.products()))}
        found = ({} if own in self.contenders.values() else {"mine": own}) | self.contenders
        if larger := self.contenders and self.search.larger:
            found |= {f"{larger.plan}, too large": self.settings_of(larger.plan)}
        return found

    @cached_property
    def best(self) -> tuple[str, float]:
        """The contender with the least step, and its seconds; "" where none fits."""
        return min(
            ((name, self.simulated_by(own)[0]) for name, own in self.contenders.items()),
            key=lambda each: each[1],
            default=("", 0.0),
        )

    # -- what is told ------------------------------------------------------------------------------

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        first, *others = super().quantities
        return first, Quantity("step, times that of the best plan", "", self.regret), *others

    def regret(self, trace: Trace) -> float | None:
        """None of a measured trace, whose seconds are of another machine."""
        seconds = self.best[1]
        return trace.step_time / seconds if seconds and trace.clock != "measured" else None

    def why(self, trace: Trace) -> Iterable[str]:
        search, (best, seconds) = self.search, self.best
        priced, reasons = len(search.fitting) + len(search.large), Counter(search.refused.values())
        if best and (regret := self.regret(trace)) is not None:
            yield (
                f"Your plan takes {regret:.2f} times the step of the best, {best}:"
                f" {duration(seconds, 's')}."
            )
        yield f"Of {counted(priced, 'plan')} {len(search.fitting)} fit {size(search.memory_bytes)}."
        yield from (f"{count} more cannot be: {why}" for why, count in reasons.items())
        yield from super().why(trace)
        if best:
            yield from what_next(search)
            unlimited = searched(search.job, search.hardware, search.devices, None)
            yield what_moves(unlimited, search.best.plan)


@lru_cache(maxsize=32)
def traced(lab: PlanACluster, members: tuple[type, ...], profile: Hardware) -> Trace:
    """As it is predicted; the classes that the settings name and the profile may be made anew."""
    return super(PlanACluster, lab).predict()


@lru_cache(maxsize=64)
def what_next(
    search: "planner.Search", jobs: tuple[tuple[str, "planner.Job"], ...] = ()
) -> tuple[str, ...]:
    """At most two sentences: what would help most, of a few changes and of these jobs by name."""
    return tuple(
        f"With {each.name} the best plan takes {duration(each.seconds, 's')} in place of"
        f" {duration(each.before, 's')}: {each.plan}."
        for each in search.changes(dict(jobs))
    )


@lru_cache(maxsize=64)
def what_moves(search: "planner.Search", plan: "planner.Plan") -> str:
    """Which constant of the machine moves this plan most, and where it is from."""
    (most, percent), *others = search.elasticities(plan)
    return (
        f"Of {1 + len(others)} constants of this machine {most.name} moves the best step most: 1%"
        f" more of it changes it by {percent:+.2f}% ({most.tag}: {most.source})."
    )


@kept
def simulated(
    settings: tuple[tuple[str, Any], ...], members: tuple[type, ...], profile: str
) -> tuple[float, int]:
    """A plan action by action, as its lab predicts it: seconds of a step, and bytes of the fullest
    device. `members`: the classes that the settings name; `profile`: the hardware that they name,
    in full, since this machine may be measured again."""
    trace = Combined(**dict(settings)).predict()
    return trace.step_time, fullest_bytes(trace)


@lru_cache(maxsize=64)
def searched(
    job: "planner.Job", hardware: Hardware, devices: int, memory_bytes: int | None
) -> "planner.Search":
    return planner.Search(job, hardware, devices, memory_bytes, on_device=False)


def gpt_job(
    config: "models.GPTConfig",
    batch: int,
    optimizer: str = "adam",
    precision: str = "none",
    recompute: tuple[str, ...] = ("none", "selective", "full"),
) -> "planner.Job":
    """The training of a GPT of these sizes, as the planner asks for it."""
    return job_of(
        config,
        batch,
        train.Optimizer.named(optimizer),
        None if precision == "none" else precision,
        recompute,
    )


@lru_cache(maxsize=64)
def job_of(
    config: "models.GPTConfig",
    batch: int,
    optimizer: "type[train.Optimizer]",
    level: str | None,
    recompute: tuple[str, ...],
) -> "planner.Job":
    return planner.Job(
        config.layers,
        lambda sizes, way: run_gpt(
            replace(config, layers=1), optimizer, level, recompute, sizes, *way[:2]
        )[way.recompute],
        lambda tp, sequence: (
            not any(
                size % tp for size in (config.heads, config.vocabulary, config.sequence * sequence)
            )
        ),
        batch,
        "bfloat16" if level == "bf16" else config.dtype,
        recompute,
    )


@kept
def run_gpt(
    config: "models.GPTConfig",
    optimizer: "type[train.Optimizer]",
    level: str | None,
    recompute: tuple[str, ...],
    sizes: tuple[int, ...],
    slices: int,
    sequence_parallel: bool,
) -> "dict[str, dict[str, list[planner.Facts]]]":
    """The dry runs of the pieces of a GPT, with micro-batches of these sizes, by recompute."""

    def data(rows: int) -> tuple:
        ids, targets = (
            torch.zeros(rows, config.sequence, dtype=torch.int64, device="meta") for _ in range(2)
        )
        return (ids, models.Noise(0, 0, 0)), targets

    def loss(output: "torch.Tensor", targets: "torch.Tensor", group) -> "torch.Tensor":
        return (
            techniques.vocab_parallel_cross_entropy(output, targets, group)
            if group
            else models.cross_entropy(output, targets)
        )

    return planner.facts_of(
        train.pieces.Step(
            lambda: models.GPTStage(config, 0, config.pieces),
            "layers.1",
            data,
            loss,
            optimizer.at(0.1),
            level,
            models.gpt_slices(config),
            ("layers.0", "layers.2"),
        ),
        sizes,
        slices,
        sequence_parallel,
        recompute,
    )


@lru_cache(maxsize=16)
def published_search(step: Step) -> "planner.Search":
    """Of the training that was published, on the A100s of the profile, as Megatron-LM runs it."""
    config = models.GPTConfig(step.layers, step.width, step.heads, 2048, 51_200)
    job = gpt_job(config, step.batch, precision="bf16")
    return planner.Search(
        replace(job, run=partial(run_megatron, config, job.run)),
        Hardware.named("a100-nvlink"),
        step.devices,
    )


def run_megatron(
    config: "models.GPTConfig", run: Callable, sizes: tuple[int, ...], way: "planner.Way"
) -> "dict[str, list[planner.Facts]]":
    """The dry runs of `run`, with the kernels of Megatron-LM in a layer: bias + GELU, bias +
    dropout + add, and scale + mask + softmax are one each, the dropout of probabilities another.
    docs/planner.md counts the bytes that they move. What it recomputes runs to its end; a backward
    of this library stops when it has what it needs.
    Source: Narayanan et al. 2021 (arXiv:2104.04473), section 4.2."""
    found, plain = run(sizes, way), run(sizes, way._replace(recompute="none"))
    block = []
    for rows, own, facts in zip(sizes, found["block"], plain["block"]):
        stream = 2 * rows * config.sequence * config.width // way.tp
        scores = 2 * rows * config.heads * config.sequence**2 // way.tp
        whole = stream * (1 if way.sequence_parallel else way.tp)  # where layers are not sliced
        forward, core = 11 * whole + 16 * stream + 9 * scores // 2, 9 * scores // 2
        backward = 23 * whole + 27 * stream + 11 * scores // 2
        ahead = facts.products[facts.products[:, 0] == 0]
        moved, again = {
            "none": (0, ahead[:0]),
            "selective": (core, ahead[ahead[:, 1] > 1]),  # attention's products are of many heads
            "full": (forward, ahead),
        }[way.recompute]
        work, called = facts.work.copy(), facts.called.copy()
        work[:2, 1] = forward, backward + moved
        work[1, 0] += 2 * again[:, 1:].prod(1).sum()
        called[1] += called[0] * (way.recompute == "full")
        products = np.concatenate([facts.products, again + [1, 0, 0, 0, 0]])
        block.append(own._replace(work=work, called=called, products=products))
    return found | {"block": block}


def published_seconds(step: Step, recompute: str) -> float:
    """What this step takes by its published plan: selective recompute came with sequence
    parallelism."""
    search = published_search(step)
    plan = planner.Plan(
        1,
        step.devices // 8,
        planner.Way(8, recompute == "selective", recompute),
        step.rows,
        0,
    )
    return (
        search.seconds(plan)
        if step.chunks == 1
        else search.scheduled(plan, "interleaved", chunks=step.chunks)
    )
