"""The site in Chromium: each lab's first picture stands before Python is loaded, what Python then
predicts in the browser is what it predicts here, event for event, and no request leaves the
machine."""

import json
import os
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import pytest

from bigtrain_lab.cli import main
from bigtrain_lab.cli.site import lessons
from bigtrain_lab.grading.in_page import EXERCISES
from bigtrain_lab.grading.likeness import Topic
from bigtrain_lab.view import live
from tests.browser.lab import LAPTOP, Watched

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PYTHON = os.environ.get("BIGTRAIN_PYODIDE", "")  # a folder: docs/site.md says how to fill it
SETTINGS = {
    "pipeline": (
        {"micro_batches": 16},
        {"schedule": "dualpipe-v", "ranks": 8},
    ),  # the last: refused
    "all-reduce": ({"collective": "tree", "ranks": 16}, {"ranks": 2}),
}
LIVE_MS = 120_000


@contextmanager
def served(folder: Path):
    """The address of a server of the folder's files."""
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def asked(changed: dict) -> str:
    """Settings as an address has them."""
    return urlencode({k: v if isinstance(v, str) else json.dumps(v) for k, v in changed.items()})


class Opened(Watched):
    """A lab's page."""

    def __init__(self, browser, address: str, lab: str, changed: dict | None = None):
        self.context = browser.new_context(viewport=LAPTOP)
        super().__init__(self.context.new_page())
        self.page.goto(f"{address}/{lab}.html#{asked(changed or {})}")

    def answer(self, changed: dict, timeout: float = LIVE_MS) -> dict:
        """What the page shows once it has these settings."""
        self.page.wait_for_function(
            "changed => globalThis.btlAnswer && Object.entries(JSON.parse(changed)).every("
            "([name, value]) => btlAnswer.settings[name] === value)",
            arg=json.dumps(changed),
            timeout=timeout,
        )
        return self.page.evaluate("btlAnswer")

    def move(self, changed: dict) -> dict:
        self.page.evaluate("asked => { location.hash = asked; }", asked(changed))
        return self.answer(changed)


def alike(shown: dict, lab: str, changed: dict) -> bool:
    """Whether a page shows the trace that is predicted here, event for event, or its refusal. Last
    digits of numbers in words may differ: Python sums floats more exactly from 3.12 on."""
    here = live.answer(lab, changed)
    return all(shown.get(name) == here.get(name) for name in ("data", "refused", "idle"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Of two lessons: others are made alike."""
    folder, release = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("release")
    shutil.copytree(
        NOTEBOOKS,
        release,
        ignore=shutil.ignore_patterns("0[!56]_*", "1*", "assignments"),
        dirs_exist_ok=True,
    )
    with pytest.MonkeyPatch.context() as patch, served(folder) as address:
        patch.setattr(lessons, "RELEASES", (release,))
        assert 0 == main(
            ["site", str(folder), *SETTINGS, *(["--pyodide", PYTHON] if PYTHON else [])]
        )
        yield address


def test_the_first_picture_needs_no_python_and_the_front_page_plays(browser, site):
    front = Opened(browser, site, "index")
    front.until("playing", "value === 'true'")
    assert alike(front.answer({"micro_batches": 8}), "pipeline", {})
    front.page.locator("input[name=micro_batches][aria-valuetext='8']").press("ArrowRight")
    assert alike(front.answer({"micro_batches": 16}), "pipeline", {"micro_batches": 16})
    front.page.click("text=06 Data parallel")
    front.page.click("text=中文")
    assert front.page.locator("html").get_attribute("lang") == "zh"
    assert front.page.locator("h1").inner_text().startswith("06 数据并行")
    for lab in SETTINGS:
        page = Opened(browser, site, lab)
        assert alike(page.answer({}), lab, {})
        page.page.click("text=real ranks did")
        page.page.click("[data-clock=modelled]")
        assert page.page.locator("[data-clock=measured]").is_visible()
        assert page.complaints == []
    assert not [url for url in front.requests if not url.startswith(site)]


def test_a_page_of_a_lesson_asks_before_it_shows(browser, site):
    page = Opened(browser, site, "lessons/05_ring_all_reduce").page
    first, asks = page.get_by_text("it is 2,984 MB"), page.locator(".btl-asks")
    asks.nth(0).locator("input").first.fill("3,000")
    assert not first.is_visible()
    asks.nth(0).get_by_text("Lock").click()
    assert first.is_visible() and not asks.nth(2).is_visible()
    page.reload()  # what was typed stays
    assert first.is_visible() and asks.nth(0).locator("input").first.input_value() == "3,000"
    asks.nth(1).locator("input").fill("chunk 2")
    asks.nth(1).get_by_text("Lock").click()
    assert page.get_by_text("You said chunk 2").is_visible()
    page.get_by_text("without predicting").click()
    assert asks.last.is_visible()
    page.get_by_text("Forget").click()
    assert not first.is_visible()


@pytest.mark.pyodide
def test_python_in_the_browser_predicts_what_it_predicts_here(browser, site):
    """In one lab after the other, also once a service worker keeps what they share."""
    page = Opened(browser, site, "index")
    page.page.wait_for_function("navigator.serviceWorker.controller")
    for lab in ("all-reduce", *reversed(SETTINGS)):
        page.page.goto(f"{site}/{lab}.html#{asked(SETTINGS[lab][0])}")
        for changed in SETTINGS[lab]:
            shown = page.move(changed)
            assert alike(shown, lab, changed)
            assert page.page.locator("#btl-trouble").is_visible() == ("refused" in shown)
        page.page.wait_for_function(  # also what was not asked for
            "many => Object.keys(btlMade).length > many", arg=len(SETTINGS[lab]) + 1
        )
    assert page.complaints == []
    assert not [url for url in page.requests if not url.startswith((site, "blob:"))]


@pytest.mark.pyodide
@pytest.mark.parametrize("name", EXERCISES)
def test_a_page_checks_an_answer(browser, site, name):
    page, topic = Opened(browser, site, f"exercise-{name}"), Topic.named(name)
    wrong = next(iter(topic.wrong.values()))
    for text, sentence in (
        (next(iter(topic.right.values())), "right."),
        (wrong.text, wrong.sentence),
    ):
        page.page.fill("textarea", f"{text}\n{topic.called()} = answer")
        page.page.click("#btl-check", timeout=LIVE_MS)
        page.page.wait_for_function(
            "sentence => document.querySelector('#btl-findings p')?.textContent === sentence",
            arg=sentence,
            timeout=LIVE_MS,
        )
    assert page.complaints == []
