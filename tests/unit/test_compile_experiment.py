"""The lab compile: the lesson's numbers, every compiler's run as predicted, and what is told of graphs captured again."""

import shutil

import pytest

from bigtrain_lab.checks import run_differs
from bigtrain_lab.core import Impossible
from bigtrain_lab.experiments.compilers import BYTES, FUNCTIONS, Compile
from bigtrain_lab.figures import figure
from bigtrain_lab.rates import last
from bigtrain_lab.report import column

SMALL = dict(rows=70, columns=96, dtype="float64", steps=2)


def table(**settings) -> dict:
    asked = Compile(**settings)
    return {name: amount.value for name, amount in column(asked.quantities, asked.predict()).items()}


def test_the_numbers_of_the_lesson():
    eager, ours = (table(rows=4000, compiler=compiler) for compiler in ("eager", "ours"))
    assert (eager["kernels a step"], eager[BYTES]) == (9, 1_344_000_000) and (ours["kernels a step"], ours[BYTES]) == (1, 128_000_000)
    told = " ".join(Compile(rows=4000).explain(Compile(rows=4000).predict()))
    assert "10.5 times faster" in told and "a factor of 1.37" in told


@pytest.mark.parametrize("settings", [dict(compiler="ours", function="softmax", block=256), dict(compiler="eager", function="product")])
def test_a_run_is_as_predicted(settings, tmp_path):
    asked = Compile(**SMALL, **settings, backward=True)
    run = asked.run(directory=tmp_path / "run")
    trace = run.wait()
    assert run.result and run_differs(asked, run) == []
    assert last(trace, BYTES) == last(asked.predict(), BYTES) == asked.moved()
    told = "\n".join(asked.explain(trace))
    assert "Graph 1: the first call of this code." in told and "Graph 2: the shape of x was 70 x 96" in told and "Graph 3" not in told
    for name in asked.figures:
        figure(name, trace)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_launched_at_once_costs_one_launch(function):
    """A small tensor's kernels take the time of their launches, which a CUDA graph pays once a pass; a large one's that of its bytes."""
    small, large = ({name: Compile(function=function, rows=rows, columns=rows, compiler=name).predict().step_time
                     for name in ("eager", "ours", "cuda-graph")} for rows in (64, 8192))
    assert small["cuda-graph"] <= small["ours"] < small["eager"] and large["ours"] < large["cuda-graph"] <= large["eager"]


def test_a_run_that_does_not_fit_is_refused():
    huge = Compile(rows=65536, columns=65536)
    with pytest.raises(Impossible, match="^The rank would hold .* this machine has .* available: .* Fewer rows than 65,536 would need less.$"):
        huge.run()


def test_what_a_machine_lacks_is_told(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    for refused, said in ((lambda: Compile(compiler="cuda-graph").run(), "none is visible here"), (lambda: Compile(compiler="inductor").run(), "install g\\+\\+"),
                          (Compile().hlo, "pip install 'bigtrain-lab\\[xla\\]'")):
        with pytest.raises(Impossible, match=said):
            refused()


def test_xla_fuses_the_nine_operators_too():
    """The real compiler, where JAX is installed: nine operators before, one fusion after."""
    pytest.importorskip("jax")
    before, after = Compile(**SMALL).hlo()
    assert before.count("tanh(") == 1 and "fusion(" not in before and after.count("fusion(") == 1
