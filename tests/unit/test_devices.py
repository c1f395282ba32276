"""Which device each rank gets, by what is there. No GPU is needed: the rule is a pure function."""

import json

import pytest
import torch

from bigtrain_lab import Impossible, launch
from bigtrain_lab.runtime.devices import GLOO, NCCL, Node, choose


@pytest.mark.parametrize(
    "nodes, of, backend, why",
    [
        ([Node(2, 2)], ["cuda:0", "cuda:1"], NCCL, "one GPU a rank: NCCL"),
        ([Node(2, 8)], ["cuda:0", "cuda:1"], NCCL, "one GPU a rank"),
        ([Node(1, 1)], ["cuda:0"], NCCL, "one GPU a rank"),
        (
            [Node(4, 2)],
            ["cuda:0", "cuda:0", "cuda:1", "cuda:1"],
            GLOO,
            "4 ranks share 2 GPUs through gloo",
        ),
        ([Node(3, 2)], ["cuda:0", "cuda:0", "cuda:1"], GLOO, "3 ranks share 2 GPUs"),
        ([Node(4, 1)], ["cuda:0"] * 4, GLOO, "4 ranks share 1 GPU through gloo"),
        ([Node(4, 0)], ["cpu"] * 4, GLOO, "CPU and gloo: no GPU is visible"),
        ([Node(2, 2), Node(2, 2)], ["cuda:0", "cuda:1"] * 2, NCCL, "one GPU a rank"),
        (
            [Node(2, 2), Node(2, 1)],
            ["cuda:0", "cuda:1", "cuda:0", "cuda:0"],
            GLOO,
            "2 ranks share 1 GPU",
        ),
        ([Node(2, 2), Node(2, 0)], ["cpu"] * 4, GLOO, "no GPU is visible on node 1"),
    ],
)
def test_what_is_there_decides(nodes, of, backend, why):
    found = choose(nodes)
    assert (list(found.of), found.backend) == (of, backend) and why in found.why


def test_what_is_asked_for_is_done_or_refused():
    assert (
        set(choose([Node(4, 4)], "cpu").of) == {"cpu"}
        and "as asked" in choose([Node(4, 4)], "cpu").why
    )
    assert choose([Node(2, 2)], nccl=False).backend == GLOO and choose(
        [Node(2, 2)], nccl=False
    ).of == ("cuda:0", "cuda:1")
    with pytest.raises(Impossible, match="No GPU is visible: choose device cpu or auto"):
        choose([Node(2, 0)], "cuda")


def test_a_run_says_what_was_chosen_and_why(tmp_path, monkeypatch):
    """The CPU unless GPUs are asked for, also where there are some."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    run = launch(
        lambda rank: {f"on{rank.index}": rank.device.type == "cpu"}, 2, directory=tmp_path / "run"
    )
    assert {name: bool(value) for name, value in run.result.items()} == {"on0": True, "on1": True}
    told = json.loads((tmp_path / "run" / "environment.json").read_text())["devices"]
    assert (
        told == {"of": ["cpu", "cpu"], "backend": GLOO, "why": "CPU and gloo: as asked"}
        and run.settings["device"] == "cpu"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_compute_on_gpus(tmp_path, ranks):
    """Where there is a GPU: one rank alone, and two that share it where there is one, train as on
    the CPU."""
    from bigtrain_lab.experiments.pipeline import PipelineExperiment

    lab = PipelineExperiment(
        ranks=ranks, micro_batches=2, steps=2, layers=2, width=16, sequence=8, dtype="float64"
    )
    run, alone = lab.run(directory=tmp_path / "run", device="cuda"), lab.reference()
    assert run.wait().clock == "modelled"
    for name, value in run.result.items():
        assert torch.allclose(
            torch.as_tensor(value), torch.as_tensor(alone[name]), rtol=1e-9, atol=1e-12
        )


def arrives(rank):
    """What one rank sends lies on the other's device when it has arrived; "meta" stands for a
    GPU."""
    group = rank.group()
    group.device = torch.device("meta")
    if rank.index == 0:
        group.isend(torch.ones(2), 1, name="x")
        return {}
    return {"there": group.recv(0, name="x").device == group.device}


@pytest.mark.parametrize("options", [{"cost": {"F": 1}}, {}, {"record": False}])
def test_messages_go_over_the_host_and_arrive_on_the_device(tmp_path, options):
    assert launch(arrives, 2, directory=tmp_path / "run", **options).result["there"]
