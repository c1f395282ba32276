"""The lab layouts: the lesson's numbers, every layout on real ranks to the bit, and which axis of
the ranks crosses the nodes."""

import pytest

from bigtrain_lab.core import Impossible
from bigtrain_lab.experiments.layouts import LAYOUTS, Layouts
from bigtrain_lab.view.figures import figure

SMALL = {"n": 24, "d": 16, "f": 8, "seed": 3}


def table(**settings) -> list:
    asked = Layouts(**settings)
    trace = asked.predict()
    return [quantity.of(trace) for quantity in asked.quantities]


@pytest.mark.parametrize(
    "layout, forward, backward, held",
    [
        ("split-n", 0, 25.2, 75.5),
        ("split-f", 0, 25.2, 75.5),
        ("split-d", 100.7, 0, 151),
        ("split-n-f", 0, 16.8, 67.1),
        ("duplicate", 0, 0, 201.3),
    ],
)
def test_the_numbers_of_the_lesson(layout, forward, backward, held):
    sent_forward, sent_backward, _, memory = table(layout=layout)
    assert (sent_forward / 1e6, sent_backward / 1e6, memory / 1e6) == pytest.approx(
        (forward, backward, held), abs=0.05
    )


def test_the_axis_that_sends_more_belongs_inside_a_node():
    """Of 33.6 and 8.4 MB a rank, the sum of Y along the columns and of dW along the rows, one has
    150 GB/s and the other 12.5."""
    near, far = (
        table(layout="split-n-d", node_size=2, hardware="v100-nvlink", swapped=swapped)
        for swapped in (False, True)
    )
    assert near[:2] == far[:2] == [33_554_432, 8_388_608]
    assert far[2] - near[2] == pytest.approx(
        (33_554_432 - 8_388_608) * (1 / 12.5e9 - 1 / 150e9), rel=1e-3
    )


def test_all_layouts_are_compared_but_those_that_do_not_fit():
    lab = Layouts(layout="split-n-f")
    assert list(lab.compared) == list(LAYOUTS)
    assert lab.compared["split-n-f"] == table(layout="split-n-f")
    assert "The fastest layout here is split-n-f" in lab.explain(lab.predict())[-1]
    assert set(Layouts(d=1022).compared) == set(LAYOUTS) - {"split-d"}


@pytest.mark.parametrize(
    "settings, sentence",
    [
        (
            {"layout": "split-d", "d": 1022},
            "'d' of 1022 cannot be cut into 4 equal parts along 'rows': make it 1020",
        ),
        (
            {"layout": "split-n-f", "ranks": 6, "rows": 4},
            "no 4 equal rows: take rows that divide the ranks",
        ),
    ],
)
def test_what_is_refused(settings, sentence):
    with pytest.raises(Impossible, match=sentence):
        Layouts(**settings)


def test_the_figure_draws_the_parts_and_marks_the_chosen_layout():
    drawn = figure(
        "layouts", Layouts(layout="split-n-d", ranks=8, swapped=True, **SMALL).predict()
    ).to_plotly_json()
    x, w, y = (each["text"] for each in drawn["data"] if each["type"] == "heatmap")
    assert (
        x == [["0", "2", "4", "6"], ["1", "3", "5", "7"]]
        and w == [["0 1"], ["2 3"], ["4 5"], ["6 7"]]
        and y == [["0 2 4 6"], ["1 3 5 7"]]
    )
    bars = [row for each in drawn["data"] if each["type"] == "bar" for row in each["y"]]
    assert [row for row in bars if "<b>" in row] == ["<b>▸ split-n-d</b>"] * 2
    with pytest.raises(Impossible, match="knows no layouts"):
        figure("layouts", Layouts().simulated())
