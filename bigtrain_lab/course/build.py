"""Assignments as notebooks for nbgrader, out of short texts and the exercises that these name.

A text in assignments/ is Markdown. Some of its fenced blocks become cells of a kind of their own:

    code setup           code that a student only runs; `setup` is the cell's id
    exercise zero-1      what is asked, three hints, the answer's cell, the playground that stands
                         in the block, and a check for each step
    question 2           a question of 2 points, a line ---, and what the instructor expects
    draw                 makes names for the placeholders, by `draw`, a random.Random

A placeholder, {{ size:,.1f }}, is filled in whenever a notebook is built. So each student may have
other numbers, and what follows from them is computed, never kept.

The instructor's copy has the right answers: it is the key. A student gets the same cells, but those
whose metadata have a `start` begin with that. nbgrader_config.py tells nbgrader this rule.
"""

import random
import re
import shutil
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode, v4

from ..core import counted, refuse
from ..grading import Topic

TEXTS = Path(__file__).parent / "assignments"
CONFIG = Path(__file__).parent / "nbgrader_config.py"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
HINTS = ("a question", "a step", "nearly the answer")
ANSWER_HERE = "*Your answer, in two sentences.*"
RULES = (
    "Each exercise has one cell that you change: the first cell of code below its hints. Its checks"
    " say what is wrong and show your points, as often as you like. What counts is marked later,"
    " from the text of your answers alone: a changed check changes nothing."
)


class Part(NamedTuple):
    """A part of an assignment's text: plain Markdown, of kind "", or a block of its own kind."""

    kind: str
    word: str
    text: str


def texts() -> dict[str, str]:
    """Name -> text of every assignment of which an exercise is there."""
    found = {file.stem: file.read_text(encoding="utf-8") for file in sorted(TEXTS.glob("*.md"))}
    return {name: text for name, text in found.items() if any(exercises(parts(text)))}


def parts(text: str) -> list[Part]:
    pieces = re.split(
        r"^```(draw|code|exercise|question) ?(.*)\n((?:.*\n)*?)```\n", text, flags=re.MULTILINE
    )
    found = [Part("", "", pieces[0].strip())]
    for kind, word, body, after in zip(*(pieces[at::4] for at in (1, 2, 3, 4))):
        found += [Part(kind, word, body.strip()), Part("", "", after.strip())]
    return [part for part in found if part.text or part.word]


def exercises(of: list[Part]) -> Iterator[type[Topic]]:
    known = Topic.all()
    yield from (known[part.word] for part in of if part.kind == "exercise" and part.word in known)


# -- the instructor's copy -----------------------------------------------------------------------


def notebook(name: str, student: str = "") -> NotebookNode:
    """The instructor's copy of an assignment, with the numbers drawn for a student."""
    of = parts(texts()[name])
    points = sum(step.points for topic in exercises(of) for step in topic.steps) + sum(
        int(part.word) for part in of if part.kind == "question"
    )
    names = {"draw": random.Random(f"{name} {student}"), "points": points}
    for text in (part.text for part in of if part.kind == "draw"):
        exec(text, names)
    made = v4.new_notebook(metadata={"kernelspec": KERNEL})
    for number, part in enumerate(of):
        made.cells += cells_of(part, number, names)
    made.cells[0].source += f"\n\n{RULES}"
    return made


def cells_of(part: Part, number: int, names: dict) -> Iterator[NotebookNode]:
    """The cells of a part; none of an exercise that is not there."""
    text = filled(part.text, names)
    match part.kind:
        case "":
            yield cell("markdown", text, f"text-{number}")
        case "code":
            yield cell("code", text, part.word)
        case "exercise" if part.word in Topic.all():
            yield from exercise_cells(Topic.named(part.word), text)
        case "question":
            asked, answer = text.split("\n---\n")
            yield cell(
                "markdown",
                f"## A question ({counted(int(part.word), 'point')})\n\n{asked}",
                f"asked-{number}",
            )
            marked = {"grade": True, "solution": True, "locked": False, "points": int(part.word)}
            yield cell(
                "markdown", answer.strip(), f"question-{number}", marked, {"start": ANSWER_HERE}
            )


def filled(text: str, names: dict) -> str:
    """A text with its placeholders evaluated, each as in an f-string."""
    return re.sub(r"\{\{ (.+?) \}\}", lambda found: eval(f"f'''{{{found[1]}}}'''", names), text)


def exercise_cells(topic: type[Topic], playground: str) -> Iterator[NotebookNode]:
    name = topic.called()
    steps = [f"{step.title} ({counted(step.points, 'point')})" for step in topic.steps]
    listed = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    yield cell("markdown", f"#{topic.asked}\n\n### Steps\n\n{listed}", f"asked-{topic.name}")
    yield cell("markdown", folded(topic.hints), f"hints-{topic.name}")
    own = {"topic": topic.name, "answer": name, "start": topic.start}
    solution = renamed(next(iter(topic.right.values())), name)
    kind = {"solution": True, "locked": False}
    answer = cell("code", solution, f"exercise-{topic.name}", kind, own)
    answer.metadata["tags"] = ["exercise"]
    yield answer
    if playground:
        yield cell(
            "code",
            f"with playing():\n{indent(playground, '    ')}",
            f"playground-{topic.name}",
        )
    for number, step in enumerate(topic.steps, 1):
        source = (
            f'# Step {number}: {steps[number - 1]}\nmarks("{topic.name}", {name}, step={number})'
        )
        kind, own = {"grade": True, "points": step.points}, {"topic": topic.name, "step": number}
        yield cell("code", source, f"check-{topic.name}-{number}", kind, own)


def cell(kind: str, source: str, name: str, nbgrader=(), own=()) -> NotebookNode:
    """A cell with what nbgrader and `grade` are told of it. Unless told otherwise, it is locked."""
    make = v4.new_markdown_cell if kind == "markdown" else v4.new_code_cell
    told = {
        "schema_version": 3,
        "grade_id": name,
        "grade": False,
        "solution": False,
        "locked": True,
        "task": False,
        **dict(nbgrader),
    }
    return make(
        source, id=name, metadata={"nbgrader": told} | ({"bigtrain": dict(own)} if own else {})
    )


def renamed(answer: str, name: str) -> str:
    """A right answer's text, which defines `answer`, under another name."""
    return re.sub(r"\banswer\b", name, answer).strip()


def folded(hints: Iterable[str]) -> str:
    """Hints that open one after the other, each inside the one before it."""
    text = ""
    for number, (hint, kind) in reversed([*enumerate(zip(hints, HINTS), 1)]):
        text = f"<details><summary>Hint {number}: {kind}</summary>\n\n{hint}\n\n{text}</details>\n"
    return text.strip()


# -- what a student gets -------------------------------------------------------------------------


def handed_out(instructors: NotebookNode) -> NotebookNode:
    """A student's copy: each cell as it starts."""
    copy = deepcopy(instructors)
    for each in copy.cells:
        each.source = each.metadata.get("bigtrain", {}).pop("start", each.source)
    return copy


def build(folder: Path, only: tuple[str, ...] = (), students: Iterable[str] = ()) -> list[Path]:
    """Make a course's folder, or make it anew, and return the notebooks written. `only`: those
    whose names begin so.

    source/NAME and release/NAME are the class's; nbgrader's folders, settings and gradebook lie
    beside them. release/STUDENT/NAME and solution/STUDENT/NAME have a student's own numbers.
    """
    names = [name for name in texts() if name.startswith(only or "")]
    refuse(
        (
            not names,
            f"No assignment begins with {' or '.join(only)}: choose {', '.join(texts())}.",
        ),
        *(
            (
                not re.fullmatch(r"[\w@.-]*\w", each),
                f"{each} is no id of a student: take letters, digits and @ . _ -",
            )
            for each in students
        ),
    )
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / CONFIG.name).exists():
        shutil.copy(CONFIG, folder)
    written = []
    for name in names:
        for student in students or [""]:
            whole = notebook(name, student)
            key = folder / ("solution" if student else "source") / student / name
            release = folder / "release" / student / name
            written += [write(whole, key), write(handed_out(whole), release)]
    return written


def hand_out(folder: Path) -> None:
    """Write every assignment as a student gets it: the repository's notebooks/assignments."""
    for name in texts():
        write(handed_out(notebook(name)), folder, name)


def write(made: NotebookNode, folder: Path, name: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name or folder.name}.ipynb"
    nbformat.write(made, path)
    return path
