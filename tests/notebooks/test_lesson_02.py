"""Lesson 02: its exercise can be solved, its first answer is told what it is, and its script runs on both sides of the diff."""

import contextlib
import io
import os
import re
import subprocess
import sys

import pytest

from bigtrain_lab.checks.memory import MISTAKES
from tests.notebooks.test_notebooks import NOTEBOOKS, read
from tests.unit.test_checks_memory import solution

LESSON = {cell.id: cell for cell in read(NOTEBOOKS / "02_where_did_the_memory_go.ipynb").cells}


def printed(source: str, **names) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(source, names)
    return out.getvalue().strip()


def test_the_exercise_can_be_solved():
    assert printed(LESSON["exercise-check"].source, my_peak_bytes=solution) == "right."


def test_its_first_answer_is_told_what_it_is():
    assert LESSON["exercise-check"].outputs[0].text.strip() == MISTAKES[0].sentence


@pytest.mark.slow
def test_my_script_changed_trains_as_before_and_tells_its_memory(tmp_path):
    lines = re.search(r"```diff\n(.*?)```", LESSON["my-script"].source, re.S)[1].splitlines()
    assert sum(line.startswith("+") for line in lines) <= 12
    told = {}
    for name, sign in (("before", "-"), ("after", "+")):
        script = tmp_path / f"{name}.py"
        script.write_text("\n".join(line[1:] for line in lines if line[:1] in (" ", sign)) + "\n")
        told[name] = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=500, check=True,
                                    env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout.splitlines()
    losses = {name: [float(line.split()[1]) for line in lines[:2]] for name, lines in told.items()}
    assert losses["before"] == pytest.approx(losses["after"])
    assert len(told["before"]) == 20 and "MB at the peak" in told["after"][2] and any("optimizer" in line for line in told["after"])
