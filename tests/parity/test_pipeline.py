"""A pipeline on real processes, beside the table of test_every_experiment.py that runs every
schedule: what it sends by closed forms, and by itself without a lab."""

import re

import pytest
import torch

from bigtrain_lab import Schedule, launch
from bigtrain_lab.checks import tensors_differ
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.techniques import Pipeline

SMALL = {"layers": 8, "width": 16, "heads": 2, "sequence": 8, "rows": 1}


@pytest.mark.parametrize("schedule, adds", [("1f1b", 1), ("interleaved", 1), ("zb-v", 0)])
def test_copies_of_a_tied_embedding_send_their_gradients(schedule, adds):
    """Where two ranks hold them: each sends one table's gradient a step, and 16 bytes that tell its
    copy in the first two."""
    asked = PipelineExperiment(
        **SMALL,
        schedule=schedule,
        ranks=2,
        micro_batches=4,
        dtype="float64",
        optimizer="sgd",
        steps=3,
    )
    plain, tied = asked.predict(), asked.replace(tied=True).predict()
    for rank in range(2):
        assert tied.bytes_sent(rank) - plain.bytes_sent(rank) == adds * (
            3 * 256 * asked.width * 8 + 2 * 16
        )


@pytest.mark.parametrize(
    "schedule, ranks, kinds",
    [
        ("pipedream", 4, {"stashed": r"layers\.\S+, version \d+"}),
        (
            "zb-h1",
            2,
            {
                "optimizer": r"layers\.\S+ (step|exp_avg|exp_avg_sq)",
                "queued": r"(input|output gradient) \d+ of [01]W\d",
            },
        ),
    ],
)
def test_the_peak_names_what_a_pipeline_holds(schedule, ranks, kinds, tmp_path):
    asked = PipelineExperiment(**SMALL, schedule=schedule, ranks=ranks, micro_batches=4, steps=2)
    trace = asked.run(directory=tmp_path / "run", ledger=True).wait()
    alive = [each for rank in range(ranks) for each in trace.at_peak(rank)]
    for kind, name in kinds.items():
        names = [each.name for each in alive if each.kind == kind]
        assert names and [each for each in names if not re.fullmatch(name, each)] == []


def replaced_and_frozen(rank):
    """The owner replaces the weights between two steps, and freezes the first stage: the next step
    sees both."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    stage = torch.nn.Linear(6, 6, dtype=torch.float64)
    pipeline = Pipeline(
        stage, Schedule.named("1f1b")(2, 2), torch.nn.functional.mse_loss, rank.group()
    )
    pipeline.step(x, x)
    for parameter in stage.parameters():
        parameter.data = torch.full_like(parameter, 0.1 * (rank.index + 1))
    stage.zero_grad()
    stage.requires_grad_(rank.index == 1)
    loss = pipeline.step(x, x)
    gradients = [p.grad for p in stage.parameters()]
    assert (gradients[0] is None) == (rank.index == 0)
    return {"loss": loss.numpy(), "gradient": gradients[0].numpy()} if rank.index else {}


def test_a_step_takes_the_weights_as_their_owner_left_them(tmp_path):
    run = launch(replaced_and_frozen, ranks=2, directory=tmp_path / "run")
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = [torch.full((6, 6), 0.1 * n, dtype=torch.float64) for n in (1, 2)]
    weights[1].requires_grad_()
    loss = torch.nn.functional.mse_loss((x @ weights[0].T + 0.1) @ weights[1].T + 0.2, x)
    loss.backward()
    assert (
        tensors_differ(
            run.result, {"loss": loss.detach().numpy(), "gradient": weights[1].grad.numpy()}
        )
        == []
    )
