"""The lab compile: the lesson's numbers, every compiler's run as predicted, and what is told of
graphs captured again."""

import shutil
from statistics import median

import pytest

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
from bigtrain_lab.view.report import column

SMALL = {"rows": 70, "columns": 96, "dtype": "float64", "steps": 2}


def table(**settings) -> dict:
    asked = Compile(**settings)
    return {
        name: amount.value for name, amount in column(asked.quantities, asked.predict()).items()
    }


def test_the_numbers_of_the_lesson():
    eager, ours = (table(rows=4000, compiler=compiler) for compiler in ("eager", "ours"))
    assert (eager["kernels a step"], eager[BYTES]) == (9, 1_344_000_000) and (
        ours["kernels a step"],
        ours[BYTES],
    ) == (1, 128_000_000)
    told = " ".join(Compile(rows=4000).explain(Compile(rows=4000).predict()))
    assert "10.5 times faster" in told and "a factor of 1.37" in told


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_launched_at_once_costs_one_launch(function):
    """A small tensor's kernels take the time of their launches, which a CUDA graph pays once a
    pass; a large one's that of its bytes."""
    small, large = (
        {
            name: (
                Compile(function=function, rows=rows, columns=rows, compiler=name)
                .predict()
                .step_time
            )
            for name in ("eager", "ours", "cuda-graph")
        }
        for rows in (64, 8192)
    )
    assert (
        small["cuda-graph"] <= small["ours"] < small["eager"]
        and large["ours"] < large["cuda-graph"] <= large["eager"]
    )


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
    before, after = Compile(**SMALL).hlo()
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
    asked = Compile(**SMALL)
    predicted = asked.predict()
    logged = {FIRST: [10.0], EAGER: eager, COMPILED: compiled}
    scalars = [
        Scalar(0, "compute", "scalar", name, 0, value)
        for name, values in logged.items()
        for value in values
    ]
    measured = Trace.of([*predicted, *scalars], **predicted.header() | {"clock": "measured"})
    table = column(asked.quantities, measured)
    assert table["eager call, here, median"].value == median(eager)
    assert break_even(measured) == steps and said in " ".join(asked.explain(measured))
