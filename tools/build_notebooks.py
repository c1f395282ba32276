"""Run every lesson and keep its outputs, so that a plain web view shows what a kernel would: `make
notebooks`.

    python tools/build_notebooks.py            all of notebooks/*.ipynb
    python tools/build_notebooks.py 00 11      those whose names begin so

Each lesson runs from top to bottom in a fresh kernel of this interpreter. What differs from one run
to the next is taken out, so that a rebuild which changes nothing leaves no diff: times, widget ids,
the kernel's name and version. A plotly figure gets a PNG beside its JSON; a figure that did not
change keeps the PNG it had. Nothing is written of a lesson that fails, warns, or tells a path of
this machine.
"""

import base64
import json
import os
import re
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
os.environ["JUPYTER_PREFER_ENV_PATH"] = (
    "1"  # this environment's kernel before a user's of the same name
)

os.environ["BIGTRAIN_LANGUAGE"] = "en"  # whatever this machine speaks

import kaleido  # noqa: E402
import nbformat  # noqa: E402
from nbclient import NotebookClient  # noqa: E402
from nbclient.exceptions import CellExecutionError, CellTimeoutError  # noqa: E402

from tools.setup import find_browser  # noqa: E402

CELL_TIMEOUT_S = 120
PICTURE = {"format": "png", "width": 960, "scale": 1}
PLOTLY, WIDGET, PNG = (
    "application/vnd.plotly.v1+json",
    "application/vnd.jupyter.widget-view+json",
    "image/png",
)
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "pygments_lexer": "ipython3",
    },
}
VOLATILE = re.compile(
    r"\b0x[0-9a-f]{6,}\b|(?<![\w.])/(home|root|Users|tmp|work|usr|var|opt|private)/\S*"
)


class Unfit(Exception):
    """The lesson cannot be committed as it came out."""


def main(words: list[str]) -> int:
    chosen = [
        path
        for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
        if not words or path.name.startswith(tuple(words))
    ]
    if not chosen:
        print(f"No lesson begins with {' or '.join(words) or 'anything: notebooks/ is empty'}.")
        return 1
    if browser := find_browser():
        os.environ["BROWSER_PATH"] = browser
    kaleido.start_sync_server(silence_warnings=True)
    failed = 0
    try:
        for path in chosen:
            began = time.monotonic()
            try:
                build(path)
                print(f"{path.name}: {time.monotonic() - began:.0f} s")
            except (CellExecutionError, CellTimeoutError, Unfit) as error:
                failed += 1
                print(f"{path.name}: {error}")
    finally:
        kaleido.stop_sync_server(silence_warnings=True)
    return failed and 1


def build(path: Path) -> None:
    """Execute one notebook in place."""
    notebook = nbformat.read(path, as_version=4)
    pictures = known_pictures(notebook)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"  # the kernel inherits it
    NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        store_widget_state=False,
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            cell.outputs = [
                normal(output, f"cell {number}, {cell.id}", pictures)
                for output in joined(cell.outputs)
            ]
    tags_only(notebook)
    text = nbformat.writes(notebook)
    if path.read_text() != text.rstrip("\n") + "\n":
        path.write_text(text.rstrip("\n") + "\n")


def joined(outputs: list) -> list:
    """Stream outputs that follow one another as one: how they were cut is chance."""
    kept: list = []
    for output in outputs:
        if (
            kept
            and output.output_type == "stream" == kept[-1].output_type
            and output.name == kept[-1].name
        ):
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def normal(output, where: str, pictures: dict):
    """The output without what differs from run to run; Unfit where it cannot be shown to others."""
    if output.output_type == "stream":
        if output.name == "stderr":
            raise Unfit(f"{where} warns: {output.text.strip()[:300]}")
        refuse_volatile(output.text, where)
        return output
    data = output.get("data", {})
    for name, value in data.items():
        if name.startswith("text/"):
            refuse_volatile("".join(value), where)
    if data.pop(WIDGET, None) and not data:
        raise Unfit(f"{where} shows a widget that says nothing in text")
    if PLOTLY in data:
        data.pop("text/html", None)
        data[PNG] = picture(data[PLOTLY], pictures)
    if "text/html" in data:  # a text that is shown with colours needs no third form
        data.pop("text/latex", None)
    return output


def refuse_volatile(text: str, where: str) -> None:
    if found := VOLATILE.search(text):
        raise Unfit(f"{where} tells {found[0]!r}, which is another one elsewhere")


def picture(figure: dict, pictures: dict) -> str:
    """The figure as a PNG in base64."""
    key = json.dumps(figure, sort_keys=True)
    if key not in pictures:
        height = figure["layout"].get("height", 450)
        drawn = kaleido.calc_fig_sync(
            {"data": figure["data"], "layout": figure["layout"]}, opts={**PICTURE, "height": height}
        )
        pictures[key] = base64.b64encode(drawn).decode()
    return pictures[key]


def known_pictures(notebook) -> dict:
    """Figure -> PNG of the outputs that are there."""
    return {
        json.dumps(output.data[PLOTLY], sort_keys=True): output.data[PNG].strip()
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if PLOTLY in output.get("data", {}) and PNG in output.data
    }


def tags_only(notebook) -> None:
    """Keep of all metadata the tags, and say the same about the kernel everywhere. The cell that
    installs stays folded."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        if cell.id == "install":
            continue
        cell.metadata = nbformat.from_dict(
            {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {}
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
