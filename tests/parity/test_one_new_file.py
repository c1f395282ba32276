"""A schedule, a collective, a plan of recompute or an experiment of one's own is one new file: simulated, run, drawn,
listed and checked, without editing a test."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLASS = '''
class LastFirst(Schedule):
    """GPipe with the backwards from the last micro-batch to the first."""
    name = "last-first"
    def steps(self, rank):
        batch = range(self.micro_batches)
        return [*(F(rank, m) for m in batch), *(B(rank, m) for m in reversed(batch))]
'''
CHAIN = '''"""All-reduce along a chain and back."""

from ..collective import Collective, Move


class Chain(Collective):
    name = "chain"
    chunks = 1

    def rounds(self):
        there = [[Move(rank, rank + 1, 0, reduce=True)] for rank in range(self.ranks - 1)]
        return there + [[Move(move.dst, move.src, 0) for move in moves] for moves in reversed(there)]
'''
THIRDS = '''"""Three segments."""

from ..plan import Recompute
from .every_k import by_segments


class Thirds(Recompute):
    name = "thirds"

    def order(self, chain, budget_bytes=None):
        return by_segments([chain.layers * i // 3 for i in range(3)], chain.layers)
'''
PROOF = """
import pytest
from bigtrain_lab import Schedule; from bigtrain_lab.view import figures
from bigtrain_lab.checks import run_differs
from bigtrain_lab.cli import main
from bigtrain_lab.experiments.pipeline import PipelineExperiment
asked = PipelineExperiment(schedule="last-first", ranks=2, micro_batches=3, layers=2, width=16, heads=2, sequence=8,
                           dtype="float64", optimizer="sgd", steps=2)
predicted = asked.predict()
run = asked.run(directory="run")
run.wait()
boxes = len(figures.figure("timeline", predicted).to_plotly_json()["data"])
from bigtrain_lab.experiments.all_reduce import AllReduce
summed = AllReduce(collective="chain", ranks=3, megabytes=0.1, dtype="float64")
around = summed.run(directory="around")
around.wait()
from bigtrain_lab.experiments.checkpoint import Checkpoint
from bigtrain_lab.order.recompute.plan import advances
thirds = Checkpoint(plan="thirds", layers=7)
assert list(Checkpoint.knobs()["plan"].menu())[-1] == "thirds" and "thirds" in thirds.facts["plans"]
assert (advances(thirds.ops), len(thirds.predict().spans(0))) == (6, 50)
print({"idle": [predicted.idle(r) for r in range(2)], "differs": run_differs(asked, run) + run_differs(summed, around), "drawn": boxes > 0,
       "listed": "last-first" in Schedule.all() and "last-first" in asked.knobs()["schedule"].menu() and "chain" in summed.knobs()["collective"].menu()})
main(["list"])
pytest.main(["-q", "-p", "no:cacheprovider", "test_every_experiment.py", "-k", "right-sum or wrong-sum", "-rA"])
"""
RIGHT = str({"idle": [6.0, 6.0], "differs": [], "drawn": True, "listed": True})
EXPERIMENT = '''"""What is the sum of a run's steps?"""

import numpy as np

from ..core import Cost, knob
from ..order.plan import Compute, Plan
from ..order.schedule import F
from ..order.simulate import simulate
from .experiment import Experiment


class Sum(Experiment):
    name = "{name}"
    question = "What is the sum of a run's steps?"
    ranks: int = knob(2, "processes", low=2, high=4)
    steps: int = knob(3, "steps of a run", low=1, high=4)

    def cost(self):
        return Cost(dict(F=1))

    def predict(self):
        return simulate(Plan({{(r, "compute"): tuple(Compute(F(r, m)) for m in range(self.steps)) for r in range(self.ranks)}},
                             ranks=self.ranks, steps=self.steps), self.cost())

    def program(self, rank):
        for m in range(self.steps):
            with rank.span(F(rank.index, m)):
                pass
        return {{"sum": np.array(sum(range(self.steps)))}}

    def reference(self):
        return {{"sum": np.array({reference})}}
'''


@pytest.mark.slow
def test_a_schedule_a_collective_a_plan_and_two_experiments_in_new_files(tmp_path):
    """A copy of the library with five files more, and the parity test as it is: the experiment
    whose reference is wrong fails."""
    shutil.copytree(
        ROOT / "bigtrain_lab",
        tmp_path / "bigtrain_lab",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(ROOT / "tests/parity/test_every_experiment.py", tmp_path)
    (tmp_path / "bigtrain_lab/order/schedules/last_first.py").write_text(
        '"""GPipe, backwards."""\n\nfrom ..schedule import B, F, Schedule\n\n' + CLASS
    )
    (tmp_path / "bigtrain_lab/order/collectives/chain.py").write_text(CHAIN)
    (tmp_path / "bigtrain_lab/order/recompute/plans/thirds.py").write_text(THIRDS)
    for name, reference in (("right-sum", 1), ("wrong-sum", 2)):
        (tmp_path / f"bigtrain_lab/experiments/{name.replace('-', '_')}.py").write_text(
            EXPERIMENT.format(name=name, reference=reference)
        )
    (tmp_path / "prove.py").write_text(PROOF)
    done = subprocess.run(
        [sys.executable, "prove.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    printed = done.stdout.splitlines()
    assert printed[:1] == [RIGHT], done.stdout + done.stderr
    assert all(name in done.stdout for name in ("last-first", "right-sum", "wrong-sum"))
    assert "rank 1: sum is off by" in done.stdout and printed[-1].startswith(
        "1 failed, 3 passed"
    ), done.stdout
