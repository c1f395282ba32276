"""What a panel keeps: what was pinned, and the runs in its folder; and what it does while a
prediction or a picture is long."""

import html
import json
import shutil
import threading
from pathlib import Path

import pytest

from bigtrain_lab import Impossible, Panel, RankFailed, show
from bigtrain_lab.core import MEMORY_KINDS
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.experiments.staleness import Staleness
from bigtrain_lab.panel.bar import COMMAND, HISTORY, WHY
from bigtrain_lab.panel.picture import steps_drawn, window
from bigtrain_lab.view import report
from bigtrain_lab.view.player import pack
from tests.unit.ranks import until
from tests.unit.strangers import tell
from tests.unit.test_panel import panel, patient, ran  # noqa: F401  (fixtures)
from tests.unit.waves import Waves, parts, said

pytestmark = pytest.mark.slow  # each has runs of its own


# -- Pin -------------------------------------------------------------------------------------------


def test_pin_keeps_the_prediction_where_nothing_ran(panel):
    before = panel.traces["predicted"]
    panel.bar.pin.click()
    panel.set(micro_batches=4)
    assert (panel.rows[0].pinned, panel.rows[0].predicted) == (
        report.Amount(9, "slot"),
        report.Amount(15, "slot"),
    )
    for words in (">pinned: micro-batches 2, now 4<", "pinned (predicted)", ">+66.7%<"):
        assert words in said(panel)
    now, own, alone = (
        json.loads(d) for d in (panel.player.data, pack(panel.traces["predicted"]), pack(before))
    )
    assert now == json.loads(pack(panel.traces["predicted"], pinned=before))
    ranks, rows = own["ranks"], len(own["rows"])  # what is pinned stands below, on the same axis
    below = [[row - rows, *told] for row, *told in now["spans"] if row >= rows]
    assert below == alone["spans"] and now["spans"][: -len(below)] == own["spans"]
    assert [[r - ranks, lane] for r, lane in now["rows"][rows:]] == alone["rows"]
    assert now["parts"] == [[ranks, own["end"]], [2 * ranks, alone["end"]]]
    assert now["waits"] == own["waits"] + alone["waits"] and now["end"] == own["end"]
    panel.tabs.value = "pinned"
    assert panel.player.data == pack(before) and panel.player.note == ""


def test_pin_keeps_what_is_looked_at_with_the_settings_that_it_had(panel):
    """On its own tab it takes what belongs to the settings."""
    ran(panel)
    for micro_batches, tab, kept in (
        (4, "predicted", ("predicted", 4)),
        (4, "measured", ("measured", 2)),  # of the run before the move
        (4, "pinned", ("predicted", 4)),
        (2, "pinned", ("modelled", 2)),
    ):
        panel.set(micro_batches=micro_batches)
        panel.tabs.value = tab
        panel.pin()
        assert (panel.pinned.trace.clock, panel.pinned.experiment.micro_batches) == kept


# -- History ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A folder of three runs: a good one, one that failed, and the last; each began in a second of
    its own."""
    folder = tmp_path_factory.mktemp("kept") / "runs"
    for number, experiment in enumerate(
        (Waves(micro_batches=3), Waves(micro_batches=3, trouble="raise"), Waves())
    ):
        run = experiment.run(directory=folder / f"20260101T00000{number}Z-test-waves-0000")
        try:
            run.wait()
        except RankFailed:
            assert number == 1
        tell(run.directory, started=f"2026-01-01T00:00:0{number}+00:00")
    return folder


@pytest.fixture
def kept(three, panel, tmp_path):
    """A panel where these were made, with its list open; and the runs, the newest first."""
    shutil.copytree(three, tmp_path / "runs")
    panel.foot.tabs.value = HISTORY
    return panel, listed(panel)


def listed(panel):
    assert panel.foot.past.html.count("data-row") == len(panel.foot.runs)
    return panel.foot.runs


def press(panel, past, what=""):
    panel.foot.past._handle_custom_msg({"row": panel.foot.runs.index(past), "do": what}, [])


def test_history_lists_the_newest_first_with_what_differs(kept):
    panel, runs = kept
    assert [past.told for past in runs] == [
        "default settings",
        "micro-batches 3, trouble raise",
        "micro-batches 3",
    ]
    assert [past.state for past in runs] == ["done", "failed", "done"]


def test_a_star_lifts_a_run_and_delete_removes_its_directory(kept):
    panel, (last, failed, first) = kept
    press(panel, first, "star")
    assert listed(panel) == [first, last, failed] and panel.foot.past.html.count("★") == 1
    press(panel, first, "star")
    assert listed(panel) == [last, failed, first] and "★" not in panel.foot.past.html
    press(panel, failed, "delete")
    assert listed(panel) == [last, first] and not failed.directory.exists()
    with pytest.raises(Impossible, match="goes on: stop it"):
        last._replace(state="running").delete()
    assert last.directory.exists() and panel.experiment == Waves()


def test_choosing_reopens_settings_traces_and_failure(kept):
    panel, (last, failed, first) = kept
    press(panel, first)
    assert panel.experiment.micro_batches == panel.controls["micro_batches"].value == 3
    assert not panel.stale and panel.problem == ""
    assert panel.rows[1].modelled.value == 6 and "reopened" in panel.status.value
    press(panel, failed)
    assert "the wave broke" in panel.problem and panel.controls["trouble"].value == "raise"
    assert not panel.run_button.disabled
    press(panel, last)
    assert panel.problem == "" and panel.experiment == Waves()
    panel.foot.tabs.value = HISTORY  # the failure had opened its own
    ran(panel, micro_batches=4)  # the list is read again
    assert len(listed(panel)) == 4
    assert "reopened" not in panel.status.value


def test_damaged_and_foreign_runs_say_why(kept):
    panel, (last, failed, first) = kept
    (first.directory / "settings.json").write_text("{")
    tell(
        failed.directory,
        settings={
            **Waves(trouble="raise").model_dump(),
            "experiment": "test-waves",
            "colour": "red",
        },
    )
    Path("runs/empty").mkdir()
    panel.foot.tabs.value = WHY
    panel.foot.tabs.value = HISTORY
    found, before = listed(panel), panel.experiment
    assert [past.state for past in found] == ["done", "failed", "damaged", "damaged"]
    for past in found[1:]:
        press(panel, past)
        assert panel.experiment is before and panel.problem.startswith(
            "test-waves has no setting 'colour'" if past is found[1] else past.told
        )
    press(panel, found[0])
    assert panel.problem == ""


def test_what_a_class_raises_about_a_kept_run_is_told_beside_it(kept, monkeypatch):
    panel, (last, _, first) = kept
    press(panel, first)
    monkeypatch.setattr(Waves, "restored", lambda *told: 1 / 0)
    press(panel, last)
    assert panel.problem.startswith("ZeroDivisionError: division by zero (in")
    assert panel.run.directory.samefile(first.directory)


def test_a_run_that_lost_its_end_shows_what_is_whole(kept):
    panel, (last, *_) = kept
    log = last.directory / "events-1.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[: len(lines) // 2]))
    panel.reopen(last.directory)
    assert "log of rank 1" in panel.problem and "what is whole is shown" in panel.problem
    assert panel.player in parts(panel) and panel.traces["modelled"].spans(0)


def test_a_run_of_another_experiment_brings_its_controls(kept):
    panel, _ = kept
    Staleness(ranks=2, micro_batches=2, steps=1).run().wait()
    panel.foot.tabs.value = WHY
    panel.foot.tabs.value = HISTORY
    runs = listed(panel)
    assert [past.name for past in runs] == [*["test-waves"] * 3, "staleness"]  # its own first
    panel.pin()
    press(panel, runs[3])
    assert type(panel.experiment) is Staleness and "learning_rate" in panel.controls
    assert panel.rows[0].modelled == panel.rows[0].predicted
    assert "pinned: experiment test-waves, now staleness" in said(panel)


def test_no_run_is_reopened_while_one_goes_on_and_its_end_is_listed(panel, tmp_path):
    panel.foot.tabs.value = HISTORY
    assert listed(panel) == [] and "no runs in runs/ yet" in panel.foot.past.html
    before = ran(panel).run.directory
    assert len(listed(panel)) == 1
    panel.set(gate=str(tmp_path / "gate"))
    panel.start()
    assert panel.foot.past.waiting
    with pytest.raises(Impossible, match="A run goes on in this panel"):
        panel.reopen(before)
    (tmp_path / "gate").touch()
    panel.wait()
    assert len(listed(panel)) == panel.foot.past.html.count("<td>step time ") == 2


# -- commands --------------------------------------------------------------------------------------


def test_each_command_is_copied_by_its_button_and_none_stays_for_what_cannot_be(panel):
    sent = []
    panel.player.send = lambda message: sent.append(message["text"])
    panel.foot.tabs.value = COMMAND
    assert sent == ["bigtrain run test-waves"]
    for row in panel.foot.lines.children:
        row.children[0].click()
        assert sent[-1] in html.unescape(row.children[1].value)
    assert sent[1:] == [*report.commands(panel.experiment).values()]
    assert sum("torchrun" in text for text in sent) == 2
    panel.set(ranks=4)
    assert panel.problem and "bigtrain run" not in said(panel)


# -- long predictions ------------------------------------------------------------------------------


def test_a_long_prediction_leaves_the_kernel_free_and_is_passed_by_the_next_move(
    panel, monkeypatch
):
    gate, real = threading.Event(), Waves.predict
    monkeypatch.setattr(
        Waves,
        "predict",
        lambda self: real(self) if self.micro_batches < 5 or gate.wait(60) else None,
    )
    for patience, seconds in (("PATIENCE_S", 0.01), ("STUCK_S", 1)):
        monkeypatch.setattr(f"bigtrain_lab.panel.settings.{patience}", seconds)
    panel.controls["micro_batches"].value = 6
    assert "btl-waiting" in panel._dom_classes and panel.experiment.micro_batches == 2
    assert panel.run_button.disabled and panel.start() is None and panel.bar.pin.disabled
    panel.controls["micro_batches"].value = 7
    gate.set()
    until(lambda: panel.experiment.micro_batches != 2)
    assert panel.experiment.micro_batches == 7  # 6 was passed
    until(lambda: "btl-waiting" not in panel._dom_classes and not panel.run_button.disabled)
    assert panel.rows[0].predicted == report.Amount(24, "slot")


# -- long traces -----------------------------------------------------------------------------------


def test_a_window_is_the_steps_asked_for_with_what_was_held_before():
    long = PipelineExperiment(steps=10).predict()
    part = window(long, 3, 2)
    assert {int(s.name.split("F")[1]) for s in part.where(kind="F").spans()} == set(range(24, 40))
    assert part.steps == 2 and part.step_time == long.step_time == 33
    start = min(s.start for s in part.spans())
    for rank in range(4):
        assert part.peak_bytes(rank) == long.peak_bytes(rank)
        for kind in MEMORY_KINDS:
            held = [level for tick, level in long.levels(rank, kind) if tick <= start]
            assert part.levels(rank, kind)[0][1] == (held[-1] if held else 0)


def test_the_steps_of_a_long_trace_can_be_chosen():
    shown = show("pipeline", steps=100)
    first, trace = shown.picture.first, shown.traces["predicted"]
    count = steps_drawn(trace)
    assert first in parts(shown) and first.max == 101 - count
    assert shown.player.data == pack(window(trace, 0, count), whole=trace)
    first.value = 50
    assert shown.player.data == pack(window(trace, 49, count), whole=trace)
    assert f"steps 50 to {49 + count} of 100" in said(shown)
    shown.set(steps=3)
    assert first not in parts(shown) and shown.player.data == pack(shown.traces["predicted"])


def test_a_panel_whose_first_settings_cannot_be_says_why_and_can_be_mended():
    made = Panel(Waves(ranks=4))
    made.tabs.value = "measured"
    assert made.problem.startswith("4 ranks need") and made.bar.pin.disabled
    made.set(ranks=2)
    assert made.problem == "" and made.rows[0].predicted == report.Amount(9, "slot")


def test_a_run_that_did_nothing_before_it_failed_says_so_where_its_picture_would_be(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    panel = Panel(
        "staleness", ranks=2, micro_batches=2, steps=1, fault="exit", fault_rank=0, fault_at=0
    )
    with pytest.raises(RankFailed):
        ran(panel)
    assert panel.player.note.startswith("No action was done") and not panel.player.data
