"""From a warm notebook to four ranks that have built an optimizer and done one step, beside
torchrun."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from bigtrain_lab.runtime import launch, warm

from .measure import alternating, row, seconds

STEP = """
import torch, torch.distributed as dist
def one_step():
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(8, 64)).sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
"""
SCRIPT = (
    STEP
    + """
dist.init_process_group("gloo")
one_step()
dist.destroy_process_group()
"""
)


def program(rank):
    """The same step under our launcher."""
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(8, 64)).sum().backward()
    for p in model.parameters():
        rank.group().all_reduce(p.grad)
    optimizer.step()
    return {}


def ours():
    with tempfile.TemporaryDirectory() as folder:
        launch(program, ranks=4, directory=Path(folder) / "run").wait()


def torchrun():
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "step.py"
        script.write_text(SCRIPT)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nproc-per-node=4",
                "--standalone",
                script,
            ],
            check=True,
            capture_output=True,
        )


def pipeline_step():
    """Four ranks, a real transformer cut into four stages, one training step with Adam."""
    from bigtrain_lab.experiments.pipeline import PipelineExperiment

    with tempfile.TemporaryDirectory() as folder:
        PipelineExperiment(steps=1, micro_batches=4).run(directory=Path(folder) / "run").wait()


def rows():
    cold = seconds(ours)
    warm()
    times = alternating(5, ours=ours, pipeline=pipeline_step, torchrun=torchrun)
    return [
        row("first launch of all, cold", cold, "s"),
        row(
            "launch of 4 ranks, warm: optimizer built and one step done",
            times["ours"],
            "s",
            at_most=0.3,
        ),
        row("the same by torchrun", times["torchrun"], "s"),
        row("torchrun over ours", times["torchrun"] / times["ours"], "times", at_least=10),
        row(
            "launch of the pipeline lab, 4 ranks, one step of 4 micro-batches",
            times["pipeline"],
            "s",
        ),
    ]
