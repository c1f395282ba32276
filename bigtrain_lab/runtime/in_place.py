"""A rank that torchrun (or Slurm or Kubernetes through it) started: the same command runs the program here, in this process.

All ranks share one directory, which rank 0 makes on a disk that every node sees. Each keeps its own log there, and a
failure is told as under `launch`: by one rank in full, by the others in a sentence.
"""

from pathlib import Path

import cloudpickle
import torch
import torch.distributed as dist

from .border import Place
from .end import INTERRUPTED
from .log import LogUnwritable
from .lookout import GRACE_S, Lookout
from .process import work
from .run import RankFailed, Run
from .team import Team


def run_in_place(place: Place, travelling: bytes, asked: dict, prepare, stall_s: float) -> Run:
    """Run the program as rank `place.index` and return when all ranks have. RankFailed where one failed, Impossible where
    the ranks cannot work together.

    travelling  the program; all ranks run rank 0's
    asked       what every rank must have been asked for alike
    prepare     hosts, devices -> Job: makes the run's directory; called by rank 0 alone
    """
    team = Team(place, asked)
    job, travelling = team.agree(prepare, travelling)
    threads = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        with Lookout(team, job, stall_s) as lookout:
            try:
                end = lookout.end(work(place.index, job, lambda: cloudpickle.loads(travelling)))
            except LogUnwritable as error:
                end = lookout.give_up(f"Rank {place.index}: {error}")
    finally:
        torch.set_num_threads(threads)
    if end.state == "done":
        team.ask_clocks_again(Path(job.directory))
    team.leave(10 if end.state == "done" else GRACE_S / 3)
    if end.diagnosis == INTERRUPTED:
        raise KeyboardInterrupt
    if end.state != "done":
        raise RankFailed(lookout.words(end))
    if team.ours:
        dist.destroy_process_group()
    return Run(job.directory)
