"""What a lab tells beside what the table of parity/ proves of all: a section a lab. Those of which
more is to be told have a file of their own."""

import shutil
from statistics import median

import pytest
import torch

from bigtrain_lab.core import Impossible, Scalar, Trace
from bigtrain_lab.experiments.compilers import (
    BYTES,
    COMPILED,
    EAGER,
    FIRST,
    FUNCTIONS,
    Compile,
    break_even,
)
from bigtrain_lab.experiments.large_batch import LargeBatch
from bigtrain_lab.experiments.layouts import Layouts
from bigtrain_lab.experiments.parameter_server import ParameterServing
from bigtrain_lab.experiments.staleness import Staleness
from bigtrain_lab.experiments.tensor_slicing import TensorSlicing, found
from bigtrain_lab.order import ACCURACY, STEP, TRUST, Part, called, of_layers
from bigtrain_lab.techniques.tensor_parallel import Cut
from bigtrain_lab.view.figures import figure
from bigtrain_lab.view.report import column


def table(lab) -> dict:
    """Quantity -> what the prediction says of it."""
    trace = lab.predict()
    return {quantity.name: quantity.of(trace) for quantity in lab.quantities}


# -- layouts ---------------------------------------------------------------------------------------


def sent(**settings) -> list:
    """Forward and backward, then seconds and the memory."""
    return [*table(Layouts(**settings)).values()]


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
def test_the_numbers_of_the_lesson_on_layouts(layout, forward, backward, held):
    sent_forward, sent_backward, _, memory = sent(layout=layout)
    assert (sent_forward / 1e6, sent_backward / 1e6, memory / 1e6) == pytest.approx(
        (forward, backward, held), abs=0.05
    )


def test_the_axis_that_sends_more_belongs_inside_a_node():
    """Of 33.6 and 8.4 MB a rank, the sum of Y along the columns and of dW along the rows, one has
    150 GB/s and the other 12.5."""
    near, far = (
        sent(layout="split-n-d", node_size=2, hardware="v100-nvlink", swapped=swapped)
        for swapped in (False, True)
    )
    assert near[:2] == far[:2] == [33_554_432, 8_388_608]
    assert far[2] - near[2] == pytest.approx(
        (33_554_432 - 8_388_608) * (1 / 12.5e9 - 1 / 150e9), rel=1e-3
    )


# -- parameter-server ------------------------------------------------------------------------------


def test_what_a_straggler_costs():
    """Slow for good: a bound waits as the round does. Hiccups of as much time: it does not."""

    def rate(mode, **asked):
        told = table(ParameterServing(mode=mode, steps=100, **asked))
        return (
            told["gradients applied a slot"],
            told["staleness, worst"],
            told["bytes through the busiest server's port, in and out"],
        )

    assert rate("synchronous")[:2] == (1.0, 0) and rate("asynchronous")[:2] == (3.25, 12)
    assert rate("bounded")[:2] == (1.0225, 12)
    synchronous, bounded, asynchronous = (
        rate(mode, slow=1, hiccups=0.25)[0] for mode in ("synchronous", "bounded", "asynchronous")
    )
    assert synchronous < 1.5 and bounded > 2 and asynchronous > bounded
    one, two = (rate("synchronous", servers=servers)[2] for servers in (1, 2))
    assert two < 0.6 * one and one == 100 * 4 * 2 * ParameterServing().server_bytes[0]


# -- compile ---------------------------------------------------------------------------------------

COMPILE_SMALL = {"rows": 70, "columns": 96, "dtype": "float64", "steps": 2}


def test_the_numbers_of_the_lesson_on_compile():
    eager, ours, graph = (
        table(Compile(rows=4000, compiler=name)) for name in ("eager", "ours", "cuda-graph")
    )
    assert (eager["kernels a step"], eager[BYTES]) == (9, 1_344_000_000)
    assert (ours["kernels a step"], ours[BYTES], graph["kernels a step"]) == (1, 128_000_000, None)
    large, small = (
        " ".join(lab.explain(lab.predict()))
        for lab in (Compile(rows=4000), Compile(rows=64, columns=64))
    )
    assert "10.5 times faster" in large and "a factor of 1.37" in large
    assert ["lasts longer than the launch" in text for text in (large, small)] == [True, False]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_launched_at_once_costs_one_launch(function):
    """A small tensor's kernels take the time of their launches, which a CUDA graph pays once a
    pass; a large one's that of its bytes."""

    def step_s(compiler, rows):
        asked = Compile(function=function, rows=rows, columns=rows, compiler=compiler)
        return asked.predict().step_time

    assert step_s("cuda-graph", 64) <= step_s("ours", 64) < step_s("eager", 64)
    assert step_s("ours", 8192) < step_s("cuda-graph", 8192) <= step_s("eager", 8192)


def test_what_a_machine_lacks_is_told(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    for refused, said in (
        (lambda: Compile(compiler="cuda-graph").run(), "none is visible here"),
        (lambda: Compile(compiler="inductor").run(), "install g\\+\\+"),
        (Compile().hlo, "pip install 'bigtrain-lab\\[xla\\]'"),
    ):
        with pytest.raises(Impossible, match=said):
            refused()


def test_xla_fuses_the_nine_operators_too():
    """The real compiler, where JAX is installed: nine operators before, one fusion after."""
    pytest.importorskip("jax")
    before, after = Compile(**COMPILE_SMALL).hlo()
    assert before.count("tanh(") == 1 and "fusion(" not in before and after.count("fusion(") == 1


@pytest.mark.parametrize(
    "eager, compiled, steps, said",
    [
        ([5.0, 6.0, 7.0], [1.0, 2.0, 3.0], 3, "earned back after 3 steps"),
        ([1.0, 2.0, 3.0], [5.0, 6.0, 7.0], 0, "never earned back"),
        ([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], None, "neither is faster within that spread"),
    ],
)
def test_no_winner_is_told_within_the_spread_of_what_was_measured(eager, compiled, steps, said):
    asked = Compile(**COMPILE_SMALL)
    predicted = asked.predict()
    scalars = [
        Scalar(0, "compute", "scalar", name, 0, value)
        for name, values in ((FIRST, [10.0]), (EAGER, eager), (COMPILED, compiled))
        for value in values
    ]
    measured = Trace.of([*predicted, *scalars], **predicted.header() | {"clock": "measured"})
    assert column(asked.quantities, measured)["eager call, here, median"].value == median(eager)
    assert break_even(measured) == steps and said in " ".join(asked.explain(measured))


# -- tensor-slicing --------------------------------------------------------------------------------

TENSOR_SLICING_LARGE = {
    "slices": 4,
    "rows": 8,
    "sequence": 512,
    "width": 1024,
    "heads": 16,
    "vocabulary": 32000,
    "layers": 1,
    "steps": 1,
}


def test_the_numbers_of_the_lesson_on_tensor_slicing():
    right, wrong = (
        TensorSlicing(cut=cut, **TENSOR_SLICING_LARGE).predict()
        for cut in ("column-row", "row-column")
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
    said = " ".join(TensorSlicing(**TENSOR_SLICING_LARGE).explain(right))
    told = "100.7 MB", "75.58 MB", "3,072 tokens", "49.15 kB", "524.3 MB", "10,667"
    assert [number for number in told if number not in said] == []
    wrongly = TensorSlicing(cut="row-column", **TENSOR_SLICING_LARGE)
    assert "4.5 times the bytes" in " ".join(wrongly.explain(wrong))


def test_a_part_is_found_by_its_numbers_and_no_other():
    whole = torch.randn(24, 12, generator=torch.Generator().manual_seed(1))
    queries = [Part("w", 4 + start, 8 + start, 0, 12, 24, 12) for start in (0, 8, 16)]
    assert [*found("w", Cut(0, 3).part(whole, 1, 2), whole)] == queries
    assert [*found("w", Cut(1).part(whole, 2, 3), whole)] == [Part("w", 0, 24, 8, 12, 24, 12)]
    wrong = whole[:, :6].clone()
    wrong[5, 5] += 1
    assert [part[1:3] for part in found("w", wrong, whole)] == [(0, 5), (6, 24)]
    assert [*found("w", torch.zeros(3, 12), whole)] == []


# -- large-batch -----------------------------------------------------------------------------------


def test_two_replicas_say_how_far_each_layer_went(tmp_path):
    """By LAMB each layer's step is the rate's share of its weights; the last updates are looked at,
    where not all are."""
    asked = LargeBatch(
        batch=64,
        samples=1024,
        layers=2,
        width=16,
        dtype="float64",
        replicas=2,
        at_once=4,
        norm="batch",
    )  # 8 micro-batches of a replica
    trace = asked.run(directory=tmp_path / "run").wait()
    steps, ratios = of_layers(trace, STEP), of_layers(trace, TRUST)
    assert [*steps] == [*ratios] == ["layers.0", "layers.1", "head"]
    for values in steps.values():
        assert values == pytest.approx([asked.rate(update) for update in range(1, 17)], rel=1e-9)
    assert len({tuple(values) for values in ratios.values()}) == 3
    assert len(trace.where(Scalar, name=ACCURACY)) == asked.steps == 16
    assert len(figure("trust", trace).frames) == 16


@pytest.mark.parametrize("task", ["digits", "text"])
def test_all_batches_are_of_the_same_samples_in_one_order(task):
    """Across the ends of passes too; and none of them is examined."""
    several = [
        LargeBatch(task=task, batch=batch, at_once=at_once, samples=4096, dtype="float64")
        for batch, at_once in ((32, 32), (2048, 64), (4096, 4096))
    ]
    streams = [
        torch.cat([lab.micro_batch(n)[0] for n in range(lab.steps * lab.micro_batches)])
        for lab in several
    ]
    assert (
        all(torch.equal(stream, streams[0]) for stream in streams[1:]) and len(streams[0]) == 4096
    )
    assert not torch.equal(streams[0][:1347], streams[0][1347:2694])
    if task == "digits":
        assert not (streams[0][:, None] == several[0].examined[0][None, :50]).all(-1).any()


def test_the_rate_grows_with_the_batch_by_the_rule_then_rises_and_falls():
    rates = {
        scaling: LargeBatch(batch=512, learning_rate=0.01, scaling=scaling).full_rate
        for scaling in ("none", "square-root", "linear")
    }
    assert rates == pytest.approx({"none": 0.01, "square-root": 0.04, "linear": 0.16})
    lab = LargeBatch(batch=512, samples=512 * 20, scaling="none", learning_rate=1.0, warm_up=0.2)
    assert [lab.rate(update) for update in (1, 2, 4, 5, 20)] == pytest.approx(
        [0.25, 0.5, 1, 16 / 17, 1 / 17]
    )
    assert 0 < LargeBatch(batch=1024, samples=1024).rate(1) < LargeBatch(batch=1024).full_rate


# -- staleness -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule,delays",
    [
        ("1f1b", "0, 0, 0, 0"),
        ("pipedream", "3, 2, 1, 0"),
        ("pipedream-vertical-sync", "3, 3, 3, 3"),
        ("pipedream-2bw", "1, 1, 1, 1"),
    ],
)
def test_each_stage_s_delay(schedule, delays):
    assert Staleness(schedule=schedule).describe().endswith(delays)
