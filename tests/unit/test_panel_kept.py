"""What a panel keeps: what was pinned, and the runs in its folder; and what it does while a prediction or a picture is long."""

import html
import json
import os
import re
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bigtrain_lab import report
from bigtrain_lab.core import MEMORY_KINDS, Impossible, Knob, Trace
from bigtrain_lab.core.hardware import PROFILES
from bigtrain_lab.experiments import Experiment
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.experiments.staleness import Staleness
from bigtrain_lab.panel import Panel, history, show
from bigtrain_lab.panel.controls import control, put
from bigtrain_lab.panel.picture import DRAWN, Picture, steps_drawn, window
from bigtrain_lab.panel.settings import Newest
from bigtrain_lab.player import pack
from bigtrain_lab.runtime import RankFailed, Run
from bigtrain_lab.runtime.log import Log
from bigtrain_lab.runtime.pulse import this_process
from tests.unit.ranks import until
from tests.unit.test_panel import panel, patient  # noqa: F401  (fixtures)
from tests.unit.waves import Waves

pytestmark = pytest.mark.slow  # each has runs of its own


def ran(panel, **settings):
    """The panel after a run with these settings."""
    panel.set(**settings)
    panel.start()
    panel.wait()
    return panel


# -- Pin ----------------------------------------------------------------------------------------------------------------


def test_pin_keeps_the_prediction_where_nothing_ran(panel):
    before = panel.traces["predicted"]
    panel.bar.pin.click()
    panel.set(micro_batches=4)
    assert (panel.rows[0].pinned, panel.rows[0].predicted) == (
        report.Amount(9, "slot"),
        report.Amount(15, "slot"),
    )
    assert ">pinned: micro-batches 2, now 4<" in panel._results.value
    assert "pinned (predicted)" in panel._results.value and ">+66.7%<" in panel._results.value
    panel.tabs.value = "pinned"
    assert panel.player.data == pack(before) and panel.player.note == ""


def test_a_pinned_run_stands_beside_the_next_one(panel):
    ran(panel)
    panel.pin()
    pinned = panel.traces["modelled"]
    ran(panel, micro_batches=3)
    assert (panel.rows[1].pinned.value, panel.rows[1].modelled.value) == (4, 6)
    assert (
        "pinned (modelled)" in panel._results.value
        and "x 1.5" not in panel._results.value
        and "+50%" in panel._results.value
    )
    panel.tabs.value = "pinned"
    assert (
        panel.player.data == pack(pinned) and "micro-batches" not in panel.picture._about.value
    )  # it had the default
    panel.tabs.value = "modelled"
    assert panel.player.data == pack(panel.traces["modelled"]) != pack(pinned)


def test_pin_again_replaces_and_unpin_takes_away(panel):
    assert panel.bar.unpin.layout.display == "none"
    panel.pin()
    panel.set(micro_batches=4)
    panel.pin()
    assert panel.pinned.experiment.micro_batches == 4 and panel.tabs.options == (
        "predicted",
        "modelled",
        "measured",
        "pinned",
    )
    assert (
        "pinned: with the settings of now" in panel._results.value
        and panel.bar.unpin.layout.display is None
    )
    panel.tabs.value = "pinned"
    panel.bar.unpin.click()
    assert (
        panel.pinned is None
        and panel.tabs.options == ("predicted", "modelled", "measured")
        and panel.tabs.value == "predicted"
    )
    assert "pinned" not in panel._results.value and panel.bar.unpin.layout.display == "none"
    assert panel.player.data == pack(panel.traces["predicted"])


def test_pin_keeps_what_is_looked_at_with_the_settings_that_it_had(panel):
    ran(panel)
    panel.set(micro_batches=4)  # shows the prediction
    panel.pin()
    assert (panel.pinned.trace.clock, panel.pinned.experiment.micro_batches) == ("predicted", 4)
    panel.tabs.value = "measured"  # of the run before the move
    panel.pin()
    assert (panel.pinned.trace.clock, panel.pinned.experiment.micro_batches) == ("measured", 2)


def test_pin_on_its_own_tab_takes_what_belongs_to_the_settings(panel):
    ran(panel)
    panel.pin()
    panel.set(micro_batches=4)
    panel.tabs.value = "pinned"
    panel.pin()
    assert (panel.pinned.trace.clock, panel.pinned.experiment.micro_batches) == ("predicted", 4)
    panel.set(micro_batches=2)
    panel.tabs.value = "pinned"
    panel.pin()
    assert (panel.pinned.trace.clock, panel.pinned.experiment.micro_batches) == ("modelled", 2)


def test_a_stale_run_is_not_what_now_is_compared_with(panel):
    ran(panel)
    panel.pin()
    panel.set(micro_batches=4)
    spans = panel._results.value.split("<td>spans</td>")[1].split("</tr>")[0]
    assert ">x 4.5<" in spans  # 18 are predicted now, 4 are pinned


def test_a_run_of_fewer_ranks_says_nothing_of_the_others():
    shown = show("pipeline", ranks=2, layers=4)
    shown.pin()
    shown.set(ranks=3)
    assert [row.pinned is None for row in shown.rows if "rank" in row.quantity] == [
        False,
        False,
        True,
        False,
    ]
    assert "pinned: ranks 2, now 3" in shown._results.value
    two = shown.pinned.experiment
    shown._compared.end({"modelled": replace(two.predict(), clock="modelled")}, two)
    assert [row.modelled is None for row in shown.rows if "rank" in row.quantity] == [
        False,
        False,
        True,
        False,
    ]


def test_what_cannot_be_is_not_pinned(panel):
    panel.set(ranks=4)
    assert panel.problem and panel.bar.pin.disabled


# -- History ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(panel):
    """A panel after three runs: a good one, one that failed, and the last."""
    ran(panel, micro_batches=3)
    panel.set(trouble="raise")
    panel.start()
    with pytest.raises(RankFailed):
        panel.wait()
    return ran(panel, micro_batches=2, trouble="none")


def age(folder):
    """Give the runs of a folder times of their own, in the order of their names, which begin with a second."""
    for number, directory in enumerate(
        sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    ):
        about = json.loads((directory / "settings.json").read_text())
        (directory / "settings.json").write_text(
            json.dumps({**about, "started": f"2026-01-01T00:00:0{number}+00:00"})
        )


def test_history_lists_the_newest_first_with_what_differs(kept, tmp_path):
    age(tmp_path / "runs")
    kept.bar.history.value = True
    told = [past.told for past in kept.bar.past._options_values]
    assert (
        told == ["default settings", "micro-batches 3, trouble raise", "micro-batches 3"]
        and kept.bar.past.value is None
    )
    assert kept.run._watch and "reopened" not in kept.status.value  # nothing is chosen yet
    assert [past.state for past in kept.bar.past._options_values] == ["done", "failed", "done"]
    assert re.match(
        r"(01 Jan|31 Dec|02 Jan) \d\d:00:02  test-waves  done  default settings$",
        kept.bar.past.options[0][0],
    )
    kept.bar.history.value = False
    assert kept.bar._list.layout.display == "none"


def test_a_line_of_the_list_ends_where_the_panel_does():
    told = ", ".join(f"setting-{number} {number}" for number in range(20))
    line = str(history.Past(Path("run"), "test-waves", "2026-01-01T00:00:00+00:00", "done", told))
    assert (
        line.endswith(" ...") and "setting-4 4" in line and len(line.partition("done  ")[2]) <= 90
    )


def test_choosing_reopens_settings_traces_and_failure(kept, tmp_path):
    age(tmp_path / "runs")
    kept.bar.history.value = True
    last, failed, first = kept.bar.past._options_values
    kept.bar.past.value = first
    assert (
        kept.experiment.micro_batches,
        kept.controls["micro_batches"].value,
        kept.stale,
        kept.problem,
    ) == (3, 3, False, "")
    assert (
        kept.tabs.value == "modelled"
        and kept.rows[1].modelled.value == 6
        and "reopened" in kept.status.value
    )
    assert kept.run._watch is None  # no process is its
    kept.bar.past.value = failed
    assert (
        "the wave broke" in kept.problem
        and kept.controls["trouble"].value == "raise"
        and not kept.run_button.disabled
    )
    kept.bar.past.value = last
    assert (
        kept.problem == ""
        and kept.experiment == Waves()
        and kept.wait(1) == kept.traces["modelled"]
    )
    ran(kept, micro_batches=4)  # the list is read again
    assert (
        kept.bar.past.value is None
        and len(kept.bar.past.options) == 4
        and kept.run._watch
        and "reopened" not in kept.status.value
    )


def test_the_list_is_read_again_when_a_run_ends(panel):
    panel.bar.history.value = True
    assert panel.bar.past.options == () and "no runs in runs/ yet" in panel.bar.about_past.value
    ran(panel)
    assert len(panel.bar.past.options) == 1


def test_damaged_and_foreign_runs_say_why(kept, tmp_path):
    age(tmp_path / "runs")
    first, failed, last = sorted(
        (tmp_path / "runs").iterdir(),
        key=lambda path: json.loads((path / "settings.json").read_text())["started"],
    )
    (first / "settings.json").write_text("{")
    about = json.loads((failed / "settings.json").read_text())
    (failed / "settings.json").write_text(
        json.dumps({**about, "settings": {**about["settings"], "colour": "red"}})
    )
    (tmp_path / "runs/empty").mkdir()
    found, older = history.listed(Waves)
    assert [past.directory.name for past in found][:2] == [last.name, failed.name] and older == 0
    assert {past.state for past in found[2:]} == {"damaged"} and all(
        "is not a run directory" in past.told for past in found[2:]
    )
    before = kept.experiment
    for past in found[1:]:
        kept._choose(past)
        assert kept.experiment is before and kept.problem.startswith(
            "test-waves has no setting 'colour'" if past is found[1] else past.told
        )
    kept._choose(found[0])
    assert kept.problem == ""


def test_a_list_makes_no_experiment_and_reads_no_log(kept, tmp_path, monkeypatch):
    age(tmp_path / "runs")
    gone, going = sorted(
        (tmp_path / "runs").iterdir(),
        key=lambda path: json.loads((path / "settings.json").read_text())["started"],
    )[:2]
    for directory, launcher in (gone, None), (going, this_process()):
        (directory / "end.json").unlink()
        about = json.loads((directory / "settings.json").read_text())
        (directory / "settings.json").write_text(json.dumps({**about, "launcher": launcher}))

    def refuse(*_, **__):
        raise AssertionError("a list needs none of this")

    monkeypatch.setattr(Experiment, "__init__", refuse)
    monkeypatch.setattr(Log, "read", refuse)
    found, _ = history.listed(Waves)
    assert [past.state for past in found] == ["done", "running", "done"]
    assert [past.told for past in found] == [
        "default settings",
        "micro-batches 3, trouble raise",
        "micro-batches 3",
    ]
    (gone / "settings.json").write_text(
        json.dumps({**about, "settings": {"experiment": "nobody's"}})
    )
    assert (
        "cannot be reopened here: There is no experiment called" in history.about(gone, Waves).told
    )


def test_only_the_runs_that_are_listed_are_opened(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(history, "LISTED", 4)
    monkeypatch.setattr(history.Run, "open", lambda path: opened.append(path.name) or Run(path))
    names = [
        "20260101T000000Z-test-waves-0000",
        *(f"2026010{day}T000000Z-pipeline-0000" for day in range(2, 6)),
        "by-hand",
        "an-old-one",
    ]
    for name in names:
        (tmp_path / name).mkdir()
    os.utime(tmp_path / "by-hand", times=(1_767_500_000,) * 2)  # 4 January 2026
    os.utime(tmp_path / "an-old-one", times=(1_700_000_000,) * 2)
    assert history.listed(Waves, tmp_path)[1] == 3
    assert opened == [
        names[0],
        names[4],
        "by-hand",
        names[3],
    ]  # its own first, then the newest of all


def test_what_a_class_raises_about_a_kept_run_is_told_beside_it(kept, tmp_path, monkeypatch):
    age(tmp_path / "runs")
    kept.bar.history.value = True
    last, failed, first = kept.bar.past._options_values

    def broken(self, trace):
        if trace.clock != "predicted":
            raise KeyError("no such rank")
        return []

    monkeypatch.setattr(Waves, "explain", broken)
    kept.bar.past.value = first
    assert (
        kept.problem.startswith("KeyError: 'no such rank' (in broken")
        and kept.experiment.micro_batches == 3
    )
    assert (
        kept.rows[1].modelled.value == 6
        and kept.player.data == pack(kept.traces["modelled"])
        and kept.run.directory == first.directory
    )
    kept.bar.past.value = failed
    assert "the wave broke" in kept.problem and "no such rank" in kept.problem
    monkeypatch.setattr(Waves, "restored", lambda *told: 1 / 0)
    kept.bar.past.value = last
    assert (
        kept.problem.startswith("ZeroDivisionError: division by zero (in")
        and "damaged" not in kept.problem
    )
    assert kept.run.directory == failed.directory and kept.experiment.trouble == "raise"
    with pytest.raises(Impossible, match="ZeroDivisionError"):
        kept.reopen(last.directory)
    monkeypatch.setattr("bigtrain_lab.panel.panel.reopened", lambda *_: [][0])
    kept.bar.past.value = first
    assert kept.problem.startswith("IndexError: list index out of range")


def test_a_run_that_lost_its_end_shows_what_is_whole(kept):
    directory = kept.run.directory
    log = directory / "events-1.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[: len(lines) // 2]))
    kept.reopen(directory)
    assert "The log of rank 1" in kept.problem and "what is whole is shown" in kept.problem
    assert kept.picture.body.layout.display is None and kept.traces["modelled"].spans(0)


def test_a_run_of_another_experiment_brings_its_controls(panel, tmp_path):
    ran(panel)
    Staleness(ranks=2, micro_batches=2, steps=1).run().wait()
    age(tmp_path / "runs")
    panel.bar.history.value = True
    assert [past.name for past in panel.bar.past._options_values] == [
        "test-waves",
        "staleness",
    ]  # its own come first
    panel.pin()
    panel.bar.past.value = panel.bar.past._options_values[1]
    assert (
        type(panel.experiment) is Staleness
        and "learning_rate" in panel.controls
        and "What do old weights do" in panel._heading.value
    )
    assert (
        panel.rows[0].modelled == panel.rows[0].predicted
        and "pinned: experiment test-waves, now staleness" in panel._results.value
    )
    assert [made.description for made in panel.settings.children[0].children][0] == "schedule"


def test_the_oldest_are_counted(kept, monkeypatch):
    monkeypatch.setattr(history, "LISTED", 2)
    kept.bar.history.value = True
    assert len(kept.bar.past.options) == 2 and "1 older run" in kept.bar.about_past.value


def test_no_run_is_reopened_while_one_goes_on(panel, tmp_path):
    before = ran(panel).run.directory
    panel.set(gate=str(tmp_path / "gate"))
    panel.start()
    assert panel.bar.past.disabled
    with pytest.raises(Impossible, match="A run goes on in this panel"):
        panel.reopen(before)
    (tmp_path / "gate").touch()
    panel.wait()


def test_every_kept_setting_finds_its_control(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = PipelineExperiment(
        learning_rate=0.0123, ranks=1, steps=1, layers=1, micro_batches=1, tied=True, rows=3, seed=7
    )
    run = asked.run()
    run.wait()
    shown = show("pipeline")
    shown.reopen(run.directory)
    assert shown.experiment == asked and not shown.stale


def test_a_slider_of_doublings_learns_a_value_between_them():
    made = control("rows", Knob("samples", low=1, high=64, logarithmic=True), int, 8)
    put(made, 24)
    assert made.value == 24


# -- commands ---------------------------------------------------------------------------------------------------------------


def test_each_command_is_copied_by_its_button_and_none_stays_for_what_cannot_be(panel):
    sent = []
    panel.player.send = lambda message: sent.append(message["text"])
    panel.command_button.value = True
    assert sent == ["bigtrain run test-waves"]
    for row in panel.bar.lines.children:
        row.children[0].click()
        assert sent[-1] in html.unescape(row.children[1].value)
    assert (
        sent[1:] == [*report.commands(panel.experiment).values()]
        and sum("torchrun" in text for text in sent) == 2
    )
    panel.set(ranks=4)
    assert panel.problem and panel.bar.lines.layout.display == "none"
    panel.set(ranks=1)
    assert (
        panel.bar.lines.layout.display is None
        and "--ranks 1" in panel.bar.lines.children[0].children[1].value
    )
    panel.command_button.value = False
    assert panel.bar.lines.layout.display == "none"


def test_what_can_be_pressed_has_a_tooltip(panel):
    panel.command_button.value = True
    pressed, parts = [], [panel]
    for part in parts:
        parts += getattr(part, "children", ())
        pressed += [part] if hasattr(part, "icon") or part is panel.bar.past else []
    assert len(pressed) >= 8 and all(
        part.tooltip or part is panel.picture._mend for part in pressed
    )


# -- long predictions -------------------------------------------------------------------------------------------------------


def test_the_newest_call_wins():
    newest, gate, told = Newest(), threading.Event(), []
    assert newest.ask(lambda: "quick", told.append, 60) and told == ["quick"]
    assert not newest.ask(lambda: gate.wait(60) and "first", told.append, 0)
    assert not newest.ask(lambda: "second", told.append, 0)  # never begins
    last = threading.Event()
    assert not newest.ask(lambda: "third", lambda answer: (told.append(answer), last.set()), 0)
    gate.set()
    assert last.wait(60) and told == ["quick", "third"]


def test_an_answer_in_time_comes_in_the_thread_that_asked():
    threads = []
    Newest().ask(
        lambda: threads.append(threading.current_thread()),
        lambda _: threads.append(threading.current_thread()),
    )
    assert threads[0] is not threads[1] is threading.current_thread()


def test_a_call_that_never_ends_is_passed(monkeypatch):
    monkeypatch.setattr("bigtrain_lab.panel.settings.STUCK_S", 0)
    newest, gate, told = Newest(), threading.Event(), []
    assert not newest.ask(lambda: gate.wait(60), told.append, 0)
    assert newest.ask(lambda: "next", told.append) and told == ["next"]
    gate.set()
    assert newest.ask(lambda: "last", told.append) and told == ["next", "last"]


def test_a_call_that_ends_after_all_leaves_the_next_to_its_own_thread(monkeypatch):
    monkeypatch.setattr("bigtrain_lab.panel.settings.STUCK_S", 0)
    newest, gates, told = Newest(), [threading.Event(), threading.Event()], []
    threads = []
    for gate in gates:
        newest.ask(
            lambda gate=gate: threads.append(threading.current_thread()) or gate.wait(60),
            told.append,
            0,
        )
        until(lambda: len(threads) == 1 + gates.index(gate))
    monkeypatch.setattr("bigtrain_lab.panel.settings.STUCK_S", 1000)
    newest.ask(lambda: "last", told.append, 0)
    gates[0].set()
    threads[0].join(60)
    assert told == []
    gates[1].set()
    until(lambda: told == ["last"])


def test_a_long_prediction_leaves_the_kernel_free_and_is_passed_by_the_next_move(
    panel, monkeypatch
):
    gate, real = threading.Event(), Waves.predict
    monkeypatch.setattr(
        Waves,
        "predict",
        lambda self: real(self) if self.micro_batches < 5 or gate.wait(60) else None,
    )
    monkeypatch.setattr("bigtrain_lab.panel.settings.PATIENCE_S", 0.01)
    panel.controls["micro_batches"].value = 6
    assert (
        panel.player.note == "predicting these settings"
        and panel.run_button.disabled
        and panel.start() is None
        and panel.bar.pin.disabled
    )
    assert "btl-waiting" in panel._results._dom_classes and panel.experiment.micro_batches == 2
    panel.controls["micro_batches"].value = 7
    gate.set()
    until(lambda: panel.experiment.micro_batches != 2)
    assert panel.experiment.micro_batches == 7  # 6 was passed
    until(
        lambda: (
            "btl-waiting" not in panel._results._dom_classes
            and panel.player.note == ""
            and not panel.run_button.disabled
        )
    )
    assert panel.rows[0].predicted == report.Amount(24, "slot")


# -- long traces ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long():
    return PipelineExperiment(steps=10).predict()


def test_a_window_is_the_steps_asked_for_with_what_was_held_before(long):
    part = window(long, 3, 2)
    assert {int(s.name.split("F")[1]) for s in part.where(kind="F").spans()} == set(
        range(24, 40)
    ) and part.steps == 2
    assert len(part.spans()) == len(long.spans()) // 5 and part.step_time == long.step_time == 33
    start = min(s.start for s in part.spans())
    for rank in range(4):
        for kind in MEMORY_KINDS:
            held = [level for tick, level in long.levels(rank, kind) if tick <= start]
            assert part.levels(rank, kind)[0][1] == (held[-1] if held else 0)
        assert part.peak_bytes(rank) == long.peak_bytes(rank)


def test_windows_side_by_side_hold_all(long):
    parts = [window(long, first, 2) for first in range(0, 10, 2)]
    assert (
        sum(len(part.spans()) for part in parts) == len(long.spans())
        and window(long, 0, 10) is long
    )
    assert sum(len(part.transfers()) for part in parts) == len(long.transfers())


def test_only_a_long_trace_is_cut(long):
    assert len(long) <= DRAWN and steps_drawn(long) == 10
    longer = PipelineExperiment(steps=100).predict()
    assert (
        len(window(longer, 0, steps_drawn(longer))) <= DRAWN < len(longer)
        and steps_drawn(Trace((), "predicted")) == 1
    )


def test_the_steps_of_a_long_trace_can_be_chosen():
    shown = show("pipeline", steps=100)
    picture, trace = shown.picture, shown.traces["predicted"]
    count = steps_drawn(trace)
    assert (
        picture._steps.layout.display is None
        and picture.first.max == 101 - count
        and shown.player.data == pack(window(trace, 0, count), whole=trace)
    )
    picture.first.value = 50
    assert (
        shown.player.data == pack(window(trace, 49, count), whole=trace)
        and f"steps 50 to {49 + count} of 100" in picture._told.value
    )
    shown.set(steps=3)
    assert picture._steps.layout.display == "none" and shown.player.data == pack(
        shown.traces["predicted"]
    )
    assert shown.rows[0].predicted == report.Amount(33, "slot")


def test_a_run_that_goes_on_shows_its_last_steps():
    picture = Picture(lambda: None, lambda: None)
    trace = PipelineExperiment(steps=100).predict()
    picture.show(trace, live=True)
    assert (
        picture.player.data
        == pack(window(trace, 100 - steps_drawn(trace), steps_drawn(trace)), whole=trace)
        and picture._steps.layout.display == "none"
    )


def test_a_figure_that_a_trace_cannot_give_says_so():
    picture = Picture(lambda: None, lambda: None)
    picture.show(Waves().predict(), names=("timeline", "pie"))
    assert (
        len(picture._others.children) == 1
        and "no figure called" in picture._others.children[0].value
    )


def test_a_panel_whose_first_settings_cannot_be_says_why_and_can_be_mended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Panel(Waves(ranks=4))
    made.tabs.value = "measured"
    assert made.problem.startswith("4 ranks need") and made.bar.pin.disabled
    made.set(ranks=2)
    assert made.problem == "" and made.rows[0].predicted == report.Amount(9, "slot")
    assert issubclass(Waves, Experiment)


def test_a_run_that_did_nothing_before_it_failed_says_so_where_its_picture_would_be(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    panel = Panel(
        "staleness", ranks=2, micro_batches=2, steps=1, fault="exit", fault_rank=0, fault_at=0
    )
    panel.start()
    with pytest.raises(RankFailed):
        panel.wait()
    assert (
        panel.picture.player.note.startswith("No action was done before the run ended")
        and not panel.picture.player.data
    )


def test_a_machine_that_a_reopened_run_kept_is_said_to_price_what_follows(monkeypatch):
    other = replace(
        PROFILES["a100-nvlink"], name="this-machine", sources={"when": "2026-01-01T00:00+00:00"}
    )
    kept = json.loads(
        json.dumps(
            {
                "experiment": "pipeline",
                "hardware": "this-machine",
                "facts": {"machine": asdict(other)},
            }
        )
    )
    monkeypatch.setattr(
        "bigtrain_lab.panel.compared.this_machine", lambda measure: None
    )  # this one was not measured yet
    shown = show(Experiment.restored(kept))
    said = "this-machine is here the machine of the reopened run, as measured 2026-01-01T00:00+00:00; a new panel prices by this one."
    assert f"<b>{said}</b>" in shown._results.value
    shown.set(ranks=2)  # other settings, priced by it too
    assert said in shown._results.value
    shown.set(hardware="a100-nvlink")
    assert said not in shown._results.value
    monkeypatch.setattr(
        "bigtrain_lab.panel.compared.this_machine", lambda measure: other
    )  # it is this one
    shown.set(hardware="this-machine")
    assert said not in shown._results.value
