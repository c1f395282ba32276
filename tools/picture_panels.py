"""Take the pictures of panels that lessons and README show, from a Chromium that drives JupyterLab.

    python tools/picture_panels.py               all of them
    python tools/picture_panels.py zero lab      some, by name

Each is the whole panel after a run. A picture keeps in its own file what it shows: the experiment,
its settings, and the numbers that were predicted then. A test predicts them again, so that a
picture which is older than the code is found.
"""

import json
import struct
import sys
import tempfile
import zlib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

WINDOW = {"width": 1366, "height": 2400}  # as wide as a laptop's, and high enough for a whole panel
ENDED = ".btl-status:has-text(' after ')"
KEY = b"bigtrain_lab"
PICTURES = {  # name -> experiment and settings
    "docs/lab": ("pipeline", {}),
    **{
        f"notebooks/pictures/{name}": shown
        for name, shown in {
            "panel": ("pipeline", {}),
            "accumulation": ("accumulate", {}),
            "memory": ("memory", {}),
            "precision": ("precision", {}),
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
        }.items()
    },
}


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


def main(words: list[str]) -> None:
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
            page.get_by_role("button", name="Run on").click()
            page.wait_for_selector(ENDED)
            page.wait_for_timeout(2000)  # a short run is played once
            if (end := page.locator(".btl-player button[title^='to the end']")).is_visible():
                end.click()
                page.wait_for_timeout(500)
            taken = page.locator(".btl-panel").first.screenshot()
            (REPOSITORY / f"{name}.png").write_bytes(with_text(taken, told(experiment, settings)))
            lab.close()
            print(f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
