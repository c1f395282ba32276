"""Faults on purpose: each is real, told as what it is, in every lab; waits through collectives;
where a NaN began."""

import re
import time
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

from bigtrain_lab import Experiment, Impossible, Run, launch
from bigtrain_lab.checks import clocks_differ
from bigtrain_lab.experiments.faults import Faults
from bigtrain_lab.experiments.memory import MemoryExperiment
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.order.explain import NOT_FINITE
from bigtrain_lab.runtime.failure.faults import FAULTS, Fault
from bigtrain_lab.runtime.failure.wait_graph import RankState
from bigtrain_lab.runtime.record.log import Log
from bigtrain_lab.view.report import command, reported
from bigtrain_lab.view.table import trouble
from bigtrain_lab.view.waits import drawing
from tests.unit.ranks import failed, fails, step

pytestmark = pytest.mark.usefixtures("server")
LABS = {
    "faults": {"micro_batches": 4, "steps": 2},
    "pipeline": {
        "layers": 4,
        "width": 16,
        "heads": 2,
        "sequence": 8,
        "micro_batches": 4,
        "steps": 2,
    },
}
TOLD = {
    "raise": "Rank 1 failed: OnPurpose: the fault that was asked for, in 1F3",
    "exit": "Rank 1 exited with code 3 before its program returned (os._exit?); rank 1 was in 1F3.",
    "kill": "Rank 1 was killed by signal 9 (SIGKILL; out of host memory?); rank 1 was in 1F3.",
    "deadlock": (
        "Deadlock: rank 1 waits for a go-ahead from rank 2; rank 2 waits for a go-ahead from rank"
        " 1. Meanwhile rank 0 waits for "
    ),
    "hang": "Rank 1 hangs: no progress for 1 s at ",
}


def lab(name: str, fault: str, **settings) -> Experiment:
    """1F1B on four ranks: rank 1 forwards 0, 1 and 2, backs 0, forwards 3."""
    return Experiment.named(name)(
        **{**LABS[name], "fault": fault, "fault_rank": 1, "fault_at": 4, **settings}
    )


@pytest.mark.parametrize("fault", TOLD)
def test_a_fault_that_ends_the_run_is_named_and_nothing_is_left(fault, tmp_path):
    hangs = fault == "hang"
    run = failed(
        lab("faults", fault).run(directory=tmp_path / "run", **({"stall_s": 1.0} if hangs else {})),
        ["@wait", "@enter", "@wait", "@wait"] if hangs else None,
    )
    assert run.diagnosis.startswith(TOLD[fault])
    logs = [Log(run.directory / f"events-{rank}.jsonl").read() for rank in range(4)]
    assert [log.state for log in logs] == ["cut off"] * 4  # whole lines to the last, and no "@done"
    assert [s.name for s in run.trace().spans(1)] == [
        "1F0",
        "1F1",
        "1F2",
        "1B0",
    ]  # what came before is all there
    one = run.waits[1]
    assert (one.state, one.what) == {
        "raise": ("failed", "OnPurpose, in 1F3"),
        "exit": ("failed", "exit code 3, in 1F3"),
        "kill": ("failed", "SIGKILL, in 1F3"),
        "deadlock": ("waits", "a go-ahead"),
        "hang": ("works", "in 1F3"),
    }[fault]
    assert [w.cycle for w in run.waits] == [False, fault == "deadlock", fault == "deadlock", False]
    if fault in ("deadlock", "hang"):  # else the first rank may be at work still
        assert run.waits[0].on == (1,) and "pipeline.py:" in run.waits[0].line
    assert Run.open(run.directory).waits == run.waits


def test_ranks_that_are_left_stop_where_the_sentence_says(tmp_path):
    """What they were in then has no box."""
    run = failed(Experiment.named("data-parallel")(fault="kill").run(directory=tmp_path / "run"))
    boxes = {f"rank {span.rank} was in {span.name}" for span in run.trace().spans()}
    assert boxes.isdisjoint(re.findall(r"rank \d was in \w+", run.diagnosis))


@pytest.mark.parametrize("name", LABS)
def test_a_straggler_is_slow_in_the_prediction(name):
    """And in a run alike, with the same results: the table of parity/."""
    slow, well = lab(name, "straggler", fault_factor=2.5).predict(), lab(name, "none").predict()
    assert slow.busy(1) == 2.5 * well.busy(1) and slow.busy(2) == well.busy(2)


def test_a_straggler_really_takes_longer(tmp_path):
    def program(rank):
        with rank.span(step(rank, 0)):
            time.sleep(0.1)

    run = launch(
        program,
        2,
        cost={"F": 1},
        fault=Fault("straggler", 1, factor=3),
        directory=tmp_path / "run",
    )
    run.wait()
    assert min(s.end - s.start for s in run.trace("measured").spans(1)) >= 3 * 0.1e9
    assert [s.end - s.start for s in run.trace().spans()] == [1000, 3000]


@pytest.mark.parametrize("name", ["faults", pytest.param("pipeline", marks=pytest.mark.slow)])
def test_a_nan_spreads_and_the_run_tells_where_it_began(name, tmp_path):
    asked = lab(name, "nan")
    run = asked.run(directory=tmp_path / "run")
    trace = run.wait()
    assert clocks_differ(asked.predict(), trace) == []
    told = (
        "it began on rank 1; rank 1 sent the first such value in 1F3, and all that it had received"
        " was finite"
    )
    assert told in asked.explain(trace)[0]
    assert "the first report of one is the loss in 3F3 (rank 3)" in " ".join(asked.explain(trace))
    assert [torch.isfinite(torch.as_tensor(x)).item() for x in run.result["loss"]] == [True] * 3 + [
        False
    ] * 5
    assert (1, "1F3") in {(e.rank, e.name) for e in trace if e.kind == NOT_FINITE}
    assert len(reported(trace)) == 1  # what is not finite is no number that a rank reported


@pytest.mark.parametrize(
    "asked, sentence",
    [
        (lambda: lab("faults", "flood"), "fault is 'flood': choose one of none, raise"),
        (
            lambda: launch(print, 2, fault=Fault("flood")),
            "There is no fault 'flood': choose one of none, raise",
        ),
        (
            lambda: lab("faults", "kill", fault_rank=4),
            "The fault is on rank 4, and there are ranks 0 to 3",
        ),
        (
            lambda: lab("faults", "kill", fault_at=18),
            "The fault is at action 18 of rank 1, which has actions 0 to 17",
        ),
        (  # its collectives are no actions
            lambda: Experiment.named("layouts")(fault="kill"),
            "The fault is at action 3 of rank 1, which has actions 0 to 2",
        ),
        (
            lambda: lab("faults", "deadlock", fault_rank=0, ranks=1),
            "A deadlock takes two ranks",
        ),
        (
            lambda: lab("faults", "nan", fault_rank=9),
            "fault-rank is 9: it must be a whole number from 0 to 7",
        ),
        (lambda: launch(print, 2, fault=Fault("kill", 2)), "ranks 0 to 1: choose one"),
        (lambda: launch(print, 2, fault=Fault("kill"), record=False), "leave record=True"),
        (lambda: launch(print, 1, fault=Fault("deadlock")), "A deadlock takes two ranks"),
    ],
)
def test_a_fault_that_cannot_be(asked, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Impossible, match=sentence):
        asked()


def test_a_fault_that_a_program_never_reaches_is_told():
    def program(rank):
        with rank.span(step(rank, 0)):
            pass

    run = fails(program, 2, fault=Fault("kill", 1, 5))
    told = "The fault was to strike at action 5 of rank 1, which made only 1: choose an earlier"
    assert told in run.diagnosis


@pytest.mark.parametrize("cls", Experiment.all().values())
def test_every_lab_has_the_switch(cls):
    assert cls.knobs()["fault"].menu() == list(FAULTS)
    assert cls().fault == ("straggler" if cls is Faults else "none")
    assert command(cls()) == f"bigtrain run {cls.name}"


@pytest.mark.parametrize(
    "lab, rank, idle",
    [
        (PipelineExperiment, 2, set()),
        (MemoryExperiment, 0, {"fault_rank"}),  # one rank: there is no choice
    ],
)
def test_settings_of_a_fault_are_idle_where_it_has_none_of_them(lab, rank, idle):
    struck = lab(fault="kill", fault_rank=2)
    assert struck.misfortune.rank == rank
    own = {"fault_rank", "fault_at", "fault_factor"}
    assert lab.idle_settings(lab().model_dump()) & own == own
    assert lab.idle_settings(struck.model_dump()) & own == {"fault_factor"} | idle


# -- collectives -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [{}, {"cost": {"F": 1}}], ids=["measured", "modelled"])
@pytest.mark.parametrize(
    "calls, told",
    [
        (
            (lambda g: g.all_reduce(torch.ones(3)), lambda g: g.all_reduce(torch.ones(4))),
            (
                "rank 0 all_reduce (sum) of float32 of shape (3,); rank 1 all_reduce (sum) of"
                " float32 of shape (4,)"
            ),
        ),
        ((lambda g: g.all_reduce(torch.ones(3)), lambda g: g.barrier()), "rank 1 barrier"),
        (
            (lambda g: g.broadcast(torch.ones(3)), lambda g: g.broadcast(torch.ones(3), src=1)),
            "rank 0 broadcast from rank 0 of",
        ),
    ],
    ids=["shape", "order", "source"],
)
def test_different_collectives_at_one_time_are_a_sentence(calls, told, mode):
    run = fails(lambda rank: calls[rank.index](rank.group()), 2, **mode)
    assert (
        "The ranks call different collectives at one time: " in run.diagnosis
        and told in run.diagnosis
    )


# -- the picture -----------------------------------------------------------------------------------


def test_the_picture_of_waits():
    waits = (
        RankState(0, "waits", "1B1", (1,), "/x/pipeline.py:96, in step: a", False),
        RankState(1, "waits", "<b>", (2,), "line 4 of a notebook cell, in f: b", True),
        RankState(2, "waits", "c", (1,), "", True),
        RankState(3, "finished", "", (), "", False),
    )
    picture = ElementTree.fromstring(drawing(waits))  # well-formed, whatever a message is called
    assert len(list(picture.iter("circle"))) == 4 and len(list(picture.iter("polygon"))) == 3
    assert [p.get("stroke-width") for p in picture.iter("path")] == ["1.2", "2.4", "2.4"]
    assert drawing(waits[3:]) == drawing(()) == ""


def test_who_waits_is_called_as_its_box():
    waits = (
        RankState(0, "waits", "1B1", (1,), "", False),
        RankState(1, "failed", "killed in 1F3", (), "", False),
    )
    told = trouble(
        "rank 1 was in 1F3", SimpleNamespace(waits=waits), PipelineExperiment().predict()
    )
    assert "rank 1 was in F3" in told and "killed in F3" in told and ">B1<" in told
