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

from bigtrain_lab import Collective, Experiment, Optimizer, Recompute, Run, Schedule
from bigtrain_lab.cli import labs, main
from bigtrain_lab.core.trace import Shares
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.runtime import calibrate
from bigtrain_lab.view import report
from tests.unit.ranks import ranks_alive

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


def refused(answer, said: str):
    """Exit code 2, nothing but one line on stderr, a sentence that holds these words."""
    code, _, err = answer
    assert code == 2 and err.startswith("bigtrain: ") and err.count("\n") == 1, err
    assert said in err


# -- help and lists --------------------------------------------------------------------------------


def test_help_names_the_commands_and_imports_nothing_heavy():
    code = (
        "import sys\nfrom bigtrain_lab.cli import main\ncode = main(['--help'])\nprint('HEAVY', [m"
        " for m in ('torch', 'numpy', 'plotly', 'IPython') if m in sys.modules], code)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    ).stdout
    assert "HEAVY [] 0" in out
    for name in ("list", "run", "predict", "show", "compare", "export", "doctor"):
        assert re.search(rf"│ {name} ", out), name


def test_list_says_what_there_is(cli):
    code, out, _ = cli("list")
    assert code == 0 and PipelineExperiment.question in out
    for family in (Schedule, Collective, Recompute, Optimizer):
        for name, cls in family.all().items():
            about = sys.modules[cls.__module__].__doc__.split()[0]
            assert re.search(rf"^{name} .*{re.escape(about)}", out, re.M)
    assert "312 TFLOP/s" in out and "data sheet" not in out


def test_help_of_an_experiment_has_each_knob_with_range_unit_and_menu(cli):
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", cli("predict", "pipeline", "--help")[1]).split())
    for name, about in PipelineExperiment.knobs().items():
        assert f"--{name.replace('_', '-')} " in text and about.help in text
    assert "(1 to 8)" in text and "(4 to 1,024 tokens)" in text and "(0 to 2,147,483,647)" in text
    assert "[choices: " + ", ".join(Schedule.all()) + "]" in text
    assert "--stashing --no-stashing" in text


# -- predict ---------------------------------------------------------------------------------------


def test_predict_gives_the_papers_numbers_the_timeline_and_the_sentences(cli):
    code, out, err = cli("predict", "pipeline")
    assert (code, err) == (0, "")
    assert row(out, "step time") == ["33 slots"] and row(out, "idle share") == ["27.3%"]
    assert "\nrank 3 ······F0B0  F1B1  F2B2  F3B3  F4B4  F5B5  F6B6  F7B7  ············\n" in out
    assert "Rank 3 idles 3 slots first" in out


@pytest.mark.parametrize("columns", [40, 200])
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


@pytest.mark.parametrize(
    "words, said",
    [
        *(
            (["predict", "pipeline", *words], said)
            for words, said in (
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
            )
        ),
        (["run", "pipelin"], 'Did you mean "pipeline"?'),
        (["run", "pipeline", "--stall-s", "soon"], "--stall-s"),
        (["run", "pipeline", "--stall-s", "0"], "stall_s is 0.0"),
    ],
)
def test_what_cannot_be_is_one_sentence(cli, words, said):
    refused(cli(*words), said)
    assert not list(Path().iterdir())


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
        and difference == "as planned"
    )
    assert row(out, "peak memory, rank 1")[-1] == "as planned, measured equal"
    assert re.search(r"^loss [\d.]+ -> [\d.]+ \(16 values\)$", out, re.M)
    (directory,) = Path("runs").iterdir()
    assert str(directory) in out and Run.open(directory).state == "done"


def test_show_reopens_a_run(cli, done):
    code, out, _ = cli("show", done)
    assert code == 0
    assert re.search(r"pipeline on 2 ranks, started .*: done", out)
    assert f"\nAgain: bigtrain run pipeline {' '.join(SMALL)}\n" in out
    assert row(out, "step time")[:2] == ["9 slots", "9 slots"]
    assert "schedule 1f1b, ranks 2, " in out and "chunks" not in out, (
        "what has no effect is left out"
    )


def test_show_reopens_a_saved_prediction(cli):
    assert cli("predict", "pipeline", "--schedule", "gpipe", "--save", "t.jsonl")[0] == 0
    code, out, _ = cli("show", "t.jsonl")
    assert (
        code == 0
        and row(out, "step time") == ["33 slots"]
        and "Again: bigtrain run pipeline --schedule gpipe\n" in out
    )


@pytest.mark.parametrize(
    "words, clock, unit",
    [
        ([], "modelled", "slot"),
        (["--clock", "measured"], "measured", "s"),
        (["--clock", "predicted"], "predicted", "slot"),
    ],
)
def test_export_writes_a_page_and_what_perfetto_opens(cli, done, words, clock, unit):
    code, out, err = cli("export", done, "--html", "o.html", "--chrome", "out.json", *words)
    page, written = Path("o.html").read_text(), json.loads(Path("out.json").read_text())
    assert (code, err) == (0, "") and "The page is in o.html (" in out
    assert page.startswith("<!doctype html>") and f'"first":"{clock}"' in page
    assert f"The {clock} trace is in out.json" in out
    assert (written["otherData"]["clock"], written["otherData"]["unit"]) == (clock, unit)
    assert {"0F0", "1B1"} <= {event["name"] for event in written["traceEvents"]}


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "Nothing was asked for: name a file to write, by --html or --chrome."),
        (["--chrome", "o.json", "--clock", "wall"], '"predicted", "modelled", "measured"'),
        (["--chrome", "no/o.json"], "Cannot write no/o.json"),
        (["--html", "no/o.html"], "Cannot write no/o.html"),
        (["--html", "."], "Cannot write .: it is a folder"),
        (["--html", "n" * 300], "File name too long"),
    ],
)
def test_export_refuses_in_a_sentence(cli, done, words, said):
    refused(cli("export", done, *words), said)
    assert not Path("o.json").exists()


@pytest.mark.parametrize("words", [("--chrome", "o.json"), ("--html", "o.html")])
def test_export_refuses_a_clock_that_is_not_there(cli, words):
    cli("predict", "pipeline", "--save", "t.jsonl")
    refused(
        cli("export", "t.jsonl", *words, "--clock", "measured"),
        "t.jsonl has no measured times: choose predicted.",
    )
    assert [path.name for path in Path().iterdir()] == ["t.jsonl"]


@pytest.mark.parametrize(
    "file, text, said",
    [
        (
            "settings.json",
            '{"bigtrain-run": 9}',
            "run version 9, this library reads 2: run it again",
        ),
        ("settings.json", "{", "not a run directory"),
        (None, '["bigtrain-trace", 7, {}]\n', "version 7"),
        (None, "a poem\n", "not a trace"),
        (None, None, "There is no"),
    ],
)
def test_what_cannot_be_reopened_is_one_sentence(cli, done, tmp_path, file, text, said):
    place = shutil.copytree(done, tmp_path / "broken") if file else tmp_path / "broken"
    if text:
        (place / (file or "")).write_text(text)
    refused(cli("show", place), said)


def test_of_a_run_that_was_cut_off_what_is_whole_is_shown(cli, done, tmp_path):
    """In one sentence, and no number of a part stands beside the prediction of the whole."""
    place = shutil.copytree(done, tmp_path / "cut")
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


def test_a_lost_result_leaves_the_table(cli, done, tmp_path):
    place = shutil.copytree(done, tmp_path / "lost")
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
    ],
)
def test_show_says_why_there_is_no_table(cli, done, tmp_path, change, said):
    place = shutil.copytree(done, tmp_path / "other")
    settings = json.loads((place / "settings.json").read_text())
    settings["settings"] |= change
    (place / "settings.json").write_text(json.dumps(settings))
    code, out, err = cli("show", place)
    assert (code, err) == (0, "") and said in out and "quantity" not in out and "rank 0" in out


def test_without_a_run_the_newest_is_named(cli):
    for name in ("20260101T000000Z-b", "20260102T000000Z-a"):
        Path("runs", name).mkdir(parents=True)
    refused(cli("show"), f"such as the newest one here, {Path('runs/20260102T000000Z-a')}.")


# -- ends other than well --------------------------------------------------------------------------


def test_a_failing_run_tells_the_diagnosis_and_exits_1(cli):
    failing = *SMALL, "--fault", "raise", "--fault-at", "1", "--directory", "here"
    code, out, err = cli("run", "pipeline", *failing)
    assert code == 1 and "step time" not in out, err
    assert "Rank 1 failed: OnPurpose: " in err and "Traceback" not in err
    code, out, _ = cli("show", "here")
    assert code == 0 and ": failed" in out and "OnPurpose" in out
    assert "step time" not in out and "what is whole" not in out, "its logs end where it failed"


def test_ctrl_c_stops_the_ranks_and_says_so(cli, monkeypatch):
    def interrupted(run, spans, errors):
        next(run.events())  # the ranks are at work
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            time.sleep(0.01)  # another thread may take the signal: a pause would not hear of it

    monkeypatch.setattr(labs, "follow", interrupted)
    code, out, err = cli("run", "pipeline", "--ranks", "2", "--steps", "200", "--directory", "here")
    assert code == 130 and "Stopped: the ranks have ended." in err and "step time" not in out
    assert Run.open("here").state == "stopped" and ranks_alive() == []


# -- the report ------------------------------------------------------------------------------------


A, S = report.Amount, "slot"


@pytest.mark.parametrize(
    "amount, text",
    [
        (A(33, S), "33 slots"),
        (A(1, S), "1 slot"),
        (A(28.5, S), "28.5 slots"),
        (A(0.00153, "s"), "1.53 ms"),
        (A(2.5e-6, "s"), "2.5 µs"),
        (A(0, "s"), "0 s"),
        (A(3e-10, "s"), "0.3 ns"),
        (A(146.8e-6, "s"), "146.8 µs"),
        (A(27.2727, "%"), "27.3%"),
        (A(0, "B"), "0 B"),
        (A(640, "B"), "640 B"),
        (A(999, "B"), "999 B"),
        (A(1536, "B"), "1.536 kB"),
        (A(999_960, "B"), "1 MB"),
        (A(999_999, "B"), "1 MB"),
        (A(6_000_000, "B"), "6 MB"),
        (A(373e6, "B"), "373 MB"),
        (A(80 * 10**9, "B"), "80 GB"),
        (A(5 * 10**15, "B"), "5,000 TB"),
        (A(12345, "pairs"), "1.234e+04 pairs"),
        (A(3, ""), "3"),
        (A(0.32, ""), "0.3200"),  # beside 0.3234
        (A(2.5, "times"), "2.500 times"),
        (A(float("nan"), ""), "nan"),
    ],
)
def test_amounts_in_human_units(amount, text):
    assert str(amount) == text


@pytest.mark.parametrize(
    "predicted, modelled, measured, text",
    [
        (A(33, S), A(33, S), A(0.2, "s"), "as planned"),
        (A(33, S), A(34, S), A(0.2, "s"), "≠ modelled +3.03%"),
        (A(33, S), None, A(0.2, "s"), ""),
        (A(33, S), None, None, ""),
        (None, A(33, S), A(33, S), ""),
        (A(5000, "B"), A(5000, "B"), A(5000, "B"), "as planned, measured equal"),
        (
            A(5_000_000, "B"),
            A(5_000_000, "B"),
            A(5_000_016, "B"),
            "as planned, measured +0.00032%",
        ),
        (
            A(7_190_016, "B"),
            A(7_190_016, "B"),
            A(5_450_240, "B"),
            "as planned, measured -24.2%",
        ),
        (A(5000, "B"), A(5000, "B"), A(12_000_000, "B"), "as planned, measured +240,000%"),
        (
            A(0, "B"),
            A(0, "B"),
            A(2500, "B"),
            "as planned, measured +2.5 kB",
        ),  # of nothing no percent
        (A(27.3, "%"), A(27.3, "%"), A(35.1, "%"), "as planned, measured +7.8 points"),
        (A(1e-3, "s"), A(1e-3, "s"), A(1.5e-3, "s"), "as planned, measured +50%"),
        (A(1e-3, "s"), A(1e-3, "s"), A(0.75e-3, "s"), "as planned, measured -25%"),
        (A(1e-3, "s"), A(1e-3, "s"), A(33e-3, "s"), "as planned, measured +3,200%"),
        (A(1e-6, "s"), A(1e-6, "s"), A(1.294e-3, "s"), "as planned, measured +129,000%"),
        (A(0, "s"), A(0, "s"), A(2e-3, "s"), "as planned, measured +2 ms"),
    ],
)
def test_a_difference_is_relative_and_equal_clocks_are_no_success(
    predicted, modelled, measured, text
):
    differences = report.differences(predicted, modelled, measured)
    assert report.Row("q", "", None, None, None, differences).difference == text


SKIPPED = A(4, "B", "a step was skipped")


@pytest.mark.parametrize(
    "amounts, options, told",
    [
        # a time of other hardware compares with no wall clock here
        (
            (A(1e-6, "s"), A(1e-6, "s"), A(2.0, "s")),
            {"here": False},
            ["as planned"],
        ),
        (
            (A(5, "B"), A(5, "B"), A(6, "B")),
            {"here": False},
            ["as planned", "measured +20%"],
        ),
        # a quantity that need not be equal differs softly
        (
            (A(5, "B"), A(6, "B"), A(7, "B")),
            {"exact": False},
            ["modelled +20%", "measured +40%"],
        ),
        ((A(5, "B"), A(6, "B"), None), {}, ["≠ modelled +20%"]),
        # one that says why it is apart is no failure
        (
            (A(5, "B"), SKIPPED, SKIPPED),
            {},
            ["modelled -20% (a step was skipped)", "measured -20%"],
        ),
    ],
)
def test_what_a_difference_is_held_against(amounts, options, told):
    assert [*report.differences(*amounts, **options)] == told


def test_prices_of_this_machine_are_told_from_others():
    lab = Experiment.named("memory")
    priced = [report.priced_here(lab(hardware=name)) for name in (calibrate.NAME, "a100-nvlink")]
    assert priced == [True, False]


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
    assert (
        report.command(PipelineExperiment(schedule="gpipe", stashing=False, learning_rate=0.5))
        == "bigtrain run pipeline --schedule gpipe --no-stashing --learning-rate 0.5"
    )


def test_a_defect_shows_its_traceback(monkeypatch):
    """Only Impossible and the parser's own errors are sentences."""
    monkeypatch.setattr(PipelineExperiment, "predict", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["predict", "pipeline", "--seed", "731"])
