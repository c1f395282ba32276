"""What a lesson asks of its reader before it shows, and the reader's own copies of all lessons."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from IPython.core.error import StdinNotImplementedError

from .core import Impossible, duration, refuse, size, write_whole

ANSWERS = Path("predictions.json")  # beside the copies: what the reader said first
MARK = "bigtrain_lesson"  # of a copy: the digest of what it was made from
CELL = re.compile(r"^<!-- (\S+) (\w+) -->\n", re.MULTILINE)  # of an edition: its id, of which text
ROWS = "application/vnd.bigtrain-lab.sheet+json"  # of an output: the rows of a Sheet
COLUMNS = {  # of a Sheet, and how each is written
    "technique": str,
    "ranks": str,
    "held": size,
    "sent": size,
    "time": lambda seconds: duration(seconds, "s"),
    "idle": "{:.1%}".format,
    "limit": str,
}
# Beside the copies, for pytest --nbval-lax: a check of an unsolved exercise fails there.
SOLVED = 'import os\n\nos.environ["BIGTRAIN_SOLVED"] = "1"  # each check raises what is wrong\n'
RELEASES = [folder / "notebooks" for folder in Path(__file__).parents[:2]]  # installed; a clone


def predict(question: str) -> str:
    """Ask, and return what the reader types; "nothing" where nobody can, as in a test. Cells below
    wait. The first answer stays, in the reader's own copy of the lesson and in a file beside it: a
    cell that runs again shows it. Nobody marks it."""
    lesson = Path(os.environ.get("JPY_SESSION_NAME", "")).stem  # as Jupyter tells it
    try:
        known = dict(json.loads(ANSWERS.read_bytes())) if lesson and ANSWERS.exists() else {}
    except ValueError as error:  # its reader may have edited it
        raise Impossible(
            f"{ANSWERS} cannot be read ({error}): mend it, or delete it to be asked anew."
        ) from error
    if answer := known.get(key := f"{lesson}: {question}"):
        print(f"{question} {answer}   (you said; to be asked anew, delete it in {ANSWERS})")
        return answer
    try:
        answer = input(f"{question} ").strip()
    except (EOFError, OSError, StdinNotImplementedError):
        print(question)
        return "nothing"
    if lesson and answer:
        write_whole(ANSWERS, json.dumps(known | {key: answer}, indent=1, ensure_ascii=False))
    return answer or "nothing"


class Sheet(list):
    """My budget sheet: a row for each technique. A lesson shows its own rows, and its notebook
    keeps them with the other outputs; `Sheet.beside()` has those of all lessons in a folder."""

    def row(self, technique, ranks=1, held=None, sent=None, time=None, idle=None, limit=None):
        """Add a row. `held`: bytes of the fullest rank; `sent`: bytes that a rank sends in a step;
        `time`: of a step, in seconds; `idle`: the share of a step; `limit`: what limits, in
        words."""
        self.append(
            {
                name: float(f"{fact:.6g}") if isinstance(fact, float) else fact  # on any machine
                for name, fact in zip(COLUMNS, (technique, ranks, held, sent, time, idle, limit))
            }
        )

    def __repr__(self) -> str:
        rows = (
            ["" if row[name] is None else say(row[name]) for name, say in COLUMNS.items()]
            for row in self
        )
        return "\n".join(
            f"| {' | '.join(line)} |" for line in ([*COLUMNS], ["---"] * len(COLUMNS), *rows)
        )

    def _repr_mimebundle_(self, **_) -> dict:
        return {"text/markdown": repr(self), ROWS: [*self]}

    @classmethod
    def beside(cls, folder: Path = Path()) -> "Sheet":
        """The rows that the lessons in this folder were saved with, after the lesson's number."""
        books = {
            path.name: path.read_text(encoding="utf-8")
            for path in folder.glob("[0-9][0-9]_*.ipynb")
        }
        return cls(
            {**row, "technique": f"{name[:2]} {row['technique']}"}
            for name in sorted(books)
            for cell in json.loads(books[name])["cells"]
            if "Sheet.beside(" not in "".join(cell["source"])
            for output in cell.get("outputs", ())
            for row in output.get("data", {}).get(ROWS, ())
        )


def copies(own: Path, release: Path | None = None, language: str = "") -> None:
    """Make the reader's own copies of the lessons and assignments in a folder, or bring new ones. A
    copy has no outputs, so that each cell asks before it shows. What a reader has touched is never
    written over: a newer release of it comes beside, with another name. `pytest --nbval-lax` of a
    copy fails at each exercise that is not solved. `language`: of an edition, such as "zh"; "" for
    English."""
    release = release or next(folder for folder in RELEASES if folder.is_dir())
    refuse(
        (
            language and language not in editions(release),
            f"There are no lessons in the language {language!r}: choose"
            f" {' or '.join(editions(release))}, or none for English.",
        )
    )
    for path in sorted(release.rglob("*.ipynb")):
        place = path.relative_to(release)
        if not any(part.startswith(".") for part in place.parts):
            bring(path, own / place, release / language / place.with_suffix(".md"))
    if not (own / "conftest.py").exists():
        (own / "conftest.py").write_text(SOLVED, encoding="utf-8")
    if (release / "pictures").is_dir():
        shutil.copytree(release / "pictures", own / "pictures", dirs_exist_ok=True)


def editions(release: Path) -> list[str]:
    """The languages, beside English, that lessons are there in."""
    return sorted({path.parent.name for path in release.glob("*/*.md")})


def bring(path: Path, copy: Path, edition: Path) -> None:
    """A copy of this notebook without outputs; beside one that has been touched."""
    book = translated(json.loads(path.read_text(encoding="utf-8")), edition)
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    release = book["metadata"][MARK] = digest(book)
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
    write_whole(copy, json.dumps(book, indent=1, ensure_ascii=False) + "\n")


def translated(book: dict, edition: Path) -> dict:
    """The notebook with the Markdown of an edition, where there is one. A cell whose text has
    changed since stays as it is."""
    parts = CELL.split(edition.read_text(encoding="utf-8")) if edition.is_file() else []
    told = {(cell, of): text for cell, of, text in zip(parts[1::3], parts[2::3], parts[3::3])}
    for cell in book["cells"]:
        if text := told.get((cell["id"], text_digest(cell))):
            cell["source"] = text.strip("\n")
    return book


def text_digest(cell: dict) -> str:
    """Of what a cell says, as an edition names the text that it translates."""
    return hashlib.sha256("".join(cell["source"]).encode()).hexdigest()[:8]


def state(copy: Path) -> tuple[str, bool]:
    """(digest of what a copy was made from, whether anybody has touched it)."""
    try:
        book = json.loads(copy.read_text(encoding="utf-8"))
        made_from = book["metadata"].get(MARK, "")
        return made_from, digest(book) != made_from or any(
            cell.get("outputs") for cell in book["cells"]
        )
    except (ValueError, KeyError, TypeError, AttributeError):  # whatever it is, it is the reader's
        return "", True


def digest(book: dict) -> str:
    """Of what the cells say, without what they showed."""
    return hashlib.sha256(
        json.dumps(
            [[cell["cell_type"], "".join(cell["source"])] for cell in book["cells"]]
        ).encode()
    ).hexdigest()
