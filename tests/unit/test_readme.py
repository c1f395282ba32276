"""What README and docs/ say is so: the README's scripts do what they say, and each name of the list of
public names is there."""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import bigtrain_lab

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


# -- public names ----------------------------------------------------------------------------------


def rows():
    """(modules or classes, [(name as written, whether it is starred)]) of each row."""
    for line in (
        (Path(__file__).parents[2] / "docs" / "public-names.md")
        .read_text(encoding="utf-8")
        .splitlines()
    ):
        cells = line.strip("| ").split(" | ")
        if len(cells) == 2 and cells[0].startswith("`"):
            homes = [
                h if h.startswith("bigtrain_lab") else "bigtrain_lab" + h
                for h in re.findall(r"`([\w.]+)`", cells[0])
            ]
            yield homes, re.findall(r"`([^`]+)`(\*?)", cells[1])


def place(dotted: str):
    """A module, or a class in one."""
    head, _, last = dotted.rpartition(".")
    return getattr(import_module(head), last) if last[0].isupper() else import_module(dotted)


def member(owner, name: str):
    for names in (
        getattr(owner, "model_fields", {}),
        getattr(owner, "__dataclass_fields__", {}),
        getattr(owner, "__annotations__", {}),
    ):
        if name in names:
            return names[name]
    if (
        hasattr(owner, "__path__")
        and not hasattr(owner, name)
        and find_spec(f"{owner.__name__}.{name}")
    ):
        return import_module(f"{owner.__name__}.{name}")
    return getattr(owner, name, None)


def test_each_name_of_the_list_exists():
    seen = 0
    for homes, names in rows():
        spaces, last_class = [place(h) for h in homes], None
        for written, starred in names:
            path = written.split("(")[0]
            owners = [last_class] if path.startswith(".") and last_class else spaces
            for part in path.strip(".").split("."):
                owners = [found for owner in owners if (found := member(owner, part)) is not None]
                assert owners, f"{homes}: {written} is not there"
            if isinstance(owners[0], type) and not path.startswith("."):
                last_class = owners[0]
            if starred:
                assert getattr(bigtrain_lab, written) is owners[0], written
            seen += 1
    assert seen > 100


def test_what_the_package_offers_is_in_the_list():
    starred = {name for _, names in rows() for name, star in names if star}
    assert starred == set(bigtrain_lab.__all__)
