"""The list of public names in docs/ is true: each is there."""

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import bigtrain_lab


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
