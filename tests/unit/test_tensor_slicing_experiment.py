"""The lab tensor-slicing: the lesson's numbers, and which part of each matrix a rank holds, read
off its own tensors."""

import pytest
import torch

from bigtrain_lab.core import Impossible
from bigtrain_lab.experiments.tensor_slicing import TensorSlicing, found
from bigtrain_lab.order.holdings import Part
from bigtrain_lab.order.rates import called
from bigtrain_lab.techniques.tensor_parallel import Cut
from bigtrain_lab.view.figures import figure

LARGE = {
    "slices": 4,
    "rows": 8,
    "sequence": 512,
    "width": 1024,
    "heads": 16,
    "vocabulary": 32000,
    "layers": 1,
    "steps": 1,
}
SMALL = {
    "width": 32,
    "heads": 8,
    "sequence": 8,
    "rows": 1,
    "vocabulary": 256,
    "layers": 2,
    "dtype": "float64",
}


def test_the_numbers_of_the_lesson():
    right, wrong = (
        TensorSlicing(cut=cut, **LARGE).predict() for cut in ("column-row", "row-column")
    )
    layer = {
        (c.module[9:], c.way): c.bytes for c in called(right) if c.module.startswith("layers.1.")
    }
    assert layer == {
        key: pytest.approx(25.166e6, rel=1e-4)
        for key in (
            ("attention.out", "F"),
            ("mlp.down", "F"),
            ("mlp.up", "B"),
            ("attention.qkv", "B"),
        )
    }
    forward = [
        sum(c.bytes for c in called(each) if "mlp" in c.module and c.way == "F")
        for each in (right, wrong)
    ]
    assert forward[1] == 4.5 * forward[0]
    said = " ".join(TensorSlicing(**LARGE).explain(right))
    told = "100.7 MB", "75.58 MB", "3,072 tokens", "49.15 kB", "524.3 MB", "10,667"
    assert [number for number in told if number not in said] == []
    wrongly = TensorSlicing(cut="row-column", **LARGE).explain(wrong)
    assert "4.5 times the bytes" in " ".join(wrongly)


def test_a_part_is_found_by_its_numbers_and_no_other():
    whole = torch.randn(24, 12, generator=torch.Generator().manual_seed(1))
    queries = [Part("w", 4 + start, 8 + start, 0, 12, 24, 12) for start in (0, 8, 16)]
    assert [*found("w", Cut(0, 3).part(whole, 1, 2), whole)] == queries
    assert [*found("w", Cut(1).part(whole, 2, 3), whole)] == [Part("w", 0, 24, 8, 12, 24, 12)]
    wrong = whole[:, :6].clone()
    wrong[5, 5] += 1
    assert [part[1:3] for part in found("w", wrong, whole)] == [(0, 5), (6, 24)]
    assert [*found("w", torch.zeros(3, 12), whole)] == []


@pytest.mark.parametrize("slices", [1, 2, 8])
def test_the_figure_has_a_cell_for_each_part(slices):
    drawn = figure("slices", TensorSlicing(slices=slices, **SMALL).predict()).to_plotly_json()
    cells = [len(trace["z"]) * len(trace["z"][0]) for trace in drawn["data"]]
    assert cells == [slices, 1 if slices == 1 else 3 * slices, slices, slices, slices, slices]


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"slices": 3}, "vocabulary"),
        ({"slices": 8, "heads": 4}, "heads"),
        ({"cut": "row-column", "sequence_parallel": True}, "sequence=False"),
    ],
)
def test_what_is_refused(settings, told):
    with pytest.raises(Impossible, match=told):
        TensorSlicing(**settings)
