"""One training step of our executor beside torch.distributed.pipelining: same stages, same schedule, same ranks, in turns."""

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from torch.distributed import pipelining

from bigtrain_lab.models import GPTConfig, GPTStage, cross_entropy, split
from bigtrain_lab.runtime import launch, warm
from bigtrain_lab.schedule import Schedule
from bigtrain_lab.techniques.pipeline import Pipeline

from .measure import row

THEIRS = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B, "interleaved": pipelining.ScheduleInterleaved1F1B}
CONFIG = GPTConfig(layers=8, width=128, heads=4, sequence=64)
MICRO_BATCHES, ROWS, ROUNDS = 8, 2, 15


def program(rank, name):
    """Both executors on this rank, a step of each in turns; returns seconds a step."""
    schedule = Schedule.named(name)(rank.size, MICRO_BATCHES)
    own = [s for s in range(schedule.stages) if schedule.rank_of(s, 0) == rank.index]
    make = [partial(GPTStage, CONFIG, *split(CONFIG, schedule.stages)[s]) for s in own]
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(256, (MICRO_BATCHES * ROWS, CONFIG.sequence + 1), generator=draw)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    ours_stages, theirs_stages = [m() for m in make], [m() for m in make]
    ours = Pipeline(ours_stages, schedule, cross_entropy)
    wrapped = [pipelining.PipelineStage(m, s, schedule.stages, torch.device("cpu")) for m, s in zip(theirs_stages, own)]
    theirs = THEIRS[name](wrapped if name == "interleaved" else wrapped[0], MICRO_BATCHES, cross_entropy)

    def step_of_theirs():
        first, last = 0 in own, schedule.stages - 1 in own
        theirs.step(*([inputs] if first else []), **({"target": targets} if last else {}))

    times = {"ours": [], "theirs": []}
    for turn in range(ROUNDS + 3):
        for stage in (*ours_stages, *theirs_stages):
            stage.zero_grad()
        for who, step in (("ours", partial(ours.step, inputs, targets)), ("theirs", step_of_theirs)):
            torch.distributed.barrier()
            begin = time.perf_counter()
            step()
            torch.distributed.barrier()
            if turn >= 3:
                times[who].append(time.perf_counter() - begin)
    for a, b in zip(ours_stages, theirs_stages):
        for (parameter, p), (_, q) in zip(a.named_parameters(), b.named_parameters()):
            assert torch.allclose(p.grad, q.grad, rtol=1e-3, atol=1e-4 * q.grad.abs().max()), f"{name}: {parameter} differs"
    return {who: statistics.median(taken) for who, taken in times.items()} if rank.index == 0 else {}


def rows():
    warm()
    table = []
    for ranks in (2, 4):
        for name in THEIRS:
            with tempfile.TemporaryDirectory() as folder:
                run = launch(partial(program, name=name), ranks=ranks, directory=Path(folder) / "run", record=False, name="pipelining")
                run.wait(timeout=300)
                ours, theirs = float(run.result["ours"]), float(run.result["theirs"])
            table.append(row(f"{name} on {ranks} ranks: our step over torch.distributed.pipelining's", ours / theirs, "times", at_most=1.0))
            table.append(row(f"{name} on {ranks} ranks: our step", 1000 * ours, "ms"))
    return table
