"""What a class costs the machine of a JupyterHub: USERS users, AT_ONCE of them at the same time
(BIGTRAIN_USERS=60 python -m benchmarks hub for fewer).

Each has a kernel, in which she opens a panel, presses Run (four real ranks), and has an exercise
checked. Memory is what Linux calls PSS, of a kernel and all processes that it started: a page that
several processes share is divided among them. Nothing may be lost: each run is compared with its
prediction, event for event, and each verdict with what it should be.
"""

import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from jupyter_client.manager import start_new_kernel

from bigtrain_lab.grading import Topic

from .measure import row

USERS = int(os.environ.get("BIGTRAIN_USERS", 300))
AT_ONCE = min(USERS, 30)
PATIENCE_S = 1800
SMALLEST = {"USERS": 2, "AT_ONCE": 2}
TOLD = """
import json, time, psutil
began, told = time.perf_counter(), {}
def tell(what):
    global began
    told[what], began = time.perf_counter() - began, time.perf_counter()
def held():
    every = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(each.memory_full_info().pss for each in every) / 1e6
"""
PANEL = """
from bigtrain_lab.panel import show
panel = show("pipeline", ranks=4)
tell("panel")
told["idle"] = held()
"""
RUN = """
from bigtrain_lab.checks import clocks_differ
trace = panel.wait() if panel.start() else None
tell("run")
told["ran"] = clocks_differ(panel.experiment.predict(), trace) == []
"""
CHECK = """
from bigtrain_lab.grading import check
began = time.perf_counter()
verdict = check({topic!r}, answer)
tell("check")
told["right"] = bool(verdict)
told["most"] = held()
print(json.dumps(told))
"""
TOPIC = "1f1b"


def session(number: int) -> dict:
    """What one user's kernel tells."""
    with tempfile.TemporaryDirectory() as home:
        began = time.perf_counter()
        own = os.environ | {"IPYTHONDIR": home}  # each user of a hub has a history of her own
        manager, client = start_new_kernel(cwd=home, env=own, startup_timeout=PATIENCE_S)
        started = time.perf_counter() - began
        answer = next(iter(Topic.named(TOPIC).right.values()))
        try:
            outputs = []
            for cell in (TOLD, PANEL, RUN, answer, CHECK.format(topic=TOPIC)):
                reply = client.execute_interactive(
                    cell, timeout=PATIENCE_S, output_hook=lambda said: outputs.append(said)
                )
                if reply["content"]["status"] != "ok":
                    return {"lost": "\n".join(reply["content"]["traceback"])}
            streams = (said["content"].get("text", "") for said in outputs)
            return json.loads("".join(streams).splitlines()[-1]) | {"kernel": started}
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def rows() -> list[dict]:
    began, before = time.perf_counter(), psutil.virtual_memory().used
    most, alone = [before], session(0)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [pool.submit(session, number) for number in range(USERS)]
        while not all(each.done() for each in waiting):
            most.append(psutil.virtual_memory().used)
            time.sleep(0.5)
    every = [each.result() for each in waiting]
    took = time.perf_counter() - began
    lost = [each["lost"] for each in every if "lost" in each]
    for told in lost[:1]:
        print(Path(told).name if len(told) < 80 else told)
    whole = [each for each in every if "lost" not in each]
    found = [
        row(f"{USERS} users, {AT_ONCE} at once: minutes in all", took / 60, "min"),
        row("users who lost anything", len(lost), "users", at_most=0),
        row("runs equal to their prediction", sum(u["ran"] for u in whole), "", at_least=USERS),
        row(
            "right answers that were found right",
            sum(u["right"] for u in whole),
            "",
            at_least=USERS,
        ),
        row(
            "memory of a user who looks at a panel",
            statistics.median(u["idle"] for u in whole),
            "MB",
        ),
        row("memory of a user who has run and checked", max(u["most"] for u in whole), "MB"),
        row(
            "most memory of the machine beyond what it held before",
            (max(most) - before) / 1e9,
            "GB",
        ),
    ]
    for what, told in (
        ("kernel", "a kernel is there"),
        ("panel", "a panel is there: imports, prediction, drawing"),
        ("run", "Run to its end: 4 ranks, 2 updates"),
        ("check", "a check"),
    ):
        times = sorted(user[what] for user in whole)
        found += [
            row(f"{told}, one user alone", alone[what], "s"),
            row(f"{told}, {AT_ONCE} at once, median", statistics.median(times), "s"),
            row(f"{told}, {AT_ONCE} at once, 95th percentile", times[int(0.95 * len(times))], "s"),
        ]
    return found
