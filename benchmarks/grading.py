"""The graders (`make grading-proof`): each gallery on 20 seeds, the mutants of all right answers
(mutants.py), and what a check takes.

SEEDS=3     fewer seeds         TOPICS=zero-1,1f1b     these alone; the table keeps the others' rows
"""

import json
import os
import sys
from functools import partial
from statistics import median

from bigtrain_lab.grading import Topic
from bigtrain_lab.grading.proof import faults
from bigtrain_lab.grading.text import Piece

from . import mutants
from .measure import RESULTS, row, seconds

SEEDS = int(os.environ.get("SEEDS", 20))
TOPICS = os.environ.get("TOPICS", "")
TIMES = 3


def rows():
    """Of all topics; sys.exit with what is wrong, where something is."""
    chosen = TOPICS.split(",") if TOPICS else [*Topic.all()]
    told, table = [], kept(chosen)
    for name in chosen:
        found = [fault for seed in range(SEEDS) for fault in faults(Topic.named(name), seed)]
        mutated = mutants.tally(Topic.named(name))
        told += found + [f"{name}: this mutant passes: {each}" for each in mutated.missed]
        table += of(name, len(found), mutated)
    if told:
        sys.exit("\n".join(told))
    return sorted(table, key=lambda each: [*Topic.all()].index(each["what"].partition(":")[0]))


def kept(chosen: list[str]) -> list[dict]:
    """Rows of the other topics, as the table has them."""
    written = RESULTS / "grading.json"
    table = json.loads(written.read_text(encoding="utf-8"))["rows"] if written.exists() else []
    others = Topic.all().keys() - {*chosen}
    return [each for each in table if each["what"].partition(":")[0] in others]


def of(name: str, faults: int, mutated: mutants.Tally) -> list[dict]:
    topic = Topic.named(name)
    first, wrong = next(iter(topic.right.values())), next(iter(topic.wrong.values())).text
    return [
        row(f"{name}: right answers", len(topic.right), "answers"),
        row(f"{name}: wrong answers", len(topic.wrong), "answers"),
        row(f"{name}: faults of the gallery on {SEEDS} seeds", faults, "faults"),
        row(f"{name}: mutants of right answers", mutated.made, "mutants"),
        row(f"{name}: equivalent ones, by wrong.md", len(mutated.equivalent), "mutants"),
        row(f"{name}: missed ones", len(mutated.missed), "mutants", at_most=0),
        *(
            row(
                f"{name}: check of a {what} answer",
                median(seconds(partial(topic.judged, [Piece(1, text)], n)) for n in range(TIMES)),
                "s",
                at_most=10,
            )
            for what, text in (("right", first), ("wrong", wrong))
        ),
    ]
