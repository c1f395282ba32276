"""Kills at random moments, from the first on: of a rank, of the fork server, of the launching
process.

A run that loses one of them must end with a sentence that names the cause, leave no process after
5 s (10 s where the server was still importing) and no directory that says "running". Each launcher
is a session of its own: whoever is left in it is seen, whoever its parent is by then.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from bigtrain_lab.runtime import RankFailed, Run

from .measure import row

KILLS, RANKS, SEED = 20, 3, 0
SETTLED_S, IMPORTING_S = 5.0, 10.0
LONGEST_S = {
    "rank": 1.0,
    "server": 5.0,
    "launcher": 6.0,
}  # the kill comes within so long of the victim's first moment
NAMED = {
    "rank": ("was killed by signal 9",),
    "server": (
        "server that ranks are forked from has ended",
        "server that it is forked from has ended",
    ),
    "launcher": ("Whatever started this run ended before its ranks did",),
}
LAUNCH = "from benchmarks.kills import {0}; {0}({1!r}, {2!r})"
SMALLEST = {"KILLS": 1}


def endless(rank):
    while True:
        with rank.span("work"):
            time.sleep(0.01)
        rank.group().barrier()


def victims(kind: str, folder: str) -> None:
    """In a launcher: lose a rank, or the server, again and again; one line of what was found each
    time."""
    from bigtrain_lab.runtime import launch
    from bigtrain_lab.runtime.process.server import running

    chance = random.Random(SEED)
    for number in range(KILLS):
        run = launch(endless, RANKS, directory=Path(folder) / f"{kind}-{number}")
        after_s, server = chance.uniform(0, LONGEST_S[kind]), running().process.pid
        if kind == "rank":
            while len(found := ranks_of(server)) < RANKS:
                time.sleep(0.0005)
            time.sleep(after_s)
            killed = chance.choice(found)
        else:
            time.sleep(after_s)
            killed = server
        os.kill(killed, 9)
        began = time.monotonic()
        try:
            run.wait(timeout=60)
            told = "done"
        except (RankFailed, TimeoutError) as error:
            told = str(error)
        took_s = time.monotonic() - began
        kept = {os.getpid(), *([server] if kind == "rank" else [])}
        left = settle(os.getpid(), kept, IMPORTING_S)
        print(
            json.dumps(
                {
                    "told": told.splitlines()[0],
                    "took_s": took_s,
                    "left_s": left,
                    "state": Run.open(run.directory).state,
                    "after_s": after_s,
                }
            ),
            flush=True,
        )


def ranks_of(server: int) -> list[int]:
    """Children of the server, but for the copy of what it began as (stem.py)."""
    return [
        each.pid
        for each in psutil.Process(server).children()
        if os.getsid(each.pid) == os.getsid(server)
    ]


def launcher(folder: str, number: int) -> None:
    """The one that is killed."""
    from bigtrain_lab.runtime import launch

    print("go", flush=True)
    launch(endless, RANKS, directory=Path(folder) / f"launcher-{number}").wait()


def normal(folder: str, number: int) -> None:
    """A run that ends well, and with it its process."""
    from bigtrain_lab.runtime import launch

    launch(lambda rank: None, 2, directory=Path(folder) / f"normal-{number}").wait()


def started(text: str, temporary: str) -> subprocess.Popen:
    environment = {**os.environ, "TMPDIR": temporary}
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def session(leader: int) -> set[int]:
    """The processes of a session that live."""
    found = set()
    for process in psutil.process_iter(["status"]):
        try:
            if os.getsid(process.pid) == leader and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
        except OSError:
            continue
    return found


def settle(leader: int, kept: set[int], limit_s: float) -> float:
    """Seconds until nobody else of the session lives; infinite where that takes longer than the
    limit."""
    began = time.monotonic()
    while session(leader) - kept:
        if time.monotonic() - began > limit_s:
            return float("inf")
        time.sleep(0.02)
    return time.monotonic() - began


def killed_launchers(folder: str, temporary: str):
    chance = random.Random(SEED)
    for number in range(KILLS):
        process = started(LAUNCH.format("launcher", folder, number), temporary)
        process.stdout.readline()
        after_s = chance.uniform(0, LONGEST_S["launcher"])
        time.sleep(after_s)
        process.kill()
        process.wait()
        left, place = settle(process.pid, set(), IMPORTING_S), Path(folder) / f"launcher-{number}"
        run = Run.open(place) if (place / "settings.json").exists() else None
        yield {
            "told": run.diagnosis if run else "killed before there was a run",
            "took_s": 0.0,
            "left_s": left,
            "after_s": after_s,
            "state": run.state if run else "stopped",
        }


def rows():
    table = []
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as temporary:
        for kind in NAMED:
            if kind == "launcher":
                found = list(killed_launchers(folder, temporary))
            else:
                process = started(LAUNCH.format("victims", kind, folder), temporary)
                found = [json.loads(line) for line in process.stdout]
                process.wait()
            named = Counter(
                "named" if any(words in each["told"] for words in NAMED[kind]) else each["told"]
                for each in found
            )
            for told, count in named.items():
                if told != "named":
                    print(f"{kind}: {count} times: {told}", flush=True)
            none = named["killed before there was a run"]
            what = f"{KILLS} kills of the {kind}" if kind != "rank" else f"{KILLS} kills of a rank"
            table.append(
                row(
                    f"{what}: runs whose end names the cause"
                    + (f" ({none} more were killed before there was a run)" if none else ""),
                    named["named"],
                    "",
                    at_least=KILLS - none,
                )
            )
            if kind != "launcher":  # whoever opens the run later is told
                table.append(
                    row(
                        f"{what}: seconds until the cause is told, at most",
                        max(each["took_s"] for each in found),
                        "s",
                        at_most=10,
                    )
                )
            table.append(
                row(
                    f"{what}: seconds until no process is left, at most",
                    max(each["left_s"] for each in found),
                    "s",
                    at_most=SETTLED_S if kind == "rank" else IMPORTING_S,
                )
            )
            table.append(
                row(
                    f'{what}: directories that say "running"',
                    sum(each["state"] == "running" for each in found),
                    "",
                    at_most=0,
                )
            )
        started(LAUNCH.format("normal", folder, 0), temporary).wait()
        left = [
            path.name
            for path in Path(temporary).iterdir()
            if path.name.startswith(("bigtrain-", "pymp-"))
        ]
        table.append(
            row(
                "folders of killed launchers that are left after the next one",
                len(left),
                "",
                at_most=0,
            )
        )
    return table
