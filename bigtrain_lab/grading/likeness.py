"""Grade by likeness: an answer is judged by how it behaves in scenes, beside answers that are
known.

A topic has right answers written in different ways, wrong ones each with its sentence, and a probe:
scenes that show what an answer does. The scenes' sizes and numbers are drawn anew at each check.

    right                 in every scene it does what some right answer does
    a known mistake       in the first scene in which it is wrong, it does what a wrong answer does;
                          of several, the one that it is like in most scenes
    an unknown mistake    the first scene in which it is wrong, with both values

The answer is a text, played in processes of its own (box.py); the known ones in another (known.py).
Cost: one run of the probe for the answer and for each right one; for the wrong ones, of its first
scenes.
"""

import math
import os
import random
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import ClassVar, NamedTuple

from ..core import Family, Impossible, refuse
from ..core.later import later
from ..core.said import said as spoken
from . import known
from .box import ENDED, Box, Row, box
from .text import Piece, sliced, text_of

with later():
    import IPython

    from ..runtime.process import server

NEAR = 1e-9  # of the largest number of a value
MOST_NUMBERS = 8  # of a list that is told
BEYOND = 8  # scenes after the first difference, by which wrong answers that make it are told apart
SEEDS = (1, 2, 3)  # that marks are given on
START = "(start)"  # in place of a right answer's name
WRITE = "give the function or class that you wrote."
DRAWN = secrets.randbelow(10**6)  # the seed of this process's checks


class Wrong(NamedTuple):
    """A known mistake: its sentence, the mistake first and the mend second, and the answer's
    text."""

    sentence: str
    text: str


class Step(NamedTuple):
    """A part of an exercise with marks of its own; `scenes`: how the names of its scenes begin."""

    title: str
    points: int
    scenes: tuple[str, ...]


class Marked(NamedTuple):
    """What an answer's text is worth.

    findings    title of each step that is wrong on a seed -> sentences
    shares      title of each step -> of its scenes that are wrong at the start, the share that is
                right, the least of all seeds
    steady      whether all seeds agree on whether it is right
    printed     what the answer printed in its first scene that printed
    """

    findings: dict[str, list[str]]
    shares: dict[str, float]
    steady: bool
    printed: str


class Judged(NamedTuple):
    """What a text and the right answers showed on a seed, in the scenes called `names`, of those
    that were played; None stands for all."""

    topic: type["Topic"]
    seed: int
    played: frozenset[str] | None
    names: frozenset[str] | None
    rows: list[Row]
    rights: list[list[Row]]

    def within(self, names: frozenset[str]) -> "Judged":
        """The same of fewer scenes; where none of them was played, of the row that ended it."""
        rights = [of_scenes(rows, names) for rows in self.rights]
        rows = of_scenes(self.rows, names) or self.rows[-1:]
        return self._replace(names=names, rows=rows, rights=rights)

    @property
    def different(self) -> int | None:
        """The first scene that no right answer plays so; None where there is none."""
        return first_difference(self.rows, self.rights)

    @property
    def findings(self) -> list[str]:
        """What is wrong, in sentences."""
        return self.told(partial(self.topic.wrong_rows, self.seed, self.played, self.names))

    def told(self, wrong_rows: Callable[..., Mapping[str, list[Row]]]) -> list[str]:
        """The sentence of the known mistake that the answer is like, then what was seen; [] where
        all is right. `wrong_rows(at)`: what known mistakes show until they differ in scene `at`;
        `wrong_rows(at, names)`: what these show, BEYOND scenes further."""
        at = self.different
        if at is None:
            return []
        last = self.rows[min(at, len(self.rows) - 1)]
        if at == len(self.rows) or last.raised in (ENDED, "SystemExit"):
            return [last.told, seen(last.scene, self.seed)]
        alike = tuple(
            name
            for name, rows in wrong_rows(at).items()
            if at < len(rows) and same(last, rows[at]) and first_difference(rows, self.rights) == at
        )
        if len(alike) > 1:
            shown = wrong_rows(at, alike)
            alike = (max(alike, key=lambda name: sum(map(same, self.rows, shown.get(name, [])))),)
        sentence = [self.topic.wrong[name].sentence for name in alike]
        if last.raised:
            return [*dict.fromkeys((*sentence, last.told)), seen(last.scene, self.seed)]
        right = nearest(last, [rows[at] for rows in self.rights if at < len(rows)])
        return [*sentence, f"{difference(last, right)} {seen(last.scene, self.seed)}"]

    @property
    def replay(self) -> tuple | None:
        """Of the first scene that is wrong: (Trace, tick of what is wrong first), where it can be
        drawn."""
        at = self.different
        drawn = self.rows[at].replay if at is not None and at < len(self.rows) else None
        return drawn and drawn()

    @property
    def ladder(self) -> list[str]:
        """How much of each step is right."""
        right, told = right_scenes(self.rows, self.rights), []
        for number, step in enumerate(self.topic.steps, 1):
            names = self.topic.scenes_of(number, self.seed)
            done = (
                "right" if names <= right else f"{len(names & right)} of {len(names)} scenes right"
            )
            told.append(f"Step {number}: {done}. {step.title}.")
        return told

    @property
    def share(self) -> float:
        """Of the scenes that are not right at the start, the share that is now."""
        begun = self.topic.reference_rows(self.seed, self.played).get(START, [])
        names = {row.scene for row in self.rights[0]}
        before = right_scenes(begun, self.rights) & names
        gained = len(right_scenes(self.rows, self.rights)) - len(before)
        return max(0.0, gained / (len(names) - len(before))) if before < names else 1.0


class Topic(Family, family="bigtrain_lab.grading.topics"):
    """An exercise: folder.py makes one of each folder in topics/.

    asked, start   what is to be written, and what stands there first
    steps          its parts, which have marks of their own
    right          {what is special: text that defines `answer`}
    wrong          {name: Wrong(sentence, text)}
    hints          three, from a question to nearly the answer
    allows         the modules of this library that an answer may import
    forbids        functions and classes that are the answer already, by their full names
    near           numbers within this share of a value's largest one are the same
    writes         whether an answer may write files, in a folder of its own
    scenes         draw -> (name, inputs) or (name, common, own of each rank); `draw`, a
                   random.Random, gives sizes and seeds. In the order in which a mistake is told.
                   After `own` may come what is common in later runs, in the same folder
    shown          (inputs, came) or (common, own, came, ranks) -> what is compared
    replay         the same -> (Trace, tick of the first event that is wrong), or None
    bench          the module whose `play` plays an answer
    """

    asked: ClassVar[str]
    start: ClassVar[str]
    steps: ClassVar[tuple[Step, ...]]
    right: ClassVar[Mapping[str, str]]
    wrong: ClassVar[Mapping[str, Wrong]]
    hints: ClassVar[tuple[str, str, str]]
    allows: ClassVar[tuple[str, ...]] = ()
    forbids: ClassVar[tuple[str, ...]] = ()
    near: ClassVar[float] = NEAR
    writes: ClassVar[bool] = False
    replay: ClassVar[Callable | None] = None
    folder: ClassVar[Path]
    bench: ClassVar[str]

    @classmethod
    @lru_cache(maxsize=8)
    def drawn_scenes(cls, seed: int) -> list[tuple]:
        """The scenes of a seed, drawn once for all texts: each plays a copy."""
        return [*cls.scenes(random.Random(seed))]

    @classmethod
    def probe(cls, answer, seed: int) -> Iterator[tuple[str, Callable[[], object]]]:
        """(name, run) of each scene, for a known answer in this process, which `answer()` defines
        anew. run() returns what it showed, a value or {what: value}, of plain data."""
        play = import_module(cls.bench).play
        for name, *inputs in cls.drawn_scenes(seed):
            shows = known.in_one_process if len(inputs) == 1 else known.on_ranks
            yield name, partial(shows, cls, play, answer, *deepcopy(inputs))

    @classmethod
    def findings(cls, answer, seed: int | None = None) -> list[str]:
        """What is wrong with an answer, in sentences; empty when it is right.

        `seed` draws the sizes and numbers; without one they are those of all checks of this
        process, so that an answer is looked at again in the scenes in which it was wrong.
        """
        return cls.looked_at(answer, seed)[0]

    @classmethod
    def looked_at(
        cls, answer, seed: int | None = None, step: int | None = None
    ) -> tuple[list[str], list[str], float, tuple | None, list[str]]:
        """(findings, what the answer printed, share of right scenes, replay, how far each step is),
        of all or of a step."""
        seed = DRAWN if seed is None else seed
        if not callable(answer):
            given = "nothing" if answer is None else f"a {type(answer).__name__}"
            return [f"There is no answer yet, but {given}: {WRITE}"], [], 0.0, None, []
        try:
            pieces = text_of(answer)
        except Impossible as error:  # it cannot travel
            return [str(error)], [], 0.0, None, []
        return cls.text_looked_at(pieces, seed, step)

    @classmethod
    def text_looked_at(cls, pieces, seed: int, step: int | None = None, played: Box | None = None):
        """The same of an answer's text."""
        names = None if step is None else cls.scenes_of(step, seed)
        judged = cls.judged(pieces, seed, names, patience=1 + (step is not None), played=played)
        printed = [row.printed for row in judged.rows if row.printed][:1]
        ladder = judged.ladder if names is None and judged.findings else []
        return judged.findings, printed, judged.share, judged.replay, ladder

    @classmethod
    def judged(
        cls,
        pieces: list[Piece],
        seed: int,
        names: frozenset[str] | None = None,
        patience: int = 1,
        played: Box | None = None,
    ) -> Judged:
        """Play a text in all scenes, or in those of these names, beside the right answers.

        It goes on after a scene that raises, since a step that comes later may be right, and stops
        once `patience` scenes have ended the answer's process.
        """
        rows, ended = [], 0
        # the right answers meanwhile, where there are threads; else when they are asked for
        with nullcontext(known.IN_TURN) if known.BROWSER else ThreadPoolExecutor(1) as beside:
            rights = beside.submit(cls.rights, seed, names)
            for row in (played or box()).rows(cls, pieces, seed, names):
                rows.append(row)
                ended += row.raised == ENDED
                if ended == patience:
                    break
            return Judged(cls, seed, names, names, rows, rights.result())

    @classmethod
    @lru_cache(maxsize=64)
    def reference_rows(cls, seed: int, names: frozenset[str] | None = None) -> dict[str, list[Row]]:
        """What the right answers show, and what stands there first."""
        texts = {
            **cls.right,
            START: "\n".join(p.text for p in sliced(["import torch", cls.start], cls.called())),
        }
        return known.rows(cls, seed, texts, names=names, goes_on=True)

    @classmethod
    def rights(cls, seed: int, names: frozenset[str] | None = None) -> list[list[Row]]:
        """What the right answers show; RuntimeError where one raised, since then this exercise is
        broken."""
        shown = cls.reference_rows(seed, names)
        return [cls.sound(name, shown.get(name, [])) for name in cls.right]

    @classmethod
    @lru_cache(maxsize=64)
    def wrong_rows(
        cls, seed: int, played, names, at: int, mistakes: tuple[str, ...] = ()
    ) -> dict[str, list[Row]]:
        """What the wrong answers show in scenes of these names, until it is known whether scene
        `at` is their first difference; what these `mistakes` show, until BEYOND scenes after it."""
        rights = [of_scenes(rows, names) for rows in cls.rights(seed, played)]
        texts = {name: cls.wrong[name].text for name in mistakes or cls.wrong}
        until = partial(enough, rights, at, BEYOND if mistakes else 0)
        return known.rows(cls, seed, texts, until, names)

    @classmethod
    def called(cls) -> str:
        """The name of what is to be written."""
        return re.findall(r"^(?:def|class) (\w+)", cls.start, re.MULTILINE)[-1]

    @classmethod
    def marked(cls, pieces: list[Piece], seeds=SEEDS, box: Box | None = None) -> Marked:
        """What a text is worth, step by step: it plays all scenes on each seed."""
        every = []
        for seed in seeds:
            every.append(cls.judged(pieces, seed, patience=2, played=box))
            if any(row.raised == ENDED for row in every[-1].rows):
                break  # an endless answer has had its time
        shares, findings = {}, {}
        for number, step in enumerate(cls.steps, 1):
            own = [each.within(cls.scenes_of(number, each.seed)) for each in every]
            shares[step.title] = min(each.share for each in own)
            told = next((each.findings for each in own if each.different is not None), [])
            findings |= {step.title: told} if told else {}
        printed = next((row.printed for each in every for row in each.rows if row.printed), "")
        steady = len({each.different is None for each in every}) == 1
        return Marked(findings, shares, steady, printed)

    @classmethod
    def scenes_of(cls, step: int, seed: int) -> frozenset[str]:
        """Names of the scenes of a step, counted from 1: the longest beginning wins."""
        beginnings = {begin: n for n, each in enumerate(cls.steps, 1) for begin in each.scenes}
        return frozenset(
            name
            for name, *_ in cls.drawn_scenes(seed)
            if beginnings[max(filter(name.startswith, beginnings), key=len)] == step
        )

    @classmethod
    def sound(cls, name: str, rows: list[Row]) -> list[Row]:
        """What a right answer showed; RuntimeError where it raised, since then this exercise is
        broken."""
        if not rows or rows[-1].raised:
            why = f"with {rows[-1].scene}: {rows[-1].told}" if rows else "at its definition."
            raise RuntimeError(f"{cls.name}: the right answer {name!r} failed {why}")
        return rows

    @classmethod
    def wrong_texts(cls) -> dict[str, str]:
        """The text of every wrong answer."""
        return {name: wrong.text for name, wrong in cls.wrong.items()}


class Verdict(tuple):
    """The findings on an answer, one a line when printed, and how much of each step is right; true
    when there are none."""

    ladder: Sequence[str]

    def __new__(cls, findings: Sequence[str] = (), ladder: Sequence[str] = ()):
        """AssertionError with the findings, if any, where BIGTRAIN_SOLVED is set, as by
        pytest in a folder of copies (lesson.py)."""
        verdict = super().__new__(cls, findings)
        verdict.ladder = ladder
        if findings and os.environ.get("BIGTRAIN_SOLVED"):
            raise AssertionError(repr(verdict))
        return verdict

    def __bool__(self) -> bool:
        return not len(self)

    def __repr__(self) -> str:
        return spoken("\n".join((*self, *self.ladder)) or "right.")


def check(topic: str, answer, seed: int | None = None) -> Verdict:
    """What is wrong with an answer to the exercise called `topic`: print it, or ask whether it is
    true. What the answer printed is shown first."""
    findings, printed, _, replay, ladder = Topic.named(topic).looked_at(answer, seed)
    print(*(f"Your answer printed: {each}" for each in printed), sep="", end="")
    draw(replay)
    return Verdict(findings, ladder)


def marks(topic: str, answer, step: int = 1, seed: int | None = None) -> float:
    """The points that an answer has in a step of an exercise, by the share of its scenes that it
    has made right; the findings are printed."""
    exercise = Topic.named(topic)
    findings, printed, share, replay, _ = exercise.looked_at(answer, seed, step)
    of = exercise.steps[step - 1].points
    print(*(f"Your answer printed: {each}" for each in printed), Verdict(findings), sep="")
    if share < 1:
        print(f"{of * share:.2g} of {of} points.")
    draw(replay)
    return round(of * share, 2)


def draw(replay: tuple | None) -> None:
    """Show, in a notebook, what an answer did up to the first event that is wrong."""
    if replay and IPython.get_ipython():
        from ..view.player import Player  # widgets take a second to load

        print("What your answer did, up to the first action that differs from a right answer's:")
        IPython.display.display(Player(replay[0], opens_at=replay[1]))


@contextmanager
def playing():
    """Say in a sentence what a playground raises, so that a notebook runs on."""
    try:
        yield
    except Exception as error:
        print(f"Not yet ({type(error).__name__}): {error}\nThe checks below say what is missing.")


def warm() -> None:
    """Start the processes that answers are forked from; both load torch meanwhile."""
    box()
    server.warm()


def hint(topic: str, number: int) -> None:
    """Print hint 1, 2 or 3 of an exercise: a question first, nearly the answer last."""
    refuse((number not in (1, 2, 3), f"There is no hint {number}: ask for 1, 2 or 3."))
    print(spoken(Topic.named(topic).hints[number - 1]))


# -- likeness -----------------------------------------------------------------------------------


def of_scenes(rows: list[Row], names: frozenset[str] | None) -> list[Row]:
    return [row for row in rows if names is None or row.scene in names]


def right_scenes(rows: list[Row], rights: list[list[Row]]) -> set[str]:
    """Names of the scenes in which a text did what some right answer does."""
    every = [{row.scene: row for row in right} for right in rights]
    return {
        row.scene
        for row in rows
        if any(same(row, right[row.scene]) for right in every if row.scene in right)
    }


def first_difference(found: list[Row], rights: list[list[Row]]) -> int | None:
    """The first scene in which it does what no right answer does, or that it lacks; None where
    there is none."""
    at = first_unlike(found, rights)
    return at if at is not None or any(len(found) == len(right) for right in rights) else len(found)


def first_unlike(found: list[Row], rights: list[list[Row]]) -> int | None:
    """The first scene in which it does what no right answer does; None where there is none yet."""
    return next(
        (
            at
            for at, row in enumerate(found)
            if not any(at < len(right) and same(row, right[at]) for right in rights)
        ),
        None,
    )


def enough(rights: list[list[Row]], at: int | None, beyond: int, rows: list[Row]) -> bool:
    """Whether a wrong answer's rows are enough: so many scenes `beyond` its first difference, or
    that is known to be another one than `at`, where one is given."""
    first = first_unlike(rows, rights)
    if first is None:
        return at is not None and len(rows) > at
    return at not in (None, first) or len(rows) > first + beyond


def same(a: Row, b: Row) -> bool:
    """Whether two answers did the same in a scene."""
    if a.scene != b.scene or a.raised or b.raised:
        return (a.scene, a.raised, kind_of(a.told)) == (b.scene, b.raised, kind_of(b.told))
    return alike(a.value, b.value, a.near)


def kind_of(told: str) -> str:
    """An error's sentence without the answer's line, nor the names and numbers that it used for
    what was missing."""
    missing = r"(?<=IndexError).*|(?<=RuntimeError: index ).*|(?<=object has no attribute).*"
    return re.sub(rf", at your line.*|{missing}", "", told)


def alike(a, b, near: float) -> bool:
    """Whether two values are the same, numbers within `near` of the largest of b."""
    if a == b:  # most are
        return True
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key], near) for key in a)
    if (a_numbers := numbers(a)) is None or (b_numbers := numbers(b)) is None:
        return (
            isinstance(a, list)
            and isinstance(b, list)
            and len(a) == len(b)
            and all(alike(x, y, near) for x, y in zip(a, b))
        )
    if form(a) != form(b):
        return False
    room = near * max((abs(y) for y in b_numbers if math.isfinite(y)), default=0.0)
    return all(
        x == y or x != x and y != y or abs(x - y) <= room for x, y in zip(a_numbers, b_numbers)
    )


def numbers(value) -> list | None:
    """All numbers of a number or of nested lists of numbers; None where there is anything else."""
    if isinstance(value, list):
        inside = [numbers(each) for each in value]
        return None if None in inside else [number for some in inside for number in some]
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def form(value):
    """The lengths of nested lists."""
    return [form(each) for each in value] if isinstance(value, list) else 0


# -- in words ------------------------------------------------------------------------------------


def nearest(found: Row, rights: list[Row]) -> Row:
    """Of what right answers did, that which agrees in most."""

    def agrees(right: Row) -> int:
        if not isinstance(found.value, dict) or not isinstance(right.value, dict):
            return 0
        return sum(
            key in right.value and alike(value, right.value[key], found.near)
            for key, value in found.value.items()
        )

    return max(rights, key=agrees)


def difference(found: Row, right: Row) -> str:
    """What is another than in a right answer, with both values. A value's name may end with words
    for its places: "tokens [update] [forward]"."""
    if right.raised:
        return f"Yours gave {said(found.value)}, where a right answer raises {right.raised}."
    ours, theirs = (
        {"": row.value} if not isinstance(row.value, dict) else row.value for row in (found, right)
    )
    name = next(
        key
        for key in (*theirs, *ours)
        if not (key in ours and key in theirs) or not alike(ours[key], theirs[key], found.near)
    )
    where, yours, rights = innermost(ours.get(name), theirs.get(name), found.near)
    name, *words = name.replace("]", "").split(" [")
    for word in words:
        where = re.sub(r"\[(\d+)\]", rf"{word} \1 ", where, count=1)
    what = ", at ".join(filter(None, (name[:1].upper() + name[1:], where.strip())))
    digits = 7 if said(yours) != said(rights) else 17
    told = f"yours {said(yours, digits)}, right {said(rights, digits)}."
    return f"{what}: {told}" if what else told[0].upper() + told[1:]


def innermost(a, b, near: float) -> tuple[str, object, object]:
    """The first of two values' numbers that differs, or list of another length, and its index."""
    if not (isinstance(a, list) and isinstance(b, list) and len(a) == len(b)):
        return "", a, b
    at = next(i for i, (x, y) in enumerate(zip(a, b)) if not alike(x, y, near))
    where, a, b = innermost(a[at], b[at], near)
    return f"[{at}]{where}", a, b


def said(value, digits: int = 7) -> str:
    """A value, short."""
    if isinstance(value, list):
        if any(isinstance(each, list) for each in value):
            return f"{len(value)} list{'s' * (len(value) > 1)}" + " of numbers" * bool(
                numbers(value)
            )
        shown = ", ".join(said(each, digits) for each in value[:MOST_NUMBERS])
        return f"[{shown}{', ...' if len(value) > MOST_NUMBERS else ''}]"
    if isinstance(value, dict):
        return "; ".join(f"{key} {said(each)}" for key, each in value.items())
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "nothing"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def seen(scene: str, seed: int) -> str:
    return f"Seen with {scene} (seed {seed})."
