"""Whether exercises refuse what they refused when each was a file with up to 100 wrong answers,
and let pass what passed: the galleries of that commit, out of the history, before today's checks.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from bigtrain_lab.grading import Topic

from .measure import row
from .mutants import passing

ROOT = Path(__file__).parents[1]
FILES = "afd96c0b98b3aa4372d79f1da9c53e500ebcd724"  # a commit in which every exercise was a file
SEEDS = (1, 2)
MOVED = {  # since then
    "recompute_search": "order.recompute.search",
    "recompute_optimum": "order.recompute.optimum",
    "recompute": "order.recompute.plan",
    "plan": "order.plan",
    "schedule": "order.schedule",
    "schedules": "order.schedules",
}
NO_ANSWERS = (
    "one large batch where nobody weighs it",  # asks that bench whether it is watched
    "a search of all plans",  # is one of the library's, of a module that is to go
)
PRINT = """
import json
from bigtrain_lab.grading import Topic
print(json.dumps({name: [topic.wrong_texts(), topic.right] for name, topic in Topic.all().items()}))
"""


def before() -> dict[str, list[dict[str, str]]]:
    """Topic -> the texts of its wrong answers at that commit, which refused them all, and of its
    right ones, which it let pass."""
    packed = subprocess.run(
        ["git", "archive", FILES, "bigtrain_lab"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with TemporaryDirectory() as folder:
        tarfile.open(fileobj=BytesIO(packed)).extractall(folder, filter="data")
        told = subprocess.run(
            [sys.executable, "-c", PRINT],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    for name, value in MOVED.items():
        told = re.sub(rf"\bbigtrain_lab\.{name}\b", f"bigtrain_lab.{value}", told)
    return json.loads(told)


def rows():
    table = []
    for name, (wrong, right) in before().items():
        topic, missed = Topic.named(name), wrong
        passed = right = {each: right[each] for each in right if each not in NO_ANSWERS}
        for seed in SEEDS:
            missed = {each: missed[each] for each in passing(topic, missed, seed)}
            passed = {each: passed[each] for each in passing(topic, passed, seed)}
        table += [
            row(f"{name}: wrong answers refused when it was a file", len(wrong), "answers"),
            row(
                f"{name}: of these, refused now",
                len(wrong) - len(missed),
                "answers",
                at_least=len(wrong),
            ),
            row(f"{name}: right answers then", len(right), "answers"),
            row(f"{name}: of these, right now", len(passed), "answers", at_least=len(right)),
        ]
        for each in (*missed, *(right.keys() - passed.keys())):
            print(f"{name}: {each!r} is judged otherwise today")
    return table
