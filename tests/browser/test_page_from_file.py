"""A run's page, opened from a file in Chromium: it plays, scrubs and changes clocks, in both colour schemes, and asks for nothing."""

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
from bigtrain_lab.page import page
from tests.browser.lab import LAPTOP

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The page of a run of three steps."""
    folder = tmp_path_factory.mktemp("a run's page & more")  # what an address has to escape
    assert (
        main(
            [
                "run",
                "pipeline",
                "--ranks",
                "2",
                "--micro-batches",
                "4",
                "--layers",
                "2",
                "--width",
                "16",
                "--sequence",
                "8",
                "--schedule",
                "pipedream",
                "--directory",
                str(folder / "run"),
            ]
        )
        == 0
    )
    assert main(["export", str(folder / "run"), "--html", str(folder / "run.html")]) == 0
    return folder / "run.html"


class Opened:
    """The page as a file, watched for requests and complaints."""

    def __init__(self, browser, path, **options):
        self.context = browser.new_context(**{"viewport": LAPTOP, **options})
        self.page, self.requests, self.complaints = self.context.new_page(), [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on(
            "console",
            lambda message: (
                self.complaints.append(message.text) if message.type == "error" else None
            ),
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(".btl-player[data-revision]")
        self.address = path.as_uri()

    def data(self, name: str) -> str:
        return self.page.locator(".btl-player").get_attribute(f"data-{name}")

    def until(self, name: str, condition: str) -> str:
        """Wait until the player's data-<name>, as `value`, meets a condition in JavaScript."""
        self.page.wait_for_function(
            f"name => {{ const value = document.querySelector('.btl-player').getAttribute('data-' + name); return {condition}; }}",
            arg=name,
        )
        return self.data(name)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    @property
    def now(self):
        return self.page.locator(".btl-now")

    def colours(self) -> set[tuple]:
        """What the canvas shows, a pixel in each 40."""
        return set(
            map(
                tuple,
                self.page.evaluate("""() => { const canvas = document.querySelector('.btl-player canvas');
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height), found = [];
            for (let i = 0; i < data.length; i += 160) found.push([data[i], data[i + 1], data[i + 2]]); return found; }"""),
            )
        )


@pytest.fixture
def open_page(browser, exported):
    """Opens the page; afterwards it has asked for nothing but itself, and no console has complained."""
    opened = []

    def act(**options) -> Opened:
        opened.append(Opened(browser, exported, **options))
        return opened[-1]

    yield act
    for made in opened:
        assert made.requests == [made.address] and made.complaints == []
        made.context.close()


def test_it_plays_and_scrubs_by_key_and_by_mouse(open_page):
    shown = open_page()
    assert (
        shown.data("clock") == "modelled"
        and shown.data("time") == shown.data("end")
        and shown.data("spans") == str(2 * 12 * 3)
    )
    expect(shown.now).to_contain_text("End, after")
    shown.press("Home")  # nothing was clicked: the keys work at once
    shown.until("time", "value === '0'")
    expect(shown.now).to_contain_text("Now: rank 0 F0, rank 1 idle")
    shown.press("ArrowRight")
    shown.until("time", "value === '1'")
    expect(shown.now).to_contain_text("Now: rank 0 F1, rank 1 F0")
    shown.press(" ")
    shown.until("playing", "value === 'true'")
    shown.until("time", "value > 2")
    shown.press(" ")
    shown.until("playing", "value === 'false'")
    shown.press("f")
    box, end, before = (
        shown.page.locator("canvas").bounding_box(),
        float(shown.data("end")),
        shown.now.text_content(),
    )
    shown.page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 20)
    shown.page.mouse.down()
    first = float(shown.until("time", f"value > {end} * 0.2 && value < {end} * 0.5"))
    shown.page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 20, steps=4)
    shown.page.mouse.up()
    assert float(shown.until("time", f"value > {end} * 0.6")) > first
    expect(shown.now).not_to_have_text(before)
    shown.page.locator("input[type=range]").evaluate(
        "range => { range.value = 0.25; range.dispatchEvent(new Event('input')); }"
    )
    shown.until("time", f"Math.abs(value - {end} / 4) < 0.01")
    shown.page.get_by_role("button", name="play (space)").click()
    shown.until("time", f"value > {end} * 0.27")


def test_the_chunks_of_a_collective_travel(browser, tmp_path):
    lab = AllReduce(collective="star", ranks=3)
    (tmp_path / "star.html").write_text(page({"predicted": lab.predict()}, lab), encoding="utf-8")
    shown = Opened(browser, tmp_path / "star.html")
    rank_0, rank_2 = (0, 114, 178), (0, 158, 115)
    expect(shown.now).to_have_text("The last round is done. 3 of 3 chunks hold the whole sum.")
    seen = []
    for at in (0.1, 0.3, 0.6, 0.9, 1):
        shown.page.locator("input[type=range]").evaluate(
            f"range => {{ range.value = {at}; range.dispatchEvent(new Event('input')); }}"
        )
        shown.until(
            "time", f"Math.abs(value - {at} * {shown.data('end')}) < {shown.data('end')} / 1000"
        )
        seen.append(shown.now.text_content())
    sent = "Round 1 of 2: ranks 1 and 2 send one chunk each to rank 0, which adds them."
    back = "Round 2 of 2: rank 0 sends one chunk to ranks 1 and 2, and each keeps a copy of it."
    assert [text.replace(" chunks hold the whole sum.", "") for text in seen] == [
        f"{sent} 0 of 3",
        f"{sent} 0 of 3",
        f"{back} 1 of 3",
        f"{back} 2 of 3",
        "The last round is done. 3 of 3",
    ]
    assert {rank_0, rank_2} <= shown.colours()
    shown.press("Home", "ArrowRight")
    expect(shown.now).to_have_text(f"{sent} 0 of 3 chunks hold the whole sum.")
    assert shown.complaints == []
    shown.context.close()


def test_a_click_on_the_peak_of_memory_lists_what_was_alive(browser, tmp_path):
    spans = [
        Span(0, "compute", kind, f"0{kind}0", start, start + 1000)
        for kind, start in (("F", 0), ("B", 1000))
    ]
    levels = [
        Memory(0, "compute", "weights", "start", 0, 100),
        Memory(0, "compute", "activations", "0F0", 1000, 300),
        Memory(0, "compute", "activations", "0B0", 2000, 0),
    ]
    alive = [
        Alive(0, "compute", "weights", "up.weight", 1000, 100, (5, 5), "float32"),
        *(
            Alive(
                0,
                "compute",
                "activations",
                "addmm",
                1000,
                20 + i,
                (4, 5),
                "float32",
                "blocks.0",
                "0F0",
            )
            for i in range(14)
        ),
    ]
    (tmp_path / "peak.html").write_text(
        page({"modelled": Trace.of([*spans, *levels, *alive], "modelled")}), encoding="utf-8"
    )
    shown = Opened(browser, tmp_path / "peak.html")
    listed, canvas = (
        shown.page.get_by_role("region", name="what a rank holds at its peak"),
        shown.page.locator("canvas").bounding_box(),
    )
    expect(listed).to_be_hidden()
    shown.page.mouse.move(
        canvas["x"] + 96 + (canvas["width"] - 112) / 2, canvas["y"] + 67
    )  # in the middle of time, at the strip's top
    expect(shown.page.locator(".btl-tip")).to_contain_text("peak of rank 0: 471 bytes")
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
    expect(listed).to_be_visible()
    listed.get_by_role("button", name="close").click()
    expect(listed).to_be_hidden()
    assert shown.requests == [shown.address] and shown.complaints == []
    shown.context.close()


def test_the_memory_of_a_device_is_a_line_where_it_is_within_sight(browser, tmp_path):
    """Its colour is on the canvas only where a peak reaches 40% of it; what exceeds it is hatched in that colour."""
    painted = []
    for limit_mb in (5, 16, 16.1, 0):  # the highest of the peaks is 6.42 MB
        experiment = PipelineExperiment(steps=1, memory_mb=limit_mb)
        path = tmp_path / f"{limit_mb}.html"
        path.write_text(page({"predicted": experiment.predict()}, experiment), encoding="utf-8")
        shown = Opened(browser, path)
        painted.append(
            shown.page.evaluate("""() => { const canvas = document.querySelector('.btl-player canvas');
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height); let found = 0;
            for (let i = 0; i < data.length; i += 4) found += data[i] === 0xC2 && data[i + 1] === 0x41 && data[i + 2] === 0x0C; return found; }""")
        )
        assert shown.complaints == []
        shown.context.close()
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
    plain = shown.colours()
    shown.press("v")
    shown.until("lens", "value === 'true'")
    assert shown.colours() - plain, "the versions have colours of their own"


def test_light_and_dark_follow_the_browser(open_page):
    shown = open_page(color_scheme="dark")
    corner = "() => [...document.querySelector('canvas').getContext('2d').getImageData(2, 2, 1, 1).data].slice(0, 3)"
    assert max(shown.page.evaluate(corner)) < 60
    shown.page.emulate_media(color_scheme="light")
    shown.page.wait_for_function(f"() => Math.min(...({corner})()) > 240")
    assert (
        shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )


def test_a_phone_shows_all_of_it_in_its_width(open_page):
    shown = open_page(viewport={"width": 390, "height": 844}, has_touch=True)
    assert shown.page.evaluate("document.documentElement.scrollWidth") == 390
    for button in shown.page.locator(".btl-bar button:visible").all():
        box = button.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_it_works_without_the_network(open_page):
    shown = open_page(offline=True)
    shown.press("Home", " ")
    shown.until("time", "value > 1")


def test_the_words_are_there_without_a_script(browser, exported):
    context = browser.new_context(java_script_enabled=False)
    shown = context.new_page()
    shown.goto(exported.as_uri())
    expect(shown.locator(".btl-results")).to_contain_text("step time")
    expect(shown.locator("noscript")).to_be_visible()
    context.close()


def test_a_view_that_the_playhead_has_left_marks_its_edge(open_page):
    """After a run the playhead is at the end while the first step is in view: a broken line at the edge says where it is."""
    shown = open_page()
    accent = (
        "canvas => { const { data } = canvas.getContext('2d').getImageData(%s, 0, 10, 12); let count = 0;"
        "for (let i = 0; i < data.length; i += 4) count += data[i] === 22 && data[i + 1] === 104 && data[i + 2] === 184; return count; }"
    )
    canvas, edge = (
        shown.page.locator("canvas"),
        shown.page.evaluate("document.querySelector('canvas').width - 16"),
    )
    shown.press("Home", "s")
    shown.until("to", f"value < {shown.data('end')}")
    assert canvas.evaluate(accent % edge) == 0
    shown.press("End")  # the view follows: the playhead itself is at its edge
    box = canvas.bounding_box()
    shown.page.keyboard.down("Shift")  # drags the view away from it
    shown.page.mouse.move(box["x"] + 300, box["y"] + 20)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + 900, box["y"] + 20, steps=3)
    shown.page.mouse.up()
    shown.page.keyboard.up("Shift")
    shown.until("to", f"value < {shown.data('end')}")
    assert (
        float(shown.data("time")) > float(shown.data("to")) and canvas.evaluate(accent % edge) > 10
    )


def test_part_of_a_run_opens_where_it_broke(browser, tmp_path):
    experiment = PipelineExperiment(steps=60)
    trace = experiment.predict()
    events = tuple(event for event in trace.events if event.start < trace.step_ends[2])
    part = replace(
        trace,
        clock="modelled",
        steps=3,
        settings={**trace.settings, "unfinished": True},
        events=events,
    )
    for name, traces in (("whole", {"predicted": trace}), ("part", {"modelled": part})):
        (tmp_path / f"{name}.html").write_text(page(traces, experiment))
    shown = browser.new_page(viewport=LAPTOP)
    for name, at_end in (("whole", False), ("part", True)):
        shown.goto((tmp_path / f"{name}.html").as_uri())
        shown.wait_for_selector(".btl-player[data-to]")
        about = shown.locator(".btl-player").evaluate("player => ({ ...player.dataset })")
        assert (
            float(about["to"]) - float(about["from"]) < float(about["end"])
            and (about["to"] == about["end"]) is at_end
        )
        assert about["time"] == about["to"], "nothing in view is veiled"
    shown.close()


def test_of_many_steps_the_first_is_in_view_and_an_arrow_points_to_the_peak(browser, tmp_path):
    experiment = PipelineExperiment(steps=60)
    trace = experiment.predict()
    at = (
        max((peak(trace, rank) for rank in range(4)), key=lambda one: one.bytes).start
        / trace.ticks_per_unit
    )
    assert at > trace.step_time, "the first step holds no moments yet"
    (tmp_path / "long.html").write_text(page({"predicted": trace}, experiment))
    shown = browser.new_page(viewport=LAPTOP)
    shown.goto((tmp_path / "long.html").as_uri())
    shown.wait_for_selector(".btl-player[data-to]")
    player = shown.locator(".btl-player")
    seen = player.evaluate("player => [Number(player.dataset.from), Number(player.dataset.to)]")
    assert seen[0] == 0 and seen[1] < at
    box, top = shown.locator("canvas").bounding_box(), None
    for below in range(0, int(box["height"]), 4):  # the arrow at the right edge
        shown.mouse.move(box["x"] + box["width"] - 19, box["y"] + below)
        if shown.locator(".btl-tip").inner_text().startswith("peak of rank"):
            top = below
            break
    assert top is not None
    shown.mouse.down()
    shown.mouse.up()
    shown.wait_for_function("() => 'peak' in document.querySelector('.btl-player').dataset")
    time, begin, end = player.evaluate(
        "player => [player.dataset.time, player.dataset.from, player.dataset.to].map(Number)"
    )
    assert begin <= time <= end and time == at, "the view goes there"
    shown.keyboard.press("Escape")
    shown.close()


def test_boxes_of_one_kind_and_size_say_equally_much(browser, tmp_path):
    """At 32 micro-batches B9 has room where B10 has not: then all say their number alone, and of the narrower F none says anything."""
    experiment = PipelineExperiment(ranks=4, micro_batches=32, steps=1)
    (tmp_path / "m32.html").write_text(page({"predicted": experiment.predict()}, experiment))
    context = browser.new_context(viewport=LAPTOP)
    context.add_init_script("""window.said = []; const fill = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...at) { said.push(text); return fill.call(this, text, ...at); }""")
    shown = context.new_page()
    shown.goto((tmp_path / "m32.html").as_uri())
    shown.wait_for_selector(".btl-player[data-revision]")
    shown.evaluate("said.length = 0")
    shown.set_viewport_size({"width": 1340, "height": 768})  # painted anew, once
    shown.wait_for_function("() => said.filter((text) => text === '31').length >= 4")
    said = Counter(shown.evaluate("said"))
    assert all(said[str(number)] >= 4 for number in range(1, 32)) and not [
        text for text in said if re.fullmatch(r"[FB]\d+", text)
    ]
    shown.keyboard.press("z")
    shown.wait_for_function("() => said.some((text) => /^B[0-9]+$/.test(text))")
    context.close()


def test_one_step_is_cut_where_its_last_update_ends(browser, tmp_path):
    """Lesson 01: windows of 4, 4 and 2 micro-batches, so that no step is a third of the whole."""
    experiment = Accumulate()
    trace = experiment.predict()
    (tmp_path / "steps.html").write_text(page({"predicted": trace}, experiment))
    shown = browser.new_page(viewport=LAPTOP)
    shown.goto((tmp_path / "steps.html").as_uri())
    shown.wait_for_selector(".btl-player[data-to]")
    for key, seen in (("Home", [0, 12.5]), ("End", [25, 31.5])):
        shown.locator(".btl-player canvas").press(key)
        shown.locator(".btl-player canvas").press("s")
        shown.wait_for_function(
            "to => Number(document.querySelector('.btl-player').dataset.to) === to", arg=seen[1]
        )
        assert (
            shown.locator(".btl-player").evaluate(
                "player => [Number(player.dataset.from), Number(player.dataset.to)]"
            )
            == seen
        )
    shown.close()
