"""Of each lesson: its exercises can be solved, what follows uses the solutions, and its diff applies
to the script that grows, which trains on."""

import re
from functools import cache
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from bigtrain_lab.course.build import renamed
from bigtrain_lab.grading import Topic
from bigtrain_lab.runtime.process.border import LOOPBACK
from examples.script import diff_of, script
from tests.notebooks.test_notebooks import (
    NOTEBOOKS,
    each_lesson,
    executed,
    read,
    script_prints,
    texts,
)
from tests.unit.jobs import ranks_by_hand

pytestmark = pytest.mark.usefixtures("kept_rights")
SAME = "ranks that differ: 0\n"


class Solved(NamedTuple):
    """Cell -> the topic whose first right answer solves it and the lesson's name for that, or the
    answer itself; cell -> a pattern of what it then prints; earlier cells -> whether more than
    their imports is needed."""

    answers: dict[str, tuple[str, str] | str]
    prints: dict[str, str]
    needs: dict[str, bool] = {}


def alone(topic: str, name: str, prints: str, cell: str = "exercise") -> Solved:
    """A lesson's exercise, its check and the cell after it."""
    first = {} if cell == "exercise" else {"exercise-check": False, "exercise-run": False}
    return Solved({cell: (topic, name)}, {f"{cell}-run": prints}, first)


LESSONS = {
    "01_accumulation": Solved(
        {"exercise": ("accumulation", "my_accumulate")},
        {"exercise-run": r"largest difference of a weight: (0e\+00|\de-(0[6-9]|\d\d))\n"},
        {"fit": False, "weights": True, "equal": False, "hidden": False, "scaler": True},
    ),
    "02_where_did_the_memory_go": Solved({"exercise": ("peak-bytes", "my_peak_bytes")}, {}),
    "03_mixed_precision": Solved({"exercise": ("master-weights", "my_update")}, {}),
    "04_recompute": Solved(
        {
            "exercise": ("checkpoint", "my_checkpoint"),
            "exercise-plan": ("best-plan", "my_best_plan"),
        },
        {"exercise-run": r"[1-3]?\d advances with 3 slots; keep-none has 45\n"},
        dict.fromkeys(("fit", "run", "count", "segments", "source-planned"), False),
    ),
    "05_ring_all_reduce": alone(
        "ring-all-reduce", "my_ring", rf"sums of four ranks: \[ 6. 10. 14. 18.\], {SAME}"
    ),
    "06_data_parallel": alone(
        "data-parallel", "MyDataParallel", rf"gradient \[1. 1. 1. 1.\], {SAME}"
    ),
    "07_parameter_server": alone("bounded-staleness", "MyServer", r"\[1300, 409, 400\]\n"),
    "08_large_batches": alone(
        "sliced-lamb", "SlicedLAMB", "the layer moved by 0.1 of its length\n"
    ),
    "09_zero": alone("zero-1", "MyZero", rf"weights \[0.9 0.9 0.9 0.9 0.9\], {SAME}"),
    "09_zero 3": alone(
        "zero-3", "MyLayers", rf"gradient \[(13.5 ){{9}} 0. \], {SAME}", "exercise-3"
    ),
    "10_train_a_translator": alone(
        "spread-evaluation", "spread_evaluation", rf"BLEU \[44.44 44.44 44.44\], {SAME}"
    ),
    "11_pipeline": Solved(
        {"exercise-1f1b": ("1f1b", "MyOneFOneB")},
        {"exercise-run": ""},
        dict.fromkeys(("naive", "fit", "modelled", "simulate", "predict"), True),
    ),
    "12_tensor_slicing": alone("tensor-slicing", "MySlices", f"off by 0.0, {SAME}"),
    "13_layouts": alone("layouts", "my_collectives", "n 234.9 MB\nf 7.3 MB\nd 234.9 MB\n\n"),
    "14_all_together": alone("all-together", "my_clip", f"norm 6.0, {SAME}"),
    "15_compilers": alone("fusion", "my_groups", r"3216 bytes; \['de'\]\n\n"),
    "16_plan_a_cluster": alone("planner", "my_plan", r"\(\d+, \d+, \d+, (True|False)\)\n"),
    "17_asynchronous_pipelines": Solved(
        {"exercise-stash": ("stashing", "MyPipeDream")},
        {"exercise-stash-run": "54 tensors, equal to those of the recurrence\n"},
        dict.fromkeys(("async-guess", "async-idle", "stash-guess", "stash"), True),
    ),
    "18_cutting_a_model": Solved(
        {
            "exercise": """
def my_partition(times, ranks):
    best = {(0, 0): (0, [])}  # (pieces, ranks) -> the slowest stage of the best cut, its sizes
    for m in range(1, ranks + 1):
        for j in range(m, len(times) + 1):
            best[j, m] = min(
                (max(best[s, m - 1][0], sum(times[s:j])), [*best[s, m - 1][1], j - s])
                for s in range(j)
                if (s, m - 1) in best
            )
    return best[len(times), ranks][1]
"""
        },
        {"exercise-run": r"stages of \[3, 3, 3, 1\] pieces: 35.7 slots\n"},
        {"cut-mine": True, "cut-equal": True},
    ),
}
# A class with a name on a menu keeps the one that its lesson gives it.
NAMED = {"MyOneFOneB": "my-1f1b", "MyPipeDream": "my-pipedream"}


def answer_of(topic: str, name: str) -> str:
    """A right answer as a student would type it."""
    right = "import torch\n" + next(iter(Topic.named(topic).right.values()))
    if name in NAMED:
        return f'{right}\n\nclass {name}(answer):\n    name = "{NAMED[name]}"\n'
    return renamed(right, name)


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_exercises_can_be_solved(lesson, tmp_path, monkeypatch):
    asked, path = LESSONS[lesson], NOTEBOOKS / f"{lesson.split()[0]}.ipynb"
    solutions = {
        cell: own if isinstance(own, str) else answer_of(*own)
        for cell, own in asked.answers.items()
    }
    checks = [cell.replace("-1f1b", "") + "-check" for cell in solutions]
    chosen = asked.needs | dict.fromkeys([*solutions, *checks, *asked.prints], True)
    printed = executed(path, solutions, chosen, tmp_path, monkeypatch)
    assert {printed[name] for name in checks} == {"right.\n"}
    for cell, pattern in asked.prints.items():
        assert "First the check" not in printed[cell] and re.match(pattern, printed[cell]), cell


def test_what_lesson_01_says_of_the_source_stands_in_it():
    cells = {cell.id: cell for cell in read(NOTEBOOKS / "01_accumulation.ipynb").cells}
    shown = cells["source"].outputs[0].data["text/plain"]
    quoted = re.findall(r"^\* `(.+?)`", cells["source-told"].source, re.MULTILINE)
    assert len(quoted) == 3 and all(line in shown for line in quoted)


# Code, formulas, targets of links, and numbers of sections, figures and tables are no prose.
UNTOLD = re.compile(
    r"```.*?```|`[^`\n]*`|\$\$?[^$]*\$\$?|\]\([^)]*\)|(?i:(section|figure|table)s?) [\d., and to]+",
    re.DOTALL,
)


@each_lesson
def test_a_decimal_of_the_prose_stands_in_a_cell_or_its_paragraph_names_a_source(path):
    cells = read(path).cells
    seen = [
        text
        for cell in cells
        if cell.cell_type == "code"
        for text in (cell.source, *(each for output in cell.outputs for each in texts(output)))
    ]
    known = {float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*\.?\d*", " ".join(seen))}
    prose = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for paragraph in UNTOLD.sub("", prose).split("\n\n"):
        decimals = re.findall(r"(?<![\w.])(\d[\d,]*\.(\d+))(?![\w.-]*\d)", paragraph)
        sourced = r"(?i)published|data sheets?|et al\.|paper|measured|doi:"
        for told, digits in decimals if not re.search(sourced, paragraph) else []:
            off = min(abs(each - float(told.replace(",", ""))) for each in known)
            assert off <= 0.5001 / 10 ** len(digits), (told, paragraph)


ALIKE, ROUNDED = 1e-5, 0.01  # losses, relative: another order of sums; bf16 has 8 bits
# lesson -> the ranks of its script, how many losses it prints, and how far they may be off those of
# the script that its diff changes: as shown, and with SGD in float32.
SCRIPTS = {
    "00": (1, 8, ALIKE, ALIKE),
    "01": (1, 8, ALIKE, ALIKE),
    "02": (1, 2, ALIKE, ALIKE),  # and then a table of the memory
    "03": (1, 8, ROUNDED),  # gradients are clipped: by SGD another training
    "04": (1, 8, 0, 0),
    "05": (2, 8, ALIKE, ALIKE),
    "06": (2, 8, ALIKE, ALIKE),
    "07": (2, 8, ALIKE, ALIKE),
    "08": (2, 8, inf),  # trains otherwise
    "09": (2, 8, ROUNDED, ALIKE),  # half gradients travel
    "10": (2, 8, 0, 0),
    "11": (2, 8, ALIKE, ALIKE),
    "12": (2, 8, ROUNDED, ALIKE),
    "13": (2, 8, ROUNDED, ALIKE),
    "14": (4, 8, ROUNDED, ALIKE),
    "15": (1, 8, ALIKE, ALIKE),
    "18": (2, 8, ALIKE, ALIKE),
}
# In the place of what hides a wrong scale.
PLAIN = {
    'MixedPrecision("bf16")': "MixedPrecision(None)",
    "optim.Adam": "optim.SGD",
    "0.001": "0.1",
}


@cache
def printed_by(lesson: str, plain: bool) -> str:
    """What the script prints as the lesson leaves it, in its first steps, on all of its ranks;
    `plain`: with SGD, in float32."""
    text = re.sub(r"(range\(|requests=)16\b", r"\g<1>8", "\n".join(script(lesson)))
    for shown, other in ((PLAIN if plain else {}) | {"[:2000]": "[:800]"}).items():
        text = text.replace(shown, other)
    with TemporaryDirectory() as folder:
        (path := Path(folder, "train.py")).write_text(text)
        if SCRIPTS[lesson][0] == 1:
            return script_prints(path)
        ended = ranks_by_hand(
            folder,
            [path.name],
            SCRIPTS[lesson][0],
            lambda rank: {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK},
        )
        assert {code for code, _ in ended} == {0}, ended
        return "".join(printed for _, printed in ended)


def losses(printed: str) -> list[float]:
    """Of lines such as "3 5.5452", or the loss alone."""
    return [float(loss) for loss in re.findall(r"^(?:\d+ )?(\d+\.\d+)(?: \d+)?$", printed, re.M)]


@pytest.mark.parametrize("lesson", [*SCRIPTS][1:])
def test_the_script_grows_by_diffs_that_train_as_before(lesson):
    """Each lesson's diff applies to the script that it names, and both print the same losses."""
    (before, hunks), (_, steps, *offs) = diff_of(lesson), SCRIPTS[lesson]
    for plain, off in enumerate(offs):
        first, then = (losses(printed_by(each, bool(plain))) for each in (before, lesson))
        assert len(then) == steps and first[-1] < first[0]
        assert then == pytest.approx(first[:steps], rel=off)
    told = printed_by(lesson, False)
    assert sum(line[:1] == "+" for each in hunks for line in each.splitlines()) <= 20
    assert lesson != "02" or "MB at the peak" in told
    assert lesson != "08" or losses(told)[-1] < losses(printed_by(before, False))[-1]
    assert told.count("held-out loss") == 2 * (lesson in ("10", "14"))
