"""The README's scripts do what they say."""

import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_script_for_one_device_runs():
    (script,) = [
        block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "Ledger" in block
    ]
    said, names = io.StringIO(), {}
    with contextlib.redirect_stdout(said):
        exec(script, names)
    assert len(names["losses"]) == 2 and "at the peak, in" in said.getvalue()
    ledger = names["ledger"]
    assert ledger.now("master") == 2 * ledger.now("weights") > 0 and ledger.peak("recomputed") > 0


def test_the_recipe_of_ten_lines_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (script,) = [
        block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "Recipe" in block
    ]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(script, {})
    first, last = map(float, said.getvalue().split())
    assert last < 0.8 * first


def test_the_script_of_zero_trains(monkeypatch):
    """As one process: every rank's part is the whole."""
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }.items():
        monkeypatch.setenv(name, value)
    (script,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", README, re.S)
        if "ZeroOptimizer" in block
    ]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(script, {})
    assert int(said.getvalue()) == 8 * (64 * 64 + 64)
