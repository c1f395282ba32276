"""Submissions as text: which notebooks there are, what answers they hold, what is wrong with them.

A submission is a stranger's file. It is read as JSON, each field is doubted, and nothing of it is
run. What it lacks is named in a sentence, and what is there still counts. `rebuilt` puts its
answers into the instructor's own notebook, so that no copied, edited or deleted cell goes on.
"""

import ast
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..core import Impossible, refuse
from ..core.files import printable, read_bounded
from ..grading import Topic
from ..grading.text import Piece, sliced

MOST_BYTES = 32 * 1024**2  # of a notebook: its outputs may hold pictures
MOST_LETTERS = 100_000  # of a cell
RESERVED = {"source", "solution", "release", "submitted", "autograded", "feedback", "marks"}
NOTHING = "There is no answer in this submission."


class Cell(NamedTuple):
    kind: str  # code, markdown
    id: str  # nbgrader's grade_id, or ""
    source: str


class Scored(NamedTuple):
    """A cell of the instructor's that counts: an exercise, a check of a step, or a question, which
    a person marks."""

    id: str
    topic: str
    answer: str  # the name that the student of an exercise defines
    step: int  # of a check
    points: float


@dataclass(frozen=True)
class Source:
    """The instructor's notebook of an assignment: all that is known of how it is graded."""

    assignment: str
    path: Path
    notebook: Mapping
    cells: tuple[Cell, ...]
    exercises: tuple[Scored, ...]
    checks: tuple[Scored, ...]
    questions: tuple[Scored, ...]

    def text(self, id: str) -> str:
        return next(cell.source for cell in self.cells if cell.id == id)

    def start(self, id: str) -> str:
        """What stood in an exercise's or a question's cell when it was handed out."""
        topics = {exercise.id: Topic.named(exercise.topic) for exercise in self.exercises}
        known = topics[id].start if id in topics else "YOUR ANSWER HERE"  # nbgrader's
        cells = (raw for raw in self.notebook["cells"] if cell(raw).id == id)
        return next((inside(raw, "metadata", "bigtrain", "start") for raw in cells), None) or known


@dataclass(frozen=True)
class Submission:
    """What a student handed in.

    pieces   topic -> what defines the answer; [] where nothing does
    why      topic -> why there are no pieces
    texts    id of an exercise's or a question's cell -> what the student wrote there
    defects  of the notebook, in sentences
    """

    student: str
    source: Source
    path: Path | None
    pieces: Mapping[str, list[Piece]]
    why: Mapping[str, str]
    texts: Mapping[str, str]
    defects: tuple[str, ...]


# -- notebooks ------------------------------------------------------------------------------------


def inside(thing, *names):
    """What lies at the end of a path of keys; None where a part of it is missing."""
    for name in names:
        thing = thing.get(name) if isinstance(thing, dict) else None
    return thing


def read(path: Path) -> dict:
    """A notebook as JSON. ValueError with a sentence where it is none."""
    try:
        notebook = json.loads(read_bounded(path, MOST_BYTES))
    except OSError as error:
        raise ValueError(f"The file cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ValueError("The file is no notebook: it is not JSON.") from error
    refuse(
        (
            not isinstance(inside(notebook, "cells"), list),
            "The file is no notebook of format 4: it has no list of cells.",
        ),
        error=ValueError,
    )
    return notebook


def cell(raw) -> Cell:
    """A cell, whatever it is: a field that is not as it should be counts as empty."""
    source, id = inside(raw, "source"), inside(raw, "metadata", "nbgrader", "grade_id")
    if isinstance(source, list):
        source = "".join(map(str, source))
    return Cell(
        str(inside(raw, "cell_type")),
        id if isinstance(id, str) else "",
        printable(source) if isinstance(source, str) else "",
    )


def source_at(path: Path, assignment: str) -> Source:
    """The instructor's notebook. Impossible where it cannot be graded by."""
    try:
        notebook = read(path)
    except ValueError as error:
        raise Impossible(f"{path}: {error}") from error
    found = {"answer": [], "step": [], "grade": []}  # what cells of each kind have
    for raw in notebook["cells"]:
        told = (inside(raw, "metadata", "nbgrader") or {}) | (
            inside(raw, "metadata", "bigtrain") or {}
        )
        part = Scored(
            *map(told.get, ("grade_id", "topic", "answer", "step")),
            float(told.get("points") or 0),
        )
        if kind := next(filter(told.get, found), None):
            found[kind].append(part)
    cells = tuple(map(cell, notebook["cells"]))
    return Source(assignment, path, notebook, cells, *map(tuple, found.values()))


def faults(source: Source) -> Iterator[str]:
    """What keeps a notebook of the instructor's from being graded by, in sentences."""
    asked = {exercise.topic: Topic.named(exercise.topic) for exercise in source.exercises}
    ids = Counter(each.id for each in source.cells if each.id)
    yield from (
        f"{count} cells have the id {id}: give each its own."
        for id, count in ids.items()
        if count > 1
    )
    yield from (
        "A cell of an exercise, a check or a question has no grade_id: give it one."
        for each in (*source.exercises, *source.checks, *source.questions)
        if each.id not in ids
    )
    for check in source.checks:
        if check.topic not in asked:
            yield f"{check.id} checks {check.topic}, for which there is no exercise cell: add it."
        elif not 1 <= check.step <= len(asked[check.topic].steps):
            yield f"{check.id} asks for step {check.step}, which {check.topic} has not: build anew."
    yield from (
        f"The exercise {topic} has no check: add a check cell."
        for topic in asked.keys() - {check.topic for check in source.checks}
    )
    yield from (
        f"{each.id} has no points: give it some."
        for each in (*source.checks, *source.questions)
        if not each.points > 0
    )


def sources(folder: Path, named: Path | None = None) -> list[Source]:
    """The instructor's notebooks: the one that is named, or those of source/ in the folder."""
    paths = [named] if named else sorted((folder / "source").rglob("*.ipynb"))
    paths = [path for path in paths if ".ipynb_checkpoints" not in path.parts]
    refuse(
        (
            not paths,
            f"{folder} has no notebook in source/: name the instructor's notebook with --source.",
        )
    )
    return [source_at(path, assignment_of(path)) for path in paths]


def asked_for(found: list[Source], assignments: tuple[str, ...]) -> list[Source]:
    """Those whose assignments' names begin so; all where none is named."""
    chosen = [each for each in found if not assignments or each.assignment.startswith(assignments)]
    known = ", ".join(sorted({each.assignment for each in found}))
    refuse(
        (
            not chosen,
            f"There is no assignment called {' or '.join(assignments)}: choose of {known}.",
        )
    )
    return chosen


def assignment_of(path: Path) -> str:
    """nbgrader's: source/ASSIGNMENT/NOTEBOOK.ipynb; of a notebook elsewhere, its own name."""
    home = path.absolute().parent
    return home.name if home.parent.name == "source" else path.stem


# -- submissions ----------------------------------------------------------------------------------


def submissions(folder: Path, source: Source) -> Iterator[Submission]:
    """All that was handed in: nbgrader's submitted/STUDENT/ASSIGNMENT/, or else STUDENT.ipynb and
    STUDENT/*.ipynb in the folder itself. solution/STUDENT/ has the numbers of one's own."""
    name = f"{source.path.stem}.ipynb"
    if (folder / "submitted").is_dir():
        homes = sorted((folder / "submitted").glob(f"*/{source.assignment}"))
        found = [(home.parent.name, *handed_in(home, name)) for home in homes if home.is_dir()]
    else:
        homes = [home for home in sorted(folder.iterdir()) if home.name not in RESERVED]
        found = [
            *(
                (path.stem, path, "")
                for path in sorted(folder.glob("*.ipynb"))
                if path != source.path
            ),
            *((home.name, *handed_in(home, name)) for home in homes if any(home.glob("*.ipynb"))),
        ]
    for student, path, defect in found:
        cells, defects = [], [defect] if defect else []
        try:
            cells = [] if path is None else list(map(cell, read(path)["cells"]))
        except ValueError as error:
            defects.append(str(error))
        if any(len(each.source) > MOST_LETTERS for each in cells):
            cells = [each for each in cells if len(each.source) <= MOST_LETTERS]
            defects.append(f"A cell of more than {MOST_LETTERS:,} letters was left out.")
        drawn = folder / "solution" / student / source.assignment / name
        own = source_at(drawn, source.assignment) if drawn.exists() else source
        try:
            yield submission(student, own, path, cells, defects)
        except (RecursionError, MemoryError):
            defects.append("The code is nested too deep to be read.")
            yield submission(student, own, path, [], defects)


def handed_in(home: Path, name: str) -> tuple[Path | None, str]:
    """The notebook in a student's folder, by its name or as the only one, and what is wrong."""
    others = sorted(home.glob("*.ipynb"))
    if home / name in others:
        return home / name, ""
    return (
        (others[0], f"The notebook is called {others[0].name}, not {name}.")
        if len(others) == 1
        else (None, f"There is no notebook called {name}.")
    )


def submission(student, source: Source, path, cells: list[Cell], defects: list[str]) -> Submission:
    """A student's answers out of the cells of a notebook."""
    if cells:
        defects = [*defects, *defects_of(cells, source)]
    pieces, why, texts = {}, {}, {}
    for exercise in source.exercises:
        start = source.start(exercise.id)
        own = chosen(cells, exercise, start)
        texts[exercise.id] = own.source if own else ""
        others = [each.source for each in cells if each.kind == "code" and each is not own]
        found = sliced([*others, own.source], exercise.answer) if own else []
        if why_not := no_answer(own, found, exercise, start):
            found, why[exercise.topic] = [], why_not
        elif carried := [piece.text for piece in found[:-1] if piece.text not in own.source]:
            texts[exercise.id] = "\n\n".join([*carried, own.source])
        pieces[exercise.topic] = found
    for question in source.questions:
        written = latest(
            [each for each in cells if each.id == question.id], source.start(question.id)
        )
        texts[question.id] = written.source if written else ""
    return Submission(student, source, path, pieces, why, texts, tuple(defects))


def chosen(cells: list[Cell], exercise: Scored, start: str) -> Cell | None:
    """The cell of an exercise: by its id, else by the name that it defines."""
    code = [each for each in cells if each.kind == "code"]
    same = [each for each in code if each.id == exercise.id]
    return latest(same or [each for each in code if sliced([each.source], exercise.answer)], start)


def latest(cells: list[Cell], start: str) -> Cell | None:
    """The last cell that is no longer as it was handed out."""
    changed = [each for each in cells if each.source.strip() != start.strip()]
    return next(reversed(changed or cells), None)


def no_answer(own: Cell | None, found: list[Piece], exercise: Scored, start: str) -> str:
    """Why there is nothing to play; "" where there is."""
    if own is None:
        return NOTHING
    try:
        ast.parse(own.source)
    except (SyntaxError, ValueError, RecursionError) as error:
        if not found:
            line = getattr(error, "lineno", None) or 1
            return f"Your cell is no Python, at its line {line}: {printable(str(error.args[0]))}."
    if not found:
        return f"Your cell does not define {exercise.answer}: keep the name."
    written, untouched = (
        [piece.text for piece in sliced([text], exercise.answer)] for text in (own.source, start)
    )
    return (
        "The exercise is as it was handed out: there is no answer yet."
        if written == untouched
        else ""
    )


def defects_of(cells: list[Cell], source: Source) -> Iterator[str]:
    """What is wrong with a notebook's cells, the marks being given all the same."""
    for one in (*source.exercises, *source.checks, *source.questions):
        same = [each for each in cells if each.id == one.id]
        if len(same) > 1:
            yield f"{len(same)} cells have the id {one.id}: the last one that was changed counts."
        elif not same and one in source.exercises:
            yield f"No cell has the id {one.id}: the cell that defines {one.answer} counts."
        elif not same and one in source.checks:
            yield f"The check {one.id} is missing: it was put back."
        elif not same:
            yield f"No cell has the id {one.id}: its answer is missing."
        text = source.text(one.id).strip()
        if one in source.checks and any(each.source.strip() != text for each in same):
            yield f"The check {one.id} was edited: the instructor's check counts."


# -- the notebook that goes on ---------------------------------------------------------------------


def rebuilt(submission: Submission, outputs: Mapping[str, tuple[str, float]]) -> str:
    """The instructor's notebook with a student's answers in it, and under each check what it said
    and gave. The instructor's own answers are never in it."""
    notebook = json.loads(json.dumps(submission.source.notebook))
    for raw in notebook["cells"]:
        id = cell(raw).id
        if inside(raw, "metadata", "nbgrader", "solution"):
            empty = "# " + NOTHING if raw["cell_type"] == "code" else NOTHING
            raw["source"] = submission.texts.get(id, "") or empty
        if raw["cell_type"] == "code":
            raw["execution_count"] = None
            raw["outputs"] = shown(*outputs[id]) if id in outputs else []
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def shown(said: str, points: float) -> list[dict]:
    """The outputs of a check, as a notebook holds them."""
    result = {"output_type": "execute_result", "execution_count": None, "metadata": {}}
    return [
        {"output_type": "stream", "name": "stdout", "text": said + "\n"},
        {**result, "data": {"text/plain": repr(points)}},
    ]
