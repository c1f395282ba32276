"""An exercise out of its folder, as a Topic: plays scenes with an answer, and shows what came.

probe.py      NAME; ALLOWS, FORBIDS and NEAR where they are not a Topic's own.
              scenes(draw) -> (name, inputs) or, with ranks, (name, common, own of each rank):
              plain data. shown(inputs, came) or shown(common, own, came, ranks) -> what is
              compared, beside the truth; `ranks` has seen all messages
bench.py      play(answer, **inputs) or, on each rank, play(answer, group, **common, **own) ->
              what came out. It knows no truth, and nothing else plays an answer
right/*.py    answers that differ in idea; wrong ones change the first, the clearest text
wrong.md      mistakes that students make: "## name", a sentence, and the change, a small diff
              or a whole text. "# Equivalent mutants": those that no scene can tell, and why
exercise.md   what is asked, "## Start" and "## Hints"
"""

import random
import re
from importlib import import_module
from pathlib import Path

from ..core import Impossible
from .likeness import NEAR, Scene, Topic, Wrong
from .ranks import Ranks

PARTS = ("probe.py", "bench.py", "right", "wrong.md", "exercise.md")
MOST_WRONG = 14
EQUIVALENT = "# Equivalent mutants"


def topic(folder: Path) -> type[Topic]:
    """The exercise in a folder of the package `topics`."""
    refuse_incomplete(folder)
    package = f"{__package__}.topics.{folder.name}"
    probe, bench = (import_module(f"{package}.{name}") for name in ("probe", "bench"))
    right = {name_of(file): read(file) for file in sorted((folder / "right").glob("*.py"))}
    told = sections(read(folder / "exercise.md"))
    hints = re.split(r"^\d\. ", told["Hints"], flags=re.MULTILINE)[1:]

    def play_scenes(answer, draw):
        for name, *inputs in probe.scenes(draw):
            shows = in_one_process if len(inputs) == 1 else on_ranks
            run = played(shows, probe.shown, bench.play, answer, inputs)
            yield Scene(name, run, getattr(probe, "NEAR", NEAR))

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
            "allows": getattr(probe, "ALLOWS", ()),
            "forbids": getattr(probe, "FORBIDS", ()),
            "probe": staticmethod(play_scenes),
        },
    )
    setattr(import_module(package), made.__name__, made)  # where pickle looks for it
    return made


def refuse_incomplete(folder: Path) -> None:
    lacking = [part for part in PARTS if not (folder / part).exists()]
    if not lacking:
        told = sections(read(folder / "exercise.md"))
        lacking = [f"## {part} in exercise.md" for part in ("Start", "Hints") if part not in told]
    if not lacking and not [*(folder / "right").glob("*.py")]:
        lacking = ["an answer in right"]
    if lacking:
        raise Impossible(f"The exercise in {folder.name} lacks {', '.join(lacking)}.")


def played(shows, shown, play, answer, inputs):
    """What a scene runs: play it, and show what came."""
    return lambda: shows(shown, play, answer, *inputs)


def in_one_process(shown, play, answer, inputs: dict):
    return shown(inputs, play(answer, **inputs))


def on_ranks(shown, play, answer, common: dict, own: list[dict]):
    """Ranks are threads that take turns."""

    def one(mine, group):
        return play(mine, group, **common, **own[group.rank])

    ranks = Ranks(len(own), random.Random(str(common)).random())
    came = ranks.run(one, answer)
    return shown(common, own, came, ranks)


# -- texts -----------------------------------------------------------------------------------------


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def name_of(file: Path) -> str:
    """1_views_of_each.py -> views of each."""
    return file.stem.lstrip("0123456789_").replace("_", " ")


def sections(text: str) -> dict[str, str]:
    """Heading of the second level -> what stands below it; "" -> what stands before all."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2]))


def mistakes(text: str, right: str) -> dict[str, Wrong]:
    """The mistakes of a wrong.md, each as a whole text."""
    found = {}
    for name, body in list(sections(text.partition(EQUIVALENT)[0]).items())[1:]:
        form = re.fullmatch(r"\s*(.+?)\s*```(diff|python)\n(.*?)```\s*", body, flags=re.DOTALL)
        if form is None:
            raise Impossible(f"The mistake {name!r} is no sentence with a diff or a text below it.")
        sentence, kind, change = form.groups()
        whole = changed(name, right, change) if kind == "diff" else change
        found[name] = Wrong(" ".join(sentence.split()), whole)
    if len(found) > MOST_WRONG:
        raise Impossible(f"{len(found)} mistakes: keep the {MOST_WRONG} that students make.")
    return found


def changed(name: str, text: str, diff: str) -> str:
    """A text after a small diff: blocks of lines with -, + and a blank before them, apart by @@."""
    for block in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
        lines = [line or " " for line in block.splitlines()]
        old = "".join(line[1:] + "\n" for line in lines if line[0] in "- ")
        new = "".join(line[1:] + "\n" for line in lines if line[0] in "+ ")
        if text.count(old) != 1:
            raise Impossible(
                f"The mistake {name!r}: its lines stand {text.count(old)} times in the right"
                " answer, and must stand there once."
            )
        text = text.replace(old, new)
    return text
