"""The graders (`make grading-proof`): each gallery on 20 seeds, the mutants of right answers in
folders (mutants.py), and what a check takes."""

import os
import sys
from functools import partial
from statistics import median

from bigtrain_lab.grading import Topic
from bigtrain_lab.grading.proof import faults

from . import mutants
from .measure import row, seconds

SEEDS = int(os.environ.get("SEEDS", 20))
TIMES = 3


def rows():
    told, table = [], []
    for name, topic in Topic.all().items():
        found = [fault for seed in range(SEEDS) for fault in faults(topic, seed)]
        told += found
        first, wrong = (
            next(iter(topic.right.values())),
            next(iter(topic.wrong.values())).text,
        )
        table += [
            row(f"{name}: right answers", len(topic.right), "answers"),
            row(f"{name}: wrong answers", len(topic.wrong), "answers"),
            row(f"{name}: faults of the gallery on {SEEDS} seeds", len(found), "faults"),
            row(
                f"{name}: check of a right answer",
                median(seconds(partial(topic.findings, typed(first))) for _ in range(TIMES)),
                "s",
                at_most=10,
            ),
            row(
                f"{name}: check of a wrong answer",
                median(seconds(partial(topic.findings, typed(wrong))) for _ in range(TIMES)),
                "s",
                at_most=10,
            ),
        ]
        if mutants.folder(topic).is_dir():
            found = mutants.tally(topic)
            table += [
                row(f"{name}: mutants of right answers", found.made, "mutants"),
                row(f"{name}: equivalent ones, by wrong.md", len(found.equivalent), "mutants"),
                row(f"{name}: missed ones", len(found.missed), "mutants", at_most=0),
            ]
            told += [f"{name}: this mutant passes: {each}" for each in found.missed]
    if told:
        sys.exit("\n".join(told))
    return table


def typed(text: str):
    """The answer that a text defines, as a student's."""
    names = {"__name__": "__main__"}
    exec(text, names)
    return names["answer"]
