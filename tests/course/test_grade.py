"""Grading a folder: marks and defects of every kind of submission, resumed, written, recorded."""

import csv
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest
from nbgrader.plugins import CsvExportPlugin

from benchmarks.course import members
from bigtrain_lab import Impossible, Topic
from bigtrain_lab.cli import main
from bigtrain_lab.course import build, doctor, grade
from bigtrain_lab.course.reports import alike_pairs
from bigtrain_lab.course.submissions import sources, submissions
from tests.course.test_build import nbgrader_course, succeeds

TOPIC, NAME = Topic.named("timing"), "my_seconds"
RIGHT = next(iter(TOPIC.right.values())).replace("answer", NAME)
WRONG = RIGHT.replace("return times[len(times) // 2]", "return max(times)")
HELPED = RIGHT.replace("times.sort()", "times = ordered(times)")
HELPER = "def ordered(numbers):\n    return sorted(numbers)\n"
ENDLESS = (
    f"def {NAME}(*given):\n    print('<script>alert(1)</script>')\n    while True:\n        pass\n"
)
POINTS = sum(step.points for step in TOPIC.steps)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Play answers in the box of this process, on one seed: that marks are the least of several is
    shown beside the grader's own tests. The grader that is killed has its own pool, and all."""
    monkeypatch.setattr(grade, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    monkeypatch.setattr(grade, "SEEDS", (1,))


def notebook(answer: str, question: str = "*Your answer.*") -> dict:
    """The instructor's notebook, or a student's: a story, an exercise, its checks, a question."""
    own = {"topic": TOPIC.name, "answer": NAME, "start": TOPIC.start}
    solved = {"solution": True, "locked": False}
    cells = [
        build.cell("markdown", "# Time it", "story"),
        build.cell("code", answer, "exercise-timing", solved, own),
        *(
            build.cell(
                "code",
                f'marks("timing", {NAME}, step={number})',
                f"check-timing-{number}",
                {"grade": True, "points": step.points},
                {"topic": TOPIC.name, "step": number},
            )
            for number, step in enumerate(TOPIC.steps, 1)
        ),
        build.cell(
            "markdown",
            question,
            "question-1",
            solved | {"grade": True, "points": 2},
            {"start": "*Your answer.*"},
        ),
    ]
    metadata = {"kernelspec": build.KERNEL}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def without(made: dict, id: str) -> dict:
    return made | {"cells": [each for each in made["cells"] if each["id"] != id]}


def with_more(made: dict, *cells: dict, at: int = 0) -> dict:
    return made | {"cells": [*made["cells"][:at], *cells, *made["cells"][at:]]}


def typed(source: str) -> dict:
    return {"cell_type": "code", "id": "x", "source": source, "metadata": {}, "outputs": []}


def edited(made: dict, id: str, **changes) -> dict:
    return made | {
        "cells": [each | (changes if each["id"] == id else {}) for each in made["cells"]]
    }


FORGED = [
    {
        "output_type": "execute_result",
        "data": {"text/plain": "99.0"},
        "metadata": {},
        "execution_count": 1,
    }
]
# name -> what is handed in, whether all points are earned, words of the defects
KINDS = {
    "right": (notebook(RIGHT + "# a way of my own\n", "Since the device works on."), True, ""),
    "wrong": (notebook(WRONG), False, ""),
    "starter": (notebook(TOPIC.start), False, ""),
    "empty": (notebook(""), False, ""),
    "no python": (notebook("def my_seconds(:"), False, ""),
    "mangled": ('{"cells": [', False, "not JSON"),
    "no notebook": ([1, 2], False, "no list of cells"),
    "odd cells": ({"cells": [3, {"cell_type": 1, "metadata": []}, *notebook(RIGHT)["cells"]]}, True, ""),
    "copied check": (with_more(notebook(RIGHT), notebook("")["cells"][2]), True, "2 cells have the id check-timing-1"),
    "copied exercise": (with_more(notebook(TOPIC.start), notebook(RIGHT)["cells"][1]), True, "2 cells have the id exercise-timing"),
    "deleted check": (without(notebook(RIGHT), "check-timing-1"), True, "check-timing-1 is missing"),
    "retyped": (with_more(without(notebook(""), "exercise-timing"), typed(RIGHT)), True, "No cell has the id exercise-timing"),
    "helped": (with_more(notebook(HELPED), typed("import time\ntime.sleep(10**6)"), typed(HELPER), at=1), True, ""),
    "edited check": (edited(notebook(WRONG), "check-timing-1", source="4.0"), False, "check-timing-1 was edited"),
    "forged output": (edited(notebook(WRONG), "check-timing-1", outputs=FORGED), False, ""),
    "too deep": (notebook("x = " + "-" * 90_000 + "1"), False, "nested too deep"),
}  # fmt: skip


@pytest.fixture
def course(tmp_path):
    """A course folder of nbgrader's, with these submissions handed in."""

    def made(kinds) -> Path:
        hand_in(tmp_path / "source" / "timing", notebook(RIGHT + "# of the key\n"))
        for name in kinds:
            hand_in(tmp_path / "submitted" / name / "timing", KINDS[name][0])
        return tmp_path

    return made


def hand_in(folder: Path, made) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = made if isinstance(made, str) else json.dumps(made)
    (folder / "timing.ipynb").write_text(text, encoding="utf-8")


def test_each_kind_of_submission_gets_its_marks_and_its_defects_are_named(course):
    done = grade.grade(course(KINDS), cores=2)
    sheets = {sheet.student: sheet for sheet in done.sheets}
    assert sheets.keys() == KINDS.keys() and done.notes == []
    for name, (_, right, defect) in KINDS.items():
        told = " ".join(sheets[name].defects)
        assert (sheets[name].points == POINTS) is right, (name, sheets[name])
        assert defect in told and bool(told) is bool(defect), (name, told)


def test_an_endless_answer_is_ended_and_its_text_is_never_live(course, own_box):
    folder = course(["right"])
    hand_in(folder / "submitted" / "<b>" / "timing", notebook(ENDLESS))
    sheet = grade.grade(folder, cores=2).sheets[0]
    assert sheet.points == 0 and "did not end" in sheet.told(sheet.lines[0])[0]
    pages = [*(folder / "feedback").rglob("*.html"), *(folder / "marks").glob("*.html")]
    assert len(pages) == 3
    for page in pages:
        text = page.read_text()
        assert "<script" not in text and "<b>:" not in text
    assert "&lt;script&gt;alert(1)" in pages[0].read_text() + pages[1].read_text()


def test_what_was_played_is_not_played_again_unless_the_check_changes(course, monkeypatch):
    folder = course(["right", "wrong", "mangled"])
    assert grade.grade(folder, cores=1).played == 2
    hand_in(folder / "submitted" / "wrong" / "timing", notebook(RIGHT))
    again = grade.grade(folder, cores=1)
    assert again.played == 0  # the same text as another's
    assert len(again.changes) == 1 and again.changes[0].startswith("wrong, timing: ")
    assert again.changes[0].endswith(f" -> {POINTS} of {POINTS} points.")
    monkeypatch.setattr(grade, "exercise_digest", lambda topic: "changed")
    assert grade.grade(folder, cores=1).played == 1
    made = notebook(RIGHT)
    made["cells"][2]["metadata"]["nbgrader"]["points"] += 3
    hand_in(folder / "source" / "timing", made)
    worth_more = grade.grade(folder, cores=1)
    assert worth_more.played == 0 and len(worth_more.changes) == 2


def test_grading_killed_in_the_middle_goes_on_where_it_was(course, monkeypatch):
    monkeypatch.setattr(grade, "SEEDS", (1, 2, 3))  # the process has its own
    folder = course(["right", "wrong", "helped", "no python"])
    process = subprocess.Popen(
        [sys.executable, "-m", "bigtrain_lab", "course", "grade", str(folder), "--cores", "1"],
        start_new_session=True,
    )
    store, deadline = folder / "marks" / "verdicts.json", time.monotonic() + 120
    while not store.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    kept = len(json.loads(store.read_text()))
    while members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert members(process.pid) == []
    assert kept + grade.grade(folder, cores=1).played == 3
    assert grade.grade(folder, cores=1).played == 0


def test_a_folder_of_loose_notebooks_needs_no_nbgrader(tmp_path, monkeypatch, capsys):
    source = tmp_path / "key"
    hand_in(source, notebook(RIGHT))
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "ann.ipynb").write_text(json.dumps(notebook(RIGHT)))
    hand_in(tmp_path / "class" / "bob", notebook(WRONG))
    words = [str(tmp_path / "class"), "--source", str(source / "timing.ipynb")]
    assert main(["course", "grade", *words]) == 0
    assert f"ann, timing: {POINTS} of {POINTS} points." in capsys.readouterr().out
    marks = tmp_path / "class" / "marks"
    rows = list(csv.DictReader((marks / "marks.csv").open()))
    assert [row["student"] for row in rows] == ["ann", "bob"] and rows[0]["by hand, of"] == "2.0"
    assert [
        suite.get("failures") != "0" for suite in ElementTree.parse(marks / "junit.xml").getroot()
    ] == [False, True]
    assert not (tmp_path / "class" / "gradebook.db").exists()


def test_answers_that_are_alike_are_told(course):
    renamed = RIGHT.replace("times", "seconds_of_each") + "# mine\n"
    folder = course(["right", "wrong", "starter"])
    hand_in(folder / "submitted" / "copy" / "timing", notebook(renamed))
    found = [each for source in sources(folder) for each in submissions(folder, source)]
    assert [pair for similarity, _, *pair in alike_pairs(found) if similarity == 1] == [
        ["copy", "right"]
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda made: with_more(made, made["cells"][1]), "2 cells have the id exercise-timing"),
        (lambda made: without(made, "exercise-timing"), "no exercise cell"),
        (lambda made: edited(made, "check-timing-1", metadata={}), "has no check"),
    ],
    ids=["copied", "no exercise", "no check"],
)
def test_a_source_that_is_not_whole_is_refused(course, change, sentence):
    folder = course(["right"])
    made = notebook(RIGHT)
    while "has no check" in sentence and len(made["cells"]) > 4:
        made = without(made, made["cells"][3]["id"])
    hand_in(folder / "source" / "timing", change(made))
    with pytest.raises(Impossible, match=sentence):
        grade.grade(folder)
    assert {each.level for each in doctor.findings(folder, 1) if each.name == "timing"} == {"fail"}


@pytest.mark.parametrize(
    ("key", "start", "levels"),
    [(RIGHT, TOPIC.start, ["ok", "ok"]), (WRONG, RIGHT, ["fail", "fail"])],
    ids=["sound", "wrong key, right start"],
)
def test_the_doctor_plays_the_key_and_what_is_handed_out(course, key, start, levels):
    folder, made = course([]), notebook(key)
    made["cells"][1]["metadata"]["bigtrain"]["start"] = start
    hand_in(folder / "source" / "timing", made)
    assert [each.level for each in doctor.findings(folder, 1) if each.name == "timing"] == levels


def test_nbgrader_works_on_what_was_graded(course):
    """Hand out, grade, mark a question by hand, grade again, feedback, export."""
    folder = course(["right", "wrong", "mangled", "copied check", "deleted check"])
    shutil.copy(build.CONFIG, folder)
    theirs, where = nbgrader_course(folder), ("timing", "timing", "right")
    with grade.scripts_in_path():
        succeeds(theirs.generate_assignment("timing", force=True, create=True))
    assert grade.grade(folder, cores=2).notes == []
    with theirs.gradebook as book:
        question = book.find_grade("question-1", *where)
        assert question.needs_manual_grade and question.auto_score is None
        assert not book.find_grade("question-1", "timing", "timing", "wrong").needs_manual_grade
        question.manual_score, question.needs_manual_grade = 1.5, False
        book.db.commit()
    grade.grade(folder, cores=2)
    succeeds(theirs.generate_feedback("timing", force=True))
    with theirs.gradebook as book:
        question = book.find_grade("question-1", *where)
        assert question.manual_score == 1.5 and not question.needs_manual_grade
        CsvExportPlugin(to=str(folder / "grades.csv"), parent=theirs).export(book)
    page = (folder / "feedback" / "right" / "timing" / "timing.html").read_text()
    assert "right." in page and "Since the device works on." in page
    assert "# a way of my own" in page
    mangled = (folder / "feedback" / "mangled" / "timing" / "timing.html").read_text()
    assert not any("# of the key" in each for each in (page, mangled))
    scores = {row["student_id"]: row for row in csv.DictReader((folder / "grades.csv").open())}
    assert float(scores["right"]["score"]) == POINTS + 1.5
    assert (
        float(scores["copied check"]["score"]) == float(scores["deleted check"]["score"]) == POINTS
    )
    assert float(scores["mangled"]["score"]) == 0 < float(scores["wrong"]["max_score"])
