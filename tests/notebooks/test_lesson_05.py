"""Lesson 05: its exercise can be solved, and the solution runs on real ranks."""

import pytest

from bigtrain_lab.grading import Topic
from tests.notebooks.test_notebooks import NOTEBOOKS, read, solved

RING = next(iter(Topic.named("ring-all-reduce").right.values())) + "\nmy_ring = answer"


@pytest.mark.slow
def test_the_exercise_can_be_solved(tmp_path):
    from nbclient import NotebookClient

    notebook = read(solved(NOTEBOOKS / "05_ring_all_reduce.ipynb", {"exercise": RING}, tmp_path))
    notebook.cells = [cell for cell in notebook.cells if cell.id in ("exercise", "exercise-check", "exercise-run")]
    NotebookClient(notebook, timeout=500, startup_timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = {cell.id: "".join(o.get("text", "") for o in cell.outputs) for cell in notebook.cells}
    assert printed["exercise-check"] == "right.\n"
    assert printed["exercise-run"] == "sums of four ranks: [ 6. 10. 14. 18.], ranks that differ: 0\n"
