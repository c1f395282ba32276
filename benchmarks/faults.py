"""Each fault in each lab: what is told, in how many seconds, and what is left behind.

A rank notes the time as the last thing before it is struck: the file time of its log. A straggler
and a NaN end no run, so what is told of them is told at its end.
"""

import os
import tempfile
import time
from pathlib import Path

import psutil

from bigtrain_lab.experiments import Experiment
from bigtrain_lab.runtime import RankFailed, launch, warm
from bigtrain_lab.runtime.failure.faults import FAULTS
from bigtrain_lab.runtime.record.log import Log

from .measure import row

STALL_S, RANK, AT = 2.0, 1, 9
LABS = {
    "pipeline": {"layers": 4, "width": 16, "heads": 2, "sequence": 8},
    "staleness": {"schedule": "1f1b"},
    "faults": {},
}
NAMED = {
    "raise": "Rank 1 failed: OnPurpose",
    "exit": "Rank 1 exited with code 3",
    "kill": "Rank 1 was killed by signal 9",
    "hang": "Rank 1 hangs: no progress",
    "deadlock": "Deadlock: rank 1 waits for",
    "nan": "Not finite (NaN or infinity): it began on rank 1",
}
LIMITS = {"hang": STALL_S + 5}
ENDS = ("raise", "exit", "kill", "hang", "deadlock")
SMALLEST = {"LABS": {"faults": {}}}


def children() -> set[int]:
    return {p.pid for p in psutil.Process().children(recursive=True)}


def struck(lab: str, fault: str) -> dict:
    """One faulty run: what was told, after how many seconds, processes left, logs that are not
    whole."""
    asked = Experiment.named(lab)(**LABS[lab], fault=fault, fault_rank=RANK, fault_at=AT)
    before = children()
    with tempfile.TemporaryDirectory() as folder:
        run = asked.run(directory=Path(folder) / "run", stall_s=STALL_S)
        try:
            trace = run.wait(timeout=60)
            ended = "done"
        except RankFailed as failure:
            ended, told = "cut off", str(failure)
        now = time.time()
        logs = [run.directory / f"events-{rank}.jsonl" for rank in range(run.ranks)]
        took = now - os.stat(logs[RANK]).st_mtime
        if ended == "done":
            busy = {
                rank: trace.busy(rank) / (asked.replace(fault="none").predict().busy(rank))
                for rank in range(run.ranks)
            }
            slow = [
                f"rank {rank} is busy {factor:g} times as long"
                for rank, factor in busy.items()
                if factor > 1
            ]
            told = (
                slow[0]
                if slow
                else next(s for s in asked.explain(trace) if s.startswith("Not finite"))
            )
        broken = sum(Log(path).read().state != ended for path in logs)
        sound = (
            trace.step_time == asked.predict().step_time
            if ended == "done"
            else len(run.waits) == run.ranks
        )
    return {
        "told": told.splitlines()[0],
        "took": took,
        "left": len(children() - before),
        "broken": broken,
        "sound": sound,
        "ended": ended,
    }


def rows():
    warm()
    with tempfile.TemporaryDirectory() as folder:
        launch(
            lambda rank: None, ranks=4, directory=Path(folder) / "run"
        ).wait()  # the fork server is there
    table = []
    for fault in [fault for fault in FAULTS if fault != "none"]:
        for lab in LABS:
            found = struck(lab, fault)
            named = NAMED.get(fault, f"rank {RANK} is busy 2 times as long")
            assert (
                found["told"].startswith(named)
                and found["sound"]
                and (found["ended"] == "cut off") == (fault in ENDS)
            ), found
            first = found["told"].replace("|", "/").replace(f"{Path.cwd()}/", "")
            table.append(
                row(
                    f'{fault} in {lab}: "{first}"', found["took"], "s", at_most=LIMITS.get(fault, 5)
                )
            )
            table.append(row(f"{fault} in {lab}: processes left", found["left"], "", at_most=0))
            table.append(
                row(f"{fault} in {lab}: logs that are not whole", found["broken"], "", at_most=0)
            )
    return table
