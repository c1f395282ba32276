"""The lessons: each runs from top to bottom as committed, and is fit to be read where no kernel runs."""

import ast
import contextlib
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from bigtrain_lab.recompute import Recompute
from bigtrain_lab.schedule import Schedule
from tools.build_notebooks import METADATA, PLOTLY, PNG, VOLATILE, WIDGET
from tools.picture_panels import PICTURES, text_of, told

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("*.ipynb"))
MOST_LINES = 12
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def texts(output):
    yield output.get("text", "")
    yield from (
        "".join(value) for name, value in output.get("data", {}).items() if name.startswith("text/")
    )


def is_exercise(cell):
    return "exercise" in cell.metadata.get("tags", [])


def test_there_are_lessons():
    assert [path.stem for path in LESSONS][:1] == ["00_start_here"]


# -- it runs ------------------------------------------------------------------------------------------------------------


def nbval(path):
    """nbval's run of a notebook, from the folder that it is in."""
    (path.parent / "pytest.ini").write_text("[pytest]\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--nbval-lax",
            "--nbval-current-env",
            "--nbval-cell-timeout=1000",
            "--nbval-kernel-startup-timeout=300",
            "-p",
            "no:cacheprovider",
            "-q",
            path.name,
        ],
        cwd=path.parent,
        env={**env, "PLOTLY_RENDERER": "plotly_mimetype"},
        capture_output=True,
        text=True,
        timeout=1150,
    )


@pytest.mark.slow
@each_lesson
def test_runs_as_committed(path, tmp_path):
    """nbval: no cell fails, and those tagged nbval-check-output print what is committed."""
    done = nbval(Path(shutil.copy(path, tmp_path)))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]


def solved(path, solutions):
    """The lesson with these cells' sources, by cell id."""
    notebook = read(path)
    for cell in notebook.cells:
        if cell.id in solutions:
            assert is_exercise(cell)
            cell.source = solutions.pop(cell.id)
    assert not solutions, f"{path.name} has no cell {solutions}"
    return notebook


def executed(notebook, chosen, tmp_path, monkeypatch) -> dict[str, str]:
    """cell id -> what it printed, of the code cells whose ids are `chosen`, run here as in a kernel. Of one chosen as False, its imports."""
    monkeypatch.chdir(tmp_path)
    for family in (Schedule, Recompute):
        family.all()
        monkeypatch.setattr(family, "_members", list(family._members))
    names, printed = {"__name__": "__main__"}, {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.id in chosen:
            source = cell.source
            if not chosen[cell.id]:
                source = "\n".join(
                    line for line in source.splitlines() if line.startswith(("import", "from"))
                )
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(source, cell.id, "exec"), names)
            printed[cell.id] = out.getvalue()
    return printed


ONE_F_ONE_B = """
from bigtrain_lab.schedule import B, F, Schedule

class MyOneFOneB(Schedule):
    name = "my-1f1b"

    def steps(self, rank):
        order, alive, last = [], self.ranks - rank, self.micro_batches
        for m in range(last + alive):
            order += [B(rank, m - alive)] if 0 <= m - alive < last else []
            order += [F(rank, m)] if m < last else []
        return order
"""
STASHING = """
from bigtrain_lab.schedules.pipedream import PipeDream

class MyPipeDream(PipeDream):
    name = "my-pipedream"

    def version(self, action):
        delay = 0 if action.kind == "U" else self.ranks - 1 - action.stage
        return max(0, action.micro_batch - delay)

    def versions_held(self, stage, updates):
        return range(max(0, updates - (self.ranks - 1 - stage)), updates + 1)
"""


@pytest.mark.slow
def test_the_exercises_of_11_can_be_solved(tmp_path, monkeypatch):
    """With a student's right answers every check says so, and the cells that train with them pass."""
    import plotly.io

    monkeypatch.setattr(plotly.io.renderers, "default", "json")
    notebook = solved(
        NOTEBOOKS / "11_pipeline.ipynb", {"exercise-1f1b": ONE_F_ONE_B, "exercise-stash": STASHING}
    )
    ids = [cell.id for cell in notebook.cells]
    needed = {
        "naive",
        "fit",
        "modelled",
        "simulate",
        "predict",
        *ids[ids.index("exercise-text") :],
    }  # names that the exercises use
    printed = executed(notebook, dict.fromkeys(needed, True), tmp_path, monkeypatch)
    assert printed["exercise-check"] == printed["exercise-stash-check"] == "right.\n"
    assert "First the check" not in printed["exercise-run"] + printed["exercise-stash-run"]


@pytest.mark.slow
def test_nbval_fails_on_a_changed_number_and_on_an_unsolved_exercise(tmp_path):
    """Of two cells that print other than their output says, the one with the tag fails; of a grader's two, the one after the
    lesson's own skeleton, which asks assert_right."""
    skeleton = next(
        cell for cell in code_cells(NOTEBOOKS / "11_pipeline.ipynb") if cell.id == "exercise-1f1b"
    ).source
    grader = 'from bigtrain_lab.grading import assert_right\n\nassert_right("1f1b", MyOneFOneB)'
    told = [nbformat.v4.new_output("stream", name="stdout", text="34 slots\n")]
    cells = [
        nbformat.v4.new_code_cell(
            "print(33, 'slots')", metadata={"tags": tags}, execution_count=1, outputs=told
        )
        for tags in ([], ["nbval-check-output"])
    ] + list(map(nbformat.v4.new_code_cell, (skeleton, grader, ONE_F_ONE_B, grader)))
    nbformat.write(
        nbformat.v4.new_notebook(metadata=METADATA, cells=cells), tmp_path / "graded.ipynb"
    )
    done = nbval(tmp_path / "graded.ipynb")
    assert (
        done.returncode == 1
        and "2 failed, 4 passed" in done.stdout
        and re.findall(r"^FAILED \S+::Cell (\d)", done.stdout, re.M) == ["1", "3"]
    )
    assert "mismatch" in done.stdout and "Nothing ran: let steps(rank) return" in done.stdout


def both_sides(lesson: Path, folder: Path) -> tuple[int, Path, Path]:
    """Of the lesson's diff: the number of lines that it adds, and the script before and after, as files."""
    source = "\n".join(cell.source for cell in read(lesson).cells if cell.cell_type == "markdown")
    lines = re.search(r"```diff\n(.*?)```", source, re.S)[1].splitlines()
    scripts = folder / "before.py", folder / "after.py"
    for script, sign in zip(scripts, "-+"):
        script.write_text("\n".join(line[1:] for line in lines if line[:1] in (" ", sign)) + "\n")
    return sum(line.startswith("+") for line in lines), *scripts


def script_prints(path: Path) -> str:
    """What the script prints, run in this process, which has imported torch."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(path), run_name="__main__")
    return out.getvalue()


ON_RANKS = [
    "05_ring_all_reduce",
    "06_data_parallel",
    "07_parameter_server",
    "09_zero",
    "10_train_a_translator",
    "11_pipeline",
    "12_tensor_slicing",
    "13_layouts",
    "14_all_together",
]
# One torchrun for all scripts, since each rank of each would import torch anew. Each script has two processes and a store of its own.
IN_TURN = """
import os, runpy, sys
from torch.distributed import TCPStore

agents = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
for script in sys.argv[1:]:
    if os.environ["RANK"] == "0":
        own = TCPStore(os.environ["MASTER_ADDR"], 0, is_master=True, wait_for_workers=False)
        agents.set(script, str(own.port))
    port = agents.get(script).decode()
    if not (child := os.fork()):
        os.environ["MASTER_PORT"] = port
        os.dup2(os.open(f"{script}.{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT), 1)
        try:
            runpy.run_path(script, run_name="__main__")
            sys.stdout.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{script} failed")
"""


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """lesson -> (lines that its diff adds, what the script prints before, and after on two ranks)."""
    folders = {lesson: tmp_path_factory.mktemp(lesson) for lesson in ON_RANKS}
    scripts = {
        lesson: both_sides(NOTEBOOKS / f"{lesson}.ipynb", folder)
        for lesson, folder in folders.items()
    }
    where = tmp_path_factory.mktemp("on_ranks")
    (where / "in_turn.py").write_text(IN_TURN)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo" if sys.platform != "darwin" else "lo0"}
    torchrun = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "in_turn.py",
            *(str(after) for _, _, after in scripts.values()),
        ],
        cwd=where,
        env=env,
        capture_output=True,
        text=True,
    )
    assert torchrun.returncode == 0, torchrun.stdout + torchrun.stderr
    return {
        lesson: (
            added,
            script_prints(before),
            "".join(Path(f"{after}.{rank}").read_text() for rank in (0, 1)),
        )
        for lesson, (added, before, after) in scripts.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("lesson", ON_RANKS)
def test_my_script_changed_trains_as_before(lesson, sides):
    """Both sides of the lesson's diff run, one process and torchrun, and print the same losses."""
    added, *printed = sides[lesson]
    assert added <= 12
    losses = [[float(line.split()[1]) for line in text.splitlines()] for text in printed]
    assert len(losses[0]) == 20 and losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)  # float32, another order of sums


@pytest.mark.slow
def test_a_compiled_script_trains_as_before(tmp_path):
    """Both sides of lesson 15's diff, in one process."""
    added, before, after = both_sides(NOTEBOOKS / "15_compilers.ipynb", tmp_path)
    losses = [
        [float(line.split()[1]) for line in script_prints(script).splitlines()]
        for script in (before, after)
    ]
    assert added <= 12 and len(losses[0]) == 20 and losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


# -- it can be read -------------------------------------------------------------------------------------------------------


@each_lesson
def test_shows_its_outputs_without_a_kernel(path):
    cells = code_cells(path)
    pictures = 0
    for cell in cells:
        assert cell.execution_count, f"{cell.id} was never run"
        for output in cell.outputs:
            assert output.output_type != "error", f"{cell.id} failed"
            assert output.get("name") != "stderr", f"{cell.id} warns"
            data = output.get("data", {})
            assert WIDGET not in data, f"{cell.id} shows a widget, which is blank without a kernel"
            assert PLOTLY not in data or PNG in data, f"{cell.id} has a figure without a picture"
            pictures += PNG in data
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), (
        "not run from top to bottom"
    )
    assert pictures >= 1
    assert path.stat().st_size < 4_000_000


@each_lesson
def test_tells_nothing_of_the_machine_it_ran_on(path):
    notebook = read(path)
    assert notebook.metadata == METADATA
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags"}
        for output in cell.get("outputs", []):
            for text in texts(output):
                assert not (found := VOLATILE.search(text)), f"{cell.id} tells {found[0]}"


@each_lesson
def test_code_is_short_and_defines_nothing(path):
    for cell in code_cells(path):
        assert len(cell.source.splitlines()) <= MOST_LINES, (
            f"{cell.id} is longer than {MOST_LINES} lines"
        )
        assert max(map(len, cell.source.splitlines())) <= 130, (
            f"{cell.id} has a line too long to read"
        )
        tree = ast.parse(cell.source)
        defines = [
            node
            for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        ]
        assert not defines or is_exercise(cell), (
            f"{cell.id} defines {defines[0].name}: put it into the library"
        )


@each_lesson
def test_ends_each_cell_in_something_seen(path):
    """One value, figure or assert; an exercise may end in its class or function."""
    for cell in code_cells(path):
        last = ast.parse(cell.source).body[-1]
        written = is_exercise(cell) and isinstance(last, (ast.ClassDef, ast.FunctionDef))
        assert written or isinstance(last, (ast.Expr, ast.Assert, ast.For, ast.If)), (
            f"{cell.id} ends in nothing to look at"
        )


@each_lesson
def test_prose_comes_first_and_links_lead_somewhere(path):
    cells = read(path).cells
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    assert re.search(r"\*\*Time: \d+ minutes", cells[0].source), "a lesson states its time"
    for cell in cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)\s]+)\)", cell.source):
                assert (
                    target.startswith("https://")
                    or (NOTEBOOKS / target.partition("#")[0]).is_file()
                ), f"{cell.id}: no file {target}"


def test_the_map_leads_to_every_lesson():
    linked = {
        target
        for cell in read(NOTEBOOKS / "00_start_here.ipynb").cells
        if cell.id in ("map", "doors")
        for target in re.findall(r"\]\(([^)\s]+)\)", cell.source)
    }
    assert linked == {path.name for path in LESSONS} - {"00_start_here.ipynb"}


@each_lesson
def test_nbval_compares_some_numbers(path):
    assert any("nbval-check-output" in cell.metadata.get("tags", []) for cell in code_cells(path))


@each_lesson
def test_names_files_that_exist(path):
    """Paths of this repository in the prose."""
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            for name in re.findall(r"`((?:bigtrain_lab|docs|notebooks)/[\w./]+)`", cell.source):
                assert (NOTEBOOKS.parent / name).exists(), f"{cell.id} names {name}"


# -- it is not older than the code ------------------------------------------------------------------------------------------


@each_lesson
def test_its_source_cells_show_the_present_sources(path):
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
            assert cell.outputs[0].data["text/plain"].strip() == repr(present).strip(), (
                f"{cell.id} shows an earlier source: make notebooks"
            )


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_of_a_panel_shows_the_present_numbers(name):
    shown = text_of((NOTEBOOKS.parent / f"{name}.png").read_bytes())
    assert shown == told(*PICTURES[name]), (
        f"{name}.png shows other numbers: python tools/picture_panels.py {Path(name).name}"
    )


def test_each_picture_of_a_panel_can_be_taken_again():
    assert {*PICTURES} == {
        f"notebooks/pictures/{path.stem}" for path in (NOTEBOOKS / "pictures").glob("*.png")
    } | {"docs/lab"}


# -- the tool -------------------------------------------------------------------------------------------------------------


def test_the_tool_refuses_what_others_should_not_read():
    from nbformat.v4 import new_output

    from tools.build_notebooks import Unfit, joined, normal

    for text in ("kept in /home/ada/runs/1", "<object at 0x7f0a1b2c3d4e>", "see /tmp/x"):
        with pytest.raises(Unfit):
            normal(new_output("stream", name="stdout", text=text), "cell 1", {})
        with pytest.raises(Unfit):
            normal(new_output("execute_result", data={"text/plain": text}), "cell 1", {})
    with pytest.raises(Unfit, match="warns"):
        normal(new_output("stream", name="stderr", text="a warning"), "cell 1", {})
    with pytest.raises(Unfit, match="says nothing in text"):
        normal(new_output("display_data", data={WIDGET: {"model_id": "1"}}), "cell 1", {})
    shown = normal(
        new_output("display_data", data={WIDGET: {"model_id": "1"}, "text/plain": "a panel"}),
        "cell 1",
        {},
    )
    assert shown.data == {"text/plain": "a panel"}
    cut = [new_output("stream", name="stdout", text=part) for part in ("33 ", "slots\n")]
    assert [output.text for output in joined(cut)] == ["33 slots\n"]


@each_lesson
def test_a_kernel_that_computes_does_so_with_one_thread(path):
    """Before its first training or tensor. Two threads wait for each other on busy cores, and round otherwise than a rank."""
    sources = [cell.source for cell in code_cells(path)]
    computes = [
        at
        for at, source in enumerate(sources)
        if re.search(r"\bimport torch\b|\.reference\(\)|\bdelayed\(", source)
    ]
    assert not computes or "torch.set_num_threads(1)" in sources[computes[0]]
    assert sum(source.count("set_num_threads") for source in sources) == bool(computes)
