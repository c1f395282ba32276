"""A schedule of one's own, in one new file or in a notebook cell: simulated, run, drawn, listed and checked."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
CLASS = '''
class LastFirst(Schedule):
    """GPipe with the backwards from the last micro-batch to the first."""
    name = "last-first"
    def steps(self, rank):
        batch = range(self.micro_batches)
        return [*(F(rank, m) for m in batch), *(B(rank, m) for m in reversed(batch))]
'''
PROOF = '''
from bigtrain_lab import Schedule, figures
from bigtrain_lab.checks import clocks_differ, tensors_differ
from bigtrain_lab.experiments.pipeline import PipelineExperiment
asked = PipelineExperiment(schedule="last-first", ranks=2, micro_batches=3, layers=2, width=16, heads=2, sequence=8,
                           dtype="float64", optimizer="sgd", steps=2)
predicted = asked.predict()
run = asked.run(directory=DIRECTORY)
run.wait()
boxes = len(figures.figure("timeline", predicted).to_plotly_json()["data"])
print({"idle": [predicted.idle(r) for r in range(2)], "clocks": clocks_differ(predicted, run.trace("modelled")),
       "numbers": tensors_differ(run.result, asked.reference()), "drawn": boxes > 0,
       "listed": "last-first" in Schedule.all() and "last-first" in asked.knobs()["schedule"].menu()})
'''
RIGHT = str({"idle": [6.0, 6.0], "clocks": [], "numbers": [], "drawn": True, "listed": True})


@pytest.mark.slow
def test_in_a_new_file(tmp_path):
    """A copy of the library with one file more; nothing else is touched."""
    shutil.copytree(ROOT / "bigtrain_lab", tmp_path / "bigtrain_lab", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "bigtrain_lab/schedules/last_first.py").write_text(
        '"""GPipe, backwards."""\n\nfrom ..schedule import B, F, Schedule\n\n' + CLASS)
    script = tmp_path / "prove.py"
    script.write_text(f"DIRECTORY = {str(tmp_path / 'run')!r}\n" + PROOF)

    def python(*arguments):
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert python(script).strip() == RIGHT
    assert "last-first" in python("-m", "bigtrain_lab", "list")


@pytest.mark.slow
def test_in_a_notebook_cell(tmp_path):
    """Typed in a kernel; running the cell again replaces it, and a library's name is refused."""
    cells = ["from bigtrain_lab.schedule import B, F, Schedule\n" + CLASS,
             CLASS,
             f"DIRECTORY = {str(tmp_path / 'run')!r}\n" + PROOF,
             "try:\n    class Mine(Schedule):\n        name = 'gpipe'\nexcept ValueError as error:\n    print(error)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells],
                                        metadata={"kernelspec": {"name": "python3", "display_name": "", "language": "python"}})
    NotebookClient(notebook, timeout=500, startup_timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = ["".join(o.get("text", "") for o in c.outputs).strip() for c in notebook.cells]
    assert printed[2] == RIGHT
    assert printed[3] == "The name 'gpipe' is taken by bigtrain_lab.schedules.gpipe.GPipe: give Mine another `name`."


SCRIPT = '''
import json, sys, torch, torch.distributed as dist
from bigtrain_lab import Schedule
from bigtrain_lab.techniques.pipeline import Pipeline
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
stage = torch.nn.Linear(4, 4).double()
pipeline = Pipeline(stage, Schedule.named("1f1b")(ranks=size, micro_batches=4), torch.nn.functional.mse_loss)
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
x = torch.arange(32., dtype=torch.float64).reshape(8, 4) / 32
for _ in range(3):
    loss = pipeline.step(x, x.sin())
    optimizer.step()
    optimizer.zero_grad()
if rank == size - 1:
    print(json.dumps(loss.item()))
dist.destroy_process_group()
'''


@pytest.mark.slow
def test_the_pipeline_alone_in_a_script_of_one_s_own(tmp_path):
    """Under torchrun, with torch's group, the user's optimizer, and nothing of the lab around it."""
    import torch
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "mine.py"],
                          cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    stages = []
    for rank in range(2):
        torch.manual_seed(rank)
        stages.append(torch.nn.Linear(4, 4).double())
    model = torch.nn.Sequential(*stages)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.arange(32., dtype=torch.float64).reshape(8, 4) / 32
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), x.sin())
        loss.backward()
        optimizer.step()
    assert json.loads(done.stdout.strip().splitlines()[-1]) == pytest.approx(loss.item(), rel=1e-12)
