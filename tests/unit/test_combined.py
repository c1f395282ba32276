"""All axes at once: what their products add to the table of parity/, which runs them all."""

import pytest

from bigtrain_lab.checks import clocks_differ
from bigtrain_lab.core import Impossible, Memory
from bigtrain_lab.experiments.combined import Combined
from bigtrain_lab.order.rates import axes
from bigtrain_lab.panel import show

SMALL = {
    "layers": 2,
    "micro_batches": 2,
    "width": 16,
    "heads": 8,
    "vocabulary": 256,
    "sequence": 8,
    "dtype": "float64",
    "steps": 2,
}


def test_mixed_precision_goes_through_all_axes_as_predicted(tmp_path):
    """In half precision one process sums in another order: clock and memory alone."""
    asked = Combined(
        hardware="a100-nvlink",
        precision="bf16",
        recompute=True,
        zero=1,
        **SMALL | {"dtype": "float32"},
    )
    modelled, predicted = asked.run(directory=tmp_path / "run").wait(), asked.predict()
    assert clocks_differ(predicted, modelled) == []
    assert modelled.where(Memory).events == predicted.where(Memory).events
    assert [axis.name for axis in axes(modelled) if axis.bytes] == ["dp", "pp", "tp"]


@pytest.mark.parametrize(
    "shape",
    [
        {"replicas": 1, "pipeline": 4, "layers": 4},
        {"replicas": 2, "slices": 1, "micro_batches": 4},
        {"replicas": 4, "pipeline": 1, "micro_batches": 4},
        {"replicas": 2},
    ],
)
@pytest.mark.parametrize("more", [{}, {"schedule": "gpipe"}, {"zero": 3}, {"fault": "straggler"}])
def test_the_axes_times_add_up_to_waits_and_idle(shape, more):
    """As means over ranks, so that a student can add them."""
    lab = Combined(**SMALL | shape | more)
    trace = lab.predict()
    lost, times = 1 - trace.shares().compute, [axis.time for axis in axes(trace)]
    assert sum(times) == pytest.approx(lost * trace.makespan / trace.steps)
    assert f"Of the ranks' time {lost:.1%} is no compute" in lab.explain(trace)[0]


def test_more_ranks_than_run_here_are_predicted_and_run_is_grey_with_its_reason():
    panel, why = show("combined", **SMALL), "16 ranks are predicted only: run at most 8."
    panel.set(slices=4)
    assert panel.problem == "" and panel.traces["predicted"].ranks == 16
    assert panel.run_button.disabled and f">{why}<" in panel.status.value
    with pytest.raises(Impossible, match=why):
        panel.experiment.run()
    panel.set(slices=2)
    assert not panel.run_button.disabled and panel.status.value == ""
