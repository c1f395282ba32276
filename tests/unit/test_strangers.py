"""A run directory is data from a stranger: opening one is a clean output or one sentence, and
nothing of it ever runs.

All 400 directories, with the time and the memory that each takes, are `python -m benchmarks
strangers`.
"""

import json
import os
import re
import subprocess
import sys
from html import escape
from pathlib import Path

import ipywidgets as widgets
import numpy as np
import pytest

from bigtrain_lab import Impossible, Run, Trace, show
from bigtrain_lab.cli import main
from bigtrain_lab.panel import history
from bigtrain_lab.runtime.process.launch import new_directory
from bigtrain_lab.runtime.record import results
from bigtrain_lab.view import figures
from tests.unit.strangers import (
    CONTROL,
    RESULTS,
    SMALL,
    TAG,
    change_json,
    copied,
    crafted,
    damaged,
    opened,
    tagged,
    vouched,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The directory of a small run."""
    directory = tmp_path_factory.mktemp("source") / "run"
    assert main(["run", "pipeline", *SMALL, "--directory", str(directory)]) == 0
    return directory


@pytest.mark.parametrize("make", [crafted, damaged])
def test_opening_is_a_clean_output_or_one_sentence(make, source, tmp_path):
    wrong = {}
    for number in range(24):
        what = make(number, source, tmp_path / str(number))
        if told := opened(tmp_path / str(number), source, tmp_path):
            wrong[f"{number}: {what}"] = told
    assert wrong == {}


@pytest.mark.parametrize(
    "keys, value, said",
    [
        (["steps"], 0, "steps: Input should be greater than or equal to 1"),
        (["ranks"], 400_000, "ranks: Input should be less than or equal to 256"),
        (["ticks_per_unit"], "9", "ticks_per_unit: Input should be a valid integer"),
        (["watts"], -5, "watts: Input should be greater"),
        (["mesh"], {"pp": 3}, "a mesh of 3 ranks is not one of 2"),
        (["started"], TAG, "started: Value error, Invalid isoformat string"),
        (["started"], "0001-01-01T00:00:00+00:00", "no run began then"),
        (["launcher"], ["here", -1, 0.0], "launcher.1: Input should be greater"),
        (["settings"], [], "settings: Input should be an object"),
        (["watts"], float("nan"), "is not a run directory"),
    ],
)
def test_settings_are_refused_by_name(keys, value, said, source, tmp_path):
    change_json(copied(source, tmp_path / "run") / "settings.json", keys, value)
    with pytest.raises(Impossible) as told:
        Run.open(tmp_path / "run")
    assert said in str(told.value) and "\n" not in str(told.value)


def logged(source, place, *lines: str) -> Run:
    """A copy with these lines added to the log of rank 0, and with the checksum that belongs to
    that."""
    path = copied(source, place) / "events-0.jsonl"
    *before, last = path.read_text().splitlines()
    path.write_text(vouched([*before, *lines, last]))
    return Run.open(place)


@pytest.mark.parametrize(
    "line",
    [
        '["span",5,4,0,"compute","F","0F9",1,2,null]',
        '["span",5,6,7,"compute","F","0F9",1,2,null]',
        '["span",-5,6,0,"compute","F","0F9",1,2,null]',
        '["span",5,6,0,"compute","F","0F9","1",2,null]',
        '["span",5,6,0,"compute","F","0F9",1,null,null]',
        '["span",5,6,0,"compute","F","0F9",1,2]',
        '["span",5,6,1,"compute","F","0F9",1,2,null]',
        '["memory",5,0,"compute","weights","0F9",1,-8]',
        '["memory",5,0,"compute","weights","0F9",1,1e3]',
        '["transfer",5,6,8,0,"compute","F","0F9",1,2,7,8]',
        '["histogram",5,0,"compute","a","b",1,[0,1],[1,2]]',
        '["levels",0,"compute","0F9",["weights"],[[5]]]',
        '["levels",0,"compute","0F9",["weights"],[[5,1,null]]]',
        '["@wait",5,"compute",7,0,"m","",[]]',
        '["@send",5,"compute",7,0,"m"]',
        '["os.system","touch hacked"]',
        "[]",
        '["',
        '["scalar",5,0,"compute","scalar","loss",1,' + "9" * 5000 + "]",
        "[" * 100_000,
        '["@enter",5,"compute","\\ud800"',
    ],
)
def test_a_line_that_no_rank_writes_is_where_a_log_ends(line, source, tmp_path):
    run = logged(source, tmp_path / "run", line)
    assert (
        run.damage == "The log of rank 0 is damaged after 0U3: what is whole is shown."
        and len(run.trace().spans(0)) == 10
    )


def test_a_line_that_a_rank_may_write_is_read(source, tmp_path):
    run = logged(
        source,
        tmp_path / "run",
        '["scalar",5,0,"compute","scalar","loss \\u00e9\\n\\u001b[2J",1,NaN]',
        '["@wait",5,"compute",null,0,"sum","all",[0,1]]',
    )
    assert run.damage is None and "loss é\n\ufffd[2J" in {event.name for event in run.trace()}


def test_a_log_that_was_changed_after_its_run_is_told(source, tmp_path, capsys):
    place = copied(source, tmp_path / "run")
    log = place / "events-1.jsonl"
    whole = log.read_text()
    log.write_text(re.sub(r'"loss",(\d+),[0-9.]+', r'"loss",\1,0.001', whole))
    said = "The log of rank 1 was changed after its run: what is whole is shown."
    assert Run.open(place).damage == said
    assert main(["show", str(place)]) == 0 and said in capsys.readouterr().out
    log.write_text(whole + whole.splitlines()[-2] + "\n")  # nothing follows the last line
    assert Run.open(place).damage == said


@pytest.mark.parametrize("how", [how for how in RESULTS if how != "other arrays"])
def test_a_result_that_no_rank_wrote_is_refused(how, tmp_path, monkeypatch):
    """What is claimed beyond the size of the file is not even asked for."""
    monkeypatch.setattr(
        np.lib.format, "read_array", lambda *_, **__: pytest.fail("an array was made")
    )
    RESULTS[how](tmp_path / "result-3.npz")
    told = "missing" if how == "gone" else "damaged"
    with pytest.raises(Impossible, match=f"The result of rank 3 is {told}"):
        results.read(tmp_path / "result-3.npz", 3)


HEADER, LINE = {"clock": "predicted", "ranks": 2}, '["span",0,"c","F","n",5,6,null]'


@pytest.mark.parametrize(
    "header, line",
    [
        *(
            (HEADER, line)
            for line in (
                '["span",0,"c","F","n",5,4,null]',
                '["span",2,"c","F","n",5,6,null]',
                '["span",0,"c","F","n","5",6,null]',
                '["os.system","x"]',
                '["memory",0,"c","F","n",5,-1,false]',
                "[" * 100_000,
            )
        ),
        *(
            (HEADER | wrong, LINE)
            for wrong in (
                {"ranks": 0},
                {"ranks": 10**9},
                {"ticks_per_unit": 0},
                {"steps": "2"},
                {"clock": TAG},
                {"colour": 1},
                {"unit": 3},
            )
        ),
    ],
)
def test_a_saved_trace_is_held_to_its_types(header, line, tmp_path):
    def loaded(header, line):
        (tmp_path / "trace").write_text(f"{json.dumps(['bigtrain-trace', 1, header])}\n{line}\n")
        return Trace.load(tmp_path / "trace")

    assert len(loaded(HEADER, LINE).events) == 1
    with pytest.raises(Impossible, match="is cut off or damaged"):
        loaded(header, line)


# -- names -----------------------------------------------------------------------------------------


ABOUT = {
    "bigtrain-run": 2,
    "ranks": 1,
    "steps": 1,
    "mesh": {"world": 1},
    "clock": False,
    "record": True,
    "unit": "s",
    "ticks_per_unit": 10**9,
    "watts": None,
    "started": "2026-01-01T00:00:00+00:00",
    "launcher": None,
    "hosts": [],
    "settings": {},
}


@pytest.mark.parametrize(
    "name", ["x" * 300, "é" * 300, "a\0b", "a\nb", "../../x", CONTROL, "\udcff", ""]
)
def test_a_run_of_any_name_has_a_directory(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = new_directory(None, name, {**ABOUT, "name": name}, {})
    assert (
        made.parent == tmp_path / "runs"
        and made.name.isascii()
        and "\x1b" not in Run.open(made).settings["name"]
    )


@pytest.mark.parametrize("directory", ["x" * 300, "a\0b", "/dev/null/x", "\ud800"])
def test_a_directory_that_cannot_be_is_one_sentence(directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        Impossible,
        match="^Cannot make .*: (File name too long|Not a directory|no file can have this name); choose",
    ):
        new_directory(directory, "run", {**ABOUT, "name": "run"}, {})
    with pytest.raises(Impossible, match="is not a run directory: "):
        Run.open(directory)
    assert main(["show", directory]) == 2


def test_settings_that_could_not_be_read_again_are_not_kept(tmp_path):
    for name, about in (
        ("x" * 2000, {}),
        ("run", {"settings": {"a": float("nan")}}),
        ("run", {"settings": {"a": "x" * 5_000_000}}),
    ):
        with pytest.raises(Impossible, match="^These settings cannot be kept with a run"):
            new_directory(tmp_path / "run", name, {**ABOUT, "name": name, **about}, {})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_no_locale_stops_the_command_line(source, tmp_path):
    """A terminal of ASCII alone, and a directory whose name is no text."""
    place = copied(source, Path(os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff\xc3\xa9")))
    (place / "end.json").unlink()
    told = subprocess.run(
        [sys.executable, "-m", "bigtrain_lab", "compare", place, source],
        env=os.environ | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
        capture_output=True,
    )
    assert (
        (told.returncode, told.stderr) == (0, b"")
        and told.stdout.isascii()
        and b"The note of its end (end.json) is missing" in told.stdout
    )


# -- text is text ----------------------------------------------------------------------------------


def texts_of(widget) -> list[str]:
    """Every piece of HTML in a widget and those inside it."""
    own = [widget.value] if isinstance(widget, widgets.HTML) else [getattr(widget, "html", "")]
    return own + [text for child in getattr(widget, "children", ()) for text in texts_of(child)]


@pytest.mark.parametrize("state", ["done", "failed", "stopped"])
def test_a_panel_shows_a_stranger_s_text_literally(state, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tagged(source, tmp_path / "runs" / f"20260101T000000Z-pipeline-{TAG}", state)
    panel = show("pipeline")
    try:
        panel.foot.tabs.value = "History"
        panel.reopen(place)
        assert panel.run.state == state and not any("<img" in text for text in texts_of(panel))
        assert state != "failed" or any("&lt;img src=x onerror" in text for text in texts_of(panel))
    finally:
        panel.close()
    listed = history.table_of([history.about(place, type(panel.experiment))], 0)
    assert listed.count(escape(TAG)) == 1 and opened(place, source, tmp_path) == []


@pytest.mark.parametrize("name", ["timeline", "memory", "versions"])
def test_a_figure_shows_a_stranger_s_text_literally(name, source, tmp_path):
    told = figures.figure(name, Run.open(tagged(source, tmp_path / "run")).trace()).to_json()
    assert "<img" not in told.replace("\\u003c", "<") and ("&lt;img" in told or name == "versions")
