"""A class of 60, submissions of all kinds, graded on two cores; killed in the middle and started
again: nothing is played twice, nothing is lost, no process is left. And what the first check of a
kernel takes, right after its import."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from bigtrain_lab.course.build import build
from bigtrain_lab.course.grade import grade
from bigtrain_lab.grading import Topic

from .measure import row, seconds

STUDENTS, ASSIGNMENT, CORES = 60, "01", 2
ENDLESS = "def {name}(*given, **more):\n    while True:\n        pass\n"
FIRST = "timing", "ring-all-reduce", "tensor-slicing", "zero-1"
FIRST_CHECK = """import sys, time
from bigtrain_lab.grading import Topic, warm
from bigtrain_lab.grading.text import Piece
warm()
begin, topic = time.perf_counter(), Topic.named(sys.argv[1])
assert not topic.judged([Piece(1, next(iter(topic.right.values())))], 1).findings
print(time.perf_counter() - begin)"""
SMALLEST = {"STUDENTS": 6, "FIRST": ("timing",)}


def hand_in(folder: Path) -> None:
    """Right, wrong, endless, mangled, copied, without a check: one after the other. Each text is
    another one, since equal texts are played once."""
    build(folder, (ASSIGNMENT,))
    (path,) = (folder / "release").glob("*/*.ipynb")
    for number in range(STUDENTS):
        made = json.loads(path.read_text(encoding="utf-8"))
        source = json.loads((folder / "source" / path.parent.name / path.name).read_text())
        for raw, key in zip(made["cells"], source["cells"], strict=True):
            ours = raw["metadata"].get("bigtrain", {})
            if "answer" in ours:
                raw["source"] = answer(number, ours, "".join(key["source"]))
        checks = [each for each in made["cells"] if "step" in each["metadata"].get("bigtrain", {})]
        if number % 6 == 4:
            made["cells"].append(checks[0])
        if number % 6 == 5:
            made["cells"].remove(checks[-1])
        text = "{" if number % 20 == 3 else json.dumps(made)
        home = folder / "submitted" / f"student-{number:02}" / path.parent.name
        home.mkdir(parents=True)
        (home / path.name).write_text(text, encoding="utf-8")


def answer(number: int, ours: dict, key: str) -> str:
    """Of every 20 one is endless; of the others half are wrong, in all known ways."""
    name, wrong = ours["answer"], list(Topic.named(ours["topic"]).wrong_texts().values())
    if number % 20 == 7:
        text = ENDLESS.format(name=name)
    elif number % 2:
        text = f"{wrong[number // 2 % len(wrong)]}\n{name} = answer\n"
    else:
        text = key
    return f"{text}\n{name}.number = {number}\n"


def rows():
    table = []
    with TemporaryDirectory() as home:
        folder = Path(home)
        hand_in(folder)
        words = [sys.executable, "-m", "bigtrain_lab", "course", "grade", home, "--cores", "2"]
        store, began = folder / "marks" / "verdicts.json", time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and verdicts(store) < STUDENTS // 4:
            time.sleep(0.1)
        process.kill()
        process.wait()
        before = time.perf_counter() - began
        kept = verdicts(store)
        time.sleep(5)
        left = len(members(process.pid))
        done = []
        after = seconds(lambda: done.append(grade(folder, cores=CORES)))
        table.append(row("minutes in all, killed once", (before + after) / 60, "min", at_most=8))
        table.append(row("processes left by the kill", left, "processes", at_most=0))
        table.append(row("answers played before the kill", kept, "answers"))
        table.append(row("answers played after it", done[0].played, "answers"))
        twice = kept + done[0].played - verdicts(store)
        table.append(row("answers played twice", twice, "answers", at_most=0))
        marks = len(done[0].sheets)
        table.append(row("submissions with marks", marks, "submissions", at_least=STUDENTS))
        again = seconds(lambda: done.append(grade(folder, cores=CORES)))
        table.append(row("seconds to grade again what has not changed", again, "s"))
        table.append(row("answers played then", done[1].played, "answers", at_most=0))
    for topic in FIRST:
        words = [sys.executable, "-c", FIRST_CHECK, topic]
        took = float(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
        table.append(row(f"first check of a kernel, {topic}", took, "s", at_most=5))
    return table


def verdicts(store: Path) -> int:
    return len(json.loads(store.read_text())) if store.exists() else 0


def members(session: int) -> list[int]:
    """Processes that are still in a session."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.Error):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
