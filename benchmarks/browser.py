"""In Chromium: how soon a moved slider shows a new prediction, and how smoothly the player plays.

From the key that moves a slider, seen by the page, until after the frame that shows the new
prediction: event, message to the kernel, prediction of 8 ranks x 32 micro-batches, message back,
decoding, painting. Then each slider of each lab is dragged from end to end by the mouse, and put
back: from the mouse's move until after the frame that shows the first new picture, or row of a
table; and until all is told: what is held inside actions, other rivals, sentences, the table of
numbers, which come later. A figure below a table comes when the hand rests, and is not waited for.
A drag moves the panel's height by nothing, and leaves no error in the console. At last a slider
moves in the page loaded anew, and in the panel of a kernel started anew. Unless XDG_CACHE_HOME is
set, nothing is kept from an earlier day: each new model is run dry here.
"""

import tempfile
from pathlib import Path

from bigtrain_lab.experiments import Experiment
from tests.browser.lab import Lab, chromium, lab_server
from tools.setup import find_browser

from .measure import row

MOVES = 60
SPANS = 2000
LABS = ()  # all
NOTEBOOK = "window.jupyterapp.shell.currentWidget"
STEPS, SOON_MS, SETTLED_MS = 8, 120, 3000
SMALLEST = {"MOVES": 2, "STEPS": 2, "LABS": ("zero",)}
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

SEEN = """() => {
    window.began = window.last = window.all = 0;
    document.addEventListener('mousemove', () => { window.began = performance.now(); }, true);
    const seen = (changes) => {
        const places = changes.map(({ target }) => target.closest ? target : target.parentElement);
        const rows = changes.some(({ type }, at) =>
            type === 'childList' && places[at]?.closest('.btl-rows'));
        const foot = places.some(each => each?.closest('.btl-pane'));
        // before a run some figures are a sentence: then what a move draws are the numbers above
        const none = () => !['canvas', '.btl-rows'].some(each =>  // asked last: it takes a layout
            document.querySelector('.btl-lens ' + each)?.offsetParent);
        const drawn = changes.some((each, at) => each.attributeName === 'data-revision'
            || each.type === 'childList' && (places[at]?.closest('.btl-lens .widget-html')
                || places[at]?.querySelector('.btl-answers') && none()));
        requestAnimationFrame(() => setTimeout(() => {  // after the frame
            if ((drawn || rows) && window.last <= window.began) window.last = performance.now();
            if (rows || foot) window.all = performance.now();
        }, 0));
    };
    new MutationObserver(seen).observe(document.querySelector('.btl-panel'),
        { attributes: true, childList: true, subtree: true, characterData: true });
}"""
QUIET = """() => performance.now() - Math.max(window.began, window.last, window.all) > 600
    && !document.querySelector('.btl-rows .btl-stale, .btl-waiting, .btl-untold')"""


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


def drags(lab: Lab, name: str) -> tuple[list[float], list[float], set[float]]:
    """Milliseconds from a move of the mouse to the first picture that it brought, or the first row
    of a table, of each slider of a panel; those until all is told; and the heights that the panel
    had."""
    page = lab.open("drag.ipynb", [f"from bigtrain_lab.panel import show\nshow({name!r})"])
    page.wait_for_selector(".btl-answers b")
    page.wait_for_timeout(SETTLED_MS)
    page.evaluate(SEEN)
    took, all_told, heights = [], [], set()
    for slider in page.locator(".btl-controls .noUi-target:visible").all():
        box, handle = slider.bounding_box(), slider.locator(".noUi-handle").bounding_box()
        y = handle["y"] + handle["height"] / 2
        page.mouse.move(handle["x"] + handle["width"] / 2, y)
        page.mouse.down()
        for at in range(STEPS + 1):
            page.evaluate("() => { window.last = window.all = 0; }")
            page.mouse.move(box["x"] + box["width"] * at / STEPS, y)
            page.wait_for_function(QUIET)
            took.append(page.evaluate("() => window.last && window.last - window.began"))
            all_told.append(page.evaluate("() => window.all && window.all - window.began"))
            heights.add(page.locator(".btl-panel").bounding_box()["height"])
        page.mouse.move(handle["x"] + handle["width"] / 2, y)  # where it stood
        page.wait_for_function(QUIET)
        page.mouse.up()
    return [each for each in took if each], sorted(each for each in all_told if each), heights


def anew(lab: Lab) -> None:
    """Move a slider once the page was loaded anew, then once the kernel was started anew."""
    page = lab.page
    lab.command("docmanager:save")
    page.wait_for_function(f"() => !{NOTEBOOK}.context.model.dirty")
    page.reload()
    moved(page)
    page.evaluate(f"() => {NOTEBOOK}.sessionContext.session.kernel.restart()")
    page.wait_for_selector(".btl-panel.jupyter-widgets-disconnected")
    page.wait_for_function(f"() => {NOTEBOOK}.sessionContext.session.kernel.status === 'idle'")
    lab.command("notebook:run-all-cells")
    page.wait_for_selector(".btl-panel:not(.jupyter-widgets-disconnected)")
    moved(page)


def moved(page) -> None:
    """Move a control, and wait until that is seen. A slider may change nothing that is shown."""
    page.wait_for_selector(".btl-answers b")
    page.wait_for_timeout(SETTLED_MS)
    page.evaluate(SEEN)
    for handle in page.locator(".btl-controls .noUi-handle:visible").all():
        at_the_end = handle.evaluate("each => each.ariaValueNow === each.ariaValueMax")
        for _ in range(STEPS):
            handle.press("ArrowLeft" if at_the_end else "ArrowRight")
            page.wait_for_timeout(500)
        if page.evaluate("() => window.last"):
            return
    page.locator(".btl-controls select:visible").first.press("ArrowDown")
    page.wait_for_function("() => window.last")


def of_drags(server, browser) -> list[dict]:
    found, everything, complaints = [], [], []
    for name in LABS or Experiment.all():
        print(name, flush=True)
        lab = Lab(browser, *server)
        took, all_told, heights = [], [], set()
        try:
            took, all_told, heights = drags(lab, name)
            anew(lab)
        except Exception as error:  # the other labs are measured all the same
            complaints.append(f"{name}: {error}")
            print(complaints[-1], flush=True)
        complaints += lab.complaints
        lab.close()
        if not took:
            continue
        everything += took
        print(f"{name}: ms a move {[*map(round, took)]}", flush=True)
        took.sort()
        worst = took[min(len(took) - 1, int(0.95 * len(took)))]
        told = f"{name}, sliders from end to end, 95th percentile of {len(took)} moves"
        found += [
            row(told, worst, "ms", at_most=SOON_MS),
            row(f"{name}, heights of its panel meanwhile", len(heights), "heights", at_most=1),
        ]
        if all_told:
            middle = all_told[len(all_told) // 2]
            found.append(row(f"{name}, until all is told, median", middle, "ms"))
    soon = sum(each <= SOON_MS for each in everything) / len(everything)
    return [
        *found,
        row(f"moves of all labs seen within {SOON_MS} ms", 100 * soon, "%", at_least=95),
        row(
            "errors in the console meanwhile, also when page or kernel begin anew",
            len(complaints),
            "errors",
            at_most=0,
        ),
    ]


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
        of_labs = of_drags(server, browser)
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
        *of_labs,
    ]
