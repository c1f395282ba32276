"""The assignments: each runs from top to bottom as handed out, and so does its key."""

from pathlib import Path

import nbformat
import pytest

from bigtrain_lab.course.build import notebook
from tests.notebooks.test_notebooks import read, run_by_nbval

pytestmark = pytest.mark.slow
HANDED_OUT = sorted((Path(__file__).parents[2] / "notebooks" / "assignments").glob("*.ipynb"))
LISTENING = """from contextlib import redirect_stdout
from io import StringIO
with redirect_stdout(StringIO()) as heard:
    points = {}
told = heard.getvalue()
assert {}, (points, told)"""
MISSING = "points < %d and told.strip().endswith(('.', ').')) and told.strip() != 'right.'"
PASSES = "(points, told.strip()) == (%d, 'right.')"


def checked(notebook, right: str) -> list:
    """The cells, whose checks are compared with what is `right` of their points and texts."""
    for cell in notebook.cells:
        nbgrader = cell.metadata.nbgrader
        if cell.cell_type == "code" and nbgrader.grade:
            cell.source = LISTENING.format(cell.source.splitlines()[-1], right % nbgrader.points)
    return notebook.cells


@pytest.mark.parametrize("path", HANDED_OUT, ids=lambda path: path.stem)
def test_an_assignment_runs_as_handed_out_and_so_does_its_key(path, tmp_path):
    """One after the other, in one kernel; each check says what is missing, then that all is
    right. Panels are shown once."""
    both = read(path)
    both.cells = checked(both, MISSING)
    both.cells += [
        cell for cell in checked(notebook(path.stem), PASSES) if "show(" not in cell.source
    ]
    for number, cell in enumerate(both.cells):
        cell.id = f"cell-{number}"
    nbformat.write(both, tmp_path / path.name)
    run_by_nbval(tmp_path / path.name)
