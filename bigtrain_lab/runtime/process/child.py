"""What one rank's process does, from its first line to its last: the child's side of `launch`."""

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from mmap import ACCESS_READ, mmap
from pathlib import Path

import cloudpickle
import torch
import torch.distributed as dist

from ...core import Cost, Mesh
from ..failure import frames
from ..failure.faults import Fault, Strike
from ..memory.ledger import Ledger
from ..rank import Rank
from ..record.log import EventLog, LogUnwritable
from ..record.recorder import Recorder
from ..record.results import save
from ..talk.clock import Clock
from ..talk.group import is_lost
from ..talk.lanes import LaneFailed
from ..talk.unrecorded import UNRECORDED
from . import border
from .end import FAILED, UNWRITABLE, within

MOST_TEXT = 100_000  # letters of a message or a traceback that a log keeps


@dataclass(frozen=True)
class Job:
    """What every rank of a run is told. `zero_ns`: the run's zero on the system's monotonic
    clock."""

    directory: str
    mesh: Mesh
    cost: Cost | None
    zero_ns: int
    store: str
    seed: int = 0
    threads: int = 1
    record: bool = True
    jitter_s: float = 0.0
    work_directory: str = "."
    fault: Fault | None = None
    devices: tuple[str, ...] = ()  # each rank's; none: the CPU
    backend: str = "gloo"
    capacity_bytes: int | None = None  # what each rank's device holds
    relief: str = ""
    ledger: bool = False  # that sees every operator
    pauses: str = ""  # the file that tells for how long all were paused

    def device(self, index: int) -> torch.device:
        return torch.device(self.devices[index] if self.devices else "cpu")

    def file(self, kind: str, index: int, suffix: str) -> Path:
        return Path(self.directory) / f"{kind}-{index}.{suffix}"


def main(index: int, job: Job, program: bytes) -> None:
    """All that a rank's process does; leaves by os._exit, so no finalizer can keep it."""
    code = UNWRITABLE
    try:
        capture_output(job, index)
        with suppress(OSError):  # a directory that is gone keeps nobody from computing
            os.chdir(job.work_directory)
        border.set_local(job.threads)
        torch.set_num_threads(job.threads)
        code = work(index, job, lambda: cloudpickle.loads(program), meet)
    except (OSError, LogUnwritable):
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def capture_output(job: Job, index: int) -> None:
    """Send what the rank prints to its log, and stacks to a file of their own."""
    log = os.open(job.file("rank", index, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    stacks = open(job.file("stacks", index, "txt"), "a", encoding="utf-8")
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks)


def pauses_of(job: Job) -> Callable[[], int]:
    """() -> how long the ranks were paused in all, in ns, as their watch has written it."""
    with open(job.pauses, "rb") as file:
        written = mmap(file.fileno(), 0, access=ACCESS_READ)
    return lambda: int.from_bytes(written[:])


def meet(index: int, job: Job) -> None:
    """Meet the other ranks in a file: no port listens for it, and it goes with its directory. All
    are connected then: one that left earlier would break the meeting of those still at it."""
    store, size = dist.FileStore(job.store, job.mesh.size), job.mesh.size
    dist.init_process_group(
        job.backend, store=store, rank=index, world_size=size, timeout=timedelta(days=7)
    )
    store.add("connected", 1)
    within(inf, lambda: store.add("connected", 0) >= size, 0.002)


def work(index: int, job: Job, load, meet=None) -> int:
    """Load the program, meet the other ranks (unless they have met), run, keep results;
    returns the exit code."""
    log = EventLog(job.file("events", index, "jsonl"), index)
    device = job.device(index)
    clock = Clock(job.cost, job.zero_ns, device, pauses_of(job) if meet else int)
    recorder, code = UNRECORDED, 0
    try:
        torch.manual_seed(job.seed)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        program = load()
        if meet:
            mark = log.write if job.record else UNRECORDED.write
            mark("@meet", clock.wall(), "compute")
            meet(index, job)
            mark("@met", clock.wall(), "compute")
        if job.record:
            ledger = Ledger(
                capacity_bytes=job.capacity_bytes,
                rank=index,
                relief=job.relief,
                wall=clock.wall,
                device=device,
                coarse=not job.ledger,
            )
            recorder = Recorder(index, clock, log, ledger, job.jitter_s, job.seed, job.mesh.size)
        rank = Rank(index, job.mesh, device, job.seed, recorder)
        if job.fault:
            recorder.strike = Strike(job.fault, rank)
        with recorder.ledger if job.record else nullcontext():
            results = program(rank)
            rank.finish()
            if job.fault:
                recorder.strike.finish()
        save(job.file("result", index, "npz"), results)
        recorder.finish()
        log.done(clock.wall())
    except LogUnwritable:
        raise
    except BaseException as error:  # noqa: B902  (sys.exit too ends a rank before its program returned)
        code = FAILED
        if meet:  # under torchrun a sentence follows, the log keeps the rest
            traceback.print_exc()
        with suppress(Exception):  # what failed is the news
            recorder.finish()
        log.write("@raised", clock.wall(), "compute", *failure(error))
    finally:
        log.close()  # a rank of torchrun's lives on, and may run more
    return code


def failure(error: BaseException) -> tuple:
    """What a log says of an exception."""
    return (
        type(error).__name__,
        str(error)[:MOST_TEXT],
        is_lost(error),
        frames.of_error(error.__cause__ if isinstance(error, LaneFailed) else error),
        traceback.format_exc()[-MOST_TEXT:],
    )
