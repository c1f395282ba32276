"""All axes at once: every product of data, pipeline and tensor parallel on 8 ranks is one training,
as predicted."""

import json
from itertools import product

import pytest

from bigtrain_lab.checks import run_differs
from bigtrain_lab.core import Impossible, Memory, Mesh, Span, Transfer
from bigtrain_lab.experiments.combined import Combined
from bigtrain_lab.order.rates import axes
from bigtrain_lab.panel import show
from bigtrain_lab.train.recipe import Recipe
from bigtrain_lab.view import figures

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
PRODUCTS = [
    sizes for sizes in product((1, 2, 4, 8), repeat=3) if sizes[0] * sizes[1] * sizes[2] == 8
]


@pytest.mark.parametrize(
    "number, sizes", [*enumerate(PRODUCTS)], ids=["x".join(map(str, sizes)) for sizes in PRODUCTS]
)
def test_every_product_of_the_axes_runs_as_predicted_and_as_one_process(number, sizes, tmp_path):
    """With recompute, sequence parallelism and ZeRO-1 in turn: clock, bytes, memory inside actions,
    weights and losses of all ranks."""
    replicas, pipeline, slices = sizes
    asked = Combined(
        replicas=replicas,
        pipeline=pipeline,
        slices=slices,
        schedule=("gpipe", "1f1b")[number % 2],
        recompute=number % 3 == 1,
        sequence_parallel=slices > 1 and number % 2 == 0,
        zero_1=replicas > 1 and number % 4 < 2,
        **SMALL | {"layers": max(2, pipeline), "micro_batches": max(2, replicas)},
    )
    run = asked.run(directory=tmp_path / "run", jitter_s=0.001)
    modelled, predicted = run.wait(), asked.predict()
    assert run_differs(asked, run) == [] and run.replicas == []
    assert predicted.step_time == modelled.step_time
    assert [e for e in predicted if isinstance(e, (Span, Transfer))] == [
        e for e in modelled if isinstance(e, (Span, Transfer))
    ]
    assert predicted.where(Memory).events == modelled.where(Memory).events
    costs = {axis.name: axis for axis in axes(modelled)}
    assert [name for name, size in asked.mesh.axes if size > 1] == [
        name for name in ("dp", "pp", "tp") if costs[name].bytes
    ]


def test_mixed_precision_goes_through_all_axes_as_predicted(tmp_path):
    asked = Combined(
        hardware="a100-nvlink",
        precision="bf16",
        recompute=True,
        zero_1=True,
        **SMALL | {"dtype": "float32"},
    )
    modelled, predicted = asked.run(directory=tmp_path / "run").wait(), asked.predict()
    assert [e for e in predicted if isinstance(e, (Span, Transfer))] == [
        e for e in modelled if isinstance(e, (Span, Transfer))
    ]
    assert modelled.where(Memory).events == predicted.where(Memory).events


def test_stage_1_of_zero_goes_with_split_backwards():
    """Which have no whole backward to price."""
    asked = Combined(slices=1, schedule="zb-h1", zero_1=True, **SMALL)
    assert {span.kind for span in asked.predict().spans(0)} >= {"F", "I", "W", "U"}


def test_a_layer_calls_two_collectives_each_way_and_shards_move_the_same_bytes():
    def called(action, **changes):
        trace = Combined(replicas=1, pipeline=1, slices=4, **SMALL | changes).predict()
        own = [span for span in trace.spans(0) if span.name.startswith(f"{action}.")]
        return [span.kind for span in own], sum(
            t.bytes for t in trace.transfers(0) if t.name.startswith(f"{action}.")
        )

    for action in ("1F0", "1B0"):
        kinds, sent = called(action)
        shards, sharded = called(action, sequence_parallel=True)
        assert (
            kinds == ["all_reduce"] * 2
            and sorted(shards) == ["all_gather"] * 2 + ["reduce_scatter"] * 2
            and sent == sharded
        )
    assert called("3F0")[0] == ["all_reduce"] * 3  # the loss


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"replicas": 1, "slices": 4, "heads": 2, "width": 16}, "take 4"),
        (
            {"replicas": 4, "pipeline": 1, "slices": 2, "micro_batches": 6},
            "6 micro-batches cannot be shared equally by 4 replicas: take 8 micro-batches.",
        ),
        ({"zero_1": True, "optimizer": "lamb"}, "take adam, tp = 1, or no zero-1"),
        (
            {"replicas": 1, "pipeline": 8, "slices": 1, "layers": 4},
            "8 stages need at least 8 layers",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(changes, told):
    with pytest.raises(Impossible, match=told.replace("(", r"\(")):
        Combined(**changes)


def test_more_ranks_than_run_here_are_predicted_and_run_is_grey_with_its_reason():
    panel, why = show("combined", **SMALL), "16 ranks are predicted only: run at most 8."
    for sizes in ({"slices": 4}, {"pipeline": 4, "layers": 4}, {"replicas": 4, "micro_batches": 4}):
        panel.set(**sizes)
        assert (
            panel.problem == ""
            and panel.rows[0].predicted.value == panel.traces["predicted"].step_time
            and panel.traces["predicted"].ranks == 16
        )
        assert (
            panel.run_button.disabled
            and panel.start() is None
            and not panel.bar.pin.disabled
            and f">{why}<" in panel.status.value
        )
        with pytest.raises(Impossible, match=why):
            panel.experiment.run()
        panel.tabs.value = "modelled"
        assert panel.player.note.startswith(why)
        panel.set(**{name: getattr(Combined(**SMALL), name) for name in sizes})
        assert not panel.run_button.disabled and panel.status.value == ""
    assert (
        Combined(replicas=8, pipeline=8, slices=8, **SMALL | {"layers": 8, "micro_batches": 8})
        .predict()
        .ranks
        == 512
    )


def test_the_mark_of_a_peak_is_that_of_the_table_where_some_steps_are_drawn():
    panel = show("combined", micro_batches=16)
    marked, row = (
        json.loads(panel.player.data)["peaks"][0],
        next(row for row in panel.rows if row.quantity == "peak memory, rank 0"),
    )
    assert (
        panel.picture._steps.layout.display is None
        and sum(held for _, held in marked[2]) == row.predicted.value
    )


def test_a_recipe_says_how_its_layers_are_cut():
    parts = dict.fromkeys(("model", "data", "loss", "optimizer"), lambda *_: None)
    with pytest.raises(Impossible, match="slices is 2, and slicing does not say how"):
        Recipe(slices=2, **parts)
    with pytest.raises(Impossible, match="sliced_loss is missing"):
        Recipe(slices=2, slicing={"up": "column"}, **parts)
    with pytest.raises(
        Impossible, match="sequence_parallel shares the sequence among slices, and slices is 1"
    ):
        Recipe(sequence_parallel=True, **parts)
    assert Recipe(
        slices=2, slicing={"up": "column"}, sliced_loss=parts["loss"], replicas=3, **parts
    ).mesh == Mesh(dp=3, pp=1, tp=2)


def test_the_cube_names_each_rank_and_what_each_axis_costs():
    asked = Combined(**SMALL)
    drawn = figures.figure("mesh", asked.predict())
    *lines, ranks = drawn.data
    assert [line.name[:6] for line in lines] == [
        "dp = 2",
        "pp = 2",
        "tp = 2",
    ] and ranks.text == tuple(map(str, range(8)))
    assert [len(line.x) for line in lines] == [12] * 3 and ranks.hovertext[
        5
    ] == "rank 5: dp 1, pp 0, tp 1"
    with pytest.raises(Impossible, match="tells no mesh"):
        figures.figure("mesh", asked.replace().simulated())
