"""An exercise out of its folder, as a Topic: plays scenes with an answer, and shows what came.

probe.py      NAME; ALLOWS, FORBIDS, NEAR and WRITES where they are not a Topic's own.
              scenes(draw) -> (name, inputs) or, with ranks, (name, common, own of each rank):
              plain data; then what is common in later runs of these ranks, in one folder.
              shown(inputs, came) or shown(common, own, came, ranks) -> what is compared, beside
              the truth; `ranks` has seen all messages
bench.py      play(answer, **inputs) or, on each rank, play(answer, group, **common, **own) ->
              what came out. It alone travels to an answer's process, and knows no truth
right/*.py    answers that differ in idea; wrong ones change the first, the clearest text
wrong.md      mistakes that students make: "## name", a sentence, and the change, a small diff
              or a whole text. "# Equivalent mutants": those that no scene can tell, and why
exercise.md   what is asked, "## Start" and "## Hints"; "## Steps", which have marks of their own:
              "1. Title (2 points): one window; two windows", by how names of scenes begin
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

from ..core import refuse
from .likeness import NEAR, Step, Topic, Wrong

PARTS = ("probe.py", "bench.py", "right", "wrong.md", "exercise.md")
MOST_WRONG = 14
KEPT = "which calls in a row give another result than alone, since your answer keeps something"
EQUIVALENT = "# Equivalent mutants"


def topic(folder: Path) -> type[Topic]:
    """The exercise in a folder, of the package `topics` or of one's own."""
    refuse_incomplete(folder)
    topics = import_module(f"{__package__}.topics")
    if str(folder.parent) not in topics.__path__:
        topics.__path__.append(str(folder.parent))
    package = f"{topics.__name__}.{folder.name}"
    probe = import_module(f"{package}.probe")
    right = {  # 1_views_of_each.py -> views of each
        file.stem.lstrip("0123456789_").replace("_", " "): read(file)
        for file in sorted((folder / "right").glob("*.py"))
    }
    told = sections(read(folder / "exercise.md"))
    hints = re.split(r"^\d\. ", told["Hints"], flags=re.MULTILINE)[1:]

    made = type(Topic)(
        probe.NAME.title().replace("-", ""),
        (Topic,),
        {
            "__module__": package,
            "__doc__": told[""],
            "name": probe.NAME,
            "right": right,
            "wrong": mistakes(read(folder / "wrong.md"), next(iter(right.values()))),
            "hints": tuple(" ".join(hint.split()) for hint in hints),
            "asked": told[""].strip(),
            "start": re.search(r"```python\n(.*?)```", told["Start"], re.DOTALL)[1].strip(),
            "steps": steps(told.get("Steps", "")),
            "allows": getattr(probe, "ALLOWS", ()),
            "forbids": getattr(probe, "FORBIDS", ()),
            "near": getattr(probe, "NEAR", NEAR),
            "writes": getattr(probe, "WRITES", False),
            "folder": folder,
            "bench": f"{package}.bench",
            "scenes": staticmethod(partial(told_apart, probe.scenes)),
            "shown": staticmethod(partial(shown, probe.shown)),
            "replay": staticmethod(replay) if (replay := getattr(probe, "replay", None)) else None,
        },
    )
    setattr(import_module(package), made.__name__, made)  # where pickle looks for it
    return made


def told_apart(scenes, draw) -> Iterator[tuple]:
    """The scenes, numbered where names repeat. Where they have no ranks, one definition plays all
    of them in the end: it may keep nothing between them."""
    count, played = Counter(), []
    for name, *inputs in scenes(draw):
        count[name] += 1
        yield f"{name} ({count[name]})" if count[name] > 1 else name, *inputs
        played += [inputs[0]] if len(inputs) == 1 else []
    if len(played) > 1:
        yield f"{name}, and all others before it", {"again": played}


def shown(own, inputs: dict, *seen):
    """What is compared."""
    return {KEPT: seen[0]} if "again" in inputs else own(inputs, *seen)


def refuse_incomplete(folder: Path) -> None:
    lacking = [part for part in PARTS if not (folder / part).exists()]
    if not lacking:
        told = sections(read(folder / "exercise.md"))
        lacking = [f"## {part} in exercise.md" for part in ("Start", "Hints") if part not in told]
        lacking += ["an answer in right"] * (not [*(folder / "right").glob("*.py")])
    refuse((lacking, f"The exercise in {folder.name} lacks {', '.join(lacking)}."))


# -- texts -----------------------------------------------------------------------------------------


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """Heading of the second level -> what stands below it; "" -> what stands before all."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2]))


def steps(text: str) -> tuple[Step, ...]:
    """The steps of an exercise.md; all as one where it names none."""
    lines = re.findall(r"^\d+\. (.+?) \((\d+) points?\): ?(.*)$", text, re.MULTILINE)
    return tuple(
        Step(title, int(points), tuple(filter(None, map(str.strip, scenes.split(";")))))
        for title, points, scenes in lines
    ) or (Step("The whole exercise", 4, ("",)),)


def mistakes(text: str, right: str) -> dict[str, Wrong]:
    """The mistakes of a wrong.md, each as a whole text."""
    found = {}
    for name, body in list(sections(text.partition(EQUIVALENT)[0]).items())[1:]:
        form = re.fullmatch(r"\s*(.+?)\s*```(diff|python)\n(.*?)```\s*", body, flags=re.DOTALL)
        refuse(
            (
                form is None,
                f"The mistake {name!r} is no sentence with a diff or a text below it.",
            )
        )
        sentence, kind, change = form.groups()
        whole = changed(name, right, change) if kind == "diff" else change
        found[name] = Wrong(" ".join(sentence.split()), whole)
    refuse(
        (
            len(found) > MOST_WRONG,
            f"{len(found)} mistakes: keep the {MOST_WRONG} that students make.",
        )
    )
    return found


def changed(name: str, text: str, diff: str) -> str:
    """A text after a small diff: blocks of lines with -, + and a blank before them, apart by @@."""
    for block in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
        lines = [line or " " for line in block.splitlines()]
        old = "".join(line[1:] + "\n" for line in lines if line[0] in "- ")
        new = "".join(line[1:] + "\n" for line in lines if line[0] in "+ ")
        refuse(
            (
                text.count(old) != 1,
                f"The mistake {name!r}: its lines stand {text.count(old)} times in the right"
                " answer, and must stand there once.",
            )
        )
        text = text.replace(old, new)
    return text
