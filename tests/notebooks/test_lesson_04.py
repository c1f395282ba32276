"""Lesson 04: its exercises can be solved, and its script trains as before."""

import re

import pytest

from bigtrain_lab.grading import Topic
from tests.notebooks.test_notebooks import NOTEBOOKS, both_sides, executed, script_prints, solved

LESSON = NOTEBOOKS / "04_recompute.ipynb"
CHECKPOINT = next(iter(Topic.named("checkpoint").right.values())) + "\nmy_checkpoint = answer"
PLAN = next(iter(Topic.named("best-plan").right.values())) + "\nmy_best_plan = answer"


@pytest.mark.slow
def test_the_exercises_can_be_solved(tmp_path, monkeypatch):
    chosen = dict.fromkeys(
        ("fit", "run", "count", "segments", "source-planned"), False
    ) | dict.fromkeys(
        ("exercise", "exercise-check", "exercise-plan", "exercise-plan-check", "exercise-run"), True
    )
    printed = executed(
        solved(LESSON, {"exercise": CHECKPOINT, "exercise-plan": PLAN}),
        chosen,
        tmp_path,
        monkeypatch,
    )
    assert printed["exercise-check"] == printed["exercise-plan-check"] == "right.\n"
    mine, none = map(
        int,
        re.findall(r"(\d+) advances with 3 slots; keep-none has (\d+)", printed["exercise-run"])[0],
    )
    assert mine < none == 45


def test_my_script_changed_prints_the_same_losses(tmp_path):
    added, *scripts = both_sides(LESSON, tmp_path)
    assert added == 2
    printed = [script_prints(script) for script in scripts]
    losses = list(map(float, printed[0].split()))
    assert printed[0] == printed[1] and len(losses) == 20 and losses[-1] < losses[0]
