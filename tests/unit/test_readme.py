"""The README's scripts do what they say."""

import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def run(word: str, capsys) -> tuple[dict, str]:
    """The names that the README's script with this word leaves, and what it prints."""
    (script,) = [
        block for block in re.findall(r"```python\n(.*?)```", README, re.S) if word in block
    ]
    names = {}
    exec(script, names)
    return names, capsys.readouterr().out


def test_the_script_for_one_device_runs(capsys):
    names, said = run("Ledger", capsys)
    assert len(names["losses"]) == 2 and "at the peak, in" in said
    ledger = names["ledger"]
    assert ledger.now("master") == 2 * ledger.now("weights") > 0 and ledger.peak("recomputed") > 0


def test_the_recipe_of_ten_lines_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, last = map(float, run("Recipe", capsys)[1].split())
    assert last < 0.8 * first


def test_the_script_of_zero_trains(monkeypatch, capsys):
    """As one process: every rank's part is the whole."""
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }.items():
        monkeypatch.setenv(name, value)
    assert int(run("ZeroOptimizer", capsys)[1]) == 8 * (64 * 64 + 64)
