"""Assignments: what is handed out, and what is kept back."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from nbgrader.apps import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import ExchangeFetchAssignment, ExchangeSubmit
from traitlets.config import PyFileConfigLoader

from bigtrain_lab.cli import main
from bigtrain_lab.core import Impossible
from bigtrain_lab.course import build, grade
from bigtrain_lab.grading import Marked, Topic

NAMES = [*build.texts()]
COMMITTED = Path(__file__).parents[2] / "notebooks" / "assignments"
each_assignment = pytest.mark.parametrize("name", NAMES)


def read(path):
    return nbformat.read(path, as_version=4)


def topics_in(notebook):
    own = [cell.metadata.get("bigtrain", {}) for cell in notebook.cells]
    return [Topic.named(each.topic) for each in own if "answer" in each]


@each_assignment
def test_it_has_what_grading_needs(name):
    made = build.notebook(name)
    nbformat.validate(made)
    ids = [cell.metadata.nbgrader.grade_id for cell in made.cells]
    assert len(ids) == len(set(ids)) and ids == [cell.id for cell in made.cells]
    checks = [cell for cell in made.cells if cell.id.startswith("check-")]
    steps = [(topic.name, n) for topic in topics_in(made) for n, _ in enumerate(topic.steps, 1)]
    assert [
        (check.metadata.bigtrain.topic, check.metadata.bigtrain.step) for check in checks
    ] == steps
    points = sum(cell.metadata.nbgrader.get("points", 0) for cell in made.cells)
    assert f"{points} points" in made.cells[0].source and "**Time: " in made.cells[0].source
    assert not any("{{" in cell.source for cell in made.cells)


@each_assignment
def test_the_handed_out_copy_has_no_line_of_an_answer(name):
    whole = build.notebook(name)
    told = json.dumps(build.handed_out(whole))
    for topic in topics_in(whole):
        lines = {line.strip() for text in topic.right.values() for line in text.splitlines()}
        lines -= {line.strip() for line in topic.start.splitlines()}
        lines = {line for line in lines if len(line) > 30 and not re.match("import|from|def", line)}
        assert not [line for line in lines if json.dumps(line)[1:-1] in told]
    questions = [cell for cell in whole.cells if cell.id.startswith("question-")]
    assert questions and not any(json.dumps(cell.source)[1:-1] in told for cell in questions)


@each_assignment
def test_the_committed_copy_is_what_is_handed_out_now(name):
    assert read(COMMITTED / f"{name}.ipynb") == build.handed_out(build.notebook(name)), (
        "make notebooks"
    )


def test_nothing_else_is_committed():
    assert [path.stem for path in sorted(COMMITTED.glob("*"))] == NAMES


def test_students_have_numbers_of_their_own(tmp_path):
    students = [f"student{number}" for number in range(5)]
    for student in students:
        words = ["course", "build", str(tmp_path), "--assignment", "04", "--student", student]
        assert main(words) == 0
    given = [read(tmp_path / "release" / each / "04_ring" / "04_ring.ipynb") for each in students]
    keys = [read(tmp_path / "solution" / each / "04_ring" / "04_ring.ipynb") for each in students]
    assert len({each.cells[1].source for each in given}) > 1
    assert {tuple(cell.id for cell in each.cells) for each in (*given, *keys)} == {
        tuple(cell.id for cell in given[0].cells)
    }
    assert build.handed_out(build.notebook("04_ring", students[0])) == given[0]


def test_a_request_that_cannot_be_met_is_refused(tmp_path):
    with pytest.raises(Impossible, match="No assignment begins with 99"):
        build.build(tmp_path, ("99",))
    with pytest.raises(Impossible, match="no id of a student"):
        build.build(tmp_path, students=["../ann"])


def test_nbgraders_own_steps_work(tmp_path, monkeypatch):
    """It generates every assignment; one is released, fetched, submitted, collected and graded.
    test_grade goes on with feedback and export. One student hands in what was handed out, another
    the key, which test_assignments plays."""
    build.build(tmp_path)
    ours = {name: read(tmp_path / "release" / name / f"{name}.ipynb") for name in NAMES}
    course = nbgrader_course(tmp_path)
    with grade.scripts_in_path():
        for name in NAMES:
            succeeds(course.generate_assignment(name, force=True, create=True))
            theirs = read(tmp_path / "release" / name / f"{name}.ipynb")
            assert [(cell.id, cell.source) for cell in theirs.cells] == [
                (cell.id, cell.source) for cell in ours[name].cells
            ]
        succeeds(course.release_assignment(name))
        for student in ("ann", "bob"):
            home = tmp_path / "home" / student
            home.mkdir(parents=True)
            with monkeypatch.context() as patch:  # the steps ask the course folder whose
                patch.chdir(home)
                patch.setattr(course.coursedir, "student_id", student)
                patch.setattr(course.coursedir, "assignment_id", name)
                both = {
                    "coursedir": course.coursedir,
                    "authenticator": course.authenticator,
                    "parent": course,
                }
                ExchangeFetchAssignment(**both).start()
                if student == "bob":
                    nbformat.write(build.notebook(name), home / name / f"{name}.ipynb")
                ExchangeSubmit(**both).start()
        succeeds(course.collect(name))
        monkeypatch.setattr(grade, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
        monkeypatch.setattr(
            grade,
            "play",
            lambda topic, *_: Marked(
                {}, {step.title: 1.0 for step in Topic.named(topic).steps}, True, ""
            ),
        )
        done = grade.grade(tmp_path)
        assert done.notes == [] and len(done.sheets) == 2
        with course.gradebook as book:
            points, more = (points_in(build.notebook(name), kind) for kind in ("code", "markdown"))
            ann, bob = (book.find_submission(name, each) for each in ("ann", "bob"))
            assert (ann.score, bob.score, bob.needs_manual_grade) == (0, points, True)
            assert bob.max_score == points + more
            assert {each.name for each in book.assignments} == {*NAMES}


def nbgrader_course(folder: Path) -> NbGraderAPI:
    """nbgrader as it is in a course folder, with an exchange beside."""
    config = PyFileConfigLoader(str(folder / "nbgrader_config.py")).load_config()
    for what in ("exchange", "cache"):
        (folder / what).mkdir()
        (folder / what).chmod(0o777)  # nbgrader insists
        config.Exchange["root" if what == "exchange" else what] = str(folder / what)
    return NbGraderAPI(CourseDirectory(config=config, root=str(folder)), config=config)


def succeeds(told: dict) -> None:
    assert told["success"], told["error"]


def points_in(notebook, kind: str) -> float:
    return sum(
        cell.metadata.nbgrader.get("points", 0)
        for cell in notebook.cells
        if cell.cell_type == kind and cell.metadata.nbgrader.grade
    )
