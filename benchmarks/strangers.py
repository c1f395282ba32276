"""400 run directories of strangers, 200 crafted and 200 damaged: each is shown, compared and
exported in a process of its own.

Opening one is a clean output or one sentence; its time and memory are those of all four commands
together, by the process that was forked for it: seconds of its processor and the growth of its
largest resident set.
"""

import json
import os
import resource
import signal
import tempfile
import time
from pathlib import Path

from bigtrain_lab.experiments import Experiment
from bigtrain_lab.view.page import page  # noqa: F401  (loaded here, so that no child counts it)
from tests.unit.strangers import crafted, damaged, opened

from .measure import row

SMALL = {
    "ranks": 2,
    "micro_batches": 2,
    "layers": 2,
    "width": 16,
    "heads": 2,
    "sequence": 8,
    "steps": 2,
}
COUNT, SECONDS, MB, PATIENCE_S = 200, 2.0, 500, 60
ROOM_MB = 1000  # of address space: what takes more ends by a MemoryError, and not with this machine
SMALLEST = {"COUNT": 1}


def confined() -> None:
    """Let this process take so much more memory, and none beyond it."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM_MB * 10**6,) * 2)


def judged(make, number: int, source: Path, folder: Path) -> dict:
    """One directory: what it is, what went wrong, seconds and MB."""
    place, report = folder / f"{make.__name__}-{number}", folder / "report.json"
    what = make(number, source, place)
    if not (child := os.fork()):
        try:
            confined()
            before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
            wrong = opened(place, source, folder)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
            report.write_text(
                json.dumps({"wrong": wrong, "seconds": time.process_time() - began, "mb": grown}),
                encoding="utf-8",
            )
        finally:
            os._exit(0)
    until = time.monotonic() + PATIENCE_S
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"what": what, "wrong": ["it hung"], "seconds": PATIENCE_S, "mb": 0}
        time.sleep(0.005)
    if not report.exists():
        return {"what": what, "wrong": ["the process died"], "seconds": 0, "mb": 0}
    told = {"what": what, **json.loads(report.read_text(encoding="utf-8"))}
    report.unlink()
    return told


def rows():
    table = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "run"
        Experiment.named("pipeline")(**SMALL).run(directory=source).wait()
        opened(source, source, Path(folder))  # what is loaded once is loaded
        for make in (crafted, damaged):
            found = [judged(make, number, source, Path(folder)) for number in range(COUNT)]
            wrong = [each for each in found if each["wrong"]]
            for each in wrong:
                print(f"{make.__name__}: {each['what']}: {'; '.join(each['wrong'])}")
            slowest, largest = (max(found, key=lambda each: each[of]) for of in ("seconds", "mb"))
            table += [
                row(f"{make.__name__}: directories", COUNT, ""),
                row(
                    f"{make.__name__}: neither a clean output nor one sentence",
                    len(wrong),
                    "",
                    at_most=0,
                ),
                row(
                    f"{make.__name__}: the slowest ({slowest['what']})",
                    slowest["seconds"],
                    "s",
                    at_most=SECONDS,
                ),
                row(
                    f"{make.__name__}: the largest ({largest['what']})",
                    largest["mb"],
                    "MB",
                    at_most=MB,
                ),
            ]
    return table
