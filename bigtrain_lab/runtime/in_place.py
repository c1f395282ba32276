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
from .border import Place
from .process import Job, work
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
    failed = work(place.index, job, lambda: program)
    end = {"state": "failed" if failed else "done", "diagnosis": None}
    if failed:
        status = json.loads(job.file("status", place.index, "json").read_text())
        end["diagnosis"] = f"Rank {place.index} failed: {status['type']}: {status['message']}"
        write_whole(Path(directory) / "end.json", json.dumps(end))
        raise RankFailed(end["diagnosis"])
    dist.barrier()
    if place.index == 0:
        write_whole(Path(directory) / "end.json", json.dumps(end))
    dist.barrier()
    if ours:
        dist.destroy_process_group()
    return Run(directory)
