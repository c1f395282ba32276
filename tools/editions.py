"""What an edition of the lessons in another language lacks: `python tools/editions.py zh [NN ...]`.

notebooks/zh/01_accumulation.md has the Markdown of its lesson, cell by cell (and
notebooks/zh/assignments that of the assignments, by the same numbers). Before each text stand
the cell's id and a digest of the English that it translates:

    <!-- title 5f2a9c01 -->
    # 01 梯度累积 ...

A cell whose English has changed is told here again, in that form, to be translated and put in its
place. A reader sees English there until then, and a test fails.
"""

import json
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
NOTEBOOKS = REPOSITORY / "notebooks"
sys.path.insert(0, str(REPOSITORY))

from bigtrain_lab.lesson import text_digest, translated  # noqa: E402


def main(language: str, *chosen: str) -> int:
    lacking = 0
    for path in sorted(NOTEBOOKS.rglob("*.ipynb")):
        place = path.relative_to(NOTEBOOKS)
        if ".ipynb_checkpoints" in place.parts or chosen and not path.name.startswith(chosen):
            continue
        told = path.read_text(encoding="utf-8")
        edition = NOTEBOOKS / language / place.with_suffix(".md")
        for cell, other in zip(
            json.loads(told)["cells"], translated(json.loads(told), edition)["cells"], strict=True
        ):
            if cell["cell_type"] == "markdown" and cell == other:
                lacking += 1
                print(f"<!-- {cell['id']} {text_digest(cell)} -->\n{''.join(cell['source'])}\n")
    print(f"{lacking} texts lack their translation.", file=sys.stderr)
    return bool(lacking)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if sys.argv[1:] else __doc__)
