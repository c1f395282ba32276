"""Make the reader's own copies of the lessons and assignments, in lessons/, or bring new ones:
`make lab` does it first.

A copy has no outputs, so that each cell asks before it shows. What a reader has touched is never
written over: a newer release of it comes beside, with another name.
"""

import hashlib
import json
import pathlib
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RELEASE = "bigtrain_lesson"  # of a copy: the digest of what it was made from


def main(release: pathlib.Path, own: pathlib.Path) -> None:
    for path in sorted(release.rglob("*.ipynb")):
        place = path.relative_to(release)
        if not any(part.startswith(".") for part in place.parts):
            bring(path, own / place)
    if (release / "pictures").is_dir():
        shutil.copytree(release / "pictures", own / "pictures", dirs_exist_ok=True)


def bring(path: pathlib.Path, copy: pathlib.Path) -> None:
    """A copy of this notebook without outputs; beside one that has been touched."""
    book = json.loads(path.read_text(encoding="utf-8"))
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    release = book["metadata"][RELEASE] = digest(book)
    if copy.exists():
        made_from, touched = state(copy)
        if made_from == release:
            return
        if touched:
            copy = copy.with_stem(f"{copy.stem}-{release[:6]}")
            if copy.exists():
                return
            print(f"A newer {path.name} is beside yours: {copy.name}.")
    copy.parent.mkdir(parents=True, exist_ok=True)
    half = copy.with_name(copy.name + ".half")
    half.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    half.replace(copy)


def state(copy: pathlib.Path) -> tuple[str, bool]:
    """(digest of what a copy was made from, whether anybody has touched it)."""
    try:
        book = json.loads(copy.read_text(encoding="utf-8"))
        made_from = book["metadata"].get(RELEASE, "")
        touched = any(cell.get("outputs") for cell in book["cells"]) or digest(book) != made_from
        return made_from, touched
    except (ValueError, KeyError, TypeError, AttributeError):  # whatever it is, it is the reader's
        return "", True


def digest(book: dict) -> str:
    """Of what the cells say, without what they showed."""
    told = [[cell["cell_type"], "".join(cell["source"])] for cell in book["cells"]]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


if __name__ == "__main__":
    given = [pathlib.Path(word) for word in sys.argv[1:]]
    main(*given or (ROOT / "notebooks", ROOT / "lessons"))
