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
        if right == PASSES:  # a key's playground raises nothing
            cell.source = cell.source.replace("with playing():", "if True:")
        nbgrader = cell.metadata.nbgrader
        if cell.cell_type == "code" and nbgrader.grade:
            cell.source = LISTENING.format(cell.source.splitlines()[-1], right % nbgrader.points)
    return notebook.cells


@pytest.mark.parametrize("first", range(0, len(HANDED_OUT), 4))
def test_assignments_run_as_handed_out_and_so_do_their_keys(first, tmp_path):
    """One after the other, in one kernel that forgets all names between them; each check says what
    is missing, then that all is right. Panels are shown once."""
    every = nbformat.v4.new_notebook()
    for path in HANDED_OUT[first : first + 4]:
        forget = nbformat.v4.new_code_cell(f"%reset -f\n# {path.stem}")
        key = checked(notebook(path.stem), PASSES)
        every.cells += [forget, *checked(read(path), MISSING)]
        every.cells += [cell for cell in key if "show(" not in cell.source]
    for number, cell in enumerate(every.cells):
        cell.id = f"cell-{number}"
    nbformat.write(every, tmp_path / "every.ipynb")
    run_by_nbval(tmp_path / "every.ipynb")
