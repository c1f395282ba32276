"""Lesson 03: its exercise can be solved, and its script trains as before."""

import pytest

from tests.notebooks.test_notebooks import NOTEBOOKS, both_sides, read, script_prints, solved

LESSON = NOTEBOOKS / "03_mixed_precision.ipynb"
SOLUTION = """
import torch

def my_update(weights, masters, optimizer, scale, streak, growth_interval, clip):
    for weight, master in zip(weights, masters):
        master.grad = None if weight.grad is None else weight.grad.float() / scale
        weight.grad = None
    if not all(master.grad.isfinite().all() for master in masters if master.grad is not None):
        return scale / 2, 0
    torch.nn.utils.clip_grad_norm_(masters, clip)
    optimizer.step()
    for weight, master in zip(weights, masters):
        weight.data.copy_(master.data)
    return (2 * scale, 0) if streak + 1 == growth_interval else (scale, streak + 1)
"""


def test_the_exercise_can_be_solved(capsys):
    """As it stands, the check names what is missing; solved, it says so."""
    cells = {cell.id: cell.source for cell in solved(LESSON, {"exercise": SOLUTION}).cells}
    unsolved = next(cell.source for cell in read(LESSON).cells if cell.id == "exercise")
    for source, told in ((unsolved, "The masters did not move"), (cells["exercise"], "right.\n")):
        names: dict = {"__name__": "__main__"}
        exec(source, names)
        exec(cells["exercise-check"], names)
        assert capsys.readouterr().out.startswith(told)


@pytest.mark.slow
def test_my_script_changed_trains_as_before(tmp_path):
    added, *scripts = both_sides(LESSON, tmp_path)
    assert added <= 10
    printed = [
        [float(line.split()[1]) for line in script_prints(script).splitlines()]
        for script in scripts
    ]
    assert len(printed[0]) == 20 and printed[0][-1] < printed[0][0]
    assert (
        printed[1] == pytest.approx(printed[0], rel=0.02) and printed[1] != printed[0]
    )  # bf16 has 8 bits
