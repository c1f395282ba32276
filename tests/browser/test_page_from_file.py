"""A run's page, opened from a file in Chromium: it plays, scrubs and changes clocks, in both colour
schemes, and asks for nothing."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from bigtrain_lab.cli import main
from bigtrain_lab.core import Alive, Memory, Span, Trace
from bigtrain_lab.core.peak import peak
from bigtrain_lab.experiments.accumulate import Accumulate
from bigtrain_lab.experiments.all_reduce import AllReduce
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.view.page import page
from tests.browser.lab import LAPTOP

pytestmark = pytest.mark.slow
SMALL = "--ranks 2 --micro-batches 4 --layers 2 --width 16 --sequence 8 --schedule pipedream"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The page of a run of three steps."""
    folder = tmp_path_factory.mktemp("a run's page & more")  # what an address has to escape
    run, written = str(folder / "run"), folder / "run.html"
    assert main(["run", "pipeline", *SMALL.split(), "--directory", run]) == 0
    assert main(["export", run, "--html", str(written)]) == 0
    return written


class Opened:
    """The page as a file, watched for requests and complaints."""

    def __init__(self, browser, path, script: str = "", **options):
        self.context = browser.new_context(**{"viewport": LAPTOP, **options})
        self.context.add_init_script(script)
        self.page, self.requests, self.complaints = self.context.new_page(), [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda m: self.complaints.extend([m.text] * (m.type == "error")))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(".btl-player[data-to]")
        self.address, self.canvas = path.as_uri(), self.page.locator(".btl-player canvas")
        self.now, self.tip = self.page.locator(".btl-now"), self.page.locator(".btl-tip")

    def data(self, name: str) -> str:
        return self.page.locator(".btl-player").get_attribute(f"data-{name}")

    def number(self, name: str) -> float:
        return float(self.data(name))

    def until(self, name: str, condition: str) -> str:
        """Wait until the player's data-<name>, as `value`, meets a condition in JavaScript."""
        self.page.wait_for_function(
            "name => { const value = document.querySelector('.btl-player').getAttribute('data-' +"
            f" name); return {condition}; }}",
            arg=name,
        )
        return self.data(name)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def scrub(self, at: float) -> None:
        """Move the slider of time to this share of it."""
        self.page.locator("input[type=range]").evaluate(
            f"range => {{ range.value = {at}; range.dispatchEvent(new Event('input')); }}"
        )
        end = self.data("end")
        self.until("time", f"Math.abs(value - {at} * {end}) < {end} / 1000")

    def drag(self, first: float, last: float) -> None:
        """The mouse, pressed, from one share of the canvas's width to the other."""
        box = self.canvas.bounding_box()
        for share, act in ((first, self.page.mouse.down), (last, self.page.mouse.up)):
            self.page.mouse.move(box["x"] + box["width"] * share, box["y"] + 20, steps=4)
            act()

    def pixels(self, area: str, each: int = 1) -> Counter:
        """Colours on an area of the canvas ("x, y, width, height"; {w} and {h} are its own), of one
        pixel in so many."""
        found = self.canvas.evaluate(
            f"""canvas => {{ const {{ width: w, height: h }} = canvas, found = [];
            const {{ data }} = canvas.getContext('2d').getImageData({area});
            for (let i = 0; i < data.length; i += {4 * each}) found.push([data[i], data[i + 1], data[i + 2]]);
            return found; }}"""
        )
        return Counter(map(tuple, found))


@pytest.fixture
def open_page(browser, exported, tmp_path):
    """Opens the run's page, or one of these traces; afterwards each has asked for nothing but
    itself, and no console has complained."""
    opened = []

    def act(*traces: Trace, of=None, **options) -> Opened:
        path = tmp_path / f"{len(opened)}.html" if traces else exported
        if traces:
            text = page({trace.clock: trace for trace in traces}, of)
            path.write_text(text, encoding="utf-8")
        opened.append(Opened(browser, path, **options))
        return opened[-1]

    yield act
    for made in opened:
        assert made.requests == [made.address] and made.complaints == []
        made.context.close()


def test_it_plays_and_scrubs_by_key_and_by_mouse(open_page):
    shown = open_page()
    assert shown.data("clock") == "modelled" and shown.data("time") == shown.data("end")
    assert shown.data("spans") == str(2 * 12 * 3)
    expect(shown.now).to_contain_text("End, after")
    shown.press("Home")  # nothing was clicked: the keys work at once
    shown.until("time", "value === '0'")
    expect(shown.now).to_contain_text("Now: rank 0 F0, rank 1 idle")
    shown.press("ArrowRight")
    shown.until("time", "value === '1'")
    expect(shown.now).to_contain_text("Now: rank 0 F1, rank 1 F0")
    shown.press(" ")
    shown.until("time", "value > 2")
    shown.press(" ")
    shown.until("playing", "value === 'false'")
    shown.press("f")
    shown.drag(0.4, 0.8)
    end = shown.data("end")
    shown.until("time", f"value > {end} * 0.6 && value < {end}")
    shown.scrub(0.25)
    shown.page.get_by_role("button", name="play (space)").click()
    shown.until("time", f"value > {end} * 0.27")


def test_the_chunks_of_a_collective_travel(open_page):
    lab = AllReduce(collective="star", ranks=3)
    shown, seen = open_page(lab.predict(), of=lab), []
    for at in (0.1, 0.3, 0.6, 0.9, 1):
        shown.scrub(at)
        seen.append(shown.now.text_content().replace(" chunks hold the whole sum.", ""))
    sent = "Round 1 of 2: ranks 1 and 2 send one chunk each to rank 0, which adds them."
    back = "Round 2 of 2: rank 0 sends one chunk to ranks 1 and 2, and each keeps a copy of it."
    done = "The last round is done. 3 of 3"
    assert seen == [f"{sent} 0 of 3"] * 2 + [f"{back} 1 of 3", f"{back} 2 of 3", done]
    assert {(0, 114, 178), (0, 158, 115)} <= shown.pixels("0, 0, w, h", 40).keys()  # ranks 0 and 2


def test_a_click_on_the_peak_of_memory_lists_what_was_alive(open_page):
    spans = [Span(0, "compute", "F", "0F0", 0, 1000), Span(0, "compute", "B", "0B0", 1000, 2000)]
    levels = [
        Memory(0, "compute", "weights", "start", 0, 100),
        Memory(0, "compute", "activations", "0F0", 1000, 300),
        Memory(0, "compute", "activations", "0B0", 2000, 0),
    ]
    alive = [Alive(0, "compute", "weights", "up.weight", 1000, 100, (5, 5), "float32")]
    made = (4, 5), "float32", "blocks.0", "0F0"
    alive += [Alive(0, "compute", "activations", "addmm", 1000, 20 + i, *made) for i in range(14)]
    shown = open_page(Trace.of([*spans, *levels, *alive], "modelled"))
    listed = shown.page.get_by_role("region", name="what a rank holds at its peak")
    canvas = shown.canvas.bounding_box()
    expect(listed).to_be_hidden()
    # in the middle of time, at the strip's top
    shown.page.mouse.move(canvas["x"] + 96 + (canvas["width"] - 112) / 2, canvas["y"] + 67)
    expect(shown.tip).to_contain_text("peak of rank 0: 471 bytes")
    shown.page.mouse.down()
    shown.page.mouse.up()
    expect(listed.locator("b")).to_have_text("Peak of rank 0: 471 B in F0: 15 storages")
    assert shown.until("time", "value === '1'") and shown.data("peak") == "0"
    rows = [row.locator("td").all_text_contents() for row in listed.locator("tbody tr").all()]
    assert rows[:2] == [
        ["weights", "100 B", "up.weight", "", "5 × 5 float32", ""],
        ["activations", "33 B", "addmm", "blocks.0", "4 × 5 float32", "F0"],
    ]
    assert len(rows) == 12 and listed.locator("p").text_content() == "and 3 more, 63 B"
    shown.press("Escape")
    expect(listed).to_be_hidden()
    shown.page.get_by_role("button", name="what is held at the peak of memory").click()
    listed.get_by_role("button", name="close").click()
    expect(listed).to_be_hidden()


def test_the_memory_of_a_device_is_a_line_where_it_is_within_sight(open_page):
    """Its colour is on the canvas only where a peak reaches 40% of it; what exceeds it is hatched
    in that colour."""
    painted = []
    for limit_mb in (5, 16, 16.1, 0):  # the highest of the peaks is 6.42 MB
        experiment = PipelineExperiment(steps=1, memory_mb=limit_mb)
        shown = open_page(experiment.predict(), of=experiment)
        painted.append(shown.pixels("0, 0, w, h")[0xC2, 0x41, 0x0C])
    exceeded, within, beyond, none = painted
    assert exceeded > within > 500 and beyond == none == 0


def test_clocks_and_versions(open_page):
    shown = open_page()
    tabs = shown.page.get_by_role("tab")
    assert tabs.all_text_contents() == ["predicted", "modelled", "measured"]
    expect(tabs.nth(1)).to_have_attribute("aria-selected", "true")
    tabs.nth(2).click()
    shown.until("clock", "value === 'measured'")
    expect(shown.page.locator(".btl-badge")).to_have_text("measured")
    shown.press("ArrowRight")  # from the last tab on to the first
    shown.until("clock", "value === 'predicted'")
    expect(tabs.nth(0)).to_be_focused()
    tabs.nth(0).evaluate("tab => tab.blur()")
    shown.press("2")
    shown.until("clock", "value === 'modelled'")
    plain = shown.pixels("0, 0, w, h", 40)
    shown.press("v")
    shown.until("lens", "value === 'true'")
    assert shown.pixels("0, 0, w, h", 40).keys() - plain.keys(), "versions have their own colours"


def test_a_phone_without_a_network_shows_all_of_it_in_the_browser_s_colours(open_page):
    small = {"width": 390, "height": 844}
    shown = open_page(viewport=small, has_touch=True, offline=True, color_scheme="dark")
    assert shown.page.evaluate("document.documentElement.scrollWidth") == 390
    for button in shown.page.locator(".btl-bar button:visible").all():
        box = button.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    assert max(max(colour) for colour in shown.pixels("2, 2, 1, 1")) < 60
    shown.page.emulate_media(color_scheme="light")
    shown.page.wait_for_function(
        "() => Math.min(...document.querySelector('canvas').getContext('2d').getImageData(2, 2, 1,"
        " 1).data.slice(0, 3)) > 240"
    )
    colour = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == "rgb(255, 255, 255)"


def test_the_words_are_there_without_a_script(browser, exported):
    context = browser.new_context(java_script_enabled=False)
    shown = context.new_page()
    shown.goto(exported.as_uri())
    expect(shown.locator(".btl-results")).to_contain_text("step time")
    expect(shown.locator("noscript")).to_be_visible()
    context.close()


def test_a_view_that_the_playhead_has_left_marks_its_edge(open_page):
    """After a run the playhead is at the end while the first step is in view: a broken line at the
    edge says where it is."""
    shown = open_page()
    accent = (22, 104, 184)
    shown.press("Home", "s")
    shown.until("to", f"value < {shown.data('end')}")
    assert shown.pixels("w - 16, 0, 10, 12")[accent] == 0
    shown.press("End")  # the view follows: the playhead itself is at its edge
    shown.page.keyboard.down("Shift")  # drags the view away from it
    shown.drag(0.25, 0.7)
    shown.page.keyboard.up("Shift")
    shown.until("to", f"value < {shown.data('end')}")
    assert shown.number("time") > shown.number("to")
    assert shown.pixels("w - 16, 0, 10, 12")[accent] > 10


@pytest.fixture(scope="module")
def long():
    """A prediction of sixty steps, and its experiment."""
    experiment = PipelineExperiment(steps=60)
    return experiment.predict(), experiment


def test_part_of_a_run_opens_where_it_broke(long, open_page):
    trace, experiment = long
    events = tuple(event for event in trace.events if event.start < trace.step_ends[2])
    settings = {**trace.settings, "unfinished": True}
    part = replace(trace, clock="modelled", steps=3, settings=settings, events=events)
    for each, at_end in ((trace, False), (part, True)):
        shown = open_page(each, of=experiment)
        assert shown.number("to") - shown.number("from") < shown.number("end")
        assert (shown.data("to") == shown.data("end")) is at_end
        assert shown.data("time") == shown.data("to"), "nothing in view is veiled"


def test_of_many_steps_the_first_is_in_view_and_an_arrow_points_to_the_peak(long, open_page):
    trace, experiment = long
    highest = max((peak(trace, rank) for rank in range(4)), key=lambda one: one.bytes)
    at = highest.start / trace.ticks_per_unit
    assert at > trace.step_time, "the first step holds no moments yet"
    shown = open_page(trace, of=experiment)
    assert shown.number("from") == 0 and shown.number("to") < at
    box, below = shown.canvas.bounding_box(), 0
    while "peak of rank" not in shown.tip.inner_text():  # the arrow at the right edge
        assert below < box["height"]
        shown.page.mouse.move(box["x"] + box["width"] - 19, box["y"] + below)
        below += 4
    shown.page.mouse.down()
    shown.page.mouse.up()
    shown.until("peak", "value !== null")
    assert shown.number("from") <= at <= shown.number("to") and shown.number("time") == at


def test_boxes_of_one_kind_and_size_say_equally_much(open_page):
    """At 32 micro-batches B9 has room where B10 has not: then all say their number alone, and of
    the narrower F none says anything."""
    experiment = PipelineExperiment(ranks=4, micro_batches=32, steps=1)
    shown = open_page(
        experiment.predict(),
        of=experiment,
        script="""window.said = []; const fill = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...at) { said.push(text); return fill.call(this, text, ...at); }""",
    )
    shown.page.evaluate("said.length = 0")
    shown.page.set_viewport_size({"width": 1340, "height": 768})  # painted anew, once
    shown.page.wait_for_function("() => said.filter((text) => text === '31').length >= 4")
    said = Counter(shown.page.evaluate("said"))
    assert all(said[str(number)] >= 4 for number in range(1, 32))
    assert not [text for text in said if re.fullmatch(r"[FB]\d+", text)]
    shown.press("z")
    shown.page.wait_for_function("() => said.some((text) => /^B[0-9]+$/.test(text))")


def test_one_step_is_cut_where_its_last_update_ends(open_page):
    """Lesson 01: windows of 4, 4 and 2 micro-batches, so that no step is a third of the whole."""
    shown = open_page(Accumulate().predict(), of=Accumulate())
    for key, first, last in (("Home", 0, 12.5), ("End", 25, 31.5)):
        shown.press(key, "s")
        shown.until("to", f"Number(value) === {last}")
        assert shown.number("from") == first
