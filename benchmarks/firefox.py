"""The site in Firefox, which is driven through WebDriver BiDi: the same measures as `site` takes in
Chromium, and whether any request leaves the site.

    BIGTRAIN_SITE=DIRECTORY python -m benchmarks firefox      `bigtrain site` has written it

FIREFOX names another program than `firefox` or `firefox-esr`.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import websocket

from bigtrain_lab.experiments import Experiment
from tests.browser.test_site import alike, asked, served

from .measure import row
from .site import SEEN, moved, of_moves

SITE = os.environ.get("BIGTRAIN_SITE", "")
READY = "document.body.dataset.python === 'ready'"
LONGEST_S = 120
LABS = ()  # all


class Page:
    """The one tab of a Firefox, and the requests that it made."""

    def __init__(self, address: str):
        self.wire = websocket.create_connection(
            f"{address}/session", suppress_origin=True, timeout=LONGEST_S
        )
        self.numbers, self.requests = count(1), []
        self.ask("session.new", capabilities={})
        self.tab = self.ask("browsingContext.getTree")["contexts"][0]["context"]
        laptop = {"width": 1366, "height": 768}
        self.ask("browsingContext.setViewport", context=self.tab, viewport=laptop)
        self.ask("session.subscribe", events=["network.beforeRequestSent"])

    def ask(self, method: str, **params) -> dict:
        number = next(self.numbers)
        self.wire.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            told = json.loads(self.wire.recv())
            if told.get("method") == "network.beforeRequestSent":
                self.requests.append(told["params"]["request"]["url"])
            if told.get("id") == number:
                if told["type"] == "error":
                    raise RuntimeError(f"{method}: {told['message']}")
                return told["result"]

    def open(self, address: str) -> None:
        self.ask("browsingContext.navigate", context=self.tab, url="about:blank", wait="complete")
        self.ask("browsingContext.navigate", context=self.tab, url=address, wait="interactive")

    def value(self, expression: str):
        """Of JavaScript, as JSON; a promise's once it is kept."""
        told = self.ask(
            "script.evaluate",
            expression=f"(async () => JSON.stringify((await ({expression})) ?? null))()",
            target={"context": self.tab},
            awaitPromise=True,
        )
        if told["type"] != "success":
            raise RuntimeError(told["exceptionDetails"]["text"])
        return json.loads(told["result"]["value"])

    def until(self, expression: str):
        """Its first value that is true."""
        end = time.monotonic() + LONGEST_S
        while not (found := self.value(expression)):
            if time.monotonic() > end:
                raise TimeoutError(expression)
            time.sleep(0.02)
        return found

    def answer(self, changed: dict) -> dict:
        """What the page shows once it has these settings."""
        self.value(f"void (location.hash = {json.dumps(asked(changed))})")
        self.until(
            f"globalThis.btlAnswer && Object.entries({json.dumps(changed)})"
            ".every(([name, value]) => btlAnswer.settings[name] === value)"
        )
        return self.value("btlAnswer")


@contextmanager
def firefox() -> Iterator[Page]:
    """A Firefox with a profile of its own, ended afterwards."""
    program = os.environ.get("FIREFOX") or shutil.which("firefox") or shutil.which("firefox-esr")
    if not program:
        raise SystemExit("There is no Firefox: install it, or name it in FIREFOX.")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = ["--headless", "--no-remote", "--profile", profile, "--remote-debugging-port", "0"]
        browser = subprocess.Popen(
            [program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            found = (re.search(r"ws://\S+", line) for line in browser.stderr)
            address = next(filter(None, found))[0]
            threading.Thread(target=browser.stderr.read, daemon=True).start()
            yield Page(address)
        finally:
            browser.terminate()
            browser.wait()


def rows() -> list[dict]:
    return [*measured()]


def measured() -> Iterator[dict]:
    """The rows."""
    if not SITE:
        raise SystemExit("BIGTRAIN_SITE names no site: write one with `bigtrain site`.")
    chosen, first, live, equal, told = LABS or [*Experiment.all()], [], [], 0, 0
    with served(Path(SITE)) as address, firefox() as page:
        for lab in chosen:
            page.open(f"{address}/{lab}.html")
            first.append(page.until(SEEN) / 1000)
            live.append(page.until(f"{READY} && performance.now()") / 1000)
            for changed in moved(Experiment.named(lab)):
                same = alike(page.answer(changed), lab, changed)
                equal, told = equal + same, told + 1
                print(lab, changed, "" if same else "DIFFERS", flush=True)
        page.open(f"{address}/pipeline.html")
        page.until(READY)
        of_slider = [
            *of_moves(
                lambda script, given: page.value(f"({script})({json.dumps(given)})"), page.until
            )
        ]
        outside = {
            url
            for url in page.requests
            if not url.startswith((address, "about:", "blob:", "data:"))
        }
    yield row("first picture, median of the labs", statistics.median(first), "s", 1)
    yield row("Python ready for a live prediction, median", statistics.median(live), "s", 6)
    yield from of_slider
    yield row("requests that leave the site", len(outside), "", 0)
    yield row("settings predicted alike in Firefox and CPython", equal, "", at_least=told)
