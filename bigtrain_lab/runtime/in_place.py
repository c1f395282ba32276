"""A rank that torchrun (or Slurm through it) started: the same command runs the program here, in this process.

All ranks share one directory, which rank 0 makes: every node must see it. Wall times of several nodes are as equal as
their clocks.
"""

import json
import time
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from ..core import Impossible, write_whole
from . import diagnose
from .border import Place
from .diagnose import Doing, Exit
from .process import FAILED, Job, work
from .run import RankFailed, Run


def run_in_place(place: Place, program, job: Job, make_directory) -> Run:
    """Run the program as rank `place.index` and return when all ranks have. RankFailed where this one failed."""
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group("gloo")
    began = time.time_ns() - (time.monotonic_ns() - job.zero_ns)
    shared = [None]
    if place.index == 0:
        try:
            shared = [(str(make_directory()), began)]
        except Impossible as error:  # the other ranks must hear of it
            shared = [str(error)]
    dist.broadcast_object_list(shared, src=0)
    if isinstance(shared[0], str):
        raise Impossible(shared[0])
    directory, began = shared[0]
    job = replace(job, directory=directory, zero_ns=time.monotonic_ns() - (time.time_ns() - began))
    if work(place.index, job, lambda: program):
        diagnosis = why(Path(directory), place.ranks)
        write_whole(Path(directory) / "end.json", json.dumps({"state": "failed", "diagnosis": diagnosis}))
        raise RankFailed(diagnosis)
    dist.barrier()
    if place.index == 0:
        write_whole(Path(directory) / "end.json", json.dumps({"state": "done", "diagnosis": None}))
    dist.barrier()
    if ours:
        dist.destroy_process_group()
    return Run(directory)


def why(directory: Path, ranks: int) -> str:
    """Why the run failed, by the statuses of all ranks that have failed so far: each that fails later says it again.

    A victim comes after its culprit, whose connections close once it has said how it ended.
    """
    doings = [Doing(directory, rank) for rank in range(ranks)]
    for doing in doings:
        doing.follow()
    failed = [rank for rank in range(ranks) if diagnose.status_of(directory, rank).get("state") == "failed"]
    return diagnose.failure(directory, doings, {rank: Exit(FAILED, 0) for rank in failed})
