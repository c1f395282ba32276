"""The microscope over ranks: the last step of several trainings side by side, and a panel that
draws several predictions."""

import pytest

from bigtrain_lab.core import Impossible, Memory, Span, Trace, Transfer, over_step
from bigtrain_lab.order.rates import sent_so_far
from bigtrain_lab.view import figures


def trained(weights=4_000_000, sent=1000, clock="predicted", ranks=2, per_tick=1):
    """Two steps of F and U, 10 ticks each; activations live in each F, and the optimizer's state
    from the first U on; rank 1 holds a byte less."""
    events = []
    for rank in range(ranks):
        events.append(Memory(rank, "compute", "weights", "start", 0, weights - rank))
        for step in range(2):
            begin = 10 * step
            events += [
                Span(rank, "compute", "F", f"0F{step}", begin * per_tick, (begin + 6) * per_tick),
                Memory(
                    rank, "compute", "activations", f"0F{step}", (begin + 6) * per_tick, 1_000_000
                ),
                Transfer(
                    (rank + 1) % ranks,
                    "comm:dp",
                    "all_reduce",
                    f"bucket {step}",
                    (begin + 6) * per_tick,
                    (begin + 8) * per_tick,
                    rank,
                    sent,
                ),
                Span(
                    rank,
                    "compute",
                    "U",
                    f"0U{step}",
                    (begin + 8) * per_tick,
                    (begin + 10) * per_tick,
                ),
                Memory(rank, "compute", "activations", f"0U{step}", (begin + 10) * per_tick, 0),
                Memory(
                    rank, "compute", "optimizer", f"0U{step}", (begin + 10) * per_tick, 2 * weights
                ),
            ]
    return Trace.of(events, clock, unit="s", ticks_per_unit=1000, ranks=ranks, steps=2)


def stack(figure, axis):
    return {line.name: (list(line.x), list(line.y)) for line in figure.data if line.xaxis == axis}


def test_each_training_is_a_column_and_each_rank_a_row():
    figure = figures.microscope(
        {
            "data <parallel>": trained(),
            "sharded": trained(weights=1_000_000, sent=1500, clock="modelled", per_tick=2),
        }
    )
    assert stack(figure, "x") == {
        "weights": ([0, 6, 10, 10], [4_000_000] * 4),
        "activations": ([0, 6, 10, 10], [0, 1_000_000, 0, 0]),
        "optimizer": ([0, 6, 10, 10], [8_000_000] * 4),
    }
    assert stack(figure, "x3")["weights"][1][0] == 3_999_999 and stack(figure, "x2")["weights"] == (
        [0, 12, 20, 20],
        [1_000_000] * 4,
    )
    assert stack(figure, "x5")["sent by a rank"] == (
        [0, 6, 8, 10],
        [0, 0, 1000, 1000],
    )  # of this step alone
    assert {axis.range for axis in figure.select_xaxes()} == {(0, 20)}  # the longer step is seen
    assert {axis.range[1] for axis in figure.select_yaxes(row=1)} == {1.04 * 13_000_000}
    first, second = (each.text for each in figure.layout.annotations if "peak" in each.text)
    assert "peak <b>13 MB</b>, sends <b>1 kB</b>" in first and "&lt;parallel&gt;" in first
    assert "peak <b>4 MB</b>, sends <b>1.5 kB</b>" in second and "modelled" in second


def test_what_a_machine_measured_has_a_scale_of_its_own_and_many_ranks_are_told():
    figure = figures.microscope(
        {"a": trained(ranks=6), "b": trained(ranks=6, clock="measured", per_tick=7)}
    )
    assert {axis.range for axis in figure.select_xaxes(col=1)} == {(0, 10)} and {
        axis.range for axis in figure.select_xaxes(col=2)
    } == {(0, 70)}
    assert "ranks 0 to 3 of 6 are drawn" in figure.layout.title.text and figure.layout.height <= 420
    with pytest.raises(Impossible, match="nothing of memory"):
        figures.microscope(Trace((Span(0, "compute", "F", "0F0", 0, 1),), "predicted"))


def test_of_many_readings_the_highest_of_each_stretch_are_kept():
    events = [
        Span(0, "compute", "F", "0F0", 0, 1000),
        *(Memory(0, "compute", "weights", "0F0", 1 + at, 10 + at % 7) for at in range(999)),
    ]
    trace = Trace.of(events, "predicted")
    kept = over_step(trace, 0, 0, 50)
    assert (
        len(kept) == 50
        and {read.bytes for read in kept} == {16}
        and sent_so_far(trace, 0, 0) == [(0, 0), (1000, 0)]
    )
