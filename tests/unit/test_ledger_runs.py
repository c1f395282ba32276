"""The ledger in a run: kinds at action boundaries, readings that reach the peak, who was alive
then, also when a rank fails."""

import json
import re
from operator import attrgetter

import pytest
import torch

from bigtrain_lab import Action, RankFailed, Run, launch
from bigtrain_lab.core import Alive, Memory, peak, readings
from bigtrain_lab.models import GPT, GPTConfig, cross_entropy
from bigtrain_lab.runtime.memory.balance import READINGS

L, D, H, S, V, B, STEPS = 2, 16, 2, 16, 32, 4, 2
WEIGHTS = 4 * (12 * L * D * D + 13 * L * D + (2 * V + S + 2) * D)
ADAM = 2 * WEIGHTS + 4 * (12 * L + 5)
SAVED = 4 * (
    L * (16 * B * S * D + 4 * B * S + B * H * S * S) + 2 * B * S * D + 2 * B * S + B * S * V
)
PEAK = (
    WEIGHTS + ADAM + SAVED + 4 * (2 * B * S * V + B * S + 2)
)  # in the second backward, as test_ledger.py counts it


def program(rank):
    model = GPT(GPTConfig(layers=L, width=D, heads=H, sequence=S, vocabulary=V))
    optimizer = torch.optim.Adam(model.parameters())
    ids = torch.zeros(B, S, dtype=torch.int64)
    rank.watch(
        lambda: {
            "weights": dict(model.named_parameters()),
            "inputs": [ids],
            "gradients": {f"{name}.grad": p.grad for name, p in model.named_parameters()},
            "optimizer": [value for state in optimizer.state.values() for value in state.values()],
        }
    )
    for step in range(STEPS):
        with rank.span(Action("F", 0, step)):
            loss = cross_entropy(model(ids), ids)
        with rank.span(Action("B", 0, step)):
            loss.backward()
        with rank.span(Action("U", 0, step)):
            optimizer.step()
            optimizer.zero_grad()


def started(directory, **options) -> Run:
    return launch(
        program,
        1,
        cost={"F": 1, "B": 2, "U": 1},
        steps=STEPS,
        directory=directory,
        **{"ledger": True, **options},
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """With a ledger, with a meter, and with too little memory by one byte."""
    place = tmp_path_factory.mktemp("runs")
    found = {
        "ledger": started(place / "ledger"),
        "meter": started(place / "meter", ledger=False),
        "short": started(place / "short", capacity_bytes=PEAK - 1),
        "enough": started(place / "enough", capacity_bytes=PEAK),
    }
    for name in ("ledger", "meter", "enough"):
        found[name].wait()
    with pytest.raises(RankFailed):
        found["short"].wait()
    return found


def test_the_levels_at_actions_are_those_of_a_meter(runs):
    """But for the loss, which is a temporary that a meter does not see."""
    ours, theirs = (
        {
            kind: runs[name].trace().levels(0, kind)
            for kind in ("weights", "gradients", "optimizer", "activations")
        }
        for name in ("ledger", "meter")
    )
    assert ours == theirs and max(size for _, size in ours["activations"]) == SAVED
    assert {size for _, size in runs["ledger"].trace().levels(0, "temporaries")} == {0, 4}


def test_at_the_peak_all_are_alive_in_both_traces(runs):
    modelled, measured = (runs["ledger"].trace(clock) for clock in ("modelled", "measured"))
    for trace in (modelled, measured):
        assert sum(a.bytes for a in trace.at_peak(0)) == PEAK
        backward = next(s for s in trace.spans(0) if s.name == "0B1")
        assert all(backward.start < a.start < backward.end for a in trace.at_peak(0))
        assert (
            (peak(trace, 0).place, peak(trace, 0).bytes)
            == ("in 0B1", PEAK)
            == (max(readings(trace, 0), key=attrgetter("bytes")).place, PEAK)
        )
    found = {(a.kind, a.name, a.module, a.made) for a in modelled.at_peak(0)}
    assert ("activations", "gelu", "layers.1.mlp", "0F1") in found and (
        "temporaries",
        "scatter_add",
        "",
        "0B1",
    ) in found


def test_readings_inside_an_action_are_of_all_kinds_and_few(runs):
    found = inside(runs["ledger"].trace("measured"))
    assert {"gradients", "activations", "temporaries", "optimizer"} <= {e.kind for e in found}
    for name in {e.name for e in found}:
        assert len({e.start for e in found if e.name == name}) <= READINGS


def inside(trace):
    return [e for e in trace if isinstance(e, Memory) and e.inside]


def test_without_a_modelled_clock_the_readings_are_measured(tmp_path):
    run = started(tmp_path / "run", clock=False)
    assert (
        run.wait().clock == "measured"
        and peak(run.trace(), 0).bytes == PEAK
        and inside(run.trace())
    )


def test_too_little_memory_by_a_byte_ends_the_rank_at_that_operator(runs):
    short = runs["short"]
    assert re.search("Rank 0 runs out .* at 0B1: scatter_add .* 1 byte too few", short.diagnosis)
    for clock in ("modelled", "measured"):
        assert peak(short.trace(clock), 0).place == "in an action that did not end"
    for run in (short, runs["enough"]):  # who was alive is told of a failure too
        assert sum(a.bytes for a in run.trace().at_peak(0)) == PEAK


def test_the_log_stays_small_and_keeps_the_last_peak_only(runs):
    path = runs["ledger"].directory / "events-0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert 1 <= sum(line[0] == "alive" for line in lines) <= 3 and path.stat().st_size < 60_000
    with open(path, "a") as file:  # a run of many seconds tells more than one
        file.write(
            json.dumps(
                ["alive", 10**15, 0, "compute", 10**6, [["weights", "w", 7, [7], "uint8", "", ""]]]
            )
            + "\n"
        )
    assert [
        (e.name, e.bytes, e.shape) for e in Run.open(path.parent).trace() if isinstance(e, Alive)
    ] == [("w", 7, (7,))]
