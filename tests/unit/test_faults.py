"""Faults on purpose: each is real, told as what it is, in every lab; waits through collectives;
where a NaN began."""

import json
import time
from xml.etree import ElementTree

import pytest
import torch

from bigtrain_lab.checks import clocks_differ
from bigtrain_lab.core import Impossible
from bigtrain_lab.experiments import Experiment
from bigtrain_lab.experiments.compilers import Compile
from bigtrain_lab.experiments.one_device import OneDevice
from bigtrain_lab.order.explain import NOT_FINITE, not_finite
from bigtrain_lab.order.schedule import Action
from bigtrain_lab.runtime import RankFailed, Run, launch
from bigtrain_lab.runtime.failure.faults import FAULTS, Fault
from bigtrain_lab.runtime.failure.wait_graph import RankState
from bigtrain_lab.runtime.record.log import Log
from bigtrain_lab.runtime.talk.recording import is_finite
from bigtrain_lab.view.figures.waits import drawing
from bigtrain_lab.view.report import command, reported
from bigtrain_lab.view.table import trouble
from tests.unit.ranks import fails, last_mark, ranks_alive, step, warm_up

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
    "kill": "Rank 1 was killed by signal 9 (SIGKILL; out of memory?); rank 1 was in 1F3.",
    "deadlock": (
        "Deadlock: rank 1 waits for a go-ahead from rank 2; rank 2 waits for a go-ahead from rank"
        " 1. Meanwhile rank 0 waits for "
    ),
    "hang": "Rank 1 hangs: no progress for 1 s at ",
}


@pytest.fixture(scope="module")
def server():
    warm_up()


def lab(name: str, fault: str, **settings) -> Experiment:
    """1F1B on four ranks: rank 1 forwards 0, 1 and 2, backs 0, forwards 3."""
    return Experiment.named(name)(
        **{**LABS[name], "fault": fault, "fault_rank": 1, "fault_at": 4, **settings}
    )


@pytest.mark.parametrize("fault", TOLD)
def test_a_fault_that_ends_the_run_is_named_and_nothing_is_left(fault, tmp_path):
    run = lab("faults", fault).run(
        directory=tmp_path / "run", **({"stall_s": 1.0} if fault == "hang" else {})
    )
    while fault == "hang" and [last_mark(run.directory, rank) for rank in range(4)] != [
        "@wait",
        "@enter",
        "@wait",
        "@wait",
    ]:
        with open(run.directory / "rank-0.log", "a") as log:
            log.write("\n")  # a slow start is no stall
        time.sleep(0.05)
    with pytest.raises(RankFailed):
        run.wait()
    assert run.diagnosis.startswith(TOLD[fault])
    assert ranks_alive() == []
    logs = [Log.read(run.directory / f"events-{rank}.jsonl") for rank in range(4)]
    assert [log.state for log in logs] == ["cut off"] * 4  # whole lines to the last, and no "@done"
    assert [s.name for s in run.trace().spans(1)] == [
        "1F0",
        "1F1",
        "1F2",
        "1B0",
    ]  # what came before is all there
    one = run.waits[1]
    assert (one.state, one.what) == {
        "raise": ("failed", "OnPurpose"),
        "exit": ("failed", "exit code 3"),
        "kill": ("failed", "SIGKILL"),
        "deadlock": ("waits", "a go-ahead"),
        "hang": ("works", "in 1F3"),
    }[fault]
    assert [w.cycle for w in run.waits] == [False, fault == "deadlock", fault == "deadlock", False]
    if fault in ("deadlock", "hang"):  # else the first rank may be at work still
        assert run.waits[0].on == (1,) and "pipeline.py:" in run.waits[0].line
    assert Run.open(run.directory).waits == run.waits


@pytest.mark.parametrize("name", ["faults", pytest.param("pipeline", marks=pytest.mark.slow)])
def test_a_straggler_is_slow_on_both_clocks_and_no_result_changes(name, tmp_path):
    slow, well = lab(name, "straggler", fault_factor=2.5), lab(name, "none")
    assert slow.predict().busy(1) == 2.5 * well.predict().busy(1) and slow.predict().busy(
        2
    ) == well.predict().busy(2)
    run = slow.run(directory=tmp_path / "run")
    assert clocks_differ(slow.predict(), run.wait()) == [] == not_finite(run.wait())
    found = slow.reference()
    assert all(abs(run.result[key] - found[key]).max() <= 1e-5 for key in found)


def test_a_straggler_really_takes_longer(tmp_path):
    def program(rank):
        with rank.span(step(rank, 0)):
            time.sleep(0.1)

    spans = (
        launch(
            program,
            2,
            cost={"F": 1},
            fault=Fault("straggler", 1, factor=3),
            directory=tmp_path / "run",
        ).wait()
        and Run.open(tmp_path / "run").trace("measured").spans()
    )
    assert min(s.end - s.start for s in spans if s.rank == 1) >= 3 * 0.1e9
    assert [s.end - s.start for s in Run.open(tmp_path / "run").trace().spans()] == [1000, 3000]


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
    assert told in asked.explain(trace)[1 if name == "faults" else 0]
    assert "the first report of one is the loss in 3F3 (rank 3)" in " ".join(asked.explain(trace))
    assert [torch.isfinite(torch.as_tensor(x)).item() for x in run.result["loss"]] == [True] * 3 + [
        False
    ] * 5
    noted = [(e.rank, e.name) for e in trace if e.kind == NOT_FINITE]
    assert (
        len(noted) == 5 and (1, "1F3") in noted
    )  # once what each rank sent, once what it reported
    assert len(reported(trace)) == 1  # what is not finite is no number that a rank reported
    assert json.loads((run.directory / "end.json").read_text())["waits"] == []


@pytest.mark.parametrize(
    "values, finite",
    [
        ([1.0, 2.0], True),
        ([1.0, float("nan")], False),
        ([float("inf"), 1.0], False),
        ([float("inf"), float("-inf")], False),
        ([3e38, 3e38], True),
        ([], True),
    ],
)
def test_what_is_finite(values, finite):
    assert is_finite(torch.tensor(values, dtype=torch.float32)) == finite
    assert is_finite(torch.tensor([1, 2]))


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"fault": "flood"}, "There is no fault 'flood': choose one of none, raise"),
        ({"fault": "kill", "fault_rank": 4}, "The fault is on rank 4, and there are ranks 0 to 3"),
        (
            {"fault": "kill", "fault_at": 18},
            "The fault is at action 18 of rank 1, which has actions 0 to 17",
        ),
        ({"fault": "deadlock", "fault_rank": 0, "ranks": 1}, "A deadlock takes two ranks"),
        (
            {"fault": "nan", "fault_rank": 9},
            "fault-rank is 9: it must be a whole number from 0 to 7",
        ),
    ],
)
def test_a_fault_that_cannot_be(settings, sentence):
    with pytest.raises(Impossible, match=sentence):
        lab("faults", **{"fault": "kill", **settings})


def test_a_fault_that_a_launch_cannot_have(tmp_path):
    for options in (
        {"fault": Fault("kill", 2)},
        {"fault": Fault("kill"), "record": False},
        {"fault": Fault("deadlock"), "ranks": 1},
    ):
        with pytest.raises(Impossible):
            launch(lambda rank: None, **{"ranks": 2, **options}, directory=tmp_path / "run")
    assert "told no weights" in fails(program_of_one_span, 2, fault=Fault("nan", 1)).diagnosis


def program_of_one_span(rank):
    with rank.span((Action("F", rank.index, 0),)):
        pass


@pytest.mark.parametrize("name, cls", Experiment.all().items())
def test_every_lab_has_the_switch_behind_its_own_settings(name, cls):
    fields = list(cls.model_fields)
    assert (
        fields[:2] == ["fault", "fault_rank"]
        if name == "faults"
        else fields[-4:] == ["fault", "fault_rank", "fault_at", "fault_factor"]
    )
    assert cls.knobs()["fault"].menu() == list(FAULTS) and cls().fault == "none"
    values = cls().model_dump()
    idle = [
        cls.idle_settings({**values, "fault": fault}) & {"fault_rank", "fault_at", "fault_factor"}
        for fault in ("none", "straggler", "kill")
    ]
    only = (
        {"fault_rank"} if issubclass(cls, (OneDevice, Compile)) else set()
    )  # one rank: there is no choice
    assert idle == [
        {"fault_rank", "fault_at", "fault_factor"},
        {"fault_at"} | only,
        {"fault_factor"} | only,
    ]
    assert command(cls()) == f"bigtrain run {name}"
    if only:
        assert cls(fault="kill", fault_rank=2).misfortune.rank == 0
    else:
        rank = min(2, cls().ranks - 1)
        assert (
            command(cls(fault="kill", fault_rank=rank))
            == f"bigtrain run {name} --fault kill --fault-rank {rank}"
        )


def test_the_symptom_is_told_after_the_run_and_not_before():
    asked = lab("faults", "nan", guess="it is slower")
    before, after = (
        asked.explain(asked.predict()),
        asked.explain(asked.predict().__class__.of([], "modelled")),
    )
    assert before[0].startswith("Before you run it") and not any(
        "not a number" in s for s in before
    )
    assert after[1] == "You guessed: it is slower. No: its loss is not a number."
    assert all(lab("faults", fault).describe() for fault in FAULTS)


# -- collectives -----------------------------------------------------------------------------------


def test_a_forgotten_collective_is_told_long_before_the_stall_limit():
    def program(rank):
        if rank.index != 1:
            rank.group().all_reduce(torch.ones(1), name="gradients")
        rank.group().recv((rank.index + 1) % 3, name="x")

    run = fails(program, stall_s=1000)
    told, *lines = run.diagnosis.splitlines()
    assert told in (
        (
            "Deadlock: rank 2 waits in gradients for rank 1; rank 1 waits for x from rank 2. "
            "Meanwhile rank 0 waits in gradients for rank 1."
        ),
        (
            "Deadlock: rank 1 waits for x from rank 2; rank 2 waits in gradients for rank 1. "
            "Meanwhile rank 0 waits in gradients for rank 1."
        ),
    )
    assert len(lines) == 2 and all(
        f"{__file__}:{program.__code__.co_firstlineno + i}" in " ".join(lines) for i in (2, 3)
    )
    assert run.waits[0].on == (1,) and [w.cycle for w in run.waits] == [False, True, True]


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


def test_groups_on_other_axes_have_collectives_of_their_own(tmp_path):
    from bigtrain_lab.core import Mesh

    def program(rank):
        for axis in ("dp", "pp") if rank.index % 2 else ("dp", "pp", "dp"):
            if axis == "pp" or len(rank.mesh.peers(rank.index, axis)) == 2:
                rank.group(axis).all_reduce(torch.ones(1))

    # ranks 0 and 2 share a "dp" group, 1 and 3 another: 0 and 2 call once more, and nobody waits
    # for the others
    launch(program, 4, mesh=Mesh(dp=2, pp=2), directory=tmp_path / "run").wait()


# -- the picture -----------------------------------------------------------------------------------


def test_the_picture_of_waits():
    waits = (
        RankState(0, "waits", "1B1", (1,), "/x/pipeline.py:96, in step: a", False),
        RankState(1, "waits", "<b>", (2,), "line 4 of a notebook cell, in f: b", True),
        RankState(2, "waits", "c", (1,), "", True),
        RankState(3, "finished", "", (), "", False),
    )
    picture = ElementTree.fromstring(drawing(waits))  # well-formed, whatever a message is called
    texts = [t.text or (t[0].tail if len(t) else "") for t in picture.iter("text")]
    assert len(list(picture.iter("circle"))) == 4 and len(list(picture.iter("polygon"))) == 3
    assert {"1B1", "<b>", "c", "rank 0 waits", "rank 3 finished"} <= set(texts)
    assert [p.get("stroke-width") for p in picture.iter("path")] == ["1.2", "2.4", "2.4"]
    assert {t[0].tail for t in picture.iter("text") if len(t)} == {
        "pipeline.py:96",
        "cell, line 4",
        None,
    }
    assert drawing(waits[3:]) == drawing(()) == ""


def test_the_panel_shows_the_sentence_and_the_picture():
    run = fails(lambda rank: rank.group().recv(1 - rank.index, name="x"), 2)
    assert "<svg" in trouble(run.diagnosis, run) and "Deadlock: rank 0 waits for x" in trouble(
        run.diagnosis, run
    )
    assert "<svg" not in trouble("Take 2 ranks.")
