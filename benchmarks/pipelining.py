"""One training step of our executor beside torch.distributed.pipelining: same stages, same
schedule, same ranks, in turns.

    ours       no clock, as in a script of one's own        modelled   with virtual clock, event log
                                                                       and memory ledger, as in a
                                                                       lab
    theirs     torch's schedule                             alone      the stages' work only: no
                                                                       messages, no waiting, no
                                                                       bubble

`alone` is what no executor of these stages can beat on this machine. Wall time is that of the
slowest rank, CPU time the sum over the ranks.
"""

import statistics
import tempfile
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from torch.distributed import pipelining

from bigtrain_lab.models import GPTConfig, GPTStage, cross_entropy, split
from bigtrain_lab.order.schedule import Schedule
from bigtrain_lab.runtime import launch, warm
from bigtrain_lab.techniques.pipeline import Pipeline

from .measure import row

THEIRS = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
}
CONFIG = GPTConfig(layers=8, width=128, heads=4, sequence=64)
MICRO_BATCHES, ROWS, ROUNDS, WARM_UP = 8, 2, 15, 3
SMALLEST = {"ROUNDS": 1, "WARM_UP": 0, "CONFIG": GPTConfig(layers=8, width=8, heads=1, sequence=4)}


def work_alone(stages, first: bool, last: bool, inputs, targets):
    """Every forward and backward of this rank's stages, on random hidden states."""
    hidden = torch.randn(ROWS, CONFIG.sequence, CONFIG.width)
    for x, target in zip(inputs.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES)):
        for i, stage in enumerate(stages):
            y = stage(x if first and i == 0 else hidden.clone().requires_grad_())
            if last and i == len(stages) - 1:
                (cross_entropy(y, target) / MICRO_BATCHES).backward()
            else:
                y.backward(hidden)


def program(rank, name):
    """All contenders on this rank, a step of each in turns; returns median seconds a step: wall,
    and CPU of all ranks."""
    schedule = Schedule.named(name)(rank.size, MICRO_BATCHES)
    own = [s for s in range(schedule.stages) if schedule.rank_of(s, 0) == rank.index]
    first, last = 0 in own, schedule.stages - 1 in own
    ids = torch.randint(
        256, (MICRO_BATCHES * ROWS, CONFIG.sequence + 1), generator=torch.Generator().manual_seed(0)
    )
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    parts = split(CONFIG, schedule.stages)
    stages = {
        who: [GPTStage(CONFIG, *parts[s]) for s in own]
        for who in ("ours", "modelled", "theirs", "alone")
    }
    ours = Pipeline(stages["ours"], schedule, cross_entropy)
    modelled = Pipeline(stages["modelled"], schedule, cross_entropy, rank.group())
    rank.watch(modelled.holdings)
    wrapped = [
        pipelining.PipelineStage(m, s, schedule.stages, torch.device("cpu"))
        for m, s in zip(stages["theirs"], own)
    ]
    theirs = THEIRS[name](
        wrapped if name == "interleaved" else wrapped[0], MICRO_BATCHES, cross_entropy
    )
    steps = {
        "ours": partial(ours.step, inputs, targets),
        "modelled": partial(modelled.step, inputs, targets),
        "theirs": partial(
            theirs.step, *([inputs] if first else []), **({"target": targets} if last else {})
        ),
        "alone": partial(work_alone, stages["alone"], first, last, inputs, targets),
    }
    wall, cpu, order = {who: [] for who in steps}, {who: [] for who in steps}, list(steps)
    for turn in range(WARM_UP + ROUNDS):
        for who in (
            order[turn % len(order) :] + order[: turn % len(order)]
        ):  # each goes first in turn
            for stage in stages[who]:
                stage.zero_grad()
            torch.distributed.barrier()
            with (
                nullcontext() if who == "modelled" else rank.aside()
            ):  # nothing observes the others
                begin, spent = time.perf_counter(), time.process_time()
                steps[who]()
                spent = time.process_time() - spent
            torch.distributed.barrier()
            if turn >= WARM_UP:
                wall[who].append(time.perf_counter() - begin)
                cpu[who].append(spent)
    for a, b in zip(stages["ours"], stages["theirs"]):
        for (parameter, p), (_, q) in zip(a.named_parameters(), b.named_parameters()):
            assert torch.allclose(p.grad, q.grad, rtol=1e-3, atol=1e-4 * q.grad.abs().max()), (
                f"{name}: {parameter} differs"
            )
    of_all = torch.tensor([statistics.median(taken) for taken in cpu.values()])
    torch.distributed.all_reduce(of_all)
    if rank.index:
        return {}
    return {who: statistics.median(taken) for who, taken in wall.items()} | {
        f"{who} cpu": n for who, n in zip(cpu, of_all.tolist())
    }


def rows():
    warm()
    table = []
    for ranks in (2, 4):
        for name in THEIRS:
            with tempfile.TemporaryDirectory() as folder:
                run = launch(
                    partial(program, name=name),
                    ranks=ranks,
                    cost={"F": 1, "B": 2},
                    directory=Path(folder) / "run",
                    name="pipelining",
                )
                run.wait(timeout=300)
                took = {who: float(seconds) for who, seconds in run.result.items()}
            what = f"{name} on {ranks} ranks: "
            table += [
                row(
                    f"{what}our step over torch.distributed.pipelining's",
                    took["ours"] / took["theirs"],
                    "times",
                    at_most=1.0,
                ),
                row(
                    f"{what}our CPU time over torch.distributed.pipelining's",
                    took["ours cpu"] / took["theirs cpu"],
                    "times",
                ),
                row(
                    f"{what}the stages' work alone over torch.distributed.pipelining's step",
                    took["alone"] / took["theirs"],
                    "times",
                ),
                row(f"{what}our step", 1000 * took["ours"], "ms"),
                row(f"{what}our CPU time, all ranks", 1000 * took["ours cpu"], "ms"),
                row(
                    f"{what}what the modelled clock adds to our step",
                    100 * (took["modelled"] / took["ours"] - 1),
                    "%",
                ),
            ]
    return table
