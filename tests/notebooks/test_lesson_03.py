"""Lesson 03: its exercise can be solved, and its script trains as before."""

import re
import subprocess
import sys

import pytest

from tests.notebooks.test_notebooks import NOTEBOOKS, read, solved

LESSON = NOTEBOOKS / "03_mixed_precision.ipynb"
SOLUTION = """
import torch

def my_update(weights, masters, optimizer, scale, streak, growth_interval, clip):
    for weight, master in zip(weights, masters):
        master.grad, weight.grad = weight.grad.float() / scale, None
    if not all(master.grad.isfinite().all() for master in masters):
        return scale / 2, 0
    torch.nn.utils.clip_grad_norm_(masters, clip)
    optimizer.step()
    for weight, master in zip(weights, masters):
        weight.data.copy_(master.data)
    return (2 * scale, 0) if streak + 1 == growth_interval else (scale, streak + 1)
"""


def test_the_exercise_can_be_solved(tmp_path):
    """As it stands, the check names what is missing; solved, it says so."""
    cells = {cell.id: cell.source for cell in read(solved(LESSON, {"exercise": SOLUTION}, tmp_path)).cells}
    unsolved = next(cell.source for cell in read(LESSON).cells if cell.id == "exercise")
    printed = []
    for source in (unsolved, cells["exercise"]):
        names: dict = {"print": lambda *words: printed.append(" ".join(words))}
        exec(source, names)
        exec(cells["exercise-check"], names)
    assert printed == ["The masters did not move: call optimizer.step() with their gradients in master.grad.", "right."]


@pytest.mark.slow
def test_my_script_changed_trains_as_before(tmp_path):
    source = "\n".join(cell.source for cell in read(LESSON).cells if cell.cell_type == "markdown")
    lines = re.search(r"```diff\n(.*?)```", source, re.S)[1].splitlines()
    assert sum(line.startswith("+") for line in lines) <= 10
    printed = []
    for name, sign in (("before", "-"), ("after", "+")):
        text = "\n".join(line[1:] for line in lines if line[:1] in (" ", sign)) + "\n"
        (tmp_path / f"{name}.py").write_text(text)
        done = subprocess.run([sys.executable, f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        printed.append([float(line.split()[1]) for line in done.stdout.splitlines()])
    assert len(printed[0]) == 20 and printed[0][-1] < printed[0][0]
    assert printed[1] == pytest.approx(printed[0], rel=0.02) and printed[1] != printed[0]  # bf16 has 8 bits
