"""A run's page, opened from a file in Chromium: it plays, scrubs and changes clocks, in both colour
schemes, and asks for nothing."""

from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from bigtrain_lab.cli import main
from bigtrain_lab.core import Alive, Memory, Span, Trace, Transfer
from bigtrain_lab.experiments.all_reduce import AllReduce
from bigtrain_lab.experiments.data_parallel import DataParallel
from bigtrain_lab.view import packed
from bigtrain_lab.view.page import page
from bigtrain_lab.view.player import Player
from tests.browser.lab import LAPTOP, Watched


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The page of a run of three steps."""
    folder = tmp_path_factory.mktemp("a run's page & more")  # what an address has to escape
    run, written = str(folder / "run"), folder / "run.html"
    assert 0 == main(
        "run pipeline --ranks 2 --micro-batches 4 --layers 2 --width 16 --sequence 8"
        " --schedule pipedream".split()
        + ["--directory", run]
    )
    assert main(["export", run, "--html", str(written)]) == 0
    return written


class Opened(Watched):
    """The page as a file."""

    def __init__(self, browser, path, **options):
        self.context = browser.new_context(**{"viewport": LAPTOP, **options})
        super().__init__(self.context.new_page())
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(".btl-player[data-to]")
        self.address, self.canvas = path.as_uri(), self.page.locator(".btl-player canvas")
        self.now, self.tip = self.page.locator(".btl-now"), self.page.locator(".btl-tip")

    def press(self, key: str) -> None:
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
            f"""canvas => {{ const {{ width: w, height: h }} = canvas, found = {{}};
            const {{ data }} = canvas.getContext('2d').getImageData({area});
            for (let i = 0; i < data.length; i += {4 * each}) {{
                const colour = data.slice(i, i + 3).join(' ');
                found[colour] = (found[colour] ?? 0) + 1;
            }}
            return found; }}"""
        )
        return Counter({tuple(map(int, colour.split())): count for colour, count in found.items()})


@pytest.fixture
def open_page(browser, exported, tmp_path):
    """Opens the run's page, or one of these traces; afterwards each has asked for nothing but
    itself, and no console has complained."""
    opened = []

    def act(*traces: Trace, of=None, **options) -> Opened:
        path = tmp_path / f"{len(opened)}.html" if traces else exported
        if traces:
            path.write_text(page({trace.clock: trace for trace in traces}, of), encoding="utf-8")
        opened.append(Opened(browser, path, **options))
        return opened[-1]

    yield act
    for made in opened:
        assert made.requests == [made.address] and made.complaints == []
        made.context.close()


def test_it_plays_and_scrubs_by_key_and_by_mouse(open_page):
    shown = open_page()
    assert shown.data("clock") == "modelled" and shown.data("time") == shown.data("end")
    shown.press("Home")  # nothing was clicked: the keys work at once
    shown.until("time", "value === '0'")
    expect(shown.now).to_contain_text("Now: rank 0 F0, rank 1 idle")
    shown.press("ArrowRight")
    shown.until("time", "value === '1'")
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


@pytest.mark.parametrize(
    "language,begins,ends",
    [
        ("en", "Round 1 of 2: ranks 1 and 2", "and each copies it. 2 of 3"),
        (
            "zh",
            "第 1 轮，共 2 轮：rank 1 和 2 各把一个数据块发送给 rank 0",
            "各自复制它。3 个数据块中有 2",
        ),
    ],
)
def test_the_chunks_of_a_collective_travel(open_page, monkeypatch, language, begins, ends):
    monkeypatch.setenv("BIGTRAIN_LANGUAGE", language)
    lab = AllReduce(collective="star", ranks=3)
    shown = open_page(lab.predict(), of=lab)
    for at, told in ((0.3, begins), (0.9, ends)):
        shown.scrub(at)
        expect(shown.now).to_contain_text(told)
    shown.scrub(1)
    assert {(0, 114, 178), (0, 158, 115)} <= shown.pixels("0, 0, w, h", 40).keys()  # ranks 0 and 2


def test_a_rank_that_failed_ends_where_it_did_and_memory_says_where_it_was_read(open_page):
    """Also of a single rank, and of chunks. Rank 0 is read inside its forward alone, whose message
    has the name of its box."""
    lab = AllReduce(collective="star", ranks=3)
    events = [
        Span(0, "compute", "F", "0F0", 0, 1000),
        Span(0, "compute", "B", "0B0", 1000, 2000),
        Memory(0, "compute", "weights", "start", 0, 100),
        Memory(0, "compute", "temporaries", "0F0", 500, 100, True),
        Transfer(1, "compute", "F", "0F0", 0, 300, 0, 8),
        Span(1, "compute", "F", "1F0", 300, 800),
        Memory(1, "compute", "weights", "start", 0, 100),
    ]
    one, two = (Trace.of(events[: 4 + 3 * more], "modelled", ranks=1 + more) for more in (0, 1))
    for trace, of in ((lab.predict(), lab), (one, None), (two, None)):
        told = {"unfinished": {"failed": [trace.ranks - 1]}}
        shown = open_page(replace(trace, settings=trace.settings | told), of=of)
        expect(shown.now).to_contain_text(f"rank {trace.ranks - 1} failed.")
        assert shown.pixels("97, 0, w - 97, h")[194, 65, 12] > 20  # the cross
    assert (68, 119, 170) not in shown.pixels("w * 0.6, 200, w * 0.3, 10")  # of rank 1: its weights
    assert not (  # a grey line at the base of rank 0's memory
        shown.pixels("w * 0.2, 161, w * 0.2, 1").keys()
        & shown.pixels("w * 0.6, 161, w * 0.2, 1").keys()
    )
    canvas = shown.canvas.bounding_box()
    for part, y, told in (
        (0.1, 54, "until F0 at 0.3 slots, which needs F0 from rank 0"),
        (0.3, 115, "rank 0 at 0.6 slots: 200 bytes"),
        (0.7, 115, "what rises inside them is not drawn here"),
        (0.3, 180, "rank 1 at 0.6 slots: 100 bytes"),
        (0.7, 180, "rank 1 at 1.4 slots: 0 bytes"),
    ):
        shown.page.mouse.move(canvas["x"] + 96 + (canvas["width"] - 112) * part, canvas["y"] + y)
        expect(shown.tip).to_contain_text(told)


def test_what_folded_ranks_did_not_reach_lies_in_their_row(browser):
    """Two of three replicas are alike; the third ended early, and all have the same plan. All were
    in an action as the run broke off."""
    plan = DataParallel(replicas=3).predict()
    half = Trace.of(
        [each for each in plan.events if each.end < plan.step_ends[0] / (2 + each.rank // 2)],
        **plan.header() | {"settings": plan.settings | {"unfinished": {"in": [0, 1, 2]}}},
    )
    with closing(browser.new_page()) as empty:
        empty.add_script_tag(content=Player._esm.rpartition("export")[0])
        rows, planned = empty.evaluate(
            "([data, look]) => { const { rows, plan } = readScene(new TextEncoder().encode(data),"
            " look, false); return [rows, plan.map(([row, , , , begun]) => [row, begun])]; }",
            [packed.pack(half, plan=plan).decode(), packed.LOOK],
        )
    assert rows == [[rank, lane] for rank in (0, 2) for lane in ("compute", "comm:dp")]
    assert {(row, begun > "") for row, begun in planned} == {
        (0, True),
        (2, True),
        *((row, False) for row in range(len(rows))),
    }


def test_a_click_on_the_peak_of_memory_lists_what_was_alive(open_page):
    made = (4, 5), "float32", "blocks.0", "0F0"
    events = [
        Span(0, "compute", "F", "0F0", 0, 1000),
        Span(0, "compute", "B", "0B0", 1000, 2000),
        Memory(0, "compute", "weights", "start", 0, 100),
        Memory(0, "compute", "activations", "0F0", 1000, 300),
        Memory(0, "compute", "activations", "0B0", 2000, 0),
        Alive(0, "compute", "weights", "up.weight", 1000, 100, (5, 5), "float32"),
        *(Alive(0, "compute", "activations", "addmm", 1000, 20 + i, *made) for i in range(14)),
    ]
    shown = open_page(Trace.of(events, "modelled"))
    listed = shown.page.get_by_role("region", name="what a rank holds at its peak")
    canvas = shown.canvas.bounding_box()
    # in the middle of time, at the strip's top
    shown.page.mouse.move(canvas["x"] + 96 + (canvas["width"] - 112) / 2, canvas["y"] + 67)
    expect(shown.tip).to_contain_text("peak of rank 0: 471 bytes")
    shown.page.mouse.down()
    shown.page.mouse.up()
    expect(listed.locator("b")).to_have_text("Peak of rank 0: 471 B in F0: 15 storages")
    assert shown.until("time", "value === '1'") and shown.data("peak") == "0"
    rows = [row.locator("td").all_text_contents() for row in listed.locator("tbody tr").all()]
    assert rows[1] == ["activations", "33 B", "addmm", "blocks.0", "4 × 5 float32", "F0"]
    assert len(rows) == 12 and listed.locator("p").text_content() == "and 3 more, 63 B"
    listed.get_by_role("button", name="close").click()
    expect(listed).to_be_hidden()


def test_clocks_and_versions(open_page):
    shown = open_page()
    tabs = shown.page.get_by_role("tab")
    assert tabs.all_text_contents() == ["predicted", "modelled", "measured"]
    tabs.nth(2).click()
    shown.until("clock", "value === 'measured'")
    shown.press("ArrowRight")  # from the last tab on to the first
    shown.until("clock", "value === 'predicted'")
    tabs.nth(0).evaluate("tab => tab.blur()")
    shown.press("2")
    shown.until("clock", "value === 'modelled'")
    plain = shown.pixels("0, 0, w, h", 40)
    shown.press("v")
    shown.until("lens", "value === 'true'")
    assert shown.pixels("0, 0, w, h", 40).keys() - plain.keys(), "versions have their own colours"


def test_a_phone_without_a_network_shows_all_of_it_in_the_browser_s_colours(open_page):
    shown = open_page(
        viewport={"width": 390, "height": 844},
        has_touch=True,
        offline=True,
        color_scheme="dark",
    )
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
    assert "rgb(255, 255, 255)" == shown.page.evaluate(
        "getComputedStyle(document.body).backgroundColor"
    )


def test_the_words_are_there_without_a_script(browser, exported):
    with closing(browser.new_context(java_script_enabled=False)) as context:
        shown = context.new_page()
        shown.goto(exported.as_uri())
        expect(shown.locator(".btl-results")).to_contain_text("step time")
        expect(shown.locator("noscript")).to_be_visible()
