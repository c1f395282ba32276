"""Take the pictures of panels that lessons and README show, from a Chromium that drives JupyterLab.

    python tools/picture_panels.py               all of them
    python tools/picture_panels.py zero loop     some, by name
    python tools/picture_panels.py --states FOLDER [zero ...]
        panels in each state, to look at: before, during and after a run, pinned, refused, failed;
        two sizes, light and dark

Each is the whole panel after a run. A picture keeps in its own file what it shows: the experiment,
its settings, and the numbers that were predicted then. A test predicts them again, so that a
picture which is older than the code is found.
"""

import json
import struct
import sys
import tempfile
import zlib
from io import BytesIO
from itertools import product
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

WINDOW = {"width": 1366, "height": 2400}  # as wide as a laptop's, and high enough for a whole panel
ENDED = ".btl-status:has-text(' after ')"
KEY = b"bigtrain_lab"
WIDE, FOOT, FILMED, FRAME_MS, LEFT, RIGHT = 900, 132, 40, 150, 96, 17  # of the moving picture
AGAIN = "panel.unpin(); panel.set(**type(panel.experiment)().model_dump()); "
SIZES, SEEN_MS, MIDWAY = ((1366, 768), (1920, 1080)), 1000, 0.35
EXECUTE = """code => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel
    .requestExecute({ code }).done"""
LENSES = {"translate": "timeline", "staleness": "timeline"} | dict.fromkeys(
    ("accumulate", "parameter-server", "precision"), "curves"
)  # of which the lessons' text tells
PICTURES = {  # name -> experiment and settings
    "docs/loop": ("pipeline", {"micro_batches": 4}),
    **{
        f"notebooks/pictures/{name}": shown
        for name, shown in {
            "panel": ("pipeline", {}),
            "accumulation": ("accumulate", {}),
            "memory": ("memory", {}),
            "precision": ("precision", {"level": "fp16"}),
            "recompute": ("checkpoint", {}),
            "all_reduce": ("all-reduce", {}),
            "data_parallel": ("data-parallel", {}),
            "parameter_server": ("parameter-server", {}),
            "large_batch": ("large-batch", {"optimizer": "lamb", "batch": 4096}),
            "zero": ("zero", {}),
            "translate": ("translate", {}),
            "staleness": ("staleness", {}),
            "partition": ("partition", {}),
            "tensor_slicing": ("tensor-slicing", {}),
            "layouts": ("layouts", {}),
            "combined": ("combined", {}),
            "compile": ("compile", {}),
            "plan": ("plan", {}),
        }.items()
    },
}
# whether no row that is seen is still to be predicted
PREDICTED = "[...document.querySelectorAll('tr.btl-stale')].every(row => !row.offsetParent)"


def told(experiment: str, settings: dict) -> dict:
    """What a picture says of itself: the experiment, its settings, and its predicted numbers as the
    panel writes them."""
    from bigtrain_lab.experiments import Experiment
    from bigtrain_lab.view.report import column

    made = Experiment.named(experiment)(**settings)
    return {
        "experiment": experiment,
        "settings": settings,
        "predicted": {
            name: str(amount) for name, amount in column(made.quantities, made.predict()).items()
        },
    }


def with_text(png: bytes, text: dict) -> bytes:
    """The picture with a text chunk behind its header, which is 33 bytes long."""
    body = b"tEXt" + KEY + b"\0" + json.dumps(text, sort_keys=True).encode()
    return (
        png[:33]
        + struct.pack(">I", len(body) - 4)
        + body
        + struct.pack(">I", zlib.crc32(body))
        + png[33:]
    )


def text_of(png: bytes) -> dict:
    """What `with_text` wrote; {} where a picture says nothing."""
    (size,) = struct.unpack(">I", png[33:37])
    chunk, mark = png[37 : 41 + size], b"tEXt" + KEY + b"\0"
    return json.loads(chunk.removeprefix(mark)) if chunk.startswith(mark) else {}


def film(page) -> bytes:
    """A moving picture: a slider moves, a run starts, its schedule is played. It takes Pillow."""
    from PIL import Image

    panel, frames = page.locator(".btl-panel").first, []

    def shoot(count):
        for _ in range(count):
            frames.append(Image.open(BytesIO(panel.screenshot())).convert("RGB"))

    page.get_by_role("button", name="timeline").click()
    page.wait_for_timeout(SEEN_MS)
    shoot(4)
    for _ in range(4):
        page.locator(".btl-controls .noUi-handle:visible").nth(1).press("ArrowRight")
        page.wait_for_timeout(SEEN_MS)
        shoot(3)
    page.get_by_role("button", name="Run on").click()
    page.wait_for_selector(ENDED)
    canvas = page.locator(".btl-player canvas")
    for at in range(FILMED + 1):  # as if played
        box = canvas.bounding_box()
        left, right = box["x"] + LEFT, box["x"] + box["width"] - RIGHT
        page.mouse.click(left + (right - left) * at / FILMED, box["y"] + 10)
        page.mouse.move(0, 0)
        shoot(1)
    high = min(frame.height for frame in frames) - FOOT
    frames = [
        frame.crop((0, 0, frame.width, high)).resize(
            (WIDE, high * WIDE // frame.width), Image.LANCZOS
        )
        for frame in frames
    ]
    colours = frames[-1].quantize(128)
    first, *others = [each.quantize(palette=colours, dither=Image.Dither.NONE) for each in frames]
    moving = BytesIO()
    first.save(moving, "PNG", save_all=True, append_images=others, duration=FRAME_MS, loop=0)
    return moving.getvalue()


def refused(experiment: str) -> dict:
    """Settings beside the defaults that the experiment refuses; {} where all go."""
    from bigtrain_lab.core import Impossible
    from bigtrain_lab.experiments import Experiment
    from bigtrain_lab.panel.controls import nearby

    kind = Experiment.named(experiment)
    first = kind()
    for name, knob in kind.knobs().items():
        for value in nearby(knob, kind.model_fields[name].annotation, getattr(first, name))[-3:]:
            try:
                first.replace(**{name: value}).predict()
            except Impossible:
                return {name: value}
    return {}


def states(folder: Path, names: list[str]) -> None:
    """A picture of each lab in each state, for people to judge."""
    from bigtrain_lab.experiments import Experiment
    from tests.browser.lab import Lab, chromium, lab_server
    from tools.setup import find_browser

    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as kept,
        lab_server(Path(kept) / "lab") as about,
        chromium(find_browser()) as browser,
    ):
        for name, size in product(names or Experiment.all(), SIZES):
            lab = Lab(browser, *about, viewport=dict(zip(("width", "height"), size)))
            page = lab.panel("state.ipynb", call=f"panel = show({name!r})\npanel")

            def take(state, lab=lab, page=page, name=name, wide=size[0]):
                page.wait_for_function(PREDICTED)
                page.locator(".btl-panel").first.evaluate("panel => panel.scrollIntoView()")
                for theme in ("Light", "Dark"):
                    lab.theme(f"JupyterLab {theme}")
                    page.wait_for_timeout(SEEN_MS)
                    page.screenshot(path=folder / f"{name}-{wide}-{state}-{theme.lower()}.png")
                lab.theme("JupyterLab Light")

            def run(page=page):
                page.get_by_role("button", name="Run on").click()
                page.wait_for_timeout(SEEN_MS)

            page.wait_for_timeout(3 * SEEN_MS)
            take("before")
            run()
            page.screenshot(path=folder / f"{name}-{size[0]}-during-light.png")
            page.wait_for_selector(ENDED)
            page.wait_for_timeout(3 * SEEN_MS)
            take("after")
            page.locator("button.btl-pin").click()
            page.locator(".btl-controls .noUi-handle:visible").first.press("ArrowRight")
            page.wait_for_timeout(3 * SEEN_MS)
            take("pinned")
            for state, settings in (("refused", refused(name)), ("failed", {"fault": "kill"})):
                if not settings or settings.keys() - Experiment.named(name).knobs().keys():
                    continue
                page.evaluate(EXECUTE, AGAIN + f"panel.set(**{settings})")
                page.wait_for_timeout(2 * SEEN_MS)
                if state == "failed":
                    if not page.locator(".btl-top .mod-primary").is_enabled():
                        continue  # the lab refuses that fault
                    run()
                    page.wait_for_selector(f"{ENDED}, .btl-failed")
                take(state)
            lab.close()
            print(name, size, lab.complaints or "", flush=True)


def main(words: list[str]) -> None:
    if words[:1] == ["--states"]:
        states(Path(words[1]), words[2:])
        return
    from tests.browser.lab import Lab, chromium, lab_server
    from tools.setup import find_browser

    with (
        tempfile.TemporaryDirectory() as folder,
        lab_server(Path(folder) / "lab") as about,
        chromium(find_browser()) as browser,
    ):
        for name, (experiment, settings) in PICTURES.items():
            if words and Path(name).name not in words:
                continue
            lab = Lab(browser, *about, viewport=WINDOW)
            page = lab.panel(
                f"{Path(name).name}.ipynb",
                call=f"panel = show({experiment!r}, **{settings})\npanel",
            )
            page.emulate_media(reduced_motion="reduce")  # else a short run is played once
            if name == "docs/loop":
                moving = with_text(film(page), told(experiment, settings))
                (REPOSITORY / f"{name}.png").write_bytes(moving)
                lab.close()
                continue
            page.get_by_role("button", name="Run on").click()
            page.wait_for_selector(ENDED)
            page.wait_for_timeout(2 * SEEN_MS)
            if lens := LENSES.get(experiment):
                page.get_by_role("button", name=lens, exact=True).click()
                page.wait_for_timeout(SEEN_MS)
            if experiment == "all-reduce":  # chunks on their way
                box = page.locator(".btl-player canvas").bounding_box()
                page.mouse.click(box["x"] + box["width"] * MIDWAY, box["y"] + 10)
                page.mouse.move(0, 0)
                page.wait_for_timeout(SEEN_MS)
            taken = page.locator(".btl-panel").first.screenshot()
            (REPOSITORY / f"{name}.png").write_bytes(with_text(taken, told(experiment, settings)))
            lab.close()
            print(f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
