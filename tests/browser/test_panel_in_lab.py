"""The pipeline panel in JupyterLab, as a student uses it: move, run, stop, fail, mend."""

import re

import pytest
from playwright.sync_api import expect

from bigtrain_lab.cli import main
from bigtrain_lab.panel.history import when
from tests.unit.strangers import SMALL, TAG, change_json, tagged

pytestmark = pytest.mark.slow


def until_row(lab, quantity, wanted):
    expect(lab.page.locator(".btl-results")).to_contain_text(wanted)
    return lab.row(quantity)


def test_it_opens_drawn_and_no_wider_than_its_cell(lab):
    page = lab.panel("opens.ipynb")
    assert (lab.data("clock"), lab.data("end"), lab.data("playing")) == (
        "predicted",
        "99",
        "false",
    )  # three steps of 33 slots
    assert lab.row("step time") == ["33 slots", "–", "–", ""]
    assert "Which schedule wastes the least time" in page.locator(".btl-question").text_content()
    wide = page.evaluate(
        """() => [...document.querySelectorAll('.jp-OutputArea-output, .jp-OutputArea-output *')]
        .filter(e => e.scrollWidth > e.clientWidth + 1 && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)).map(e => e.className)"""
    )
    assert wide == []
    page.locator(".btl-player canvas").focus()
    page.keyboard.press("p")
    peak = page.get_by_role("region", name="what a rank holds at its peak")
    expect(peak.locator("b")).to_have_text("Peak of rank 0: 7.38 MB in B9")
    expect(peak).to_contain_text("activations 5.26 MB")
    peak.get_by_role("button", name="the next rank").click()
    expect(peak.locator("b")).to_have_text("Peak of rank 1: 5.64 MB in B9")
    lab.until("time", "value.startsWith('44.2')")
    page.keyboard.press("Escape")
    expect(peak).to_be_hidden()
    assert page.evaluate("document.activeElement.tagName") == "CANVAS"


def test_a_slider_redraws_the_prediction_by_keyboard_and_mouse(lab):
    page = lab.panel("slides.ipynb")
    lab.slider("micro-batches").focus()
    page.keyboard.press("ArrowRight")
    lab.until("end", "value === '108'")
    assert until_row(lab, "step time", "36 slots")[0] == "36 slots"
    handle, track = (
        lab.slider("ranks").bounding_box(),
        page.locator(".widget-slider .noUi-target").first.bounding_box(),
    )
    page.mouse.move(handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2)
    page.mouse.down()
    page.mouse.move(track["x"] + track["width"] + 30, handle["y"], steps=6)
    page.mouse.up()
    expect(page.get_by_role("button", name="Run on 8 ranks")).to_be_visible()
    lab.until("end", f"value === '{3 * (9 + 7) * 3}'")
    expect(page.locator(".btl-results")).to_contain_text("peak memory, rank 7")


def test_opening_a_panel_changes_no_setting(lab):
    """A slider in a browser rounds what it is given to its own steps, and would say so to the
    kernel."""
    page = lab.panel(
        "exact.ipynb",
        call=(
            'from ipywidgets import VBox\nVBox([show("precision"), show("checkpoint"),'
            ' show("accumulate")])'
        ),
    )
    expect(page.locator(".btl-player[data-revision]")).to_have_count(3)
    for at, name in enumerate(("precision", "checkpoint", "accumulate")):
        panel = page.locator(".btl-panel").nth(at)
        panel.get_by_role("button", name="more settings").click()
        panel.get_by_role("button", name="Copy command").click()
        expect(panel.locator(".btl-command code").first).to_have_text(f"bigtrain run {name}")
    panel = page.locator(".btl-panel").first
    scale = panel.locator(
        ".btl-graded", has=page.locator(".widget-label:text-is('loss-scale')")
    ).locator("input")
    scale.fill("1073741824")
    scale.press("Enter")
    expect(panel.locator(".btl-command code").first).to_have_text(
        re.compile(r"--loss-scale 1073741824(\.0)?$")
    )
    lab.slider("loss-scale").focus()
    page.keyboard.press("ArrowLeft")
    expect(panel.locator(".btl-command code").first).to_have_text(
        re.compile(r"--loss-scale 536870912(\.0)?$")
    )


SLOW = """import time
panel = show("pipeline", ranks=2)
panel.controls["micro_batches"].observe(lambda change: time.sleep(1), "value")
panel"""


def test_run_takes_the_last_move(lab):
    """A press of Run overtakes the moves that a browser has still to send while the kernel is busy,
    unless it waits for them."""
    page = lab.panel("last.ipynb", call=SLOW)
    run = page.get_by_role("button", name="Run on 2 ranks").element_handle()
    lab.slider("micro-batches").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    run.evaluate("button => button.click()")
    expect(page.locator(".btl-status")).to_contain_text("done after")
    expect(page.locator(".btl-status")).not_to_contain_text("other settings")
    expect(page.locator(".btl-results")).not_to_contain_text("settings changed")
    page.get_by_role("button", name="Copy command").click()
    expect(page.locator(".btl-command code").first).to_have_text(
        "bigtrain run pipeline --ranks 2 --micro-batches 11"
    )


BLOCKED = """
import time
from pathlib import Path
panel.start()
while not Path('gate').exists():
    time.sleep(0.05)
print('awake')"""


def test_a_blocking_cell_does_not_freeze_a_run(lab):
    page = lab.panel("blocked.ipynb", BLOCKED, call='panel = show("pipeline", steps=50)\npanel')
    lab.until("clock", "value === 'modelled'")
    lab.until("end", "value > 99")
    assert "awake" not in "".join(page.locator(".jp-OutputArea-output").all_text_contents())
    (lab.notebooks / "gate").touch()
    expect(page.locator(".jp-OutputArea-output", has_text="awake")).to_be_visible()


TYPED = """
from bigtrain_lab.order.schedules.gpipe import GPipe
class Mine(GPipe):
    name = "mine"
"""


def test_a_schedule_typed_in_a_cell_joins_the_menu(lab):
    page = lab.panel("typed.ipynb", TYPED, own_kernel=True)
    menu = page.locator(
        ".widget-dropdown", has=page.locator(".widget-label:text-is('schedule')")
    ).locator("select")
    expect(menu.locator("option", has_text="mine")).to_have_count(1)
    menu.select_option("mine")
    expect(page.locator(".btl-results")).to_contain_text("27.3%")
    page.get_by_role("button", name="Run on 4 ranks").click()
    assert "✓ modelled" in until_row(lab, "step time", "equal")[3]


CUT = """() => [...document.querySelectorAll('.btl-controls .widget-readout, .btl-why p, .btl-status, .btl-describe, .btl-changes, .jupyter-button')]
    .filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"""


def test_run_pin_run_again_and_reopen(lab):
    page = lab.panel("runs.ipynb")
    run, results = page.get_by_role("button", name="Run on 4 ranks"), page.locator(".btl-results")
    run.click()
    step = until_row(lab, "step time", "✓ modelled")
    assert step[:2] == ["33 slots", "33 slots"] and step[2] != "–" and "✓ modelled" in step[3]
    memory = lab.row("peak memory, rank 0")
    assert memory[0] == memory[1] == memory[2] and "measured equal" in memory[3]
    assert lab.data("clock") == "modelled"
    page.locator(".btl-player canvas").focus()
    page.keyboard.press("Home")  # all of it is still to be played
    if lab.data("playing") != "true":  # a slow machine: the run was long enough to be watched
        page.keyboard.press(" ")
    lab.until("time", "value > 1 && value < 99")
    page.locator("button.btl-pin").focus()
    page.keyboard.press("Enter")
    expect(results).to_contain_text("pinned (modelled)")

    lab.slider("micro-batches").focus()
    page.keyboard.press("ArrowRight")
    lab.until("clock", "value === 'predicted'")
    expect(results).to_contain_text("pinned: micro-batches 8, now 9")
    run.click()
    until_row(lab, "step time", "✓ modelled")
    step = lab.row("step time")
    assert step[:2] == ["36 slots", "36 slots"] and step[4:] == ["33 slots", "+9.09%"]
    page.get_by_role("button", name="pinned", exact=True).click()
    lab.until("end", "value === '99'")

    page.get_by_role("button", name="more settings").click()
    page.get_by_role("button", name="Copy command").click()
    expect(page.locator(".btl-command code")).to_have_count(3)
    page.get_by_role("button", name="History").focus()
    page.keyboard.press(" ")
    listed = page.locator(".btl-history select")
    expect(listed.locator("option").first).to_contain_text("pipeline  done  micro-batches 9")
    assert page.evaluate(CUT) == []
    listed.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")  # the run before
    expect(page.locator(".btl-status")).to_contain_text("reopened")
    assert until_row(lab, "step time", "✓ modelled")[:2] == ["33 slots", "33 slots"]
    expect(page.locator(".widget-readout").nth(1)).to_have_text("8")
    lab.until("end", "value === '99'")
    page.locator("button.btl-unpin").click()
    expect(page.get_by_role("button", name="pinned", exact=True)).to_have_count(0)


def test_nothing_of_a_stranger_s_run_is_executed(lab, browser, tmp_path):
    """Tags in all of its texts, opened by a program, by History and as an exported page: each is
    shown as it is written."""
    source, runs = tmp_path / "run", lab.notebooks / "runs"
    assert main(["run", "pipeline", *SMALL, "--directory", str(source)]) == 0
    runs.mkdir(exist_ok=True)
    failed, done, refused = (runs / f"2026010{day}T120000Z-pipeline-{TAG}" for day in (1, 3, 5))
    for directory, state in ((failed, "failed"), (done, "done"), (refused, "done")):
        change_json(
            tagged(source, directory, state) / "settings.json",
            ["started"],
            f"2026-01-0{directory.name[7]}T12:00:00+00:00",
        )
    change_json(
        refused / "settings.json", ["settings", TAG], TAG
    )  # a setting that no experiment has
    page = lab.panel(
        "stranger.ipynb",
        call=f"panel = show('pipeline')\npanel.reopen('runs/{failed.name}')\npanel",
    )
    panel = page.locator(".btl-panel")
    expect(panel.locator(".btl-trouble")).to_contain_text(TAG)
    expect(panel.locator(".btl-waits")).to_contain_text("<img src=x onerror")
    panel.get_by_role("button", name="History").click()
    listed = panel.locator(".btl-history select")
    for day, where, told in (
        (3, ".btl-status", f"done on {when('2026-01-03T12:00:00+00:00')}"),
        (5, ".btl-trouble", f"pipeline has no setting '{TAG}'"),
    ):
        option = listed.locator("option", has_text=when(f"2026-01-0{day}T12:00:00+00:00"))
        expect(option).to_contain_text(TAG)
        listed.select_option(label=option.text_content())
        expect(panel.locator(where)).to_contain_text(told)
    assert not page.evaluate("'hacked' in window") and page.locator(".btl-panel img").count() == 0

    for directory in (failed, done):
        assert main(["export", str(directory), "--html", str(tmp_path / "page.html")]) == 0
        shown = browser.new_page()
        try:
            shown.goto((tmp_path / "page.html").as_uri())
            shown.wait_for_selector(".btl-player[data-revision]")
            expect(shown.locator("body")).to_contain_text(TAG)
            shown.locator("canvas").focus()
            for key in ("p", "End", "v", "Home"):
                shown.keyboard.press(key)
            assert not shown.evaluate("'hacked' in window") and shown.locator("img").count() == 0
            shown.evaluate(
                "document.body.insertAdjacentHTML('beforeend', '<img src=x"
                " onerror=window.hacked=1>')"
            )
            shown.wait_for_function(
                "() => document.images.length === 1 && document.images[0].complete"
            )
            assert not shown.evaluate(
                "'hacked' in window"
            )  # not even then: the page's policy lets no such script run
        finally:
            shown.close()
