"""The panel and the player in JupyterLab, as a student uses them: move, run, stop, fail, mend; keys
that are commands of JupyterLab too, and themes. Then the panels of all experiments: whatever is new
among their settings and figures is seen whole. One file, for one JupyterLab and one kernel.
"""

import re
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

from playwright.sync_api import expect

from bigtrain_lab.cli import main
from bigtrain_lab.experiments import Experiment
from bigtrain_lab.panel.picture import FEW, PLAYED, RIVALS
from bigtrain_lab.view.figures import FIGURES
from tests.unit.strangers import SMALL, TAG, tagged


def until_row(lab, quantity, *wanted):
    """Wait until the cells of this row hold these, one after the other; returns them all. (Not
    until some word is in the table: the table of before may hold it too.)"""
    expect(lab.cells(quantity)).to_contain_text([quantity, *wanted])
    return lab.row(quantity)


def test_pin_and_run_take_the_last_move_and_none_that_comes_later(lab):
    """A browser has still to send moves while the kernel is busy, which a press overtakes; and a
    hand goes on at once."""
    page = lab.panel(
        "lab.ipynb",
        call="""import time
panel = show("pipeline", ranks=2)
panel.controls["micro_batches"].observe(lambda change: time.sleep(1), "value")
panel""",
    )
    run = page.get_by_role("button", name="Run on 2 ranks").element_handle()
    lab.slider("micro-batches").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.locator("button.btl-pin").evaluate(CLICK)
    page.keyboard.press("ArrowRight")
    run.evaluate(CLICK)
    expect(page.locator(".btl-status")).to_contain_text("done after")
    expect(page.locator(".btl-status")).not_to_contain_text("other settings")
    expect(page.locator(".btl-changes")).to_have_text("pinned: micro-batches 11, now 12")
    page.get_by_role("button", name="Copy command").click()
    expect(page.locator(".btl-command code").first).to_have_text(
        "bigtrain run pipeline --ranks 2 --micro-batches 12"
    )


def test_a_blocking_cell_does_not_freeze_a_run(lab):
    page = lab.panel(
        "lab.ipynb",
        """
import time
from pathlib import Path
panel.start()
while not Path('gate').exists():
    time.sleep(0.05)
print('awake')""",
        call='panel = show("pipeline", steps=50)\npanel',
    )
    lab.until("clock", "value === 'modelled'")
    lab.until("end", "value > 99")
    assert "awake" not in "".join(page.locator(".jp-OutputArea-output").all_text_contents())
    lab.slider("micro-batches").press("ArrowRight")  # which the kernel hears after the cell
    expect(page.locator(".btl-asked")).to_have_count(1)
    (lab.notebooks / "gate").touch()
    expect(page.locator(".jp-OutputArea-output", has_text="awake")).to_be_visible()


def test_a_schedule_typed_in_a_cell_joins_the_menu(lab):
    page = lab.panel(
        "lab.ipynb",
        """
from bigtrain_lab.order.schedules.gpipe import GPipe
class Mine(GPipe):
    name = "mine"
""",
    )
    menu = page.locator(
        ".widget-dropdown", has=page.locator(".widget-label:text-is('schedule')")
    ).locator("select")
    expect(menu.locator("option", has_text="mine")).to_have_count(1)
    menu.select_option("mine")
    expect(page.locator(".btl-answers")).to_contain_text("13.5")  # MB; 1F1B holds 7.38
    page.get_by_role("button", name="Run on 4 ranks").click()
    until_row(lab, "step time", "33 slots", "33 slots", "as planned")


CUT = """() => [...document.querySelectorAll('.btl-controls > *, .btl-controls .widget-label, .btl-controls .widget-readout, .btl-why p, .btl-changes, .jupyter-button, .btl-key, .btl-commands > *')]
    .filter(e => e.offsetParent && (e.scrollWidth > e.clientWidth + 1 || e.matches('.btl-commands > *') && e.scrollHeight > e.clientHeight + 1)).map(e => e.textContent)"""


def test_it_opens_drawn_no_wider_than_its_cell_then_run_pin_run_again_and_reopen(lab):
    page = lab.panel("lab.ipynb")
    assert lab.data("clock") == "predicted" and lab.data("end") == "99"  # three steps of 33 slots
    assert lab.row("step time") == ["33 slots", "–", "–", ""]
    expect(page.locator(".btl-now")).to_have_text(re.compile("Now: rank 0 B7, rank 1 idle"))
    assert (
        page.evaluate(
            """() => [...document.querySelectorAll('.jp-OutputArea-output, .jp-OutputArea-output *')]
        .filter(e => e.scrollWidth > e.clientWidth + 1 && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)).map(e => e.className)"""
        )
        == []
    )
    page.locator(".btl-player canvas").press("p")
    peak = page.get_by_role("region", name="what a rank holds at its peak")
    expect(peak.locator("b")).to_have_text("Peak of rank 0: 7.38 MB in B9")
    peak.get_by_role("button", name="the next rank").click()
    expect(peak.locator("b")).to_have_text("Peak of rank 1: 5.64 MB in B9")
    page.keyboard.press("Escape")
    expect(peak).to_be_hidden()
    assert page.evaluate("document.activeElement.tagName") == "CANVAS"

    run, results = page.get_by_role("button", name="Run on 4 ranks"), page.locator(".btl-results")
    run.click()
    until_row(lab, "step time", "33 slots", "33 slots", "as planned")
    assert "measured equal" in lab.row("peak memory, rank 0")[3]
    page.locator("button.btl-pin").press("Enter")
    expect(results).to_contain_text("pinned (modelled)")

    lab.slider("micro-batches").press("ArrowRight")
    lab.until("clock", "value === 'predicted'")
    expect(results).to_contain_text("pinned: micro-batches 8, now 9")
    run.click()
    until_row(lab, "step time", "36 slots", "36 slots", "as planned", "33 slots", "+9.09%")
    page.get_by_role("button", name="pinned", exact=True).click()
    lab.until("end", "value === '99'")

    page.get_by_role("button", name="more settings").click()
    page.get_by_role("button", name="Copy command").click()
    expect(page.locator(".btl-command code")).to_have_count(4)
    assert page.evaluate(CUT) == []
    lab.until("said", "value")  # "copied", or that the browser lets no page copy
    page.get_by_role("button", name="History").press(" ")
    listed = page.locator(".btl-past tr[data-row]")
    expect(listed.first).to_contain_text("micro-batches 9")
    assert page.evaluate(CUT) == []
    listed.nth(1).press("Enter")  # the run before
    until_row(lab, "step time", "33 slots", "33 slots", "as planned")
    expect(page.locator(".btl-status")).to_contain_text("reopened")
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
    failed, _ = (
        tagged(source, runs / f"20260101T120000Z-pipeline-{state}{TAG}", state)
        for state in ("failed", "done")
    )
    page = lab.panel(
        "lab.ipynb",
        call=f"panel = show('pipeline')\npanel.reopen('runs/{failed.name}')\npanel",
    )
    panel = page.locator(".btl-panel")
    expect(panel.locator(".btl-trouble")).to_contain_text(TAG)
    expect(panel.locator(".btl-blocked")).to_contain_text("<img src=x onerror")
    panel.get_by_role("button", name="History").click()
    panel.locator(".btl-past tr[data-row]", has_text="done").first.click()
    expect(panel.locator(".btl-status")).to_contain_text("done on")
    assert not page.evaluate("'hacked' in window") and page.locator(".btl-panel img").count() == 0

    assert main(["export", str(failed), "--html", str(tmp_path / "page.html")]) == 0
    with closing(browser.new_page()) as shown:
        shown.goto((tmp_path / "page.html").as_uri())
        shown.wait_for_selector(".btl-player[data-revision]")
        expect(shown.locator("body")).to_contain_text(TAG)
        assert not shown.evaluate("'hacked' in window") and shown.locator("img").count() == 0
        shown.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.hacked=1>')"
        )
        shown.wait_for_function("() => document.images.length === 1 && document.images[0].complete")
        # not even then: the page's policy lets no such script run
        assert not shown.evaluate("'hacked' in window")


def test_a_screen_reader_is_told_each_part_and_why_opens_at_its_first_line(lab):
    page = lab.panel("lab.ipynb", call='panel = show("partition", fault="kill")\npanel')
    vocabulary, rate = lab.slider("vocabulary"), lab.slider("learning-rate")
    cut = page.locator(".widget-text", has_text="cut").locator("input")
    for part, name, told in (
        (vocabulary, "aria-valuetext", "2048"),
        (rate, "aria-valuetext", "0.001"),
        (lab.slider("rows, samples"), "aria-valuetext", "2 samples"),
        (page.get_by_role("textbox", name="ranks", exact=True), "contenteditable", "true"),
        (page.get_by_role("button", name="Run on 4 ranks", exact=True), "class", re.compile("run")),
        (cut, "inert", ""),
    ):
        expect(part).to_have_attribute(name, told)
    vocabulary.press("ArrowLeft")
    expect(vocabulary).to_have_attribute("aria-valuetext", "1024")
    page.get_by_label("partition").select_option("mine")
    expect(cut).not_to_have_attribute("inert", "")
    # after another tab was scrolled, and where it was scrolled itself before a run failed
    for tab, press in (("more settings", "Why?"), ("Why?", "Run on 4 ranks")):
        page.get_by_role("button", name=tab).click()
        page.wait_for_function(
            "pane => { pane.scrollTop = 9; return pane.scrollTop; }",
            arg=page.query_selector(".btl-pane"),
        )
        page.get_by_role("button", name=press).click()
        page.wait_for_function(
            "told => document.querySelector('.btl-pane').scrollTop === 0"
            " && document.querySelectorAll('.btl-pane .btl-trouble').length === told",
            arg=int(tab == "Why?"),
        )


def test_a_collective_opens_at_its_first_round_and_plays_once(lab):
    page = lab.panel("lab.ipynb", call='panel = show("all-reduce")\npanel')
    lab.until("playing", "value === 'true'")
    lab.slider("ranks").press("ArrowRight")
    lab.until("playing", "value === 'false'")
    assert lab.data("time") == "0"
    page.emulate_media(reduced_motion="reduce")
    lab.panel("lab.ipynb", call='panel = show("all-reduce")\npanel')
    page.wait_for_timeout(1000)  # in which it would have begun
    assert (lab.data("time"), lab.data("playing")) == ("0", "false")


# -- the player ------------------------------------------------------------------------------------

VIEW = "value - document.querySelector('.btl-player').dataset.from"
CORNER = """() => { const canvas = document.querySelector('.btl-player canvas');
    return [...canvas.getContext('2d').getImageData(3, canvas.height - 8, 1, 1).data].slice(0, 3); }"""


def test_keys_mouse_and_themes_of_a_player_and_the_notebook_keeps_its_cells(lab):
    """z, x, f, s and v are commands of JupyterLab too: there x cuts the cell away."""
    shown = """from bigtrain_lab.view.player import Player
from bigtrain_lab.order.schedules.pipedream import PipeDream
from bigtrain_lab.order.simulate import simulate
player = Player(simulate(PipeDream(4, 8), {"F": 1, "B": 2, "U": 0.5}))
player"""
    page = lab.open("lab.ipynb", [shown, "1 + 1"])
    page.wait_for_selector(".btl-player[data-revision]")
    canvas, end = lab.player.locator("canvas"), lab.data("end")

    def press(*keys):
        canvas.focus()
        for key in keys:
            page.keyboard.press(key)

    press("z", "z")
    lab.until("to", f"{VIEW} < {end} / 3")
    press("x", "x", "x", "v")
    lab.until("to", f"{VIEW} === {end}")
    lab.until("lens", "value === 'true'")
    assert page.locator(".jp-Notebook .jp-Cell").count() == 2
    press("z", "f", "v")
    lab.until("to", f"value === '{end}'")

    box = canvas.bounding_box()
    page.keyboard.down("Control")
    page.mouse.move(box["x"] + 300, box["y"] + 30)
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    lab.until("to", f"{VIEW} < {end} * 0.9")
    assert page.evaluate(CORNER) == [255, 255, 255]
    for key, begins in (("g", b"<svg"), ("G", b"\x89PNG")):
        with page.expect_download() as download:
            canvas.press(key)
        saved = Path(download.value.path()).read_bytes()
        assert saved.startswith(begins)
        if key == "g":  # the very boxes and legend, as text
            ElementTree.fromstring(saved)
            assert b">F1<" in saved and b">B backward<" in saved and b">rank 3<" in saved
    keys = lab.player.locator(".btl-keys")
    canvas.press("?")
    expect(keys).to_contain_text("space plays and pauses")
    canvas.press("Escape")
    expect(keys).to_be_hidden()
    lab.theme("JupyterLab Dark")
    page.wait_for_function(f"() => ({CORNER})().every(channel => channel < 60)")
    lab.theme("JupyterLab Light")
    page.wait_for_function(f"() => ({CORNER})().every(channel => channel > 240)")


# -- every panel -----------------------------------------------------------------------------------

CLICK = "button => button.click()"  # at once: a mouse waits until a page of all panels stands still


def test_no_label_is_cut_no_setting_changes_and_the_figures_of_each_prediction_are_drawn(lab):
    panels = Experiment.all()
    page = lab.panel(
        "lab.ipynb",
        call=(
            "from ipywidgets import VBox\nfrom bigtrain_lab.experiments import Experiment\nVBox([show(name)"
            " for name in Experiment.all()])"
        ),
    )
    played = [
        name
        for name, e in panels.items()
        if e.figures[0] in PLAYED
        or e.figures[0] == RIVALS
        and e.figures[1] in PLAYED
        and len(e().rivals()) <= FEW
    ]
    expect(page.locator(".btl-player[data-time]")).to_have_count(len(played))
    for button in page.get_by_role("button", name="more settings").all():
        button.evaluate(CLICK)
    settings = sum(
        name not in e.idle_settings(e().model_dump()) or not knob.more  # else it is folded away
        for e in panels.values()
        for name, knob in e.knobs().items()
    )
    expect(page.locator(".btl-controls > :visible:not(button, .btl-search)")).to_have_count(
        settings
    )
    assert page.evaluate(CUT) == []
    page.locator(".btl-search input").first.fill("Fault")  # of which three have no effect
    found = page.locator(".btl-panel").first.locator(".btl-pane .btl-controls > :visible")
    expect(found).to_have_count(len({"search", "fault", "rank", "at", "factor", "Defaults"}))
    for at, experiment in enumerate(panels.values()):
        panel = page.locator(".btl-panel").nth(at)
        height = panel.bounding_box()["height"]
        for name in experiment.figures:
            if name in FIGURES and name not in PLAYED:
                panel.get_by_role("button", name=name, exact=True).evaluate(CLICK)
                expect(panel.locator(".js-plotly-plot .gtitle")).to_have_count(
                    int(
                        name not in ("exponents", "underflow", "learning", "trust")
                    )  # which are of a run
                )
        for tab in ("Numbers", "History", "Why?", "Copy command"):
            panel.get_by_role("button", name=tab, exact=True).evaluate(CLICK)
        expect(panel.locator(".btl-command code").first).to_have_text(  # no slider rounded its own
            f"bigtrain run {experiment.name}"
        )
        assert panel.bounding_box()["height"] == height
