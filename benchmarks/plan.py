"""The planner: how long a search takes, and how far closed forms are from its lab's predictions.

Before all: what torch imports for its first operator on meta, once a process; a panel does so when
it opens. Cold: nothing is known of the model. Known: the dry runs of its pieces are there, as when
a slider moves links or devices. The frontier: all plans are priced, and a slider moves memory.
Beside the labs: plans drawn at random from all of four trainings, each priced by closed forms and
simulated action by action. Beside what was published: the steps of four GPTs, each with full and
with selective recompute; then parts of them, a layer and all-reduces.
"""

import os
import random
import tempfile
import time
from contextlib import suppress
from itertools import combinations
from statistics import mean, median
from typing import NamedTuple

from bigtrain_lab.core import Hardware, Impossible
from bigtrain_lab.core.peak import readings
from bigtrain_lab.data.published import (
    PUBLISHED_ALL_REDUCES,
    PUBLISHED_LAYERS,
    PUBLISHED_STEPS,
)
from bigtrain_lab.experiments.plan import (
    PlanACluster,
    gpt_job,
    published_search,
    published_seconds,
    run_gpt,
)
from bigtrain_lab.models import GPTConfig
from bigtrain_lab.planner import Job, Plan, Planned, Search, Way, priced, simulated
from bigtrain_lab.train.dry_run import wake

from .measure import row

LARGE = {"layers": 96, "width": 12288, "heads": 96, "sequence": 2048, "vocabulary": 51200}
DEVICES, BATCH = (8, 1024, 4096), 1536
MEMORIES = range(16, 164, 12)  # of a device, GB
TINY = {"layers": 8, "width": 64, "heads": 8, "sequence": 32, "vocabulary": 256}
MIDDLE = {"layers": 4, "width": 1024, "heads": 16, "sequence": 512, "vocabulary": 8192}
TRAININGS = [
    (sizes, hardware, devices)
    for sizes in (TINY, MIDDLE)
    for hardware, devices in (("a100-nvlink", 8), ("rtx3090-pcie", 4))
]
DRAWN = 50  # plans of each training, half of them by 1F1B; half of them with ZeRO
OTHERS = "gpipe", "interleaved", "looped-bfs"  # that the planner simulates, with whole backwards
STEPS = PUBLISHED_STEPS
SMALLEST = {
    "STEPS": STEPS[:1],
    "LARGE": TINY,
    "DEVICES": (2,),
    "TRAININGS": [(TINY, "a100-nvlink", 2)],
    "DRAWN": 4,
}


def rows():
    return [*speeds(), *beside_labs(), *beside_published(), *beside_parts()]


def beside_parts():
    """A layer, and all-reduces by size, beside the middle of what was published."""
    search, told, off = published_search(PUBLISHED_STEPS[0]), {}, {}
    for name, *how, forward_s, backward_s in PUBLISHED_LAYERS:
        run = search.run("block", Way(8, *how), copying=False)[:2, search.job.rows == 4]
        told["a layer", f"{name}, forward"] = run[0].item() / forward_s - 1
        told["a layer", f"{name}, backward"] = run[1].item() / backward_s - 1
    measured = {}
    for _, ranks, seconds in PUBLISHED_ALL_REDUCES:
        measured.setdefault(ranks, []).append(seconds)
    for ranks, tables in measured.items():
        ring = search.ring(range(ranks), "all_reduce")
        for power, seconds in enumerate(zip(*tables)):
            ours = ring.seconds(2.0 ** (20 + power)) / median(seconds) - 1
            told[f"all-reduces on {ranks} A100s", f"{2**power} MiB"] = float(ours)
    for (what, _), each in told.items():
        off.setdefault(what, []).append(abs(each))
    apart = max(max(each) / min(each) - 1 for each in zip(*measured[8]))
    return [
        *(row(f"{what}, {which}", each, "relative") for (what, which), each in told.items()),
        row("all-reduces on 8 A100s: three published ones apart, worst", apart, "relative"),
        *(row(f"{what}: how far off, mean", mean(each), "relative") for what, each in off.items()),
        *(
            row(f"{what}: how far off, worst", max(each), "relative", at_most=0.15)
            for what, each in off.items()
        ),
    ]


def beside_published():
    told = {}
    for step in STEPS:
        for how, published in (("full", step.full_s), ("selective", step.selective_s)):
            told[f"{step.name}, {how} recompute"] = published_seconds(step, how) / published - 1
    off = [abs(each) for each in told.values()]
    return [
        *(
            row(f"{name}: step beside the published one", each, "relative")
            for name, each in told.items()
        ),
        row("published steps: how far off, mean", mean(off), "relative", at_most=0.06),
        row("published steps: how far off, worst", max(off), "relative", at_most=0.15),
    ]


def speeds():
    job = gpt_job(GPTConfig(**LARGE), BATCH, precision="bf16")
    profile, begin = Hardware.named("a100-nvlink"), time.process_time()
    wake()
    spent = time.process_time() - begin
    found = [row("torch's imports for its first operator on meta: CPU time", spent, "s")]
    for devices in DEVICES:
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # nothing is kept there
        for cache in (run_gpt, Job.drawn):
            cache.cache_clear()
        for what, most in (("cold", 1.0), ("known", 0.2)):
            priced.cache_clear()
            simulated.cache_clear()
            begin = time.process_time()
            search = Search(job, profile, devices)
            plans = len(search.fitting) + len(search.large)
            spent = time.process_time() - begin
            told = f"{plans:,} plans of {LARGE['layers']} layers on {devices:,} devices, {what}"
            found.append(row(f"{told}: CPU time", spent, "s", at_most=most))
        found += frontiers(job, profile, devices) if search.fitting else []
    return found


def frontiers(job, profile, devices):
    """As a slider of memory moves: once forward, then back over the same values."""
    took = []
    for gigabytes in [*MEMORIES, *reversed(MEMORIES)]:
        begin = time.process_time()
        found = Search(job, profile, devices, gigabytes * 10**9).frontier
        took.append(1000 * (time.process_time() - begin))
        print(f"{gigabytes} GB: {len(found)} on the frontier, {took[-1]:.0f} ms")
    told = f"the frontier on {devices:,} devices at another memory"
    return [
        row(f"{told}: CPU time, median of {len(took)}", median(took), "ms", at_most=100),
        row(f"{told}: the longest, whose best plan is simulated anew", max(took), "ms"),
    ]


class Ordered(NamedTuple):
    """A plan by another schedule, as simulated in place of a closed form."""

    plan: Plan
    seconds: float
    schedule: str


def others(lab, draw):
    """Each plan of several stages by one of the other schedules, where that can be."""
    for each in lab.search.fitting:
        schedule = draw.choice(OTHERS)
        if each.plan.pp > 1:
            with suppress(Impossible):
                yield Ordered(each.plan, lab.search.scheduled(each.plan, schedule), schedule)


def memory_rows(told, own):
    """Of plans whose memory is told."""
    off = [abs(each.bytes / held - 1) for _, each, _, held in own if isinstance(each, Planned)]
    return [
        row(f"{told}: memory, {name}", of(off), "relative", at_most=most)
        for name, of, most in (("mean", mean, None), ("worst", max, 0.1))
        if off
    ]


def beside_labs():
    draw, found = random.Random(0), {}
    for number, (sizes, hardware, devices) in enumerate(TRAININGS):
        lab = PlanACluster(
            **sizes, hardware=hardware, devices=devices, pipeline=1, batch=16, memory_mb=10**6
        )
        for by, of in (("1F1B", lab.search.fitting), ("other schedules", [*others(lab, draw)])):
            for name, zero in ((f"{by}, no ZeRO", False), (f"{by}, ZeRO", True)):
                plans = [each for each in of if bool(each[0].zero) == zero]
                own = found.setdefault(name, [])
                for each in draw.sample(plans, min(len(plans), DRAWN // 4)):
                    schedule = getattr(each, "schedule", "1f1b")
                    made = lab.replace(**lab.settings_of(each.plan)).combined
                    trace = made.replace(schedule=schedule).predict()
                    held = max(r.bytes for n in range(trace.ranks) for r in readings(trace, n))
                    own.append((number, each, trace.step_time, held))
                    print(f"{schedule}, {each.plan}: {each.seconds / trace.step_time - 1:+.4f}")
    lines = []
    for name, own in found.items():
        if not own:
            continue
        times = [abs(each.seconds / seconds - 1) for _, each, seconds, _ in own]
        wrong, pairs = [], 0
        for (at, a, a_s, _), (to, b, b_s, _) in combinations(own, 2):
            pairs += at == to
            if at == to and (a.seconds - b.seconds) * (a_s - b_s) < 0:
                wrong.append(abs(a_s - b_s) / min(a_s, b_s))
        told = f"{name}, {len(own)} plans"
        lines += [
            row(f"{told}: closed form beside its lab, time, mean", mean(times), "relative"),
            row(f"{told}: time, worst", max(times), "relative", at_most=0.015),
            *memory_rows(told, own),
            row(f"{told}: of {pairs} pairs, ordered wrongly", len(wrong), "pairs"),
            row(f"{told}: the furthest apart of those", max(wrong, default=0.0), "relative"),
        ]
    return lines
