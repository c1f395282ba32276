"""Every pair of techniques, trained on two ranks and in one process: the table of
docs/compose.md."""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import cloudpickle
import torch

import tests
from tests.compose.ingredients import pairs, table, verdict
from tests.compose.matrix import differences, trained

from .measure import row, seconds


def rows():
    cloudpickle.register_pickle_by_value(tests)  # a rank imports no test
    torch.set_num_threads(1)  # as each rank: sums of more threads are rounded otherwise
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        took = seconds(lambda: results.update(trained(Path(folder) / "run")))
    if wrong := differences(results):
        sys.exit("\n".join(wrong))
    (Path(__file__).parents[1] / "docs" / "compose.md").write_text(table(), encoding="utf-8")
    print(table())
    made = Counter(map(verdict, pairs()))
    exact = made.pop("equal"), made.pop("refused")
    return [
        row("pairs equal to one process bit for bit", exact[0], "pairs"),
        row("pairs equal to rounding", sum(made.values()), "pairs"),
        row("pairs refused in a sentence", exact[1], "pairs"),
        row("time of all on two ranks", took, "s"),
    ]
