"""In Chromium: how soon a lab's page shows its first picture and its first live prediction, how
soon a moved slider is drawn, how much is fetched, and of every lab at three settings whether it
predicts what CPython does, event for event.

    BIGTRAIN_PYODIDE=FOLDER python -m benchmarks site      docs/site.md fills the folder

Each lab's page is opened with nothing kept by the browser. A slider's move is timed from the event
until after the frame that shows its picture.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bigtrain_lab.cli.site.pages import FRONT
from bigtrain_lab.cli.site.settings import offered
from bigtrain_lab.experiments import Experiment
from tests.browser.lab import chromium
from tests.browser.test_site import Opened, alike, served
from tools.setup import find_browser

from .measure import row

BUILT = os.environ.get("BIGTRAIN_SITE", "")  # a site that is there already
PYTHON = os.environ.get("BIGTRAIN_PYODIDE", "")
LABS = ()  # all
MOVES = 40
SMALLEST = {"LABS": ("all-reduce",), "MOVES": 4}
SEEN = "globalThis.btlAnswer && performance.now()"
MOVED = """async ([name, index]) => {
    const input = document.querySelector(`[name=${name}]`), before = btlAnswer;
    const began = performance.now();
    input.value = index;
    input.dispatchEvent(new Event('input', { bubbles: true }));
    while (btlAnswer === before) await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    return performance.now() - began;
}"""


def moved(cls: type[Experiment]) -> list[dict]:
    """Three settings of a lab: the defaults, and one control moved, then another."""
    others = [
        {each["name"]: next(v for v in reversed(each["values"]) if v != each["value"])}
        for each in offered(cls)
    ]
    return [{}, *others[:2]]


def moves() -> tuple[int, list[list]]:
    """Of the pipeline's slider: how many values it has, and moves there and back."""
    values = next(r for r in offered(Experiment.named("pipeline")) if r["name"] == FRONT)["values"]
    return len(values), [[FRONT, move % len(values)] for move in range(1, MOVES + 1)]


def of_moves(evaluate: Callable, until: Callable) -> Iterator[dict]:
    """Rows: milliseconds of a slider's moves, each at once, and once Python has predicted ahead."""
    count, places = moves()
    first = sorted(evaluate(MOVED, place) for place in places[: count - 1])
    until(f"Object.keys(btlMade).length >= {count}")
    then = sorted(evaluate(MOVED, place) for place in places)
    yield row("a slider's first moves, one after the other: median", statistics.median(first), "ms")
    yield row(
        "a slider's move once its values were predicted ahead: median",
        statistics.median(then),
        "ms",
    )
    at = int(0.95 * len(then))
    yield row(
        "a slider's move once its values were predicted ahead: 95th percentile", then[at], "ms", 150
    )


def rows() -> list[dict]:
    return [*measured()]


def measured() -> Iterator[dict]:
    """The rows."""
    folder = Path(BUILT or tempfile.mkdtemp())
    chosen = LABS or [*Experiment.all()]
    if not BUILT:
        asked = [*chosen, "pipeline", "--pyodide", PYTHON]
        subprocess.run([sys.executable, "-m", "bigtrain_lab", "site", folder, *asked], check=True)
    fetched = sum(
        path.stat().st_size
        for path in (*folder.glob("*"), *folder.glob("pyodide/*"))
        if path.is_file() and path.suffix != ".html"
    )
    kept = max(path.stat().st_size for path in (folder / "kept").iterdir())
    yield row("a lab's first use, with its page", (fetched + kept + 60e3) / 1e6, "MB", 20)
    yield row("of it the dry runs, of the lab that has most", kept / 1e6, "MB")
    with served(folder) as address, chromium(find_browser()) as browser:
        first, live, equal, told = [], [], 0, 0
        for lab in chosen:
            cls = Experiment.named(lab)
            page = Opened(browser, address, lab)
            first.append(page.page.wait_for_function(SEEN).json_value() / 1000)
            page.page.wait_for_selector("body[data-python=ready]", timeout=120_000)
            live.append(page.page.evaluate("performance.now()") / 1000)
            for changed in moved(cls):
                same = alike(page.move(changed), lab, changed)
                equal, told = equal + same, told + 1
                print(lab, changed, "" if same else "DIFFERS", flush=True)
            page.context.close()
        page = Opened(browser, address, "pipeline").page
        page.wait_for_selector("body[data-python=ready]", timeout=120_000)
        of_slider = [*of_moves(page.evaluate, page.wait_for_function)]
    yield row("first picture, median of the labs", statistics.median(first), "s", 1)
    yield row(
        "Python ready for a live prediction, median of the labs", statistics.median(live), "s", 6
    )
    yield from of_slider
    yield row(
        "settings predicted alike in browser and CPython, event for event", equal, "", at_least=told
    )
