"""The graders: each gallery on 20 seeds, what a check takes, and the lines of each topic (`make grading-proof`).

A line of data is one of a text, or of `right`, `wrong`, `hints`, `allows` and `forbids`; the rest that says something is code.
"""

import ast
import inspect
import os
import sys
from statistics import median

from bigtrain_lab.grading import Topic
from bigtrain_lab.grading.proof import faults

from .measure import row, seconds

SEEDS = int(os.environ.get("SEEDS", 20))
TIMES = 3
DATA = ("right", "wrong", "hints", "allows", "forbids")


def rows():
    told, table = [], []
    for name, topic in Topic.all().items():
        found = [fault for seed in range(SEEDS) for fault in faults(topic, seed)]
        told += found
        first, wrong = (
            next(iter(topic.right.values())),
            topic.text(next(iter(topic.wrong.values()))),
        )
        data, code = lines_of(inspect.getsource(inspect.getmodule(topic)))
        table += [
            row(f"{name}: right answers", len(topic.right), "answers"),
            row(f"{name}: wrong answers", len(topic.wrong), "answers"),
            row(f"{name}: faults of the gallery on {SEEDS} seeds", len(found), "faults"),
            row(
                f"{name}: check of a right answer",
                median(seconds(lambda: topic.findings(typed(first))) for _ in range(TIMES)),
                "s",
                at_most=10,
            ),
            row(
                f"{name}: check of a wrong answer",
                median(seconds(lambda: topic.findings(typed(wrong))) for _ in range(TIMES)),
                "s",
                at_most=10,
            ),
            row(f"{name}: lines of data", data, "lines"),
            row(f"{name}: lines of code", code, "lines"),
        ]
    if told:
        sys.exit("\n".join(told))
    return table


def typed(text: str):
    """The answer that a text defines, as a student's."""
    names = {"__name__": "__main__"}
    exec(text, names)
    return names["answer"]


def lines_of(source: str) -> tuple[int, int]:
    """Lines of data and of code, docstrings, comments and empty lines not counted."""
    tree, data, code = ast.parse(source), set(), set()
    for node in ast.walk(tree):
        lines = set(range(node.lineno, node.end_lineno + 1)) if hasattr(node, "lineno") else set()
        if isinstance(node, ast.Assign) and (
            node in tree.body or any(getattr(target, "id", "") in DATA for target in node.targets)
        ):
            data |= lines
        elif (
            isinstance(node, ast.stmt)
            and not isinstance(node, (ast.ClassDef, ast.FunctionDef))
            or isinstance(node, ast.arguments)
        ):
            code |= (
                set()
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                else lines
            )
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            code.add(node.lineno)
    return len(data), len(code - data)
