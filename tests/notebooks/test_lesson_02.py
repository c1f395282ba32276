"""Lesson 02: its exercise can be solved, its first answer is told what it is, and its script runs on both sides of the diff."""

import contextlib
import io

import pytest

from bigtrain_lab.grading import Topic
from tests.notebooks.test_notebooks import NOTEBOOKS, both_sides, read, script_prints

PATH = NOTEBOOKS / "02_where_did_the_memory_go.ipynb"
LESSON = {cell.id: cell for cell in read(PATH).cells}


def printed(source: str, **names) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(source, names)
    return out.getvalue().strip()


def test_the_exercise_can_be_solved():
    names: dict = {"__name__": "__main__"}
    exec(next(iter(Topic.named("peak-bytes").right.values())), names)
    assert printed(LESSON["exercise-check"].source, my_peak_bytes=names["answer"]) == "right."


def test_its_first_answer_is_told_what_it_is():
    assert (
        LESSON["exercise-check"]
        .outputs[0]
        .text.startswith("You counted the weights alone: add the gradients")
    )


@pytest.mark.slow
def test_my_script_changed_trains_as_before_and_tells_its_memory(tmp_path):
    added, *scripts = both_sides(PATH, tmp_path)
    assert added <= 12
    told = {script.stem: script_prints(script).splitlines() for script in scripts}
    losses = {name: [float(line.split()[1]) for line in lines[:2]] for name, lines in told.items()}
    assert losses["before"] == pytest.approx(losses["after"])
    assert (
        len(told["before"]) == 20
        and "MB at the peak" in told["after"][2]
        and any("optimizer" in line for line in told["after"])
    )
