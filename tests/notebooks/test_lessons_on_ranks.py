"""Lessons 05, 06, 07, 08, 09, 10, 12, 13, 14 and 15: their exercises can be solved, and what follows uses the solutions."""

import pytest

from bigtrain_lab.grading import Topic
from tests.notebooks.test_notebooks import NOTEBOOKS, executed, solved

LESSONS = {
    "05_ring_all_reduce": (
        "ring-all-reduce",
        "my_ring",
        "sums of four ranks: [ 6. 10. 14. 18.], ranks that differ: 0\n",
    ),
    "06_data_parallel": (
        "data-parallel",
        "MyDataParallel",
        "gradient [1. 1. 1. 1.], ranks that differ: 0\n",
    ),
    "07_parameter_server": ("bounded-staleness", "MyServer", "[1300, 409, 400]\n"),
    "08_large_batches": ("sliced-lamb", "SlicedLAMB", "the layer moved by 0.1 of its length\n"),
    "09_zero": ("zero-1", "MyZero", "weights [0.9 0.9 0.9 0.9 0.9], ranks that differ: 0\n"),
    "09_zero exercise-3": (
        "zero-3",
        "MyLayers",
        f"gradient [{'13.5 ' * 9} 0. ], ranks that differ: 0\n",
    ),
    "10_train_a_translator": (
        "spread-evaluation",
        "spread_evaluation",
        "BLEU [44.44 44.44 44.44], ranks that differ: 0\n",
    ),
    "12_tensor_slicing": ("tensor-slicing", "MySlices", "off by 0.0, ranks that differ: 0\n"),
    "13_layouts": ("layouts", "my_collectives", "n 234.9 MB\nf 7.3 MB\nd 234.9 MB\n\n"),
    "14_all_together": ("all-together", "my_clip", "norm 6.0, ranks that differ: 0\n"),
    "15_compilers": ("fusion", "my_groups", "3216 bytes; ['de']\n\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("of", LESSONS)
def test_the_exercise_can_be_solved(of, tmp_path, monkeypatch):
    topic, name, wanted = LESSONS[of]
    lesson, cell = of.split() if " " in of else (of, "exercise")
    answer = "import torch\n" + next(iter(Topic.named(topic).right.values())) + f"\n{name} = answer"
    notebook = solved(NOTEBOOKS / f"{lesson}.ipynb", {cell: answer})
    chosen = dict.fromkeys((cell, f"{cell}-check", f"{cell}-run"), True)
    imports = {"exercise-check": False, "exercise-run": False} if cell != "exercise" else {}
    printed = executed(notebook, imports | chosen, tmp_path, monkeypatch)
    assert (printed[f"{cell}-check"], printed[f"{cell}-run"]) == ("right.\n", wanted)
