"""A rank that torchrun (or Slurm or Kubernetes through it) started: the same command runs the program here, in this process.

All ranks share one directory, which rank 0 makes on a disk that every node sees. Each runs its own
program: the code is the same, the measured values are rank 0's, and no code travels. Each keeps its
own log there, and a failure is told as under `launch`: by one rank in full, by the others in a sentence.
"""

import hashlib
import inspect
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType

import torch
import torch.distributed as dist

from .board import run_of
from .border import Place
from .end import INTERRUPTED
from .kept import read_settings
from .log import LogUnwritable
from .lookout import Lookout
from .process import work
from .run import RankFailed, Run
from .team import Team


def run_in_place(place: Place, program, asked: dict, prepare, stall_s: float, informed=None) -> Run:
    """Run the program as rank `place.index` and return when all ranks have. RankFailed where one failed, Impossible where
    the ranks cannot work together.

    asked       what every rank must have been asked for alike
    prepare     hosts, devices -> Job: makes the run's directory; called by rank 0 alone
    informed    facts -> program, of a program that depends on what rank 0 has measured
    """
    team = Team(place, run_of(place), {**asked, "program": digest(program)})
    job = team.agree(prepare)

    def load():
        facts = read_settings(Path(job.directory))["settings"].get("facts")
        return informed(facts) if informed and facts else program

    threads = torch.get_num_threads()
    torch.set_num_threads(job.threads)
    try:
        with Lookout(team, job, stall_s) as lookout:
            try:
                end = lookout.end(work(place.index, job, load))
            except LogUnwritable as error:
                end = lookout.give_up(f"Rank {place.index}: {error}")
    finally:
        torch.set_num_threads(threads)
    if end.state == "done":
        team.ask_clocks_again(Path(job.directory))
    if end.diagnosis == INTERRUPTED:
        raise KeyboardInterrupt
    if end.state != "done":
        raise RankFailed(lookout.words(end))
    if team.ours:
        dist.destroy_process_group()
    return Run(job.directory)


def digest(program) -> str:
    """Of a program's code, the same on all ranks: its own, and the files that define it where they are
    known. Values that it was made with do not count: the settings are compared."""
    while isinstance(program, partial):
        program = program.func
    function = getattr(program, "__func__", program)
    found = hashlib.sha256(repr(compiled(getattr(function, "__code__", None))).encode())
    owner = type(getattr(program, "__self__", program))
    for name in sorted({function.__module__, owner.__module__} - {"builtins"}):
        with suppress(OSError, TypeError, KeyError):  # typed in a shell, or made by exec
            found.update(inspect.getsource(sys.modules[name]).encode())
    return found.hexdigest()[:16]


def compiled(value):
    """What a function's code does, without where it stands, for repr."""
    if isinstance(value, CodeType):
        constants = [compiled(each) for each in value.co_consts]
        return value.co_name, value.co_code, value.co_names, constants
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value
