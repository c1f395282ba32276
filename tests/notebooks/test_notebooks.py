"""The lessons: each runs from top to bottom as committed, and is fit to be read where no kernel
runs."""

import ast
import contextlib
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import nbformat
import plotly.io
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from bigtrain_lab import Impossible, Recompute, Schedule, lesson
from tools import idea_pictures
from tools.build_notebooks import METADATA, PLOTLY, PNG, VOLATILE, WIDGET, Unfit, joined, normal
from tools.picture_panels import PICTURES, text_of, told

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("*.ipynb"))
MOST_LINES = 12
FENCED = re.compile(r"```.*?```", re.DOTALL)
MOST_SHOWN = 60  # lines of the library, in a cell's output
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


read = cache(partial(nbformat.read, as_version=4))  # to be looked at, not changed


def code_cells(path):
    """Without the first, which installs the package where it is missing."""
    return [cell for cell in read(path).cells if cell.cell_type == "code"][1:]


def texts(output):
    yield output.get("text", "")
    yield from (
        "".join(value) for name, value in output.get("data", {}).items() if name.startswith("text/")
    )


def is_exercise(cell):
    return "exercise" in cell.metadata.get("tags", [])


# -- it runs ---------------------------------------------------------------------------------------


def run_by_nbval(folder, notebooks: dict[str, list]):
    """pytest --nbval-lax of these cells by name of their notebook, in this folder: one notebook
    after the other, in one kernel that forgets all names between them. Its checks draw one seed,
    and play no right answer that this run of the tests has played."""
    every = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(
                """# nbval stores no cell, and answers would not be looked at by their texts
from tests.rights import keep
keep()
stored = get_ipython().history_manager.input_hist_parsed
get_ipython().events.register("pre_run_cell", lambda cell, to=stored: to.append(cell.raw_cell))"""
            )
        ]
    )
    for name, cells in notebooks.items():
        every.cells += [
            nbformat.v4.new_code_cell(
                f"%reset -f\nget_ipython().history_manager.input_hist_parsed.clear()\n# {name}"
            ),
            *deepcopy(cells),
        ]
    for number, cell in enumerate(every.cells):
        cell.id = f"cell-{number}"
    nbformat.write(every, folder / "every.ipynb")
    (folder / "pytest.ini").write_text("[pytest]\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    words = (
        "--nbval-lax --nbval-current-env --nbval-cell-timeout=1000"
        " --nbval-kernel-startup-timeout=300 -p no:cacheprovider -q"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words.split(), "every.ipynb"],
        cwd=folder,
        env={**env, "PLOTLY_RENDERER": "plotly_mimetype", "PYTHONPATH": str(NOTEBOOKS.parent)},
        capture_output=True,
        text=True,
        timeout=1150,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done


def run_as_committed(folder: Path, lessons: list[Path]) -> None:
    """nbval: no cell fails, and those tagged nbval-check-output print what is committed. Ten share
    a kernel, its server of ranks and its box of answers, each of which imports torch."""
    cells_of = {path.stem: read(path).cells for path in lessons}
    assert "skipped" not in run_by_nbval(folder, cells_of).stdout.splitlines()[-1]
    for name, cells in cells_of.items():
        assert any("nbval-check-output" in cell.metadata.get("tags", []) for cell in cells), name


def test_lessons_run_as_committed(tmp_path):
    """The first ten; test_later_lessons.py has the others, for another process of the tests."""
    run_as_committed(tmp_path, LESSONS[:10])


@pytest.mark.slow
def test_nbval_fails_on_a_copy_of_an_unsolved_exercise(tmp_path):
    """Of lessons by both kinds of check, and of an assignment of three steps; elsewhere they run, as
    all lessons and assignments do."""
    lesson.copies(own := tmp_path / "lessons")
    wanted = r"cut-(mine|equal)|setup|(exercise|check)(-check|-ring.*)?"
    unsolved = {
        name: [cell for cell in read(own / f"{name}.ipynb").cells if re.fullmatch(wanted, cell.id)]
        for name in ("13_layouts", "18_cutting_a_model", "assignments/04_ring")
    }
    with pytest.raises(AssertionError, match="5 failed"):
        run_by_nbval(own, unsolved)


def executed(path, solutions, chosen, tmp_path, monkeypatch) -> dict[str, str]:
    """cell id -> what it printed, of the code cells whose ids are `chosen`, run here as in a
    kernel, with these solutions in place of their sources. Of one chosen as False, its imports."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plotly.io.renderers, "default", "json")
    for family in (Schedule, Recompute):
        family.all()
        monkeypatch.setattr(family, "_members", list(family._members))
    main, printed = ModuleType("__main__"), {}
    main.In = []  # as IPython keeps what was run
    monkeypatch.setitem(sys.modules, "__main__", main)
    for cell in code_cells(path):
        if cell.id in chosen:
            source = cell.source
            if cell.id in solutions:
                assert is_exercise(cell)
                source = solutions[cell.id]
            if not chosen[cell.id]:
                source = "\n".join(
                    line for line in source.splitlines() if line.startswith(("import", "from"))
                )
            main.In.append(source)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(source, cell.id, "exec"), vars(main))
            printed[cell.id] = out.getvalue()
    assert printed.keys() == chosen.keys()
    return printed


def script_prints(path: Path) -> str:
    """What the script prints, run in this process, which has imported torch."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(path), run_name="__main__")
    return out.getvalue()


# -- it can be read --------------------------------------------------------------------------------


@each_lesson
def test_shows_its_outputs_without_a_kernel_and_nothing_of_the_machine_it_ran_on(path):
    assert read(path).metadata == METADATA
    assert all(cell.id == "install" or {*cell.metadata} <= {"tags"} for cell in read(path).cells)
    cells = code_cells(path)
    for cell in cells:
        for output in cell.outputs:
            assert output.output_type != "error", f"{cell.id} failed"
            assert output.get("name") != "stderr", f"{cell.id} warns"
            data = output.get("data", {})
            assert WIDGET not in data, f"{cell.id} shows a widget, which is blank without a kernel"
            assert PLOTLY not in data or PNG in data, f"{cell.id} has a figure without a picture"
            for text in texts(output):
                assert not (found := VOLATILE.search(text)), f"{cell.id} tells {found[0]}"
    assert [cell.execution_count for cell in cells] == list(range(2, len(cells) + 2)), (
        "not run from top to bottom"
    )
    assert any(PNG in output.get("data", {}) for cell in cells for output in cell.outputs)
    assert path.stat().st_size < 4_000_000


def test_the_first_cell_of_each_lesson_installs_the_package_where_it_is_missing(monkeypatch):
    """It is folded, and does nothing elsewhere."""
    firsts, asked = [read(path).cells[1] for path in LESSONS], []
    assert all(cell.metadata["jupyter"]["source_hidden"] for cell in firsts)
    (source,) = {cell.source for cell in firsts}
    shell = SimpleNamespace(run_line_magic=lambda *words: asked.append(words))
    code = TransformerManager().transform_cell(source)
    exec(code, {"get_ipython": lambda: shell})
    assert asked == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    exec(code, {"get_ipython": lambda: shell})
    assert asked == [("pip", "install --quiet bigtrain_lab")]


@each_lesson
def test_code_is_short_defines_nothing_and_ends_in_something_seen(path):
    """One value, figure, question or assert; an exercise may end in its class or function."""
    for cell in code_cells(path):
        assert sum(map(bool, cell.source.splitlines())) <= MOST_LINES, (
            f"{cell.id} is longer than {MOST_LINES} lines"
        )
        assert max(map(len, cell.source.splitlines())) <= 130, (
            f"{cell.id} has a line too long to read"
        )
        tree = ast.parse(cell.source)
        defining = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        defines = [node for node in ast.walk(tree) if isinstance(node, defining)]
        assert not defines or is_exercise(cell), (
            f"{cell.id} defines {defines[0].name}: put it into the library"
        )
        seen = ast.Expr, ast.Assert, ast.For, ast.If, *is_exercise(cell) * defining
        assert isinstance(tree.body[-1], seen) or re.search(
            r"(?<![.\w])predict\(", ast.unparse(tree.body[-1])
        ), f"{cell.id} ends in nothing to look at"


@each_lesson
def test_prose_comes_first_and_links_lead_somewhere(path):
    cells = read(path).cells
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    for cell in cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)\s]+)\)", cell.source):
                assert (
                    target.startswith("https://")
                    or (NOTEBOOKS / target.partition("#")[0]).is_file()
                ), f"{cell.id}: no file {target}"
            for name in re.findall(r"`((?:bigtrain_lab|docs|notebooks)/[\w./]+)`", cell.source):
                assert (NOTEBOOKS.parent / name).exists(), f"{cell.id} names {name}"


def minutes(cells) -> float:
    """A minute for 130 words, 10 lines of code or one question of `predict`; 15 for an exercise."""
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    words = re.findall(r"[A-Za-z0-9][^\s|]*", re.sub(r"(?s)```.*?```|\]\([^)]*\)", "", prose))
    code = [cell for cell in cells if cell.cell_type == "code" and cell.id != "install"]
    typed = "\n".join(cell.source for cell in code if not is_exercise(cell))
    asked = [
        cell.outputs[0].text for cell in code if re.search(r"(?<![.\w])predict\(", cell.source)
    ]
    exercises = [cell for cell in code if re.fullmatch("(exercise|timing).*-check", cell.id)]
    return (
        len(words) / 130
        + len(re.findall(r"\S.*", typed)) / 10
        + len("".join(asked).splitlines())
        + 15 * len(exercises)
    )


@each_lesson
def test_takes_the_minutes_that_it_states_and_begins_with_its_idea(path):
    """What stands under "Going further" may take longer than counted, since an exercise may be
    long. The idea comes before the first number."""
    cells = read(path).cells
    headed = [cell.source.startswith("## ") for cell in cells]
    further = [cell.source.startswith("## Going further\n") for cell in cells]
    at = further.index(True) if any(further) else len(cells)
    stated = re.search(r"\*\*Time: (\d+) minutes(?:; going further, (\d+))?\.", cells[0].source)
    hour, more = map(int, stated.groups("0"))
    assert hour <= 60 and minutes(cells[:at]) <= min(60, hour + 5)
    assert minutes(cells[:at]) >= hour - 5 and minutes(cells[at:]) <= more + 5
    assert not any(headed[at + 1 :]), "Going further comes last"
    assert not more or cells[at].source.startswith(
        f"## Going further\n\n**{more} minutes**, about "
    )
    idea = cells[0].source.split("\n\n")[1]
    assert len(idea.split()) <= 120 and not re.search(r"\d", idea) and "**" not in idea


def test_the_map_leads_to_every_lesson_and_the_page_of_names_to_cells():
    linked = {
        target
        for cell in read(NOTEBOOKS / "00_start_here.ipynb").cells
        if cell.id in ("map", "doors")
        for target in re.findall(r"\]\(([^)\s]+)\)", cell.source)
    }
    assert linked == {path.name for path in LESSONS} - {"00_start_here.ipynb"}
    named, other = (
        re.findall(
            r"notebooks/([\w.]+)\) ((?:`[\w-]+` ?)+)",
            (NOTEBOOKS.parent / "docs" / page).read_text(encoding="utf-8"),
        )
        for page in ("coverage.md", "zh/coverage.md")
    )
    assert (
        named
        and named == other
        and all(
            set(re.findall(r"[\w-]+", cells))
            <= {cell.id for cell in read(NOTEBOOKS / lesson).cells}
            for lesson, cells in named
        )
    )


# -- it is not older than the code -----------------------------------------------------------------


@each_lesson
def test_its_source_cells_show_the_present_sources(path):
    """Each on one page."""
    names = {}
    for cell in code_cells(path):
        *_, last = statements = ast.parse(cell.source).body
        shows = (
            isinstance(last, ast.Expr)
            and "getsource(" in cell.source
            or "getsource," in cell.source
        )
        wanted = (
            statements[:-1]
            if shows
            else [each for each in statements if isinstance(each, (ast.Import, ast.ImportFrom))]
        )
        exec(compile(ast.Module(wanted, []), cell.id, "exec"), names)
        if shows:
            present = eval(compile(ast.Expression(last.value), cell.id, "eval"), names)
            seen = cell.outputs[0].data["text/plain"].strip()
            assert seen == repr(present).strip(), (
                f"{cell.id} shows an earlier source: make notebooks"
            )
            assert len(seen.splitlines()) <= MOST_SHOWN, cell.id


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_of_a_panel_shows_the_present_numbers(name):
    assert text_of((NOTEBOOKS.parent / f"{name}.png").read_bytes()) == told(*PICTURES[name]), (
        f"{name}.png shows other numbers: python tools/picture_panels.py {Path(name).name}"
    )


def test_each_picture_of_a_panel_can_be_taken_again():
    assert {*PICTURES} == {
        f"notebooks/pictures/{path.stem}" for path in (NOTEBOOKS / "pictures").glob("*.png")
    } | {"docs/loop"}


# -- the tool --------------------------------------------------------------------------------------


def stream(text: str, name: str = "stdout"):
    return nbformat.v4.new_output("stream", name=name, text=text)


def shown(**data):
    return nbformat.v4.new_output("display_data", data=data)


PATHS = ("kept in /home/ada/runs/1", "<object at 0x7f0a1b2c3d4e>", "see /tmp/x")


@pytest.mark.parametrize(
    "output, why",
    [
        *((stream(text), "") for text in PATHS),
        *((shown(**{"text/plain": text}), "") for text in PATHS),
        (stream("a warning", "stderr"), "warns"),
        (shown(**{WIDGET: {"model_id": "1"}}), "says nothing in text"),
    ],
)
def test_the_tool_refuses_what_others_should_not_read(output, why):
    with pytest.raises(Unfit, match=why):
        normal(output, "cell 1", {})


def test_the_tool_keeps_the_text_of_a_widget_and_joins_what_was_printed_in_parts():
    kept = normal(shown(**{WIDGET: {"model_id": "1"}, "text/plain": "a panel"}), "cell 1", {})
    assert kept.data == {"text/plain": "a panel"}
    assert [output.text for output in joined([stream("33 "), stream("slots\n")])] == ["33 slots\n"]


@each_lesson
def test_a_kernel_that_computes_does_so_with_one_thread(path):
    """Before its first training or tensor. Two threads wait for each other on busy cores, and round
    otherwise than a rank."""
    sources = [cell.source for cell in code_cells(path)]
    computes = [
        at
        for at, source in enumerate(sources)
        if re.search(r"\bimport torch\b|\.reference\(\)|\bdelayed\(", source)
    ]
    assert not computes or "torch.set_num_threads(1)" in sources[computes[0]]
    assert sum(source.count("set_num_threads") for source in sources) == bool(computes)


# -- the reader's own copies -----------------------------------------------------------------------


def test_a_copy_shows_nothing_before_its_cell_and_is_never_written_over(tmp_path):
    release, own = tmp_path / "notebooks", tmp_path / "lessons"
    shutil.copytree(NOTEBOOKS, release, ignore=shutil.ignore_patterns("*checkpoint*"))
    lesson.copies(own, release)
    first, second, *_ = copies = sorted(own.rglob("*.ipynb"))
    assert [any(cell.get("outputs") for cell in read(path).cells) for path in copies] == [
        False
    ] * len([*release.rglob("*.ipynb")])
    for path, said in (
        (first, "mine"),
        (release / first.name, "new"),
        (release / second.name, "new"),
    ):
        path.write_text(path.read_text().replace('"# ', f'"# {said} ', 1))
    for _ in range(2):
        lesson.copies(own, release)
    assert [
        read.__wrapped__(path).cells[0].source[:6]
        for path in (first, *own.glob(f"{first.stem}-*"), second)
    ] == ["# mine", "# new ", "# new "]


# -- the budget sheet ------------------------------------------------------------------------------


def test_lesson_16_shows_the_sheets_of_all_lessons_as_they_are():
    rows = lesson.Sheet.beside(NOTEBOOKS)
    sheets = {path.name[:2] for path in LESSONS} - {"00", "11", "16", "19"}
    assert {row["technique"][:2] for row in rows} == sheets
    (cell,) = (cell for cell in code_cells(LESSONS[16]) if cell.id == "sheet")
    shown = cell.outputs[0].data[lesson.ROWS]
    assert shown[: len(rows)] == rows and "planner" in shown[len(rows)]["technique"]


def test_a_sheet_writes_what_it_was_told_in_units():
    sheet = lesson.Sheet()
    sheet.row("ring", 4, 1_492e6, time=0.0467, idle=0.25)
    assert str(sheet).splitlines()[-1] == "| ring | 4 | 1.492 GB |  | 46.7 ms | 25.0% |  |"


# -- editions in other languages -------------------------------------------------------------------


def untranslated(text: str) -> tuple:
    """What is the same in each language: code, links, numbers, levels of headings, rows."""
    prose = FENCED.sub("", text).replace("pictures/zh/", "pictures/")
    found = (re.findall(each, prose) for each in (r"`[^`\n]+`", r"\]\([^)]+\)", r"\n\|", r"#+ "))
    return (
        FENCED.findall(text),
        *map(Counter, found),
        set(re.findall(r"\d+(?:[.,]\d+)*", re.sub("`[^`\n]+`", "", prose))),
    )


@pytest.mark.parametrize("language", lesson.editions(NOTEBOOKS))
@pytest.mark.parametrize(
    "path", [*LESSONS, *sorted(NOTEBOOKS.glob("assignments/*.ipynb"))], ids=lambda path: path.stem
)
def test_an_edition_has_each_text_with_its_code_links_and_numbers(path, language):
    edition = lesson.translated(
        json.loads(path.read_text()),
        NOTEBOOKS / language / path.relative_to(NOTEBOOKS).with_suffix(".md"),
    )
    for cell, other in zip(read(path).cells, edition["cells"], strict=True):
        if cell.cell_type == "markdown":
            text = "".join(other["source"])
            assert text != cell.source, cell.id
            assert untranslated(text) == untranslated(cell.source), cell.id


def test_each_edition_has_the_pictures_of_ideas_in_its_language():
    assert idea_pictures.translated() == {
        path: path.read_text() for path in (NOTEBOOKS / "pictures").glob("*/idea_*.svg")
    }, "python tools/idea_pictures.py"


def test_copies_in_another_language(tmp_path):
    release, own = tmp_path / "notebooks", tmp_path / "lessons"
    shutil.copytree(NOTEBOOKS, release, ignore=shutil.ignore_patterns("*checkpoint*"))
    path = release / LESSONS[1].name
    path.write_text(path.read_text().replace("## 2. Predict", "## 2. Predict again"))
    lesson.copies(own, release, "zh")
    cells, copied = read(path).cells, read(own / path.name).cells
    same = {cell.id for cell, other in zip(cells, copied) if cell.source == other.source}
    texts = {cell.id for cell in cells if cell.cell_type == "markdown"}
    assert same & texts == {"predict-text"}  # whose English has changed since
    assert same - texts == {cell.id for cell in cells} - texts
    with pytest.raises(Impossible, match="choose zh, or none"):
        lesson.copies(own, release, "eo")


def test_the_first_prediction_stays(tmp_path, monkeypatch, capsys):
    said = iter(["", "8", "9"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda question: next(said))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "00_one.ipynb"))
    assert [lesson.predict("slots?") for _ in range(3)] == ["nothing", "8", "8"]
    assert "slots? 8   (you said" in capsys.readouterr().out
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "01_other.ipynb"))
    assert lesson.predict("slots?") == "9"
    (tmp_path / lesson.ANSWERS).write_text("{,}")
    with pytest.raises(Impossible, match="predictions.json cannot be read .*: mend it, or delete"):
        lesson.predict("slots?")
