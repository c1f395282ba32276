"""Lesson 01: its exercise can be solved, and its script trains as before."""

import re

import pytest

from tests.notebooks.test_notebooks import (
    NOTEBOOKS,
    both_sides,
    executed,
    read,
    script_prints,
    solved,
)

LESSON = NOTEBOOKS / "01_accumulation.ipynb"
SOLUTION = """
import torch
from torch.nn.utils import clip_grad_norm_

def my_accumulate(micro_batches, k, loss_sum, tokens, optimizer, clip=None, scaler=None):
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start:start + k]
        for micro_batch in window:
            scaler.scale(loss_sum(micro_batch) / sum(map(tokens, window))).backward()
        scaler.unscale_(optimizer)
        if clip is not None:
            clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_the_exercise_can_be_solved(tmp_path, monkeypatch):
    chosen = {"fit": False, "weights": True, "equal": False, "hidden": False} | dict.fromkeys(
        ("scaler", "exercise", "exercise-check", "exercise-run"), True
    )
    printed = executed(solved(LESSON, {"exercise": SOLUTION}), chosen, tmp_path, monkeypatch)
    assert printed["exercise-check"] == "right.\n"
    assert (
        float(re.fullmatch(r"largest difference of a weight: (\S+)\n", printed["exercise-run"])[1])
        < 1e-5
    )


def test_what_is_said_of_the_source_stands_in_it():
    cells = {cell.id: cell for cell in read(LESSON).cells}
    shown = cells["source"].outputs[0].data["text/plain"]
    quoted = re.findall(r"^\* `(.+?)`", cells["source-told"].source, re.MULTILINE)
    assert len(quoted) == 3 and all(line in shown for line in quoted)


@pytest.mark.slow
def test_my_script_changed_prints_the_same_losses(tmp_path):
    added, *scripts = both_sides(LESSON, tmp_path)
    assert added <= 10
    printed = [[float(line) for line in script_prints(script).split()] for script in scripts]
    assert len(printed[0]) == 10 and printed[0][-1] < printed[0][0]
    assert printed[1] == pytest.approx(
        printed[0], rel=1e-4
    )  # float32, another order of sums; the last window is short
