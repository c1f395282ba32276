"""What instructors and students read: marks.csv, marks.json, junit.xml, a page for each student, a
page for the class with the answers that are alike.

All pages are static HTML without a script. A student's text is escaped wherever it is shown.
"""

import ast
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import NamedTuple
from xml.etree import ElementTree

from markdown_it import MarkdownIt

from ..core import counted, grouped, write_whole
from ..core.files import printable
from ..grading import Topic

ALIKE, MOST_PAIRS, MOST_MISTAKES = 0.9, 50, 12
RUN_OF_NODES = 5
STYLE = """body { font: 16px/1.5 sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left }
td.number { text-align: right } code, pre, .asked { background: #f4f4f4 }
pre, .asked { padding: .6rem } pre { white-space: pre-wrap } h3 { margin: 1rem 0 0 }
h3 { font-size: 1rem } .asked code { background: #fff }"""


class Line(NamedTuple):
    """Points of a check."""

    id: str
    topic: str
    title: str
    points: float
    of: float


@dataclass(frozen=True)
class Sheet:
    """The marks of a submission, as marks.json has them.

    by_hand   points that a person gives
    verdicts  topic -> findings, shares, steady, printed
    """

    student: str
    assignment: str
    notebook: str
    lines: list[Line]
    by_hand: float
    verdicts: dict[str, dict]
    defects: list[str]

    @property
    def points(self) -> float:
        return round(sum(line.points for line in self.lines), 2)

    @property
    def of(self) -> float:
        return sum(line.of for line in self.lines)

    def told(self, line: Line) -> list[str]:
        """What is wrong in a check's step, in sentences."""
        return list(filter(None, self.verdicts[line.topic]["findings"].get(line.title, [])))

    @property
    def name(self) -> str:
        return f"{self.student}, {self.notebook}"


def kept(folder: Path) -> list[Sheet]:
    """The sheets that were written before."""
    path = folder / "marks" / "marks.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [Sheet(**row | {"lines": [Line(*line) for line in row["lines"]]}) for row in rows]


def write(folder: Path, sheets: list[Sheet], before: list[Sheet], handed_in: list) -> None:
    """Write all files; sheets of assignments that were not graded now stay in the lists."""
    notebooks = {sheet.notebook: sheet.assignment for sheet in sheets}
    whole = [*(sheet for sheet in before if sheet.notebook not in notebooks), *sheets]
    whole.sort(key=lambda sheet: (sheet.assignment, sheet.notebook, sheet.student))
    marks = folder / "marks"
    write_whole(marks / "marks.json", json.dumps([asdict(each) for each in whole], indent=1))
    write_whole(marks / "marks.csv", table(whole))
    write_whole(marks / "junit.xml", junit(whole))
    for notebook in notebooks:
        own = [sheet for sheet in sheets if sheet.notebook == notebook]
        texts = [each for each in handed_in if each.source.path.stem == notebook]
        write_whole(marks / f"{notebook}.html", class_page(notebook, own, texts))
    for sheet in sheets:
        home = folder / "feedback" / sheet.student
        home.mkdir(parents=True, exist_ok=True)
        write_whole(home / f"{sheet.notebook}.html", student_page(sheet))


def table(sheets: list[Sheet]) -> str:
    """One line a submission."""
    names = list(dict.fromkeys(line.id for sheet in sheets for line in sheet.lines))
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(
        (
            "student",
            "assignment",
            "notebook",
            "points",
            "of",
            "by hand, of",
            *names,
            "to look at",
        )
    )
    for sheet in sheets:
        points = {line.id: line.points for line in sheet.lines}
        rows.writerow(
            [
                sheet.student,
                sheet.assignment,
                sheet.notebook,
                sheet.points,
                sheet.of,
                sheet.by_hand,
                *(points.get(name, "") for name in names),
                " ".join(sheet.defects),
            ]
        )
    return file.getvalue()


def junit(sheets: list[Sheet]) -> str:
    """A test suite a submission, a test a check."""
    root = ElementTree.Element("testsuites")
    for sheet in sheets:
        failed = [line for line in sheet.lines if line.points < line.of]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            {"name": sheet.name, "tests": str(len(sheet.lines)), "failures": str(len(failed))},
        )
        for line in sheet.lines:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                {"classname": f"{sheet.notebook}.{sheet.student}", "name": line.id},
            )
            if line in failed:
                failure = ElementTree.SubElement(case, "failure", {"message": points_of(line)})
                failure.text = printable("\n".join(sheet.told(line)))
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


# -- pages ----------------------------------------------------------------------------------------


def page(title: str, *parts: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</html>\n"
    )


def rows_of(heads: tuple[str, ...], rows: list[tuple]) -> str:
    """A table; what is no number is escaped."""
    first = "".join(f"<th>{escape(head)}</th>" for head in heads)
    lines = ["".join(map(field, row)) for row in rows]
    return f"<table><tr>{first}</tr>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def field(value) -> str:
    return (
        f"<td>{escape(printable(value))}</td>"
        if isinstance(value, str)
        else f'<td class="number">{value:g}</td>'
    )


def points_of(marked: Line | Sheet) -> str:
    return f"{marked.points:g} of {marked.of:g} points"


def bullets(sentences) -> str:
    return "<ul>" + "".join(f"<li>{escape(printable(each))}</li>" for each in sentences) + "</ul>"


def in_html(markdown: str) -> str:
    """A statement of ours without its title."""
    text = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    return f'<div class="asked">{re.sub("<h1>.*</h1>", "", text)}</div>'


def student_page(sheet: Sheet) -> str:
    """What was asked, what each step gave, what is wrong, what the answer printed."""
    told = f"{points_of(sheet)} by the checks."
    if sheet.by_hand:
        told += f" Questions worth {sheet.by_hand:g} points are marked by a person."
    parts = [f"<p><b>{told}</b></p>"]
    if sheet.defects:
        parts.append("<p>About the notebook:</p>" + bullets(sheet.defects))
    for topic, verdict in sheet.verdicts.items():
        asked = Topic.named(topic).asked
        title = asked.partition("\n")[0].strip("# ") or topic
        lines = [line for line in sheet.lines if line.topic == topic]
        parts.append(f"<h2>{escape(title)}</h2>")
        said = set()  # what is said of two steps is said once
        for line in lines:
            parts.append(f"<h3>{escape(line.title)}: {points_of(line)}</h3>")
            told = [each for each in sheet.told(line) if each not in said]
            parts.append(bullets(told) if told else "")
            said |= {*sheet.told(line)}
        if verdict["printed"]:
            parts.append(
                f"<p>Your answer printed:</p><pre>{escape(printable(verdict['printed']))}</pre>"
            )
        parts.append(f"<details><summary>What was asked</summary>{in_html(asked)}</details>")
    return page(f"{sheet.notebook}: {sheet.student}", *parts)


def class_page(notebook: str, sheets: list[Sheet], handed_in: list) -> str:
    """Marks, the hardest steps first, mistakes by how often, defects, answers that are alike."""
    told = (
        f"{counted(len(sheets), 'submission')}, {mean(sheet.points for sheet in sheets):.3g} of"
        f" {sheets[0].of:g} points on average"
    )
    shares = grouped(
        ((line.topic, line.title), 100 * line.points / line.of)
        for sheet in sheets
        for line in sheet.lines
        if line.of
    )
    hardest = sorted((round(mean(each)), *step) for step, each in shares.items())
    mistakes = Counter(mistake for sheet in sheets for mistake in mistakes_of(sheet))
    pairs = sorted(alike_pairs(handed_in), key=lambda pair: -pair[0])
    return page(
        f"{notebook}: the class",
        f"<p>{told}.</p>",
        rows_of(
            ("student", "points", "of", "to look at"),
            [(each.student, each.points, each.of, " ".join(each.defects)) for each in sheets],
        ),
        "<h2>Steps, the hardest first</h2>",
        rows_of(("% of its points", "exercise", "step"), hardest),
        "<h2>Mistakes, the most frequent first</h2>",
        rows_of(
            ("answers", "exercise", "what was said first"),
            [(count, *each) for each, count in mistakes.most_common(MOST_MISTAKES)],
        ),
        "<h2>Answers that are alike</h2>",
        "<p>This is a place to look and no verdict. Names and comments are left out, and short"
        " right answers are alike by nature.</p>",
        rows_of(
            ("% alike", "exercise", "student", "student"),
            [(round(100 * similarity), *pair) for similarity, *pair in pairs[:MOST_PAIRS]],
        ),
        f"<p>{counted(max(0, len(pairs) - MOST_PAIRS), 'further pair')} not listed.</p>",
    )


def mistakes_of(sheet: Sheet) -> set[tuple[str, str]]:
    """(exercise, what was said first) of each step, without the numbers."""
    told = ((line.topic, *sheet.told(line)[:1]) for line in sheet.lines)
    return {(each[0], re.sub(r"\d[\d.e+-]*", "…", each[1])) for each in told if each[1:]}


# -- answers that are alike -----------------------------------------------------------------------


def alike_pairs(handed_in: list) -> Iterator[tuple[float, str, str, str]]:
    """(how alike, 0 to 1, exercise, two students) where answers share most of their runs of
    nodes."""
    shapes = grouped(
        (topic, (each.student, shape("\n".join(piece.text for piece in pieces))))
        for each in handed_in
        for topic, pieces in each.pieces.items()
        if pieces
    )
    for topic, of in shapes.items():
        for (one, a), (other, b) in combinations(of, 2):
            similarity = 2 * (a & b).total() / ((a.total() + b.total()) or 1)
            if similarity >= ALIKE:
                yield similarity, topic, one, other


def shape(text: str) -> Counter:
    """Runs of nodes of a program, as often as they stand there: names and comments are left out."""
    nodes = [token(node) for node in ast.walk(ast.parse(text)) if not isinstance(node, ast.Load)]
    return Counter(zip(*(nodes[start:] for start in range(RUN_OF_NODES))))


def token(node: ast.AST) -> str:
    named = getattr(node, "attr", getattr(node, "value", ""))
    return type(node).__name__ + (str(named) if isinstance(named, (str, int, float)) else "")
