"""In Chromium: how soon a moved slider shows a new prediction, and how smoothly the player plays.

From the key that moves a slider, seen by the page, until after the frame that shows the new
prediction: event, message to the kernel, prediction of 8 ranks x 32 micro-batches, message back,
decoding, painting.
"""

import tempfile
from pathlib import Path

from tests.browser.lab import Lab, chromium, lab_server
from tools.setup import find_browser

from .measure import row

MOVES = 60
SPANS = 2000
PANEL = 'from bigtrain_lab.panel import show\nshow("pipeline", ranks=8, micro_batches=32)'
PLAYER = f"""from bigtrain_lab.view.player import Player
from bigtrain_lab.order.schedules.one_f_one_b import OneFOneB
from bigtrain_lab.order.simulate import simulate
Player(simulate(OneFOneB(8, {SPANS // 16}), {{"F": 1, "B": 2, "U": 1}}))"""
WATCH = """() => {
    const root = document.querySelector('.btl-player');
    let began = 0, shown = root.dataset.revision;
    window.delays = [];
    document.addEventListener('keydown', () => { began = performance.now(); }, true);
    new MutationObserver(() => {
        if (root.dataset.revision === shown) return;
        shown = root.dataset.revision;
        setTimeout(() => window.delays.push(performance.now() - began), 0);  // after the frame
    }).observe(root, { attributes: true, attributeFilter: ['data-revision'] });
}"""


def delays(lab: Lab) -> list[float]:
    """Milliseconds from key to picture, of each move."""
    page = lab.open("latency.ipynb", [PANEL])
    page.wait_for_selector(".btl-player[data-revision]", timeout=120_000)
    page.wait_for_timeout(3000)
    page.evaluate(WATCH)
    lab.slider("micro-batches").focus()
    for move in range(MOVES):
        page.keyboard.press("ArrowLeft" if move % 2 == 0 else "ArrowRight")
        page.wait_for_function("moves => window.delays.length > moves", arg=move, timeout=20_000)
        page.wait_for_timeout(150)
    return page.evaluate("() => window.delays")


def frames(lab: Lab) -> list[float]:
    """Frames a second, read each half second while the player plays."""
    page = lab.open("frames.ipynb", [PLAYER])
    page.wait_for_selector(".btl-player[data-revision]", timeout=120_000)
    page.wait_for_timeout(2000)
    page.locator(".btl-player canvas").focus()
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    page.wait_for_timeout(1200)
    read = []
    for _ in range(12):
        page.wait_for_timeout(500)
        read.append(float(page.locator(".btl-player").get_attribute("data-fps")))
    return read


def rows() -> list[dict]:
    browser_path = find_browser()
    if browser_path is None:
        raise SystemExit(
            "There is no Chromium to measure in: install your system's `chromium` package or set"
            " BROWSER_PATH."
        )
    with (
        tempfile.TemporaryDirectory() as folder,
        lab_server(Path(folder)) as server,
        chromium(browser_path) as browser,
    ):
        found = []
        for measure in (delays, frames):
            lab = Lab(browser, *server)
            found.append(sorted(measure(lab)))
            lab.close()
    slow, fps = found
    return [
        row("slider to redrawn prediction at 8 x 32, median", slow[len(slow) // 2], "ms"),
        row(
            "slider to redrawn prediction at 8 x 32, 95th percentile",
            slow[int(0.95 * len(slow))],
            "ms",
            at_most=150,
        ),
        row(f"player at {SPANS} spans, median", fps[len(fps) // 2], "frames/s", at_least=30),
        row(f"player at {SPANS} spans, lowest half second", fps[0], "frames/s", at_least=30),
    ]
