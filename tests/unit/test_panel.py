"""The panel without a browser: controls from knobs, prediction at each move, runs, failures, the table."""

import asyncio
import re
from dataclasses import replace

import ipywidgets as widgets
import pytest

from bigtrain_lab import report
from bigtrain_lab.core import Impossible, Knob, Trace
from bigtrain_lab.experiments import Experiment, Quantity
from bigtrain_lab.panel import Panel, show, table
from bigtrain_lab.panel.bar import Press
from bigtrain_lab.panel.controls import (
    IDLE,
    Graded,
    control,
    controls_of,
    doublings,
    nearby,
    positions,
    put,
    refresh,
)
from bigtrain_lab.panel.nearest import attempt, nearest
from bigtrain_lab.panel.panel import progress
from bigtrain_lab.recompute import Recompute
from bigtrain_lab.runtime import RankFailed, Run
from bigtrain_lab.schedule import B, F, Schedule
from bigtrain_lab.schedules.gpipe import GPipe
from bigtrain_lab.schedules.pipedream import PipeDream
from tests.unit.ranks import until
from tests.unit.waves import Waves


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Each move waits for its prediction, however slow the machine."""
    monkeypatch.setattr("bigtrain_lab.panel.settings.PATIENCE_S", None)


@pytest.fixture
def panel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # runs are kept in the current folder
    made = Panel(Waves)
    yield made
    made.stop()


# -- controls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "about,kind,value,expected",
    [
        (dict(low=1, high=8), int, 4, widgets.IntSlider),
        (dict(low=0, high=2**31 - 1), int, 0, widgets.IntText),
        (dict(low=16, high=1024, step=16), int, 64, widgets.IntSlider),
        (dict(low=1, high=1024, logarithmic=True), int, 64, widgets.SelectionSlider),
        (dict(low=0, high=0.9), float, 0.0, Graded),
        (dict(low=0, high=10, logarithmic=True), float, 1e-3, Graded),
        (dict(choices=("a", "b")), str, "a", widgets.Dropdown),
        (dict(choices=lambda: {"a": 1}), str, "a", widgets.Dropdown),
        (dict(), str, "x", widgets.Text),
        (dict(), bool, True, widgets.Checkbox),
        (dict(), int, 3, widgets.IntText),
    ],
)
def test_a_control_fits_its_knob(about, kind, value, expected):
    made = control("micro_batches", Knob("pieces", unit="bytes", **about), kind, value)
    assert type(made) is expected and made.value == value and type(made.value) is kind
    assert made.description == "micro-batches" and made.tooltip.startswith("pieces (bytes)")
    assert ("low" in about) == (", " in made.tooltip)


def test_doublings_hold_the_ends_and_the_default():
    assert doublings(1, 100, 24) == [1, 2, 4, 8, 16, 24, 32, 64, 100]


@pytest.mark.parametrize("name", Experiment.all())
def test_a_panel_opens_at_the_very_defaults(name):
    """And a browser finds nothing to round: each slider of whole numbers stands on one of its own steps."""
    first = Experiment.named(name)()
    for setting, made in controls_of(first).items():
        default = getattr(first, setting)
        assert made.value == default and type(made.value) is type(default), setting
        if isinstance(made, Graded):
            assert (
                made.box.value == default == made.positions[made.slider.value]
                and made.slider.step == 1
            )
        if isinstance(made, widgets.IntSlider):
            assert (default - made.min) % made.step == 0, setting


def test_positions_are_round_and_hold_what_must_be_there():
    assert positions(Knob("", low=0, high=0.9))[:4] == [0.0, 0.01, 0.02, 0.03] and positions(
        Knob("", low=0, high=0.9), 0.125
    )[12:15] == [0.12, 0.125, 0.13]
    assert positions(Knob("", low=1, high=2, step=0.25)) == [1, 1.25, 1.5, 1.75, 2]
    assert positions(Knob("", low=1, high=2**40, logarithmic=True)) == [2.0**k for k in range(41)]
    assert positions(Knob("", low=0.01, high=0.16, logarithmic=True)) == [
        0.01,
        0.015,
        0.02,
        0.03,
        0.05,
        0.07,
        0.1,
        0.15,
        0.16,
    ]
    assert positions(Knob("", low=0, high=10, logarithmic=True))[:3] == [0, 1e-6, 1.5e-6]


def test_a_graded_number_is_that_of_the_box_or_of_the_position_that_the_slider_was_moved_to():
    made, moves = Graded(8192.0, Knob("", low=1, high=2**40, logarithmic=True)), []
    made.observe(lambda change: moves.append(change["new"]), "value")
    made.box.value = 1073741824.0
    assert made.value == 2**30 and made.slider.value == 30
    made.box.value = (
        1000.0  # between two positions: the slider shows the next one and moves nothing
    )
    assert made.value == 1000 and made.slider.value == 10
    made.slider.value = 12
    assert made.value == made.box.value == 4096
    made.value = 0.5
    assert made.value == made.box.value == 1 and moves == [2**30, 1000, 4096, 1]


def test_a_slider_learns_a_value_between_its_steps():
    made = control("width", Knob("", low=16, high=1024, step=16), int, 24)
    assert (made.value, made.step) == (24, 8)
    put(made, 30)
    assert (made.value, made.step) == (30, 2)


def test_main_controls_first_and_the_others_folded(panel):
    grids = panel.settings.children
    assert [c.description for c in grids[0].children] == ["ranks", "micro-batches"]
    assert [c.description for c in grids[1].children][:3] == ["steps", "gate", "trouble"] and grids[
        1
    ].layout.display == "none"
    panel.more_button.value = True
    assert grids[1].layout.display is None


def test_an_open_family_joins_the_menu():
    members = ["a"]
    knobs = {"schedule": Knob("order", choices=lambda: members)}
    made = {"schedule": control("schedule", knobs["schedule"], str, "a")}
    members.append("b")
    refresh(made, knobs)
    assert list(made["schedule"].options) == ["a", "b"] and made["schedule"].value == "a"


def test_a_panel_from_class_instance_and_name():
    assert Panel(Waves(ranks=1)).experiment.ranks == 1
    assert show("pipeline", micro_batches=7).controls["micro_batches"].value == 7
    assert show(Waves(ranks=1), micro_batches=3).experiment == Waves(ranks=1, micro_batches=3)
    with pytest.raises(Impossible, match="no experiment called 'nothing'"):
        show("nothing")


# -- prediction -----------------------------------------------------------------------------------------------------------


def test_a_move_predicts_again(panel):
    before, data = panel.traces["predicted"], panel.player.data
    panel.controls["micro_batches"].value = 5
    assert (
        panel.experiment.micro_batches == 5
        and panel.traces["predicted"] != before
        and panel.player.data != data
    )
    assert panel.rows[0].predicted == report.Amount((5 + 1) * 3, "slot") and panel.run is None


def test_a_move_costs_one_message_to_the_player_and_one_to_the_table(panel):
    sent, parts = [], [panel]
    for part in parts:
        parts += getattr(part, "children", ())
        if part is not panel.controls["micro_batches"]:
            part.comm.send = lambda *args, part=part, **kwargs: sent.append(type(part).__name__)
    panel.controls["micro_batches"].value = 4
    assert sent == ["HTML", "Player"]


def test_the_question_is_escaped(panel):
    assert "How long is a &lt;wave&gt;?" in panel.children[0].value


def test_what_cannot_be_shows_its_sentence_and_offers_the_nearest(panel, monkeypatch):
    monkeypatch.setattr("bigtrain_lab.panel.nearest.PATIENCE_S", 60)
    panel.controls["ranks"].value = 4
    assert (
        panel.problem == "4 ranks need at least 4 micro-batches."
        and "4 ranks need" in panel.picture._trouble.value
    )
    assert (
        panel.picture.body.layout.display == "none"
        and panel.run_button.disabled
        and panel.start() is None
    )
    assert (
        panel.picture._mend.description == "Use ranks = 2"
        and panel.picture._mend.layout.display is None
    )
    panel.picture._mend.click()
    assert (
        panel.problem == ""
        and panel.experiment.ranks == 2
        and panel.picture.body.layout.display is None
        and not panel.run_button.disabled
    )


@pytest.mark.parametrize("method", ["predict", "explain", "describe"])
def test_an_unexpected_exception_stands_where_the_figure_was(panel, monkeypatch, method):
    real = getattr(Waves, method)

    def broken(self, *told):
        if self.micro_batches == 3:
            raise KeyError("no such stage")
        return real(self, *told)

    monkeypatch.setattr(Waves, method, broken)
    panel.controls["micro_batches"].value = 3
    assert (
        re.fullmatch(r"KeyError: 'no such stage' \(in broken, line \d+\)", panel.problem)
        and panel.picture.body.layout.display == "none"
    )
    assert panel.run_button.disabled and panel.start() is None
    panel.controls["micro_batches"].value = 2
    assert panel.problem == "" and not panel.run_button.disabled


def test_another_cell_predicts_again_only_where_a_class_changed(panel, family):
    shown = show("pipeline")
    before = shown.traces["predicted"]
    shown.read_menus()
    assert shown.traces["predicted"] is before

    class Typed(GPipe):
        __module__, name = "__main__", "typed"

    shown.read_menus()
    assert "typed" in shown.controls["schedule"].options
    shown.set(schedule="typed")
    before = shown.traces["predicted"]

    class Typed(GPipe):
        __module__, __qualname__, name = "__main__", Typed.__qualname__, "typed"

        def steps(self, rank):
            raise ZeroDivisionError("a cell broke it")

    shown.read_menus()
    assert (
        "a cell broke it" in shown.problem
        and shown.run_button.disabled
        and shown.traces["predicted"] is before
    )


def test_options_of_other_schedules_are_hidden():
    shown = show("pipeline")

    def hidden():
        return {
            name
            for name, made in shown.controls.items()
            if IDLE in made._dom_classes and not name.startswith("fault")
        }

    assert hidden() == {"stashing", "chunks"}
    shown.set(schedule="pipedream")
    assert hidden() == {"chunks"}
    shown.set(
        schedule="interleaved", layers=4
    )  # 8 stages need 8 layers: what mends it must be in view
    assert shown.problem and hidden() == {"stashing"}
    assert (
        Waves.idle_settings({"fault": "none"}) - {"fault_rank", "fault_at", "fault_factor"} == set()
    )


def test_nearest_prefers_the_setting_that_was_moved(monkeypatch):
    monkeypatch.setattr("bigtrain_lab.panel.nearest.PATIENCE_S", 60)
    settings = dict(ranks=4, micro_batches=2, steps=1, gate="", trouble="none")
    assert nearest(Waves(), settings, "micro_batches") == {"micro_batches": 4}
    assert nearest(Waves(), settings, None) == {"ranks": 2}


@pytest.mark.parametrize(
    "moved,settings,offer",
    [
        ("budget", dict(budget=4.0), {"budget": 6.5}),  # a number that was moved
        (
            "plan",
            dict(budget=3.0),
            {"budget": 6.5},
        ),  # who has just chosen a plan does not want another one
        (None, dict(budget=2.0), {"budget": 6.5}),  # the sentence is about it
        ("model", dict(model="mlp", plan="selective"), {"plan": "optimal"}),
        ("heads", dict(heads=5), {"heads": 4}),
        ("rows", dict(heads=5), {"heads": 4}),
    ],
)
def test_nearest_mends_what_the_sentence_is_about(monkeypatch, moved, settings, offer):
    monkeypatch.setattr("bigtrain_lab.panel.nearest.PATIENCE_S", 60)
    first = Experiment.named("checkpoint")()
    settings = first.model_dump() | settings
    sentence = attempt(first, settings)
    assert isinstance(sentence, str) and nearest(first, settings, moved, sentence) == offer


def test_nearby_values_come_nearest_first():
    assert nearby(Knob("", low=1, high=6), int, 4) == [3, 5, 2, 6, 1]
    assert nearby(Knob("", choices="abc"), str, "b") == ["a", "c"]
    assert nearby(Knob(""), bool, True) == [False]
    assert nearby(Knob("", low=0, high=1, step=0.25), float, 0.5) == [0.25, 0.75, 0.0, 1.0]
    assert nearby(Knob("", low=0, high=10**6, step=0.001), float, 0.5) == []
    assert nearby(Knob("", low=256, high=32000), int, 0) == [256] and nearby(
        Knob("", low=256, high=32000), int, 10**11
    ) == [32000]
    assert nearby(Knob("", low=0, high=10**6, step=0.001), float, -1.0) == [0.0]


@pytest.mark.parametrize("typed,offered", [(0, 256), (10**11, 32000)])
def test_a_number_out_of_range_is_refused_in_a_sentence_and_its_range_is_under_the_pointer(
    typed, offered
):
    shown = show("memory")
    shown.controls["vocabulary"].value = typed
    assert (
        shown.problem == f"vocabulary is {typed}: it must be a whole number from 256 to 32,000."
        and shown.controls["vocabulary"].value == typed
    )
    shown.picture._mend.click()
    assert not shown.problem and shown.experiment.vocabulary == offered
    assert shown.controls["vocabulary"].tooltip.endswith(", 256 to 32,000")


def test_copy_command_shows_only_what_differs(panel):
    panel.set(micro_batches=4, trouble="raise")
    panel.command_button.value = True
    assert "<code>bigtrain run test-waves --micro-batches 4 --trouble raise</code>" in commands_of(
        panel
    )
    panel.controls["micro_batches"].value = 5
    assert "--micro-batches 5" in commands_of(panel)


def commands_of(panel):
    """The commands in view, as HTML."""
    return (
        ""
        if panel.bar.lines.layout.display == "none"
        else "".join(row.children[1].value for row in panel.bar.lines.children)
    )


# -- runs -----------------------------------------------------------------------------------------------------------------


def echoes(panel, *numbers):
    for number in numbers:
        panel.player._handle_custom_msg({"echo": number}, [])


@pytest.fixture
def pressed(monkeypatch):
    """What was started and pinned: each with the micro-batches that the settings had then."""
    acted = []
    for name in ("start", "pin"):
        monkeypatch.setattr(
            Panel,
            name,
            lambda panel, name=name: acted.append((name, panel.experiment.micro_batches)),
        )
    return acted


def test_run_and_pin_wait_for_the_moves_that_the_browser_had_still_to_send(pressed):
    """A press overtakes the last move of a slider; the echo that it asks for comes behind it. An echo of another press is none."""
    panel, sent = show(Waves), []
    panel.player.send = lambda message: sent.append(message)

    async def in_a_kernel():
        echoes(panel, 0)  # a player is drawn
        panel.bar.pin.click()
        panel.controls["micro_batches"].value = 8
        panel.run_button.click()
        echoes(panel, 0)  # and a second view of it
        assert [message["text"] for message in sent] == [1, 2] and pressed == []
        echoes(panel, 1, 1)  # of both views
        panel.controls["micro_batches"].value = 7
        assert pressed == [("pin", 8)]
        echoes(panel, 2, 2)
        panel.controls["micro_batches"].value = 6

    asyncio.run(in_a_kernel())
    assert pressed == [("pin", 8), ("start", 7)]


def test_run_starts_where_no_player_is_drawn_or_its_page_was_closed(pressed, monkeypatch):
    panel = show(Waves)
    panel.run_button.click()
    assert len(pressed) == 1
    monkeypatch.setattr("bigtrain_lab.panel.bar.ECHO_S", 0.0)

    async def in_a_kernel():
        echoes(panel, 0)
        panel.run_button.click()
        assert len(pressed) == 1
        await asyncio.sleep(0.01)

    asyncio.run(in_a_kernel())
    assert len(pressed) == 2


def test_a_press_waits_for_a_prediction_that_takes_long():
    predicted, acted = [], []

    def act():
        acted.append(len(predicted))

    press = Press(widgets.DOMWidget(), ready=lambda: bool(predicted))
    press.now(act)
    press.settled()
    assert acted == []
    predicted.append(1)
    press.settled()
    press.settled()
    assert acted == [1]


def test_presses_that_come_together_act_once():
    player, acted = widgets.DOMWidget(), []
    player.send = lambda message: None

    def act():
        acted.append(1)

    async def in_a_kernel():
        press = Press(player, ready=lambda: True)
        for number in (0, None, None, 1, 2, 2):
            press.now(act) if number is None else player._handle_custom_msg({"echo": number}, [])

    asyncio.run(in_a_kernel())
    assert acted == [1]


def test_settings_that_cannot_be_are_not_pinned(panel):
    panel.set(ranks=4, micro_batches=2)
    assert panel.problem
    panel.pin()
    assert panel.pinned is None


def test_run_fills_the_columns(panel):
    panel.run_button.click()
    assert (
        panel.run_button.disabled
        and not panel.stop_button.disabled
        and panel.tabs.value == "modelled"
    )
    panel.wait()
    spans = panel.rows[1]
    assert (spans.predicted.value, spans.modelled.value, spans.measured.value) == (
        10,
        4,
        4,
    )  # 4 forwards ran, 10 actions were planned
    assert (
        set(panel.traces) == {"predicted", "modelled", "measured"} and not panel.run_button.disabled
    )
    assert re.search(
        r"done after [\d.]+ s; modelled: [\d.]+ slots a step, compute [\d.]+%, waits 0.0%, idle [\d.]+%\.</div>$",
        panel.status.value,
    )
    assert "≠ modelled x 0.4" in panel._results.value


@pytest.mark.parametrize(
    "trouble, words", [("nan", "ended with loss nan after"), ("nan once", "done after")]
)
def test_a_run_whose_loss_is_no_number_at_its_end_is_not_called_done(panel, trouble, words):
    panel.set(trouble=trouble)
    panel.start()
    panel.wait()
    assert panel.run.state == "done" and f">{words} " in panel.status.value


def test_a_move_after_a_run_greys_what_it_gave(panel):
    panel.start()
    panel.wait()
    assert not panel.stale
    panel.controls["micro_batches"].value = 4
    assert panel.stale and panel.tabs.value == "predicted" and panel.player.note == ""
    assert (
        "settings changed" in panel._results.value and 'class="btl-stale"' in panel._results.value
    )
    panel.tabs.value = "measured"
    assert panel.player.note == "settings changed since this run"
    panel.controls["micro_batches"].value = 2
    assert not panel.stale and "settings changed" not in panel._results.value


def test_live_events_reach_the_player_before_the_end(panel, tmp_path):
    panel.set(gate=str(tmp_path / "gate"))
    panel.start()
    until(lambda: panel.player.data)
    assert panel.run.state == "running" and panel.player.live and b'"modelled"' in panel.player.data
    (tmp_path / "gate").touch()
    panel.wait()
    assert not panel.player.live


def test_stop_ends_a_long_run(panel):
    panel.set(gate="never")
    panel.start()
    panel.stop_button.click()
    with pytest.raises(RankFailed, match="stopped"):
        panel.wait()
    assert (
        "stopped after" in panel.status.value
        and not panel.run_button.disabled
        and panel.stop_button.disabled
    )


def test_a_failure_names_rank_and_reason_in_the_panel(panel):
    panel.set(trouble="raise")
    panel.start()
    with pytest.raises(RankFailed):
        panel.wait()
    assert (
        "ank 1" in panel.problem
        and "the wave broke" in panel.problem
        and "the wave broke" in panel.picture._trouble.value
    )
    assert panel.picture.body.layout.display is None and ">failed after" in panel.status.value
    panel.set(trouble="none")
    assert (
        panel.problem == ""
        and ">the last run, with other settings: failed after" in panel.status.value
    )
    panel.set(trouble="raise")
    assert ">failed after" in panel.status.value


def test_what_cannot_be_is_not_described(panel, monkeypatch):
    monkeypatch.setattr(
        Waves, "describe", lambda self: f"{self.ranks} waves <" + 40 * " of many words" + ">"
    )
    panel.set(ranks=1)
    assert (
        "1 waves &lt;" in panel.picture._about.value
        and f'title="1 waves &lt;{40 * " of many words"}&gt;"' in panel.picture._about.value
    )
    panel.set(ranks=4)
    assert panel.problem and panel.picture._about.value == ""
    panel.tabs.value = "measured"
    assert panel.picture._about.value == ""
    panel.set(ranks=2)
    assert "2 waves" in panel.picture._about.value


def test_only_a_failed_run_draws_who_waited(panel, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "bigtrain_lab.panel.table.trouble", lambda problem, run=None: drawn.append(run) or "drawn"
    )
    panel.set(trouble="raise")
    panel.start()
    with pytest.raises(RankFailed):
        panel.wait()
    assert drawn == [panel.run] and panel.picture._trouble.value == "drawn"
    panel.set(ranks=4)
    assert drawn == [panel.run, None]


def test_a_diagnosis_stays_until_settings_change_or_run_is_pressed(panel):
    panel.set(trouble="raise")
    panel.start()
    with pytest.raises(RankFailed):
        panel.wait()
    panel.read_menus()  # any other cell ran
    panel.set(trouble="raise")  # nothing changed
    assert "the wave broke" in panel.problem and panel.picture._trouble.layout.display is None
    panel.set(ranks=4)  # what cannot be is told first
    assert panel.problem.startswith("4 ranks need")
    panel.set(ranks=2)
    assert "the wave broke" in panel.problem and panel.picture.body.layout.display is None
    panel.start()
    assert panel.problem == ""
    with pytest.raises(RankFailed):
        panel.wait()


def test_a_run_that_ends_does_not_enable_run_for_settings_that_cannot_be(
    panel, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        "bigtrain_lab.panel.settings.nearest", lambda *_: None
    )  # there is no mend to offer
    panel.set(gate=str(tmp_path / "gate"))
    panel.start()
    panel.set(ranks=4)
    (tmp_path / "gate").touch()
    panel.wait()
    assert panel.problem and panel.run_button.disabled and panel.start() is None


@pytest.mark.parametrize("asked", ["watts", "facts"])
def test_what_a_class_raises_as_it_starts_is_told_and_run_can_be_pressed_again(
    panel, monkeypatch, asked
):
    def broken(self):
        raise ValueError("nobody measured this box")

    monkeypatch.setattr(Waves, asked, property(broken))
    panel.run_button.click()
    assert re.fullmatch(
        r"ValueError: nobody measured this box \(in broken, line \d+\)", panel.problem
    )
    assert (
        panel.run is None and "starting" not in panel.status.value and not panel.run_button.disabled
    )
    monkeypatch.undo()


def test_what_a_class_raises_about_its_run_is_told_and_the_panel_goes_on(panel, monkeypatch):
    def broken(self, trace):
        if trace.clock != "predicted":
            raise KeyError("no such rank")
        return []

    monkeypatch.setattr(Waves, "explain", broken)
    panel.start()
    panel.wait()
    assert (
        "KeyError: 'no such rank' (in broken" in panel.problem
        and not panel.run_button.disabled
        and panel.stop_button.disabled
    )
    monkeypatch.undo()
    panel.start()
    panel.wait()
    assert panel.problem == "" and panel.rows[1].modelled.value == 4


def test_wait_before_start_is_one_sentence(panel):
    with pytest.raises(Impossible, match="press Run"):
        panel.wait()


def test_a_run_that_cannot_start_says_why(panel, tmp_path):
    (tmp_path / "taken").write_text("")
    assert panel.start(directory=tmp_path / "taken") is None
    assert "taken" in panel.problem and not panel.run_button.disabled


def test_panel_tells_itself_in_text(panel):
    assert repr(panel) == "<Panel test-waves: predicted step time 9 slots, spans 10>"


# -- the table ------------------------------------------------------------------------------------------------------------


def row(values, exact, unit="B"):
    amounts = [None if value is None else report.Amount(value, unit) for value in values]
    return report.Row("q", unit, *amounts, report.differences(*amounts, exact))


@pytest.mark.parametrize(
    "values,exact,has,has_not",
    [
        ((5, 5, None), True, "✓ modelled", "≠"),
        ((5, 6, None), True, "≠ modelled +1 B", "✓"),
        ((5, 6, None), False, "modelled +1 B", "≠"),
        ((5, 5, 5), True, "measured equal", "≠"),
        ((5, None, None), True, "", "equal"),
    ],
)
def test_difference(values, exact, has, has_not):
    told = table.difference(row(values, exact))
    assert has in told and has_not not in told


def test_bytes_are_exact_under_the_pointer():
    assert (
        table.cell(report.Amount(1_536_000, "B")) == '<span title="1,536,000 bytes">1.536 MB</span>'
    )
    assert "–" in table.cell(None)


def test_the_whole_is_told_before_the_ranks():
    told = table.why([*(f"Rank {r} waits." for r in range(8)), "In all, 3 & 4."])
    assert (
        told.index("In all, 3 &amp; 4.") < told.index("Rank 0")
        and "<summary>4 more</summary>" in told
    )
    assert table.why([]) == ""


def test_an_empty_run_has_a_table():
    quantities = (Quantity("spans", "", lambda t: len(t.spans())),)
    assert "spans" in table.html(report.rows(quantities, Trace((), "predicted")), [])


def test_what_two_figures_lack_is_told_once():
    panel = Panel("precision", steps=1)
    others = panel.picture._others.children
    assert [type(each).__name__ for each in others] == ["HTML"] and "no histograms" in others[
        0
    ].value


def test_a_class_typed_in_a_cell_is_no_mend(monkeypatch, family):
    """It answers another exercise; the library's own are offered."""
    monkeypatch.setattr("bigtrain_lab.panel.nearest.PATIENCE_S", 60)
    for name in ("my-broken", "my-right"):  # neighbours on the menu
        steps = Schedule.named("gpipe").steps if name == "my-right" else lambda self, rank: []
        type("Typed" + name, (Schedule,), {"name": name, "steps": steps, "__module__": "__main__"})
    first = Experiment.named("pipeline")()
    settings = first.model_dump() | {"schedule": "my-broken"}
    offer = nearest(first, settings, None, attempt(first, settings))
    assert list(offer) == ["schedule"] and offer["schedule"] not in ("my-broken", "my-right")
    assert nearby(first.knobs()["schedule"], str, "gpipe")[-1] not in ("my-broken", "my-right")


# -- a class that was typed again -------------------------------------------------------------------------------------------


def one_by_one(schedule, rank):
    return [step for m in range(schedule.micro_batches) for step in (F(rank, m), B(rank, m))]


def keep_all(plan, chain, budget_bytes):
    return Recompute.named("keep-all")().order(chain)


def keep_none(plan, chain, budget_bytes):
    return Recompute.named("keep-none")().order(chain)


@pytest.mark.parametrize(
    "lab, setting, member, method, first, second",
    [
        ("pipeline", "schedule", Schedule, "steps", one_by_one, GPipe.steps),
        ("checkpoint", "plan", Recompute, "order", keep_all, keep_none),
    ],
)
def test_a_run_of_a_class_that_was_typed_again_is_compared_with_nothing(
    family, lab, setting, member, method, first, second
):
    def typed(order):
        type("Typed", (member,), {"name": "typed", "__module__": "__main__", method: order})

    typed(first)
    shown = show(lab, **{setting: "typed"})
    ran = shown.experiment
    traces = {"modelled": replace(ran.predict(), clock="modelled")}
    shown._compared.end(traces, ran)
    shown.read_menus()
    assert not shown.stale and shown.rows[0].difference.startswith("✓ modelled")
    typed(second)
    shown.read_menus()
    told = [sentence for sentence in shown._compared.sentences if "earlier order" in sentence]
    assert (
        shown.stale
        and len(told) == 1
        and '<th class="btl-last">order changed</th>' in shown._results.value
    )
    assert "≠" not in shown._results.value and shown.tabs.value == "predicted"

    again = show(
        lab, **{setting: "typed"}
    )  # the class of now, and a run that its directory tells of
    again._compared.end(
        traces, type(ran).restored(traces["modelled"].settings | {"experiment": lab})
    )
    assert again.stale and again._compared.said == []
    shown._compared.end(
        {"modelled": replace(shown.experiment.predict(), clock="modelled")}, shown.experiment
    )
    assert not shown.stale
    shown.pin()
    typed(first)
    shown.read_menus()
    assert shown.stale and "pinned: an earlier order" in shown._results.value


def test_the_versions_that_actions_use_are_part_of_an_order(family):
    type("Typed", (PipeDream,), {"name": "typed", "__module__": "__main__"})
    asked = dict(schedule="typed", ranks=2, layers=2)
    right = Experiment.named("pipeline")(**asked).order_digest
    assert (
        right
        == Experiment.named("pipeline")(**asked).order_digest
        == Experiment.named("pipeline")(**asked, width=128).order_digest
    )
    type(
        "Typed",
        (PipeDream,),
        {"name": "typed", "__module__": "__main__", "version": lambda self, action: 0},
    )
    assert Experiment.named("pipeline")(**asked).order_digest != right


def test_what_ranks_compute_is_said_while_they_log_nothing():
    empty = Trace((), "modelled")
    assert progress(empty, 8, 2, 12.3) == ("running, starting; 12.3 s", 0.0)
    told, _ = progress(
        empty, 8, 2, 12.3, "the model is being built: ranks 0 and 1 have computed for 11 s"
    )
    assert (
        told
        == "running, starting; 12.3 s; the model is being built: ranks 0 and 1 have computed for 11 s"
    )


def test_what_ranks_compute_comes_from_the_run(panel, monkeypatch, tmp_path):
    monkeypatch.setattr(Run, "now", "rank 1 has computed for 40 s in 2F3")
    said = []
    monkeypatch.setattr(panel.bar, "tell", lambda text, *rest, **more: said.append(text))
    panel.set(gate=str(tmp_path / "gate"))
    panel.start()
    until(lambda: any(text.endswith("s; rank 1 has computed for 40 s in 2F3") for text in said))
    (tmp_path / "gate").touch()
    panel.wait()


def test_a_run_that_needs_more_memory_than_there_is_is_refused_in_the_panel(monkeypatch):
    monkeypatch.setattr("bigtrain_lab.runtime.capacity.available_bytes", lambda: 10)
    panel = Panel("staleness")
    assert panel.start() is None
    assert (
        panel.problem.startswith("The 4 ranks would hold ")
        and "this machine has 0.01 kB available" in panel.problem
    )
