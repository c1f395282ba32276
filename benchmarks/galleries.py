"""Whether exercises refuse what they refused when each was a file with up to 100 wrong answers: the
galleries of that commit, taken out of the history, before today's checks."""

import json
import os
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
FILES = "0aab4ed"  # the last commit in which every exercise was a file
SEEDS = (1, 2)
PRINT = """
import json
from bigtrain_lab.grading import Topic
print(json.dumps({name: topic.wrong_texts() for name, topic in Topic.all().items()}))
"""


def before() -> dict[str, dict[str, str]]:
    """Topic -> the texts of its wrong answers at that commit, which refused them all."""
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
        ).stdout
    return json.loads(told)


def rows():
    table = []
    for name, wrong in before().items():
        left = wrong
        for seed in SEEDS:
            left = {each: left[each] for each in passing(Topic.named(name), left, seed)}
        table += [
            row(f"{name}: refused when it was a file", len(wrong), "answers"),
            row(f"{name}: refused now", len(wrong) - len(left), "answers", at_least=len(wrong)),
        ]
        for each in left:
            print(f"{name}: {each!r} passes today")
    return table
