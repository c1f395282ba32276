"""The command line: each command through main(), its words, its exit codes, its sentences."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from bigtrain_lab.cli import labs, main
from bigtrain_lab.core import CLOCKS, Hardware, Impossible, Scalar, Span, Trace, knob
from bigtrain_lab.core.trace import Shares
from bigtrain_lab.experiments import Experiment, Quantity
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.order.collective import Collective
from bigtrain_lab.order.recompute.plan import Recompute
from bigtrain_lab.order.schedule import F, Schedule
from bigtrain_lab.runtime import Run, calibrate, launch
from bigtrain_lab.view import report

SMALL = [
    "--ranks",
    "2",
    "--micro-batches",
    "2",
    "--steps",
    "1",
    "--layers",
    "2",
    "--width",
    "16",
    "--sequence",
    "8",
]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """Run one command line in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words):
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The directory of a small run that is done."""
    directory = tmp_path_factory.mktemp("runs") / "done"
    assert main(["run", "pipeline", *SMALL, "--directory", str(directory)]) == 0
    return directory


def row(out: str, quantity: str) -> list[str]:
    """The cells of one line of the table."""
    line = next(line for line in out.splitlines() if line.startswith(quantity))
    return re.split(r"\s{2,}", line.strip())[1:]


def refused(answer, *words: str):
    """Exit code 2, nothing but one sentence on stderr, which holds these words."""
    code, _, err = answer
    assert code == 2 and err.startswith("bigtrain: ") and err.count("\n") == 1, err
    for word in words:
        assert word in err
    assert "Traceback" not in err


# -- help and lists --------------------------------------------------------------------------------


def test_help_names_the_commands_and_imports_nothing_heavy():
    code = (
        "import sys\nfrom bigtrain_lab.cli import main\ncode = main(['--help'])\nprint('HEAVY', [m"
        " for m in ('torch', 'numpy', 'plotly', 'IPython') if m in sys.modules], code)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert "HEAVY [] 0" in out
    for name in ("list", "run", "predict", "show", "compare", "export", "doctor"):
        assert re.search(rf"│ {name} ", out), name


def test_python_m_is_the_same_program_and_hands_on_the_exit_code():
    here = subprocess.run(
        [sys.executable, "-m", "bigtrain_lab", "dance"], capture_output=True, text=True, cwd=ROOT
    )
    assert (here.returncode, here.stdout) == (2, "") and "dance" in here.stderr


def test_version(cli):
    assert cli("--version")[:2] == (0, "0.1.0\n")


def test_list_says_what_there_is(cli):
    code, out, _ = cli("list")
    assert code == 0
    assert PipelineExperiment.question in out
    assert re.search(r"settings: schedule, ranks, micro-batches", out)
    for name, cls in Schedule.all().items():
        assert re.search(
            rf"^{name} .*{re.escape(sys.modules[cls.__module__].__doc__.split()[0])}", out, re.M
        )
    for name, cls in [*Collective.all().items(), *Recompute.all().items()]:
        assert re.search(
            rf"^{name} .*{re.escape(sys.modules[cls.__module__].__doc__.split()[0])}", out, re.M
        )
    assert re.search(
        r"^fp16 +computes in float16: a policy of operators, float32 masters, loss scaling *$",
        out,
        re.M,
    )
    assert re.search(r"^fp32 +computes in float32 *$", out, re.M)
    assert "312 TFLOP/s" in out and "NVLink 3 300 GB/s" in out and "data sheet" not in out


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["experiments", "order/schedules"])
def test_a_file_that_does_not_import_is_one_sentence_and_the_others_work(folder, tmp_path):
    shutil.copytree(
        ROOT / "bigtrain_lab",
        tmp_path / "bigtrain_lab",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    broken = tmp_path / "bigtrain_lab" / folder / "mine.py"
    broken.write_text("import math\n\ndef half(:\n")
    done = subprocess.run(
        [sys.executable, "-m", "bigtrain_lab", "list"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0 and "pipeline" in done.stdout and "gpipe" in done.stdout
    assert (
        done.stderr
        == f"bigtrain: {broken}, line 3: SyntaxError: invalid syntax; nothing of this file is there"
        " until it is mended.\n"
    )


def test_help_of_an_experiment_has_each_knob_with_range_unit_and_menu(cli):
    code, out, _ = cli("predict", "pipeline", "--help")
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", out).split())
    assert code == 0
    for name, about in PipelineExperiment.knobs().items():
        assert f"--{name.replace('_', '-')} " in text
        assert about.help in text
    assert "(1 to 8)" in text and "(4 to 1,024 tokens)" in text and "(0 to 2,147,483,647)" in text
    assert "[choices: " + ", ".join(Schedule.all()) + "]" in text
    assert (
        "--stashing --no-stashing" in text and "--save PATH" in text and "--directory" not in text
    )


def test_a_choice_with_a_comma_would_read_as_two():
    for cls in Experiment.all().values():
        assert [
            choice
            for about in cls.knobs().values()
            for choice in about.menu() or ()
            if "," in str(choice)
        ] == []


def test_help_of_run_has_the_options_of_a_run(cli):
    text = cli("run", "pipeline", "--help")[1]
    assert (
        "--directory" in text
        and "--stall-s" in text
        and "--no-clock" in text
        and "--save" not in text
    )


# -- predict ---------------------------------------------------------------------------------------


def test_predict_gives_the_papers_numbers_the_timeline_and_the_sentences(cli):
    code, out, err = cli("predict", "pipeline")
    assert (code, err) == (0, "")
    assert row(out, "step time") == ["33 slots"] and row(out, "idle share") == ["27.3%"]
    assert "predicted: the first of 3 steps, 33 slots" in out
    lanes = [line for line in out.splitlines() if re.match(r"rank \d ", line)]
    assert lanes[3] == "rank 3 ······F0B0  F1B1  F2B2  F3B3  F4B4  F5B5  F6B6  F7B7  ············"
    assert "Rank 3 idles 3 slots first" in out and "27.3% of the ranks' time is idle" in out


@pytest.mark.parametrize("columns", [40, 57, 80, 200])
def test_the_timeline_fits_the_terminal(cli, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = cli(
        "predict",
        "pipeline",
        "--schedule",
        "pipedream",
        "--hardware",
        "a100-nvlink",
        "--micro-batches",
        "32",
    )[1]
    lanes = [line for line in out.splitlines() if re.match(r"rank \d ", line)]
    assert len(lanes) == 4 and max(map(len, lanes)) <= columns


@pytest.mark.parametrize(
    "words, said",
    [
        (["partition", "--cut", "9 1 0 0"], "Not used with these settings: cut."),
        (
            ["pipeline", "--chunks", "3", "--fault-rank", "2"],
            "Not used with these settings: chunks, fault-rank.",
        ),
        (["pipeline", "--schedule", "interleaved", "--chunks", "2"], ""),
    ],
)
def test_a_setting_that_has_no_effect_is_told(cli, words, said):
    _, _, err = cli("predict", *words)
    assert err.strip() == said


def test_numbers_pass_as_they_are_written(cli):
    assert row(
        cli("predict", "pipeline", "--learning-rate", "1e-4", "--micro-batches", "32")[1],
        "idle share",
    ) == ["8.6%"]


@pytest.mark.parametrize(
    "words, said",
    [
        (["--ranks", "four"], "ranks is 'four': it must be a whole number from 1 to 8."),
        (["--ranks", "99"], "ranks is 99: it must be a whole number from 1 to 8."),
        (["--ranks", "-1"], "ranks is -1: it must be a whole number from 1 to 8."),
        (["--steps", "1.5"], "steps is 1.5: it must be a whole number from 1 to 200."),
        (["--heads", "5"], "5 heads cannot share a width of 64"),
        (["--micro-batches", "0"], "micro-batches is 0"),
        (["--ranks", "8", "--layers", "1"], "layers"),
        (["--text", "/no/such/file"], "/no/such/file"),
        (["--schedule", "gpip"], 'Did you mean "gpipe"?'),
        (["--rnks", "2"], "Did you mean --ranks?"),
        (["--ranks"], "--ranks requires an argument"),
        (["--save", "/no/such/folder/t"], "Cannot write /no/such/folder/t"),
    ],
)
def test_what_cannot_be_is_one_sentence(cli, words, said):
    refused(cli("predict", "pipeline", *words), said)


@pytest.mark.parametrize(
    "words, said",
    [
        (["pipelin"], 'Did you mean "pipeline"?'),
        (["pipeline", "--stall-s", "soon"], "--stall-s"),
        (["pipeline", "--stall-s", "0"], "stall_s is 0.0"),
    ],
)
def test_run_refuses_in_a_sentence(cli, words, said):
    refused(cli("run", *words), said)
    assert not Path("runs").exists()


# -- run, show, export -----------------------------------------------------------------------------


def test_run_compares_the_three_clocks(cli):
    code, out, err = cli(
        "run",
        "pipeline",
        "--ranks",
        "2",
        "--steps",
        "2",
        "--layers",
        "2",
        "--width",
        "16",
        "--sequence",
        "8",
    )
    assert (code, err) == (0, "")
    predicted, modelled, measured, difference = row(out, "step time")
    assert (
        predicted == modelled == "27 slots"
        and re.fullmatch(r"[\d.,]+ (µs|ms|s)", measured)
        and difference == "✓ modelled"
    )
    for quantity in ("peak memory, rank 0", "peak memory, rank 1", "bytes sent, all ranks"):
        assert row(out, quantity)[-1] == "✓ modelled, measured equal"
    assert re.search(r"^loss [\d.]+ -> [\d.]+ \(16 values\)$", out, re.M)
    assert "modelled: 27 slots a step, compute 88.9%, waits 0.0%, idle 11.1%.\n" in out
    (directory,) = Path("runs").iterdir()
    assert str(directory) in out and Run.open(directory).state == "done"


def test_run_tells_device_hours_and_energy_of_a_profile_that_states_watts(cli):
    out = cli("run", "pipeline", *SMALL, "--hardware", "a100-nvlink", "--directory", "here")[1]
    assert re.search(
        r"^modelled: [\d.]+ µs a step, compute [\d.]+%, waits [\d.]+%, idle [\d.]+%, [\d.]+ ms of"
        r" device time, [\d.]+ m?J\.$",
        out,
        re.M,
    )
    assert row(out, "step time")[-1] == "✓ modelled", "an A100 and this CPU compare in no ratio"


def test_run_without_the_modelled_clock(cli):
    out = cli("run", "pipeline", *SMALL, "--no-clock", "--directory", "here")[1]
    assert (
        re.search(r"^quantity +predicted +measured +difference", out, re.M)
        and len(row(out, "idle share")) == 3
    )


def test_run_keeps_what_a_directory_holds(cli, done):
    before = {p.name: p.stat().st_mtime_ns for p in done.iterdir()}
    refused(cli("run", "pipeline", *SMALL, "--directory", done), str(done))
    assert {p.name: p.stat().st_mtime_ns for p in done.iterdir()} == before


def test_one_rank_is_told_of_as_one(cli):
    said = cli("run", "memory", "--layers", "1", "--width", "16", "--directory", "one")
    assert said[0] == 0 and "1 ranks" not in "".join(map(str, said))
    assert re.match(r"memory on 1 rank, started .*: done", cli("show", "one")[1])
    assert (
        cli("export", "one", "--html", "one.html")[0] == 0
        and "<title>memory, 1 rank</title>" in Path("one.html").read_text()
    )


def test_show_reopens_a_run(cli, done):
    code, out, _ = cli("show", done)
    assert code == 0
    assert re.search(r"pipeline on 2 ranks, started .*: done", out)
    assert f"\nAgain: bigtrain run pipeline {' '.join(SMALL)}\n" in out
    assert (
        row(out, "step time")[:2] == ["9 slots", "9 slots"] and "modelled: 1 step, 9 slots" in out
    )
    assert "schedule 1f1b, ranks 2, " in out and "fault none" in out
    assert not any(name in out for name in ("fault-rank", "fault-at", "stashing", "chunks")), (
        "these have no effect here"
    )
    assert re.search(r"^loss .* \(2 values\)$", out, re.M)


def test_the_command_that_show_gives_makes_the_same_settings(cli, done):
    line = next(line for line in cli("show", done)[1].splitlines() if line.startswith("Again: "))
    words = line.removeprefix("Again: bigtrain run ").split()
    code, out, _ = cli("predict", *words)
    assert (
        code == 0
        and row(out, "peak memory, rank 0") == row(cli("show", done)[1], "peak memory, rank 0")[:1]
    )


def test_show_reopens_a_saved_prediction(cli):
    assert cli("predict", "pipeline", "--schedule", "gpipe", "--save", "t.jsonl")[0] == 0
    code, out, _ = cli("show", "t.jsonl")
    assert (
        code == 0
        and row(out, "step time") == ["33 slots"]
        and "Again: bigtrain run pipeline --schedule gpipe\n" in out
    )


def test_show_of_an_experiment_that_is_not_here_shows_what_there_is(cli, done):
    trace = Trace.load(Run.open(done).trace("measured").save("t.jsonl"))
    Trace(
        trace.events, trace.clock, trace.unit, trace.ticks_per_unit, 2, 1, {"experiment": "gone"}
    ).save("t.jsonl")
    code, out, _ = cli("show", "t.jsonl")
    assert code == 0 and "measured: 1 step" in out and "quantity" not in out


@pytest.mark.parametrize(
    "clock, unit", [("modelled", "slot"), ("measured", "s"), ("predicted", "slot")]
)
def test_export_writes_what_perfetto_opens(cli, done, clock, unit):
    code, out, _ = cli("export", done, "--chrome", "out.json", "--clock", clock)
    written = json.loads(Path("out.json").read_text())
    assert code == 0 and f"The {clock} trace is in out.json" in out
    assert (written["otherData"]["clock"], written["otherData"]["unit"]) == (clock, unit)
    assert {"0F0", "1B1"} <= {event["name"] for event in written["traceEvents"]}


def test_export_takes_a_runs_modelled_times_unless_told(cli, done):
    assert "The modelled trace" in cli("export", done, "--chrome", "out.json")[1]


def test_export_refuses_in_a_sentence(cli, done):
    cli("predict", "pipeline", "--save", "t.jsonl")
    refused(
        cli("export", "t.jsonl", "--chrome", "o.json", "--clock", "measured"),
        "t.jsonl has no measured times: choose predicted.",
    )
    refused(
        cli("export", done, "--chrome", "o.json", "--clock", "wall"),
        '"predicted", "modelled", "measured"',
    )
    refused(cli("export", done, "--chrome", "no/o.json"), "Cannot write no/o.json")
    refused(
        cli("export", done), "Nothing was asked for: name a file to write, by --html or --chrome."
    )
    refused(cli("export", done, "--html", "no/o.html"), "Cannot write no/o.html")
    refused(cli("export", done, "--html", "."), "Cannot write .: it is a folder")
    refused(cli("export", done, "--html", "n" * 300), "File name too long")
    refused(cli("predict", "pipeline", "--save", "n" * 300), "File name too long")
    refused(
        cli("export", "t.jsonl", "--html", "o.html", "--clock", "measured"),
        "t.jsonl has no measured times: choose predicted.",
    )
    assert not Path("o.json").exists() and not Path("o.html").exists()


def test_export_writes_a_page_and_the_other_file_too(cli, done):
    code, out, err = cli(
        "export", done, "--html", "o.html", "--chrome", "o.json", "--clock", "measured"
    )
    page = Path("o.html").read_text()
    assert (
        (code, err)
        == (
            0,
            "",
        )
        and f"The page is in o.html ({len(page.encode()) / 1000:.4g} kB): any browser plays it.\n"
        in out
    )
    assert (
        "The measured trace is in o.json" in out
        and json.loads(Path("o.json").read_text())["otherData"]["clock"] == "measured"
    )
    assert (
        page.startswith("<!doctype html>")
        and page.rstrip().endswith("</html>")
        and '"first":"measured"' in page
        and ": done" in page
    )


def test_export_writes_a_page_of_a_saved_prediction(cli):
    cli("predict", "pipeline", "--schedule", "gpipe", "--save", "t.jsonl")
    assert cli("export", "t.jsonl", "--html", "o.html")[0] == 0
    page = Path("o.html").read_text()
    assert (
        "pipeline on 4 ranks: a saved predicted trace" in page
        and "bigtrain run pipeline --schedule gpipe" in page
    )


@pytest.mark.parametrize(
    "file, text, said",
    [
        ("settings.json", '{"bigtrain-run": 9}', "version 9"),
        ("settings.json", '{"bigtrain-run": 1}', "damaged"),
        ("settings.json", "{", "not a run directory"),
        ("events-0.jsonl", '["bigtrain-run", 7, {}]\n', "version 7"),
        (None, '["bigtrain-trace", 7, {}]\n', "version 7"),
        (None, "a poem\n", "not a trace"),
        (None, '["bigtrain-trace", 1, {"clock": "modelled"}]\n["span", 0, "com', "damaged"),
        (None, None, "There is no"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [["show"], ["export", "--chrome", "o.json"], ["export", "--html", "o.html"]],
    ids=["show", "export", "page"],
)
def test_what_cannot_be_reopened_is_one_sentence(cli, done, tmp_path, command, file, text, said):
    place = tmp_path / "broken"
    if file:
        place.mkdir()
        for source in done.iterdir():
            (place / source.name).write_bytes(source.read_bytes())
    if text:
        (place / file if file else place).write_text(text)
    refused(cli(command[0], place, *command[1:]), said)


def copy_of(done, place) -> Path:
    place.mkdir()
    for source in done.iterdir():
        (place / source.name).write_bytes(source.read_bytes())
    return place


def test_of_a_run_that_was_cut_off_what_is_whole_is_shown(cli, done, tmp_path):
    """In one sentence, and no number of a part stands beside the prediction of the whole."""
    place = copy_of(done, tmp_path / "cut")
    log = place / "events-1.jsonl"
    whole = log.read_text()
    log.write_text(whole[: whole.index('["@enter",', whole.index('"1F1"')) + 5])
    said = "The log of rank 1 is cut off after 1F1: what is whole is shown."
    code, out, err = cli("show", place)
    assert (
        (code, err) == (0, "")
        and out.count(said) == 1
        and "step time" not in out
        and "a step" not in out
    )
    lanes = dict(re.findall(r"^(rank \d) (.*)$", out, re.M))
    assert "B1" in lanes["rank 0"] and "F1" in lanes["rank 1"] and "B1" not in lanes["rank 1"]
    assert (
        said in cli("export", place, "--chrome", "o.json")[1]
        and json.loads(Path("o.json").read_text())["otherData"]["settings"]["unfinished"]
    )


def test_a_lost_result_leaves_the_table(cli, done, tmp_path):
    place = copy_of(done, tmp_path / "lost")
    (place / "result-0.npz").unlink()
    out = cli("show", place)[1]
    assert "The result of rank 0 is missing: what is whole is shown.\n" in out and row(
        out, "step time"
    )[:2] == ["9 slots", "9 slots"]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"ranks": 99}, "There is no table: ranks is 99: it must be a whole number from 1 to 8."),
        ({"colour": "red"}, "There is no table: pipeline has no setting 'colour'"),
        ({"experiment": "gone"}, "There is no table: There is no experiment called 'gone'"),
        ({"schedule": "gone"}, "There is no table: There is no schedule called 'gone'"),
    ],
)
def test_show_says_why_there_is_no_table(cli, done, tmp_path, change, said):
    place = copy_of(done, tmp_path / "other")
    settings = json.loads((place / "settings.json").read_text())
    settings["settings"] |= change
    (place / "settings.json").write_text(json.dumps(settings))
    code, out, err = cli("show", place)
    assert (code, err) == (0, "") and said in out and "quantity" not in out and "rank 0" in out


def test_without_a_run_the_newest_is_named(cli):
    refused(cli("show"), "Name a run directory, or a file that predict --save wrote.")
    for name in ("20260101T000000Z-b", "20260102T000000Z-a"):
        Path("runs", name).mkdir(parents=True)
    refused(cli("show"), f"such as the newest one here, {Path('runs/20260102T000000Z-a')}.")
    refused(cli("export", "--chrome", "o.json"), "Name a run directory")


# -- ends other than well --------------------------------------------------------------------------


def gone(directory) -> bool:
    """Whether nothing of the run is left: it is not running, and the ranks' processes have
    ended."""
    import psutil

    ranks = [
        p
        for p in psutil.Process().children(recursive=True)
        if str(directory) in str([f.path for f in p.open_files()])
    ]
    return Run.open(directory).state != "running" and not ranks


def define_failing() -> None:
    """An experiment as typed in a notebook; in a function of its own, since pydantic keeps the
    names around a class."""

    class Failing(PipelineExperiment):
        __module__ = "__main__"  # so it travels by value
        name = "failing"

        def program(self, rank):
            if rank.index == 1:
                raise ValueError("on [bold]purpose[/] :boom:")
            return PipelineExperiment.program(self, rank)


def test_a_failing_run_tells_the_diagnosis_and_exits_1(cli, family):
    define_failing()
    code, out, err = cli("run", "failing", *SMALL, "--directory", "here")
    assert code == 1, err
    assert (
        "Rank 1 failed: ValueError: on [bold]purpose[/] :boom:" in err
        and "here" in err
        and "Traceback" not in err
    )
    assert "step time" not in out and gone("here")
    assert (
        cli("export", "here", "--html", "failed.html")[0] == 0
        and "Rank 1 failed: ValueError: on [bold]purpose[/]" in Path("failed.html").read_text()
    )
    code, out, _ = cli("show", "here")
    assert (
        code == 0
        and ": failed" in out
        and "Rank 1 failed: ValueError: on [bold]purpose[/] :boom:" in out
        and "step time" not in out
    )


def test_ctrl_c_stops_the_ranks_and_says_so(cli, monkeypatch):
    def interrupted(run, spans, errors):
        next(run.events())  # the ranks are at work
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            time.sleep(0.01)  # another thread may take the signal: a pause would not hear of it

    monkeypatch.setattr(labs, "follow", interrupted)
    code, out, err = cli("run", "pipeline", "--ranks", "2", "--steps", "200", "--directory", "here")
    assert code == 130 and "Stopped: the ranks have ended." in err and "step time" not in out
    assert Run.open("here").state == "stopped" and gone("here")


def test_an_interrupt_elsewhere_is_told_too(cli, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(PipelineExperiment, "predict", interrupted)
    assert cli("predict", "pipeline") == (130, f"{cli_title()}\n", "bigtrain: interrupted.\n")


def cli_title() -> str:
    chosen = PipelineExperiment()
    return f"pipeline: {chosen.question}\n{chosen.describe()}"


def test_under_torchrun_only_rank_0_speaks(cli, monkeypatch, tmp_path):
    from bigtrain_lab.runtime.process import border
    from bigtrain_lab.runtime.torchrun import board

    monkeypatch.setattr(
        board, "join", lambda place, point: board.Board(dist.HashStore(), place.index, place.ranks)
    )
    monkeypatch.setattr(border, "meeting_point", lambda: None)
    directory = tmp_path / "shared"
    launch(work, 2, directory=directory, cost={"F": 1}, settings={}, name="pipeline").wait()
    monkeypatch.setattr(PipelineExperiment, "run", lambda self, **options: Run.open(directory))
    for index, speaks in ((0, True), (1, False)):
        monkeypatch.setattr(border, "place_given", lambda index=index: border.Place(index, 2))
        code, out, err = cli("run", "pipeline", "--ranks", "2")
        assert (code, bool(out), err) == (0, speaks, "")


@pytest.mark.parametrize(
    "words", [("--ranks", "2"), ("--rows", "x"), ("--no-such-setting",), ("--chunks", "3")]
)
def test_under_torchrun_what_is_refused_is_told_once_a_machine(cli, monkeypatch, words):
    """All ranks refuse alike: the first rank of each machine says why. By hand every rank does,
    each in a terminal of its own."""
    from bigtrain_lab.runtime.torchrun import board

    monkeypatch.setattr(
        PipelineExperiment,
        "run",
        lambda self, **options: raised(Impossible("This cannot be: take something else.")),
    )
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29400",
        "WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "2",
    }.items():
        monkeypatch.setenv(name, value)
    for agent in (True, False):
        job = board.Board(dist.HashStore(), 0, 4)
        monkeypatch.setattr(
            board,
            "join",
            lambda place, point, job=job: board.Board(job.store, place.index, place.ranks),
        )
        for rank, local in ((0, 0), (1, 1), (2, 0), (3, 1)):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("LOCAL_RANK", str(local))
            (
                monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
                if agent
                else monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
            )
            code, _, err = cli("run", "pipeline", *words)
            assert (code, err.count("bigtrain: ")) == (2, 0 if agent and local else 1)
        assert job.run(1).peek("refused")["rank"] == 0


def test_under_torchrun_a_reason_of_its_own_is_told_by_any_rank(cli, monkeypatch):
    from bigtrain_lab.runtime.torchrun import board

    job = board.Board(dist.HashStore(), 0, 4)
    job.run(1).refuse("The settings are wrong.")
    monkeypatch.setattr(
        board, "join", lambda place, point: board.Board(job.store, place.index, place.ranks)
    )
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29400",
        "WORLD_SIZE": "4",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "TORCHELASTIC_RUN_ID": "one",
    }.items():
        monkeypatch.setenv(name, value)
    code, _, err = cli("run", "pipeline", "--rows", "x")
    assert code == 2 and "rows is 'x'" in err


def raised(error):
    raise error


def work(rank):
    """A program for two ranks that is importable where they are."""


# -- a new member appears by itself ----------------------------------------------------------------


def test_a_new_experiment_gains_its_commands(cli, family):
    class Tiny(Experiment):
        __module__ = "__main__"
        name = "tiny"
        question = "How long are three slots?"
        quantities = (
            Quantity("slots", "slot", lambda trace: trace.makespan),
            Quantity("things", "pairs", lambda trace: 2),
        )
        ranks: int = knob(1, "processes", low=1, high=2)
        steps: int = knob(1, "steps", low=1, high=2)
        long_wait: float = knob(3.0, "how long", low=0.5, high=9.5, unit="slots", more=True)
        fast: bool = knob(False, "do not wait")

        def cost(self):
            return None

        def predict(self):
            return Trace.of(
                [Span(0, "compute", "nap", "nap", 0, int(1000 * self.long_wait))], "predicted"
            )

        def program(self, rank):
            return {}

        def reference(self):
            return {}

    assert "How long are three slots?" in cli("list")[1]
    out = cli("run", "tiny", "--help")[1]
    assert "--fast --no-fast" in out and "how long (0.5 to 9.5 slots) [default: 3.0]" in out
    out = cli("predict", "tiny", "--long-wait", "4.5")[1]
    assert (
        row(out, "slots") == ["4.5 slots"]
        and row(out, "things") == ["2 pairs"]
        and "rank 0 nap" in out
    )
    refused(
        cli("predict", "tiny", "--long-wait", "10"),
        "long-wait is 10: it must be a number from 0.5 to 9.5.",
    )
    assert report.command(Tiny(fast=True, ranks=2)) == "bigtrain run tiny --ranks 2 --fast"


def test_a_new_schedule_joins_the_menu(cli, family):
    class Only(Schedule):
        """One forward a rank, and no more."""

        __module__ = "__main__"
        name = "only"

        def steps(self, rank):
            return [F(rank, m) for m in range(self.micro_batches)]

    assert "only" in cli("predict", "pipeline", "--help")[1]
    assert re.search(r"^only +One forward a rank, and no more\.", cli("list")[1], re.M)
    refused(cli("predict", "pipeline", "--schedule", "onl"), '"only"')


# -- the report ------------------------------------------------------------------------------------


A, S = report.Amount, "slot"


@pytest.mark.parametrize(
    "amount, text",
    [
        (A(33, S), "33 slots"),
        (A(1, S), "1 slot"),
        (A(28.5, S), "28.5 slots"),
        (A(0.00153, "s"), "1.53 ms"),
        (A(146.8e-6, "s"), "146.8 µs"),
        (A(27.2727, "%"), "27.3%"),
        (A(640, "B"), "640 B"),
        (A(1536, "B"), "1.536 kB"),
        (A(999_960, "B"), "1 MB"),
        (A(373e6, "B"), "373 MB"),
        (A(12345, "pairs"), "1.234e+04 pairs"),
        (A(3, ""), "3"),
    ],
)
def test_amounts_in_human_units(amount, text):
    assert str(amount) == text


@pytest.mark.parametrize(
    "predicted, modelled, measured, text",
    [
        (A(33, S), A(33, S), A(0.2, "s"), "✓ modelled"),
        (A(33, S), A(34, S), A(0.2, "s"), "≠ modelled +3.03%"),
        (A(33, S), None, A(0.2, "s"), ""),
        (A(33, S), None, None, ""),
        (None, A(33, S), A(33, S), ""),
        (A(5000, "B"), A(5000, "B"), A(5000, "B"), "✓ modelled, measured equal"),
        (A(5_000_000, "B"), A(5_000_000, "B"), A(5_000_016, "B"), "✓ modelled, measured +16 B"),
        (A(7_190_016, "B"), A(7_190_016, "B"), A(5_450_240, "B"), "✓ modelled, measured -1.74 MB"),
        (
            A(7_190_016, "B"),
            A(7_190_016, "B"),
            A(7_353_856, "B"),
            "✓ modelled, measured +0.1638 MB",
        ),  # in the unit of what stands beside it
        (
            A(7_190_016, "B"),
            A(7_190_016, "B"),
            A(7_200_015, "B"),
            "✓ modelled, measured +9.999 kB",
        ),  # unless nothing would be seen
        (A(7_190_016, "B"), A(7_190_016, "B"), A(7_200_016, "B"), "✓ modelled, measured +0.01 MB"),
        (A(5000, "B"), A(5000, "B"), A(12_000_000, "B"), "✓ modelled, measured +11.99 MB"),
        (A(27.3, "%"), A(27.3, "%"), A(35.1, "%"), "✓ modelled, measured +7.8 points"),
        (A(1e-3, "s"), A(1e-3, "s"), A(1.5e-3, "s"), "✓ modelled, measured +50%"),
        (A(1e-3, "s"), A(1e-3, "s"), A(0.75e-3, "s"), "✓ modelled, measured -25%"),
        (A(1e-3, "s"), A(1e-3, "s"), A(33e-3, "s"), "✓ modelled, measured x 33"),
        (A(1e-6, "s"), A(1e-6, "s"), A(1.294e-3, "s"), "✓ modelled, measured x 1,294"),
        (A(0, "s"), A(0, "s"), A(2e-3, "s"), "✓ modelled, measured +2 ms"),
    ],
)
def test_the_difference_says_first_whether_the_model_holds(predicted, modelled, measured, text):
    told = report.Row(
        "q", "", None, None, None, report.differences(predicted, modelled, measured)
    ).difference
    assert told == text


def test_a_time_of_other_hardware_compares_with_no_wall_clock_here():
    assert report.differences(A(1e-6, "s"), A(1e-6, "s"), A(2.0, "s"), here=False) == (
        report.Difference("✓ modelled", True),
    )
    assert len(report.differences(A(5, "B"), A(5, "B"), A(6, "B"), here=False)) == 2
    assert report.THIS_MACHINE == calibrate.NAME
    lab = Experiment.named("memory")
    assert report.priced_here(lab(hardware=calibrate.NAME)) and not report.priced_here(
        lab(hardware="a100-nvlink")
    )
    times = [Quantity("step time", "s", lambda trace: trace.step_time)]
    traces = [
        Trace.of([Span(0, "compute", "F", "0F0", 0, 1000)], clock, unit="s", ticks_per_unit=10**9)
        for clock in CLOCKS
    ]
    assert [report.rows(times, *traces, here=here)[0].difference for here in (True, False)] == [
        "✓ modelled, measured equal",
        "✓ modelled",
    ]


def test_a_quantity_that_need_not_be_equal_differs_softly():
    told = report.differences(A(5, "B"), A(6, "B"), A(7, "B"), exact=False)
    assert told == (
        report.Difference("modelled +1 B", None),
        report.Difference("measured +2 B", None),
    )
    assert report.differences(A(5, "B"), A(6, "B"), None)[0].holds is False
    quantity = Quantity("events", "", len, exact=False)
    spans = [Span(0, "compute", "F", "0F0", 0, 1000), Span(0, "compute", "B", "0B0", 1000, 2000)]
    (row,) = report.rows([quantity], Trace.of(spans, "predicted"), Trace.of(spans[:1], "modelled"))
    assert row.difference == "modelled x 0.5"


def test_a_quantity_that_says_why_it_is_apart_is_no_failure():
    why = A(4, "B", "a step was skipped")
    assert report.differences(A(5, "B"), why, why) == (
        report.Difference("modelled -1 B (a step was skipped)"),
        report.Difference("measured -1 B"),
    )
    same = A(5, "B", "a step was skipped")
    assert report.differences(A(5, "B"), same, same) == (
        report.Difference("✓ modelled", True),
        report.Difference("measured equal"),
    )


def test_the_whole_is_told_first(cli):
    out = cli("predict", "pipeline")[1]
    assert out.index("In all, 27.3%") < out.index("Rank 0 idles")


def test_a_strip_leaves_out_what_does_not_fit_and_says_so():
    spans = [
        Span(0, "compute", "F", "0F0", 0, 1000),
        Span(0, "compute", "U", "0U0", 1000, 1001),
        Span(0, "compute", "W", "0W0", 1001, 1002),
        Span(0, "compute", "B", "0B0", 2000, 4000),
    ]
    lanes, caption = report.strip(Trace.of(spans, "measured", steps=1), 20)
    assert "".join(cell.text for cell in lanes[0][1]) == "F0   U····B0        "
    assert [cell.kind for cell in lanes[0][1]] == ["F"] * 5 + ["U"] + [""] * 4 + ["B"] * 10
    assert caption.startswith("measured: 1 step, 4 slots")
    lanes, caption = report.strip(Trace.of(spans, "measured", steps=2), 4)
    assert (
        "".join(cell.text for cell in lanes[0][1]) == "F0U·"
        and "the first of 2 steps, 2 slots" in caption
    )
    assert report.strip(Trace.of([], "measured"), 20) == ((), "Nothing has run yet.")


def test_what_the_ranks_reported():
    events = [
        Scalar(1, "compute", "scalar", "loss", 10 * i, value)
        for i, value in enumerate((5.6344, 5.3, 5.19))
    ]
    assert report.reported(Trace.of(events, "measured")) == ["loss 5.634 -> 5.19 (3 values)"]
    assert report.reported(Trace.of(events[:1], "measured")) == ["loss 5.634"]


@pytest.mark.parametrize(
    "hours, watt_hours, text",
    [
        (0.5, 200.0, "0.5 device-hours, 200 Wh."),
        (1e-6, 0.0004, "3.6 ms of device time, 1.44 J."),
        (4.11e-7, 1e-7, "1.48 ms of device time, 0.36 mJ."),
        (0.1, 0.9999, "3,600 J."),
        (1e-6, None, "energy unknown (no watts)."),
        (None, None, "modelled: 0.002 slots a step, compute 70.0%, waits 2.7%, idle 27.3%."),
    ],
)
def test_a_summary_says_what_a_run_cost(hours, watt_hours, text):
    facts = {
        "clock": "modelled",
        "unit": "s" if hours else "slot",
        "steps": 1,
        "step_time": 0.002,
        "idle_share": 0.273,
        "shares": Shares(0.7, 0.027, 0.273),
        "device_hours": hours,
        "energy_wh": watt_hours,
    }
    assert text in report.summary(facts) and "idle 27.3%" in report.summary(facts)


def test_the_command_repeats_an_experiment():
    chosen = PipelineExperiment(schedule="gpipe", stashing=False, learning_rate=0.5)
    assert (
        report.command(chosen)
        == "bigtrain run pipeline --schedule gpipe --no-stashing --learning-rate 0.5"
    )
    assert report.command(PipelineExperiment(), "predict") == "bigtrain predict pipeline"


def test_a_profile_without_sources_or_watts_is_still_told():
    bare = Hardware("bare", flops_per_s={"float32": 1e12})
    assert report.hardware_line(bare) == "float32 1 TFLOP/s"


def test_impossible_is_all_that_a_command_line_refuses_by():
    """A defect shows its traceback: only Impossible and the parser's own errors are sentences."""
    assert issubclass(Impossible, ValueError)
    with pytest.raises(ZeroDivisionError):
        from bigtrain_lab.cli import app

        try:
            app.command(lambda: 1 / 0, name="defect")
            main(["defect"])
        finally:
            del app["defect"]
