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
each_assignment = pytest.mark.parametrize("path", HANDED_OUT, ids=lambda path: path.stem)


def checked(notebook, right: str, path: Path) -> Path:
    """Write a copy whose checks are compared with what is `right`, of their points and texts."""
    for cell in notebook.cells:
        nbgrader = cell.metadata.nbgrader
        if cell.cell_type == "code" and nbgrader.grade:
            cell.source = LISTENING.format(cell.source.splitlines()[-1], right % nbgrader.points)
    nbformat.write(notebook, path)
    return path


@each_assignment
def test_handed_out_each_check_says_what_is_missing(path, tmp_path):
    right = "points < %d and told.strip().endswith(('.', ').')) and told.strip() != 'right.'"
    run_by_nbval(checked(read(path), right, tmp_path / path.name))


@each_assignment
def test_the_key_passes_each_check(path, tmp_path):
    right = "(points, told.strip()) == (%d, 'right.')"
    run_by_nbval(checked(notebook(path.stem), right, tmp_path / path.name))
