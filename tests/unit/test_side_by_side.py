"""bigtrain compare: settings, quantities, the first event that differs, what the ranks returned,
and its refusals."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bigtrain_lab.checks.differences import arrays_apart, first_difference
from bigtrain_lab.core import Memory, Span, Trace, Transfer
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.experiments.staleness import Staleness
from tests.unit.test_cli import refused, row


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Directories of runs: `one` and `two` alike, `other` with a learning rate of its own."""
    folder = tmp_path_factory.mktemp("runs")
    for name, changed in {
        "one": {},
        "two": {},
        "other": {"learning_rate": 0.002},
    }.items():
        PipelineExperiment(
            ranks=2, micro_batches=2, steps=1, layers=2, width=16, sequence=8
        ).replace(**changed).run(directory=folder / name).wait()
    return folder


def save(path, experiment=PipelineExperiment, **settings):
    made = experiment(**settings)
    trace = made.predict()
    return replace(trace, settings={"experiment": made.name, **trace.settings}).save(path)


def test_two_runs_of_the_same_settings_are_equal_bit_for_bit(cli, runs):
    code, out, err = cli("compare", runs / "one", runs / "two")
    assert (code, err, row(out, "step time")) == (0, "", ["9 slots", "9 slots", "equal"])
    assert "A and B, modelled: the same, event for event." in out
    assert "The settings are the same." in out and "returned: equal bit for bit" in out


def test_one_setting_that_differs_is_named_and_the_weights_tell(cli, runs):
    out = cli("compare", runs / "one", runs / "other")[1]
    assert row(out, "learning-rate") == ["0.001", "0.002"] and "micro-batches" not in out
    assert "A and B, modelled: the same, event for event." in out
    assert re.search(r"returned: \d+ of \d+ tensors differ, most \S+: by \S+ of its norm", out)


def test_more_than_two_are_compared_with_the_first(cli):
    for name, schedule in (("a", "gpipe"), ("b", "1f1b"), ("c", "naive")):
        save(name, schedule=schedule)
    code, out, _ = cli("compare", "a", "b", "c")
    assert code == 0 and row(out, "schedule") == ["gpipe", "1f1b", "naive"]
    assert row(out, "step time") == ["33 slots", "33 slots", "96 slots", "equal", "+191%"]
    assert "first difference: rank 0, 0F4 at 4 slots against 0B0 at 10 slots." in out


@pytest.mark.parametrize(
    "words, told",
    [
        (["p"], "1 run cannot be compared: name 2 or more"),
        (["p", "s"], "compare runs of one experiment"),
        (["p", "real"], "p counts predicted time in slots and real in seconds"),
        (["p", "p", "--clock", "modelled"], "p has no modelled times: choose predicted."),
        (["p", "gone"], "There is no gone"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(cli, words, told):
    save("s", Staleness)
    save("p")
    save("real", hardware="a100-nvlink")
    answer = cli("compare", *words)
    refused(answer, told)
    assert answer[1] == ""


@pytest.fixture
def copy(runs, tmp_path):
    """A copy of the run `one`, to be changed."""
    return Path(shutil.copytree(runs / "one", tmp_path / "copy"))


def test_a_damaged_result_is_one_sentence(cli, runs, copy):
    (copy / "result-1.npz").write_bytes((copy / "result-1.npz").read_bytes()[:200])
    refused(cli("compare", runs / "one", copy), "The result of rank 1 is damaged")


def test_weights_of_other_models_are_told_apart(cli, runs, copy):
    held = dict(np.load(copy / "result-0.npz"))
    name = next(iter(held))
    np.savez(copy / "result-0.npz", **{**held, name: held[name][:-1]})
    out = cli("compare", runs / "one", copy)[1]
    assert f"of different models: {name} has shape" in out
    np.savez(copy / "result-0.npz", **held, aaa=np.zeros(1), bbb=np.zeros(1))
    out = cli("compare", runs / "one", copy)[1]
    assert "of different models: only B has aaa and 1 more." in out


def test_a_run_that_failed_is_compared_as_far_as_it_went(cli, runs, copy):
    (copy / "end.json").write_text('{"state": "failed", "diagnosis": "Rank 1 failed."}')
    log = (copy / "events-1.jsonl").read_text().splitlines()
    (copy / "events-1.jsonl").write_text(
        "\n".join(line for line in log if '"1B1"' not in line and '"1U' not in line) + "\n"
    )
    code, out, err = cli("compare", runs / "one", copy)
    assert (code, err) == (0, "") and "not compared, since B is failed." in out
    assert "first difference: rank 1, 1B1 at " in out and "against nothing" in out


@pytest.mark.parametrize(
    "ours, theirs, said",
    [
        ([0.0, 0.0], [3.0, 4.0], "1 of 1 tensors differ, most w: by 5, where A has zeros alone."),
        ([True, False], [True, True], "1 of 1 tensors differ, most w: by 1 of its norm."),
        (
            np.array([3, 4], np.uint8),
            np.array([2, 4], np.uint8),
            "1 of 1 tensors differ, most w: by 0.2 of its norm.",
        ),
        ([3.0, 4.0], [3.0, np.nan], "1 of 1 tensors differ, most w: by nan of its norm."),
        (
            np.array([1.0], np.float32),
            np.array([1.0]),
            "1 of 1 tensors differ, most w: by 0 of its norm.",
        ),
        ([0.0], [0.0], "equal bit for bit, in all 1 tensors."),
    ],
)
def test_arrays_of_any_number_format_are_compared(ours, theirs, said):
    assert arrays_apart({"w": np.asarray(ours)}, {"w": np.asarray(theirs)}) == said


# -- the first difference --------------------------------------------------------------------------


BASE = (
    Span(0, "compute", "F", "0F0", 0, 1000, 0),
    Transfer(1, "compute", "F", "0F0", 1000, 2000, 0, 64),
    Span(1, "compute", "F", "1F0", 2000, 3000, 0),
    Memory(1, "compute", "activations", "1F0", 3000, 640),
    Span(1, "compute", "B", "1B0", 14000, 16000, 0),
)


def changed(number: int, **fields) -> Trace:
    return Trace.of(
        [e._replace(**fields) if i == number else e for i, e in enumerate(BASE)],
        "modelled",
        ranks=2,
    )


@pytest.mark.parametrize(
    "other, said",
    [
        (changed(4, start=15000), "rank 1, 1B0 at 14 slots against 15 slots"),
        (changed(4, end=17000), "rank 1, 1B0 until 16 slots against 17 slots"),
        (changed(4, version=1), "rank 1, 1B0 with weight version 0 against 1"),
        (changed(4, kind="W", name="1W0"), "rank 1, 1B0 against 1W0 at 14 slots"),
        (changed(4, name="1B1", start=15000), "rank 1, 1B0 at 14 slots against 1B1 at 15 slots"),
        (changed(1, end=2500), "rank 1, the message of 0F0 until 2 slots against 2.5 slots"),
        (changed(1, bytes=128), "rank 1, the message of 0F0 with 64 B against 128 B"),
        (changed(3, bytes=1280), "rank 1, activations after 1F0 with 640 B against 1.28 kB"),
        (Trace.of(BASE[:4], "modelled", ranks=2), "rank 1, 1B0 at 14 slots against nothing"),
        (changed(0, end=1500), "rank 0, 0F0 until 1 slot against 1.5 slots"),
    ],
)
def test_the_first_event_that_differs_is_told(other, said):
    assert first_difference(Trace.of(BASE, "modelled", ranks=2), other) == said


def test_a_run_of_an_earlier_order_is_shown_without_a_prediction(cli, runs, copy):
    settings = json.loads((copy / "settings.json").read_text())
    settings["settings"]["facts"]["order"] = "another"
    (copy / "settings.json").write_text(json.dumps(settings))
    code, out, _ = cli("show", copy)
    assert code == 0 and "earlier order" in out and "predicted" not in out and "modelled" in out
    assert "the orders are not." in cli("compare", copy, runs / "two")[1]
