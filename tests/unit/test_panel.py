"""The panel without a browser: controls from knobs, prediction at each move, runs, failures, the
table."""

import gc
import json
import re
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from bigtrain_lab import (
    Experiment,
    Panel,
    RankFailed,
    Recompute,
    Run,
    Schedule,
    Trace,
    show,
)
from bigtrain_lab.core import Alive, Knob, Scalar
from bigtrain_lab.core.overtaken import Overtaken
from bigtrain_lab.experiments.large_batch import RATE
from bigtrain_lab.order.schedule import B, F
from bigtrain_lab.order.schedules.gpipe import GPipe
from bigtrain_lab.order.schedules.pipedream import PipeDream
from bigtrain_lab.order.simulate import simulate
from bigtrain_lab.panel import widgets
from bigtrain_lab.panel.bar import MORE, WHY
from bigtrain_lab.panel.controls import (
    FOUND,
    IDLE,
    WRONG,
    Graded,
    control,
    controls_of,
    nearby,
    positions,
    put,
)
from bigtrain_lab.panel.nearest import attempt, nearest, tell
from bigtrain_lab.panel.panel import AHEAD
from bigtrain_lab.panel.picture import window
from bigtrain_lab.panel.rivals import Rivals
from bigtrain_lab.panel.settings import Newest
from bigtrain_lab.train.dry_run import dry_run
from bigtrain_lab.view import report, table
from bigtrain_lab.view.curves import curves
from tests.unit.ranks import until
from tests.unit.waves import Waves, button, parts, said


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Each move waits for its prediction and for what mends it, however slow the machine."""
    monkeypatch.setattr("bigtrain_lab.panel.settings.PATIENCE_S", None)
    monkeypatch.setattr("bigtrain_lab.panel.nearest.PATIENCE_S", 60)


@pytest.fixture
def panel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # runs are kept in the current folder
    made = Panel(Waves)
    yield made
    made.stop()


def typed(member, **told):
    """A class that a student typed in a cell, again where there is one."""
    type("Typed", (member,), {"name": "typed", "__module__": "__main__", **told})


# -- controls --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "about,kind,value,expected",
    [
        ({"low": 1, "high": 8}, int, 4, widgets.IntSlider),
        ({"low": 0, "high": 2**31 - 1}, int, 0, widgets.IntText),
        ({"low": 16, "high": 1024, "step": 16}, int, 64, widgets.IntSlider),
        ({"low": 1, "high": 1024, "logarithmic": True}, int, 64, widgets.SelectionSlider),
        ({"low": 0, "high": 0.9}, float, 0.0, Graded),
        ({"low": 0, "high": 10, "logarithmic": True}, float, 1e-3, Graded),
        ({"choices": ("a", "b")}, str, "a", widgets.Dropdown),
        ({"choices": lambda: {"a": 1}}, str, "a", widgets.Dropdown),
        ({}, str, "x", widgets.Text),
        ({}, bool, True, widgets.Checkbox),
        ({}, int, 3, widgets.IntText),
    ],
)
def test_a_control_fits_its_knob(about, kind, value, expected):
    made = control("micro_batches", Knob("pieces", unit="bytes", **about), kind, value)
    assert type(made) is expected and made.value == value and type(made.value) is kind
    assert made.description == "micro-batches, bytes" and made.tooltip.startswith("pieces")
    assert ("low" in about) == (", " in made.tooltip)


@pytest.mark.parametrize("name", Experiment.all())
def test_a_panel_opens_at_the_very_defaults(name):
    """And a browser finds nothing to round: each slider of whole numbers stands on one of its own
    steps."""
    first = Experiment.named(name)()
    for setting, made in controls_of(first).items():
        default = getattr(first, setting)
        assert made.value == default and type(made.value) is type(default), setting
        if isinstance(made, Graded):
            assert made.box.value == default == made.slider.value, setting
        if isinstance(made, widgets.IntSlider):
            assert (default - made.min) % made.step == 0, setting


@pytest.mark.parametrize(
    "range_, always, seen, wanted",
    [
        ({"low": 0, "high": 0.9}, (), slice(4), [0.0, 0.01, 0.02, 0.03]),
        ({"low": 0, "high": 0.9}, (0.125,), slice(12, 15), [0.12, 0.125, 0.13]),
        ({"low": 1, "high": 2, "step": 0.25}, (), slice(9), [1, 1.25, 1.5, 1.75, 2]),
        (
            {"low": 1, "high": 2**40, "logarithmic": True},
            (),
            slice(99),
            [2.0**k for k in range(41)],
        ),
        (
            {"low": 0.01, "high": 0.16, "logarithmic": True},
            (),
            slice(99),
            [0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.16],
        ),
        ({"low": 0, "high": 10, "logarithmic": True}, (), slice(3), [0, 1e-6, 1.5e-6]),
    ],
)
def test_positions_are_round_and_hold_what_must_be_there(range_, always, seen, wanted):
    assert positions(Knob("", **range_), *always)[seen] == wanted


def test_a_graded_number_is_that_of_the_box_or_of_the_position_that_the_slider_was_moved_to():
    made, moves = Graded(8192.0, Knob("", low=1, high=2**40, logarithmic=True)), []
    made.observe(lambda change: moves.append(change["new"]), "value")
    made.box.value = 2.0**30
    assert made.value == 2**30 and made.slider.index == 30
    # between two positions: the slider shows the next one and moves nothing
    made.box.value = 1000.0
    assert made.value == 1000 and made.slider.index == 10
    made.slider.index = 12
    assert (made.value, made.box.value, moves) == (4096, 4096, [2**30, 1000, 4096])


@pytest.mark.parametrize(
    "name, about, first, value, found",
    [
        ("width", {"low": 16, "high": 1024, "step": 16}, 24, 30, {"value": 30, "step": 2}),
        ("rows", {"low": 1, "high": 64, "logarithmic": True}, 8, 24, {"value": 24}),
    ],
)
def test_a_slider_learns_a_value_between_its_steps(name, about, first, value, found):
    made = control(name, Knob("", **about), int, first)
    put(made, value)
    assert {each: getattr(made, each) for each in found} == found


def test_a_panel_of_an_instance_takes_other_settings_too():
    assert show(Waves(ranks=1), micro_batches=3).experiment == Waves(ranks=1, micro_batches=3)


# -- prediction ------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", ["It idles.", f"It idles: {'a rank, ' * 40}and more."])
def test_what_is_said_first_stands_below_the_question_and_a_long_one_by_its_first_clause(
    told, monkeypatch
):
    monkeypatch.setattr(Waves, "explain", lambda self, trace: ["Rank 0 idles.", told])
    shown = Panel(Waves)
    assert "<p>It idles.</p>" in shown.lead.value
    assert (told in shown.foot.why.value) is (told != "It idles.")


def test_a_move_is_drawn_first_and_the_rest_is_told_when_the_hand_rests(panel, monkeypatch):
    """By a message each to player and answers, and one that greys what is still to be told."""
    whole, foot, sent = Panel(Waves, micro_batches=5), panel.foot, []
    gate, real = threading.Event(), Waves.explain
    monkeypatch.setattr(Waves, "explain", lambda self, of: gate.wait(60) and real(self, of))
    monkeypatch.setattr("bigtrain_lab.panel.settings.PATIENCE_S", 60)
    for part in parts(panel, hidden=True):
        if part is not panel.controls["micro_batches"]:
            part.comm.send = lambda *args, part=part, **kwargs: sent.append(type(part).__name__)
    late = [(shown.lead, shown.foot.why, shown.foot.numbers) for shown in (panel, whole)]
    before = panel.player.data, [part.value for part in late[0]]
    panel.controls["micro_batches"].value = 5
    assert sent == ["Player", "HTML", "Panel"] and panel.experiment.micro_batches == 5
    assert panel.player.data != before[0] and [part.value for part in late[0]] == before[1]
    assert "btl-untold" in panel._dom_classes and panel.answers.value == whole.answers.value
    gate.set()
    until(lambda: "btl-untold" not in panel._dom_classes)
    assert len({tuple(part.value for part in each) for each in late}) == 1
    assert panel.rows[0].predicted == report.Amount((5 + 1) * 3, "slot") and panel.run is None
    assert all(
        'title="step time: the mean over the run&#x27;s steps"' in part.value
        for part in (panel.answers, foot.numbers)
    )


def test_what_is_held_inside_actions_comes_when_the_hand_rests(monkeypatch):
    """Times and what is held where actions end are exact before."""
    monkeypatch.setattr("bigtrain_lab.panel.settings.PATIENCE_S", 60)
    panel = Panel("checkpoint", layers=3, steps=1, budget=60.0)
    whole = panel.traces["predicted"]
    made = attempt(panel.experiment, {}, whole=False)
    ends = [e for e in whole.events if type(e) is not Alive and not getattr(e, "inside", False)]
    assert [*made.trace.events] == ends != [*whole.events]
    tell(made)
    assert made.trace.events == whole.events and panel.rows[0].predicted is not None
    panel.controls["budget"].value = 80.0
    expected = panel.experiment.replace(budget=80.0).predict().events
    until(lambda: panel.traces["predicted"].events == expected)


def test_one_press_sets_all_settings_as_they_were_at_first(panel):
    panel.set(ranks=3, micro_batches=3, gate="never")
    panel.settings.defaults.click()
    assert panel.experiment == Waves() and panel.settings.defaults in panel.settings.more.children


def test_a_search_finds_settings_by_name_help_and_range(panel):
    for text, found in (
        ("LETS the", {"gate"}),
        ("memory_mb ", {"memory_mb"}),
        ("1 to 4", {"steps", "ranks"}),
        ("", set()),
    ):
        panel.settings.search.value = text
        assert {n for n, made in panel.controls.items() if FOUND in made._dom_classes} == found
        assert ("btl-searched" in panel.settings.more._dom_classes) == bool(text)


def test_what_cannot_be_shows_its_sentence_and_offers_the_nearest(panel):
    panel.controls["ranks"].value = 4
    assert panel.problem == "4 ranks need at least 4 micro-batches." and panel.problem in said(
        panel
    )
    panel.pin()
    assert panel.bar.pin.disabled and panel.pinned is None
    assert panel.run_button.disabled and panel.start() is None
    assert "btl-refused" in panel.picture.body._dom_classes
    assert WRONG in panel.controls["ranks"]._dom_classes
    button(panel, "Nearest that works: ranks = 2").click()
    assert panel.problem == "" and panel.experiment.ranks == 2
    assert WRONG not in panel.controls["ranks"]._dom_classes
    assert "btl-refused" not in panel.picture.body._dom_classes and not panel.run_button.disabled


def test_the_answers_of_a_lab_are_quantities_of_it():
    for lab in (each() for each in Experiment.all().values()):
        told = {*lab.answers, *lab.rivals_tell} - {table.FULLEST}
        assert told <= {quantity.name for quantity in lab.quantities}


def test_curves_are_drawn_of_a_run_beside_what_is_pinned(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    shown = show("staleness", ranks=2, steps=3)
    assert "press Run" in curves({"loss": "loss"}, shown.traces["predicted"])
    ran(shown)
    assert shown.picture.lenses.value == "curves" and shown.picture.curves in parts(shown)
    losses = [event.value for event in shown.run.trace().where(Scalar, name="loss")]
    for text in (
        f">{losses[-1]:#.4g}<",
        ">slots<",
        ">loss of each micro-batch",
    ):
        assert text in shown.picture.curves.value
    assert "Grey: the same updates, weights never old." in shown.picture.curves.value
    line = re.search('btl-line" points="(.*?)"', shown.picture.curves.value)[1].split()
    heights = [float(point.split(",")[1]) for point in line]
    assert len(line) == len(losses) and heights.index(min(heights)) == losses.index(max(losses))
    shown.pin()
    ran(shown, learning_rate=0.5)
    assert (drawn := shown.picture.curves.value).count("<polyline") == 2 and (
        'btl-dashed" points="' in drawn and shown.picture.lenses.value == "curves"
    )
    shown.set(learning_rate=0.25)  # no loss of these settings is known, but what is pinned stays
    assert 'btl-dashed" points="' in shown.picture.curves.value
    shown.unpin()
    assert shown.picture.lenses.value == "timeline"
    served = ran(show("parameter-server", steps=2))
    assert served.picture.lenses.value == "rivals"  # its curves are none of its figures
    served.picture.lenses.value = "curves"
    assert "press run in a row" in served.picture.curves.value
    ahead = show("large-batch")  # of which a rate is known before a run
    assert ahead.picture.lenses.value == "curves"
    assert ">learning rate<" in (drawn := ahead.picture.curves.value) and "press Run" in drawn
    ahead.pin()
    ahead.set(batch=32)  # 2.7 s beside 40 ms, on one axis
    assert (drawn := ahead.picture.curves.value).count(">s<") == 2 and ">ms<" not in drawn
    ends = [float(line.split()[-1].split(",")[0]) for line in re.findall('points="(.*?)"', drawn)]
    assert len(ends) == 2 and ends[0] < ends[1] / 5
    ahead.unpin()
    plan = ahead.traces["predicted"]
    ahead.picture.show(window(plan, 0, plan.steps // 4), live=True, plan=plan)  # nothing vanishes
    assert "Grey: as predicted" in (drawn := ahead.picture.curves.value)
    ends = [float(line.split()[-1].split(",")[0]) for line in re.findall('points="(.*?)"', drawn)]
    assert len(ends) == 2 and ends[1] < ends[0] / 2
    nothing = replace(ahead.traces["predicted"], events=(), clock="modelled")
    assert "ended before" in curves({RATE: RATE}, nothing)
    assert "<polyline" in curves({RATE: RATE}, nothing, plan)


def test_an_axis_that_does_not_begin_at_0_says_so():
    def drawn(name, *values):
        return curves(
            {name: name},
            Trace.of(
                [Scalar(0, "compute", "scalar", name, at, of) for at, of in enumerate(values)],
                "modelled",
            ),
        )

    assert ">from 3, not 0<" in drawn("loss", 3.0, 5.0) and "not 0" not in drawn("loss", 1.0, 5.0)
    assert (
        ">60%<" in (fixed := drawn("test accuracy", 0.62, 0.64))
        and ">100%<" in fixed
        and (
            ">2,001<" in drawn("loss", *range(2002))  # the last of more than are drawn
        )
    )


def test_names_of_one_title_share_a_chart_and_ranks_that_differ_have_their_colours():
    told = [
        Scalar(rank, "compute", "scalar", name, at, at + rank)
        for at in range(30)
        for rank, name in ((0, "trained"), (0, "held out"), (1, "held out"))
    ]
    trace = Trace.of(told, "modelled", ranks=2, settings={"facts": {"roles": ["worker", "server"]}})
    drawn = curves({"trained": "loss", "held out": "loss"}, trace)
    assert drawn.count("<svg") == 1 and drawn.count('polyline class="btl-thin"') == 1
    key = re.findall(r'fill:(#\w+)">\u25cf</tspan><tspan.*?>(.*?)<', drawn)
    assert key == [("#0072B2", "rank 0 (worker)"), ("#E69F00", "rank 1 (server)")]
    assert re.findall(r'"btl-line" style="--own:(#\w+)"', drawn) == [colour for colour, _ in key]
    behind = [each._replace(value=2.0) for each in told if each.rank < 1 or each.start < 1]
    assert "tspan" not in curves({"held out": "loss"}, Trace.of(behind, "modelled", ranks=2))


def test_rivals_that_a_moving_hand_gave_up_are_found_once_it_is_back():
    lab, moving = show("staleness").experiment, [True]
    rivals = Rivals(lambda *_: None, lambda: moving[0])
    rivals._handle_custom_msg({"seen": True}, [])
    rivals.show(lab, lab.predict(), None)
    until(lambda: not rivals.waiting)
    assert rivals._shown is None
    moving[0] = False
    rivals.show(lab, lab.predict(), None)
    until(lambda: not rivals.waiting)
    assert "btl-stale" not in rivals.html
    # as a dry run tells more, later
    rivals.show(lab, told_late := lab.replace(micro_batches=16).predict(), None)
    assert f'data-time="{told_late.step_time}"' in rivals.html


def test_what_was_still_to_be_predicted_comes_under_a_refusal():
    shown = show("zero")
    rivals = shown.picture.rivals
    rivals._moving = lambda: True
    rivals._handle_custom_msg({"seen": True}, [])
    until(lambda: not rivals.waiting)
    rivals._moving = lambda: False
    shown.set(fault="kill", fault_rank=7)
    assert shown.problem
    until(lambda: rivals.html.count("data-row") == 4)
    assert "btl-refused" in shown.picture.body._dom_classes
    late = show("checkpoint")
    late.set(heads=30)
    late._tell(late._compared.prediction)  # what it finds inside actions
    assert late.problem


def test_a_refusal_while_a_run_goes_on_leaves_its_picture_alive(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = show("pipeline", fault="hang", fault_at=3)
    shown.start()
    until(lambda: shown.player.live)
    shown.set(fault_rank=7)
    assert shown.problem and shown.player.live
    shown.stop()
    with suppress(RankFailed):
        shown.wait()
    # and the end is drawn under it, and enables nothing
    assert not shown.player.live and shown.run_button.disabled and shown.start() is None


@pytest.mark.parametrize(
    "lab, take, told, fastest",
    [
        (
            "compile",
            "time a step",
            ["9|336 MB", "1|32 MB", *["\u2013|\u2013"] * 2],
            "ours, inductor.",
        ),
        (
            "parameter-server",
            "time a gradient",
            [f"{n} updates" for n in (0, 2.977, 1.652)],
            "asynchronous.",
        ),
    ],
)
def test_a_lab_s_own_quantities_are_columns_of_its_rivals(lab, take, told, fastest):
    """And its answer says which of them is the fastest."""
    rivals = (shown := show(lab)).picture.rivals
    rivals._handle_custom_msg({"seen": True}, [])
    until(lambda: not rivals.waiting)
    # what all hold alike tells nothing
    assert f">{take}</th>" in rivals.html and "peak, fullest rank" not in rivals.html
    for row, cells in zip(rivals.html.split("<tr")[2:], told, strict=True):
        assert "".join(f"<td>{cell}</td>" for cell in cells.split("|")) in row
    until(lambda: f" Fastest: {fastest}" in shown.lead.value)


def test_a_figure_below_a_table_is_drawn_once_the_hand_rests():
    """Plotly holds a browser for longer than a move may take."""
    shown, owed = show("compile"), []
    shown.answers.observe(lambda _: owed.append(shown.picture.owed), "value")
    shown.set(rows=2000)
    until(lambda: owed and not shown.picture.owed)
    assert owed[0] and len(shown.picture._figure.children) == 1


def test_slots_that_are_of_another_part_of_the_model_compare_as_the_work_that_they_are():
    """And the fastest of what trains alike is named."""
    (shown := show("pipeline")).picture.lenses.value = "rivals"
    shown.picture.rivals._handle_custom_msg({"seen": True}, [])
    until(lambda: " Fastest without a catch: zb-" in shown.lead.value)
    assert shown.picture.rivals.html.count(", older weights<") == 3
    shown.pin()
    shown.set(ranks=2)  # a slot is the work of two stages of before: 33 slots are 16.5
    assert (
        shown.rows[0].predicted.value,
        shown.rows[0].pinned.value,
        shown.picture._pinned.step_time,
        str(shown.picture._kept).partition("settings, ")[2],
        "from 16.5, 33 then<" in shown.answers.value,
    ) == (27, 16.5, 16.5, "times in slots of now", True)


def test_where_it_takes_long_to_find_rivals_what_the_settings_give_comes_at_once(monkeypatch):
    shown, told = show("zero"), []
    rivals = shown.picture.rivals
    rivals._handle_custom_msg({"seen": True}, [])
    until(lambda: not rivals.waiting)
    monkeypatch.setattr(type(shown.experiment), "tells_late", True)
    rivals.observe(lambda change: told.append(change["new"].split("<tr")[2:]), "html")
    shown.set(stage=3)
    until(lambda: not rivals.waiting)
    *others, mine = told[0]
    assert [("btl-own" in row, "btl-stale" in row) for row in others] == [(False, True)] * 4
    assert ">mine<" in mine and f'data-time="{shown.traces["predicted"].step_time}"' in mine
    assert len(told[-1]) == 4 and "btl-stale" not in "".join(told[-1])


def test_rivals_stand_side_by_side_and_a_click_takes_one():
    shown = show("zero")
    rivals = shown.picture.rivals
    # nobody looks
    assert rivals.html.count("predicting ...") == 4 and "data-row" not in rivals.html
    rivals._moving = lambda: True  # a hand goes on
    rivals._handle_custom_msg({"seen": True}, [])
    assert rivals._newest._last.wait(60) and rivals.html.count("predicting ...") == 4
    rivals._moving = lambda: False
    shown.settings.predict()
    until(lambda: not rivals.waiting)
    assert rivals.html.count("<tr") == 1 + 4 and rivals.html.count("btl-own") == 1
    told = []
    rivals.observe(lambda change: told.append(change["new"].split("<tr")[2:]), "html")
    rivals._handle_custom_msg({"row": 2}, [])
    until(lambda: not rivals.waiting)
    looks = [[("btl-own" in row, "btl-stale" in row) for row in rows] for rows in told]
    own = [(stage == 2, False) for stage in range(4)]
    assert looks == [[(mine, not mine) for mine, _ in own], own]  # its own row comes at once
    assert f'data-time="{shown.traces["predicted"].step_time}"' in told[0][2]
    before = rivals._shown
    shown.settings.predict()  # as after a class was typed again: the settings are equal
    assert rivals._shown == before and rivals._shown is not before
    until(lambda: not rivals.waiting)
    trace = ran(shown).traces["modelled"]
    rows = rivals.html.split("<tr")[2:]
    assert len(rows) == 4 and "The blue row ran, as predicted on the modelled clock." in rivals.html
    assert f'data-time="{trace.step_time}"' in rows[2] and rivals.html.count("btl-own") == 1
    rivals._handle_custom_msg({"row": 2}, [])  # the settings of the run are those of now
    assert (shown.experiment.stage, shown.picture.tabs.value, shown.picture.lenses.value) == (
        2,
        "modelled",
        "rivals",
    ) and "<small>modelled</small>" in shown.answers.value
    rivals._handle_custom_msg({"row": 1, "do": "run"}, [])  # beside what is shown
    shown.wait()
    assert (shown.run.settings["settings"]["stage"], shown.pinned.experiment.stage) == (1, 2)
    until(lambda: not rivals.waiting)
    assert ">pinned: modelled, stage 2" in rivals.html and rivals.html.count("btl-kept") == 1
    shown.picture.lenses.value = "microscope"
    assert rivals not in parts(shown) and len(shown.picture._figure.children) == 1
    data = shown.player.data
    shown.set(stage=3)
    assert shown.player.data == data  # nobody sees it
    shown.picture.lenses.value = "timeline"
    assert shown.player.data != data


@pytest.mark.parametrize("method", ["predict", "explain", "describe"])
def test_an_unexpected_exception_stands_where_the_figure_was(panel, monkeypatch, method):
    real = getattr(Waves, method)

    def broken(self, *told):
        if self.micro_batches == 3:
            raise KeyError("no such stage")
        return real(self, *told)

    monkeypatch.setattr(Waves, method, broken)
    monkeypatch.setattr("bigtrain_lab.panel.settings.PATIENCE_S", 60)  # a hand's move
    panel.controls["micro_batches"].value = 3
    until(lambda: "btl-refused" in panel.picture.body._dom_classes)
    assert re.fullmatch(r"KeyError: 'no such stage' \(in broken, line \d+\)", panel.problem)
    assert panel.run_button.disabled
    panel.controls["micro_batches"].value = 2
    assert panel.problem == "" and not panel.run_button.disabled


@pytest.mark.parametrize(
    "step",
    [lambda: simulate(GPipe(2, 2), {"F": 1, "B": 2}), lambda: dry_run(spanning)],
    ids=["simulate", "dry_run"],
)
def test_an_overtaken_prediction_gives_up_at_its_next_step(step):
    newest, said = Newest(), []

    def endless():
        try:
            while True:
                step()
        finally:
            said.append("gave up")

    newest.ask(endless, said.append, 0.01)
    newest.ask(lambda: "the newest", said.append, 60)
    until(lambda: len(said) == 2)
    assert said == ["gave up", "the newest"]


def spanning(rank):
    with rank.span("step"):
        pass


@pytest.mark.parametrize("patience_s", [0, 60])
def test_what_gives_up_by_itself_answers_nothing(patience_s):
    newest, said, others = Newest(), [], {*threading.enumerate()}

    def gives_up():
        time.sleep(0.1)
        raise Overtaken

    newest.ask(gives_up, lambda *answer: said.append(answer), patience_s)
    for thread in {*threading.enumerate()} - others:
        thread.join()
    assert said == []


def test_another_cell_predicts_again_only_where_a_class_changed(panel, family):
    shown = show("pipeline")
    before = shown.traces["predicted"]
    shown.read_menus()
    assert shown.traces["predicted"] is before
    typed(GPipe)
    shown.read_menus()
    assert "typed" in shown.controls["schedule"].options
    shown.set(schedule="typed")
    typed(GPipe, steps=lambda schedule, rank: 1 / 0)
    shown.read_menus()
    assert "ZeroDivisionError" in shown.problem and shown.run_button.disabled


@pytest.mark.parametrize(
    "settings, idle",
    [
        ({}, {"stashing", "chunks"}),
        ({"schedule": "pipedream"}, {"chunks"}),
        # 8 stages need 8 layers: what mends it must be in view
        ({"schedule": "interleaved", "layers": 4}, {"stashing"}),
    ],
)
def test_options_of_other_schedules_are_hidden(settings, idle):
    shown = show("pipeline")
    shown.set(**settings)
    assert idle | {"fault_rank", "fault_at", "fault_factor"} == {
        name for name, made in shown.controls.items() if IDLE in made._dom_classes
    }


@pytest.mark.parametrize(
    "lab, moved, settings, offer",
    [
        (Waves, "micro_batches", {"ranks": 4}, {"micro_batches": 4}),
        (Waves, None, {"ranks": 4}, {"ranks": 2}),
        ("checkpoint", "budget", {"budget": 4.0}, {"budget": 6.5}),  # a number that was moved
        # who has just chosen a plan does not want another one
        ("checkpoint", "plan", {"budget": 3.0}, {"budget": 6.5}),
        ("checkpoint", None, {"budget": 2.0}, {"budget": 6.5}),  # the sentence is about it
        ("checkpoint", "model", {"model": "mlp", "plan": "selective"}, {"plan": "optimal"}),
        ("checkpoint", "heads", {"heads": 5}, {"heads": 4}),
        ("checkpoint", "rows", {"heads": 5}, {"heads": 4}),
    ],
)
def test_nearest_mends_what_was_moved_or_the_sentence_is_about(lab, moved, settings, offer):
    first = (Experiment.named(lab) if isinstance(lab, str) else lab)()
    settings = first.model_dump() | settings
    sentence = attempt(first, settings)
    assert isinstance(sentence, str) and nearest(first, settings, moved, sentence) == offer


@pytest.mark.parametrize(
    "knob, kind, value, wanted",
    [
        ({"low": 1, "high": 6}, int, 4, [3, 5, 2, 6, 1]),
        ({"choices": "abc"}, str, "b", ["a", "c"]),
        ({}, bool, True, [False]),
        ({"low": 0, "high": 1, "step": 0.25}, float, 0.5, [0.25, 0.75, 0.0, 1.0]),
        ({"low": 0, "high": 10**6, "step": 0.001}, float, 0.5, []),
        ({"low": 256, "high": 32000}, int, 0, [256]),
        ({"low": 256, "high": 32000}, int, 10**11, [32000]),
        ({"low": 0, "high": 10**6, "step": 0.001}, float, -1.0, [0.0]),
    ],
)
def test_nearby_values_come_nearest_first(knob, kind, value, wanted):
    assert nearby(Knob("", **knob), kind, value) == wanted


def test_a_class_typed_in_a_cell_is_no_mend(family):
    """It answers another exercise; the library's own are offered."""
    for name in ("my-broken", "my-right"):  # neighbours on the menu
        typed(
            Schedule,
            name=name,
            steps=Schedule.named("gpipe").steps if name == "my-right" else lambda self, rank: [],
        )
    first = Experiment.named("pipeline")()
    settings = first.model_dump() | {"schedule": "my-broken"}
    offer = nearest(first, settings, None, attempt(first, settings))
    assert list(offer) == ["schedule"] and offer["schedule"] not in ("my-broken", "my-right")
    assert nearby(first.knobs()["schedule"], str, "gpipe")[-1] not in ("my-broken", "my-right")


@pytest.mark.parametrize("given, offered", [(0, 256), (10**11, 32000)])
def test_a_number_out_of_range_is_refused_and_its_range_is_under_the_pointer(given, offered):
    shown = show("memory")
    vocabulary = shown.controls["vocabulary"]
    vocabulary.value = given
    assert re.search(rf"{given}: .* from 256 to 32,000", shown.problem)
    assert vocabulary.value == given and vocabulary.tooltip.endswith(
        ", 256 to 32,000 (--vocabulary)"
    )
    button(shown, "Nearest that works: vocabulary").click()
    assert not shown.problem and shown.experiment.vocabulary == offered
    assert shown.foot.tabs.value == WHY
    shown.set(heads=5)
    assert shown._offer == {"heads": 4} and shown.foot.tabs.value == MORE  # where it is changed


# -- presses ---------------------------------------------------------------------------------------


def page(panel, told: dict, **moves) -> None:
    """What the panel's page sends, with the moves that the kernel has not heard, in their order."""
    shown = {panel.controls[name].model_id: {"value": value} for name, value in moves.items()}
    panel.player._handle_custom_msg(told | {"moves": {"gone": {"value": 1}} | shown}, [])


def test_a_press_takes_the_moves_of_its_page_and_none_that_comes_later(panel, monkeypatch):
    """A kernel may hear a control in another thread than a press, before it has acted."""
    begun, gate, real = threading.Event(), threading.Event(), Waves.predict
    monkeypatch.setattr(
        Waves,
        "predict",
        lambda self: (
            real(self) if self.micro_batches != 5 else begun.set() or gate.wait(60) and real(self)
        ),
    )
    monkeypatch.setattr("bigtrain_lab.panel.settings.PATIENCE_S", 0.01)
    press = threading.Thread(
        target=page, args=(panel, {"press": "pin"}), kwargs={"micro_batches": 5}
    )
    move = panel.controls["micro_batches"]
    later = threading.Thread(target=move.set_state, args=({"value": 7},))
    press.start()
    assert begun.wait(60)
    later.start()
    time.sleep(0.2)
    gate.set()
    press.join()
    later.join()
    assert (panel.pinned.experiment.micro_batches, panel.experiment.micro_batches) == (5, 7)
    with panel._lock:  # the same move by its own message, heard first, that has to wait
        same = threading.Thread(target=move.set_state, args=({"value": 6},))
        same.start()
        time.sleep(0.2)
        page(panel, {"press": "pin"}, micro_batches=6)
        assert panel.pinned.experiment.micro_batches == 6
    same.join()


def test_a_press_waits_for_a_prediction_that_takes_very_long(panel, monkeypatch):
    gate, real = threading.Event(), Waves.predict
    monkeypatch.setattr(Waves, "predict", lambda self: gate.wait(60) and real(self))
    for patience in ("PATIENCE_S", "STUCK_S"):
        monkeypatch.setattr(f"bigtrain_lab.panel.settings.{patience}", 0.01)
    page(panel, {"press": "pin"}, micro_batches=5)
    assert panel.pinned is None
    gate.set()
    until(lambda: panel.pinned)
    assert panel.pinned.experiment.micro_batches == 5


def test_a_cell_that_starts_a_run_waits_for_what_the_cell_before_it_moved(panel, monkeypatch):
    real = Waves.predict
    monkeypatch.setattr(Waves, "predict", lambda self: time.sleep(0.3) or real(self))
    monkeypatch.setattr("bigtrain_lab.panel.settings.PATIENCE_S", 0.01)
    panel.controls["micro_batches"].value = 5
    assert panel.settings.predicting and panel.start()
    assert panel.wait() and panel.experiment.micro_batches == 5


def test_a_page_learns_that_its_move_is_heard_and_nothing_overwrites_its_next(panel, monkeypatch):
    sent, told = [], []
    panel.player.send = sent.append
    monkeypatch.setattr(
        "ipywidgets.Widget._send", lambda self, each, buffers=None: told.append(each)
    )
    page(panel, {"heard": 3}, micro_batches=5, ranks=3)
    assert sent == [{"do": "heard", "text": 3}]
    assert not any("echo" in message["method"] for message in told)
    assert (panel.experiment.micro_batches, panel.experiment.ranks) == (5, 3)


def test_what_a_hand_may_ask_for_next_is_predicted_ahead(panel, monkeypatch):
    asked, real, load = [], Waves.predict, [0.0]
    monkeypatch.setattr("bigtrain_lab.panel.settings.PATIENCE_S", 60)
    monkeypatch.setattr("psutil.getloadavg", lambda: load)
    monkeypatch.setattr("bigtrain_lab.panel.panel.RESTS", 10_000)
    panel.set(fault_at=7)  # a panel of another test may still look ahead

    def predict(self):
        asked.extend([(self.ranks, self.micro_batches)] * (self.fault_at == 7))
        return real(self)

    monkeypatch.setattr(Waves, "predict", predict)
    until(panel._later._last.is_set)  # no thread tells any more
    page(panel, {"heard": 0})  # a hand comes
    until(lambda: (2, 3) in asked)
    page(panel, {"heard": 1}, micro_batches=5)
    until(lambda: (2, 6) in asked and (4, 5) in asked and gc.get_freeze_count())
    # one panel of a kernel looks ahead, and none while a cell or a panel runs
    other = Panel(Waves)
    for busy in ("cell", "run"):
        other.read_menus(busy == "cell")
        monkeypatch.setattr("bigtrain_lab.panel.panel.RUNS", {busy} - {"cell"})
        page(other, {"heard": 0})
        until(lambda: other._later._last.is_set() and AHEAD._last.is_set())
        assert not other.settings._ahead and panel.settings._ahead
    monkeypatch.setattr("bigtrain_lab.panel.panel.RUNS", set())
    page(other, {"heard": 0})
    until(lambda: other.settings._ahead and not panel.settings._ahead)
    asked.clear()
    page(panel, {"heard": 2})
    until(lambda: {(2, 6), (4, 5)} <= {*asked} and panel.settings._ahead)
    load[0] = 99.0  # others need this machine
    before = asked.count((2, 6))
    panel.controls["micro_batches"].value = 6
    assert panel.experiment.micro_batches == 6 and asked.count((2, 6)) == before
    # a cell may have changed what settings mean, and what it leaves is collected as ever
    until(lambda: panel.read_menus(True) or not gc.get_freeze_count())
    asked.clear()
    panel.controls["micro_batches"].value = 4
    assert panel.experiment.micro_batches == 4 and (2, 4) in asked
    assert [*panel.settings.look_ahead()] == [] and asked[-1] == (2, 4)


def test_what_was_left_and_as_far_again_come_first_then_what_is_near_then_the_ends(panel):
    panel.set(micro_batches=2)
    panel.controls["micro_batches"].value = 4
    likely = panel.settings._likely({"ranks": 2, "micro_batches": 4})
    assert likely[:3] == [("micro_batches", 2), ("micro_batches", 6), ("micro_batches", 5)]
    assert [name for name, _ in likely[:10]].count("ranks") == 3 and ("ranks", 2) not in likely
    assert {("micro_batches", 1), ("micro_batches", 8)} <= {*likely[3:10]}
    powers = Panel("partition").settings  # what the slider has, and nothing between
    found = {value for name, value in powers._likely(powers._asked_of) if name == "vocabulary"}
    assert found == {2**k for k in range(8, 16)} - {2048}


# -- runs ------------------------------------------------------------------------------------------


def ran(panel, **settings):
    """The panel after a run with these settings."""
    panel.set(**settings)
    panel.start()
    panel.wait()
    return panel


def test_run_fills_the_columns(panel):
    panel.run_button.click()
    assert panel.run_button.disabled and not panel.stop_button.disabled
    assert panel.tabs.value == "modelled"
    panel.wait()
    # 4 forwards ran, 10 actions were planned
    assert [spans.value for spans in panel.rows[1][2:5]] == [10, 4, 4]
    assert set(panel.traces) == {"predicted", "modelled", "measured"}
    assert "done after" in panel.status.value and "idle" in panel.status.value
    assert "≠ modelled -60%" in said(panel) and not panel.run_button.disabled


@pytest.mark.parametrize("trouble, words", [("nan", "ended with loss nan"), ("nan once", "done")])
def test_a_run_whose_loss_is_no_number_at_its_end_is_not_called_done(panel, trouble, words):
    ran(panel, trouble=trouble)
    assert panel.run.state == "done" and f">{words} after " in panel.status.value
    assert ("The run ended with loss nan." in panel.answers.value) == (trouble == "nan")


def test_a_move_after_a_run_greys_what_it_gave(panel):
    ran(panel)
    assert not panel.stale
    panel.controls["micro_batches"].value = 4
    assert panel.stale and panel.tabs.value == "predicted" and panel.player.note == ""
    assert "settings changed" in said(panel) and 'class="btl-stale"' in said(panel)
    panel.tabs.value = "measured"
    assert "settings changed" in panel.player.note
    panel.controls["micro_batches"].value = 2
    assert not panel.stale and "settings changed" not in said(panel)


def test_live_events_and_what_ranks_compute_are_shown_before_the_end(panel, monkeypatch, tmp_path):
    monkeypatch.setattr(Run, "now", "rank 1 has computed for 40 s in 2F3")
    panel.set(gate=str(tmp_path / "gate"))
    panel.start()
    until(lambda: panel.player.data and "; rank 1 has computed for 40 s" in panel.status.value)
    assert panel.run.state == "running" and panel.player.live and b'"modelled"' in panel.player.data
    assert "btl-shares btl-pale" in panel.answers.value  # of the prediction, which stays
    told, planned = json.loads(panel.player.data), panel.traces["predicted"].spans()
    assert sorted(each[1:] for each in told["plan"]) == sorted(
        [s.kind, s.start, s.end, ""] for s in planned
    )
    assert len(told["spans"]) < len(planned) and told["end"] == max(s.end for s in planned)
    panel.bar.pause.click()
    until(lambda: "paused, step 1 of 1; " in panel.status.value)
    until(lambda: panel.bar.pause.description == "Resume")
    panel.tabs.value = "measured"  # nothing else is drawn meanwhile
    assert panel.player.live and b'"measured"' in panel.player.data
    panel.tabs.value = "modelled"
    assert panel.player.live and json.loads(panel.player.data)["plan"] == told["plan"]
    panel.bar.pause.click()
    until(lambda: panel.bar.pause.description == "Pause" and not panel.run.paused)
    (tmp_path / "gate").touch()
    panel.wait()
    assert not panel.player.live and b'"plan"' not in panel.player.data


def test_stop_ends_a_long_run(panel):
    panel.set(gate="never")
    panel.start()
    panel.stop_button.click()
    with pytest.raises(RankFailed, match="stopped"):
        panel.wait()
    assert "stopped after" in panel.status.value
    assert [each.disabled for each in (panel.run_button, panel.stop_button, panel.bar.pause)] == [
        False,
        True,
        True,
    ]


def test_a_failure_is_told_until_settings_change_or_run_is_pressed(panel):
    with pytest.raises(RankFailed):
        ran(panel, trouble="raise")
    assert "ank 1" in panel.lead.value and ">failed after" in panel.status.value
    panel.read_menus()  # any other cell ran
    assert "the wave broke" in said(panel) and panel.player in parts(panel)
    told = json.loads(panel.player.data)
    assert told["failed"] == [1]  # its row is crossed out
    # what was not reached stays, pale, and what its rank was in is named
    assert [(told["rows"][at], label) for at, *_, label in told["plan"] if label] == [
        ([1, "compute"], "B0")
    ]
    assert "btl-shares btl-pale" in panel.answers.value  # a part has no shares of its own
    panel.set(ranks=4)  # what cannot be is told first
    assert panel.problem.startswith("4 ranks need") and panel.problem in said(panel)
    panel.set(ranks=2)
    assert "the wave broke" in said(panel)
    panel.start()
    assert panel.problem == ""
    with pytest.raises(RankFailed):
        panel.wait()
    panel.set(trouble="none")
    assert panel.problem == "" and ">the last run, with other settings:" in panel.status.value


@pytest.mark.parametrize("asked", ["watts", "facts"])
def test_what_a_class_raises_as_it_starts_is_told_and_run_can_be_pressed_again(
    panel, monkeypatch, asked
):
    def broken(self):
        raise ValueError("nobody measured this box")

    monkeypatch.setattr(Waves, asked, property(broken))
    panel.run_button.click()
    assert re.match(r"ValueError: nobody measured this box \(in broken", panel.problem)
    assert panel.run is None and "starting" not in panel.status.value
    assert not panel.run_button.disabled
    monkeypatch.undo()


def test_what_a_class_raises_about_its_run_is_told_and_the_panel_goes_on(panel, monkeypatch):
    def broken(self, trace):
        if trace.clock != "predicted":
            raise KeyError("no such rank")
        return []

    monkeypatch.setattr(Waves, "explain", broken)
    ran(panel)
    assert "KeyError: 'no such rank' (in broken" in panel.problem
    assert not panel.run_button.disabled and panel.stop_button.disabled


def test_what_cannot_start_says_why(panel, tmp_path):
    (tmp_path / "taken").write_text("")
    assert panel.start(directory=tmp_path / "taken") is None
    assert "taken" in panel.problem and not panel.run_button.disabled


# -- a class that was typed again ------------------------------------------------------------------


def one_by_one(schedule, rank):
    return [step for m in range(schedule.micro_batches) for step in (F(rank, m), B(rank, m))]


def test_a_run_of_a_class_that_was_typed_again_is_compared_with_nothing(family, panel):
    small = {"ranks": 2, "micro_batches": 2, "steps": 1, "layers": 2, "width": 16, "sequence": 8}
    typed(Schedule, steps=one_by_one)
    shown = ran(show("pipeline", schedule="typed", **small))
    shown.read_menus()
    assert not shown.stale and shown.rows[0].difference.startswith("as planned")
    typed(GPipe)
    shown.read_menus()
    assert shown.stale and said(shown).count("is compared with nothing") == 1
    assert '<th class="btl-last">order changed</th>' in said(shown) and "≠" not in said(shown)
    shown.pin()
    typed(Schedule, steps=one_by_one)
    shown.read_menus()
    assert not shown.stale and "pinned: an earlier order" in said(shown)


@pytest.mark.parametrize(
    "lab, settings, member, other",
    [
        # the weight versions that actions use are part of an order too
        ("pipeline", {"schedule": "typed"}, PipeDream, {"version": lambda self, action: 0}),
        ("pipeline", {"schedule": "typed"}, GPipe, {"steps": one_by_one}),
        (
            "checkpoint",
            {"plan": "typed"},
            Recompute.named("keep-all"),
            {"order": Recompute.named("keep-none").order},
        ),
    ],
)
def test_an_order_has_a_name_of_its_own(lab, settings, member, other, family):
    lab = Experiment.named(lab)
    typed(member)
    right = lab(**settings).order_digest
    assert right == lab(**settings).order_digest == lab(**settings, width=128).order_digest
    typed(member, **other)
    assert lab(**settings).order_digest != right
