"""Grade a folder of submissions: play each answer's text, and add up the marks.

    read     each submission as text (submissions.py); nothing of it is run
    play     each answer in a box, in as many processes as there are cores
    keep     each verdict at once, under a hash of the answer's text and of its exercise's files:
             what was played is never played again, and a check that changed is
    write    the marks, pages and reports (reports.py), and nbgrader's gradebook

Points of a check are its points in the notebook times the share of its step's scenes that are
right, the least of three seeds.
"""

import hashlib
import json
import multiprocessing
import os
import signal
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from .. import grading
from ..core import refuse, write_whole
from ..grading import Marked, Topic
from . import reports
from .reports import Line, Sheet
from .submissions import (
    Source,
    Submission,
    asked_for,
    faults,
    rebuilt,
    sources,
    submissions,
)

SEEDS = (1, 2, 3)
BROKEN = "The check itself failed"
UNSTEADY = "The verdict is unsteady: it differs between seeds. The least counts."
NO_NBGRADER = (
    "nbgrader is not installed, so its gradebook was left alone: pip install bigtrain_lab[course]."
)


@dataclass(frozen=True)
class Graded:
    """What a call of `grade` did: how many answers it played, whose marks changed, what to know."""

    sheets: list[Sheet]
    played: int
    changes: list[str]
    notes: list[str]


def grade(
    folder: Path,
    source: Path | None = None,
    assignments: tuple[str, ...] = (),
    cores: int | None = None,
    track: Callable[[Iterable, int], Iterable] = lambda done, total: done,
) -> Graded:
    """Grade all submissions in a folder, and write what came of it into the folder.

    `assignments`: only those whose names begin so. `track(done, total)` passes on what is done, and
    may show it.
    """
    found = asked_for(sources(folder, source), assignments)
    refuse(
        *(
            (fault, f"{each.path} cannot be graded by: {fault}")
            for each in found
            for fault in faults(each)
        )
    )
    handed_in = [each for source in found for each in submissions(folder, source)]
    refuse(
        (not handed_in, f"{folder} has no submissions: put them into submitted/STUDENT/ASSIGNMENT.")
    )
    store = folder / "marks" / "verdicts.json"
    store.parent.mkdir(exist_ok=True)
    verdicts = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}
    tasks = {
        key(topic, pieces): (topic, pieces)
        for each in handed_in
        for topic, pieces in each.pieces.items()
        if pieces and key(topic, pieces) not in verdicts
    }
    broken = {}
    for name, verdict in track(played(tasks, cores or os.cpu_count() or 1), len(tasks)):
        if isinstance(verdict, str):
            broken[name] = verdict
        else:
            verdicts[name] = verdict._asdict()
            write_whole(store, json.dumps(verdicts, indent=1))
    sheets = [marked(each, verdicts, broken) for each in handed_in]
    before = reports.kept(folder)
    notes = [f"{BROKEN} for {name}: {why}. Grade again." for name, why in broken.items()]
    reports.write(folder, sheets, before, handed_in)
    if (folder / "submitted").is_dir():
        notes += record(folder, found, handed_in, sheets)
    return Graded(sheets, len(tasks) - len(broken), differences(before, sheets), notes)


def marked(submission: Submission, verdicts: dict, broken: dict) -> Sheet:
    """The marks of a submission out of the verdicts on its answers."""
    own = {}
    for topic, pieces in submission.pieces.items():
        name = key(topic, pieces)
        failed = [BROKEN + "."] if name in broken else [submission.why.get(topic, "")]
        told = {step.title: failed for step in Topic.named(topic).steps}
        nothing = {"findings": told, "shares": {}, "steady": True, "printed": ""}
        own[topic] = verdicts.get(name, nothing) if pieces else nothing
    lines = []
    for check in submission.source.checks:
        step = Topic.named(check.topic).steps[check.step - 1]
        points = round(check.points * own[check.topic]["shares"].get(step.title, 0.0), 2)
        lines.append(Line(check.id, check.topic, step.title, points, check.points))
    by_hand = sum(question.points for question in submission.source.questions)
    defects = [*submission.defects, *(UNSTEADY for each in own.values() if not each["steady"])]
    source = submission.source
    return Sheet(
        submission.student, source.assignment, source.path.stem, lines, by_hand, own, defects
    )


def differences(before: list[Sheet], now: list[Sheet]) -> list[str]:
    """Whose marks are others than before, in sentences."""
    old = {sheet.name: sheet.points for sheet in before}
    return [
        f"{sheet.name}: {old[sheet.name]:g} -> {sheet.points:g} of {sheet.of:g} points."
        for sheet in now
        if old.get(sheet.name, sheet.points) != sheet.points
    ]


# -- what was played is not played again ----------------------------------------------------------


def key(topic: str, pieces: list) -> str:
    """Names a verdict: the answer's text, the exercise's files, the grader's and the seeds."""
    told = json.dumps([topic, pieces, SEEDS, exercise_digest(topic)])
    return hashlib.sha256(told.encode()).hexdigest()


@cache
def exercise_digest(topic: str) -> str:
    """A hash of all files that decide on an answer."""
    files = [*Path(grading.__file__).parent.glob("*.py"), *Topic.named(topic).folder.rglob("*")]
    texts = [path.read_bytes() for path in sorted(files) if path.suffix in (".py", ".md")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


# -- processes that play --------------------------------------------------------------------------


def played(tasks: dict[str, tuple], cores: int) -> Iterator[tuple[str, object]]:
    """Each task's name with its Marked, as it comes; with a sentence where the check failed."""
    pool = ProcessPoolExecutor(
        max(1, min(cores, len(tasks))), multiprocessing.get_context("spawn"), initializer=begin
    )
    try:
        names = {pool.submit(play, *task, SEEDS): name for name, task in tasks.items()}
        for done in as_completed(names):
            error = done.exception()
            yield names[done], f"{type(error).__name__}: {error}" if error else done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def begin() -> None:
    """Let the process that asks end this one, by whatever end it comes to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def play(topic: str, pieces: list, seeds: tuple[int, ...]) -> Marked:
    """Mark an answer, in the box of this process."""
    return Topic.named(topic).marked(pieces, seeds)


# -- nbgrader -------------------------------------------------------------------------------------


def record(folder: Path, found: list[Source], handed_in: list[Submission], sheets) -> list[str]:
    """Put the marks into nbgrader's gradebook, and the rebuilt notebooks into autograded/.

    Returns what to know, in sentences.
    """
    if find_spec("nbgrader") is None:
        return [NO_NBGRADER]
    from nbgrader.api import Gradebook
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config import Config, PyFileConfigLoader

    settings, notes = folder / "nbgrader_config.py", []
    config = PyFileConfigLoader(str(settings)).load_config() if settings.exists() else Config()
    course = CourseDirectory(config=config, root=str(folder.absolute()))
    with (
        scripts_in_path(),
        warnings.catch_warnings(action="ignore"),  # SQLAlchemy's, of what nbgrader does
        Gradebook(course.db_url, course.course_id) as book,
    ):
        for source in found:
            enter(book, source)
        for submission, sheet in zip(handed_in, sheets, strict=True):
            try:
                record_one(folder, book, submission, sheet)
            except ValueError as error:  # nbgrader's own
                book.db.rollback()
                notes.append(f"{sheet.name} is not in the gradebook: {error}")
    return notes


@contextmanager
def scripts_in_path() -> Iterator[None]:
    """nbgrader calls alembic, which may be installed where the shell does not look."""
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def enter(book, source: Source) -> None:
    """Make an assignment known to the gradebook, as `nbgrader generate_assignment` does."""
    from nbformat import from_dict
    from nbgrader import utils

    where = source.path.stem, source.assignment
    book.update_or_create_assignment(source.assignment)
    book.update_or_create_notebook(*where)
    for raw in filter(lambda each: "nbgrader" in each["metadata"], source.notebook["cells"]):
        one = from_dict(raw)
        one.source = "".join(one.source)
        id, kind = one.metadata.nbgrader.grade_id, one.cell_type
        if utils.is_grade(one):
            book.update_or_create_grade_cell(
                id, *where, max_score=float(one.metadata.nbgrader.points), cell_type=kind
            )
        if utils.is_solution(one):
            book.update_or_create_solution_cell(id, *where)
        if utils.is_grade(one) or utils.is_solution(one) or utils.is_locked(one):
            book.update_or_create_source_cell(
                id,
                *where,
                cell_type=kind,
                locked=utils.is_locked(one),
                source=one.source,
                checksum=utils.compute_checksum(one),
            )


def record_one(folder: Path, book, submission: Submission, sheet: Sheet) -> None:
    """One student's points and notebook. What a person has marked stays, and is asked for again
    where the answer has changed since."""
    where = sheet.notebook, sheet.assignment, sheet.student
    home = folder / "autograded" / sheet.student / sheet.assignment
    path = home / f"{sheet.notebook}.ipynb"
    before = texts_of(path)
    book.update_or_create_student(sheet.student)
    stamp = submission.path and submission.path.with_name("timestamp.txt")
    when = (
        {"timestamp": stamp.read_text(encoding="utf-8").strip()} if stamp and stamp.exists() else {}
    )
    book.update_or_create_submission(sheet.assignment, sheet.student, **when)
    outputs = {}
    for line in sheet.lines:
        kept = book.find_grade(line.id, *where)
        kept.needs_manual_grade = kept.manual_score is not None and kept.auto_score != line.points
        kept.auto_score = line.points
        outputs[line.id] = "\n".join(sheet.told(line)) or "right.", line.points
    for question in submission.source.questions:
        kept, text = book.find_grade(question.id, *where), submission.texts[question.id]
        empty = text.strip() in ("", submission.source.start(question.id).strip())
        kept.auto_score = 0.0 if empty else None
        kept.needs_manual_grade = not empty and (
            kept.manual_score is None or text != before.get(question.id, text)
        )
    for exercise in submission.source.exercises:
        book.find_comment(exercise.id, *where).auto_comment = "  \n".join(sheet.defects) or None
    book.db.commit()
    home.mkdir(parents=True, exist_ok=True)
    write_whole(path, rebuilt(submission, outputs))
    if when:
        write_whole(home / "timestamp.txt", when["timestamp"] + "\n")


def texts_of(path: Path) -> dict[str, str]:
    """What each cell of a notebook that was written here held."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else []
    return {each["metadata"].get("nbgrader", {}).get("grade_id"): each["source"] for each in cells}
