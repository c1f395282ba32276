"""Grade by likeness: an answer is judged by how it behaves in scenes, beside answers that are
known.

A topic has right answers written in different ways, wrong ones each with its sentence, and a probe:
scenes that show what an answer does. The scenes' sizes and numbers are drawn anew at each check.

    right                 in every scene it does what some right answer does
    a known mistake       in the first scene in which it is wrong, it does what a wrong answer does;
                          of several, the one that it is like in most scenes
    an unknown mistake    the first scene in which it is wrong, with both values

The answer runs in a process of its own (box.py) behind a fence (fence.py), the known ones in
another. Cost: one run of the probe for the answer and for each right one; for the wrong ones, of
its first scenes.
"""

import math
import random
import re
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, NamedTuple

from ..core import Family, Impossible
from .box import ENDED, REFUSED, Box, Row

NEAR = 1e-9  # of the largest number of a value
MOST_NUMBERS = 8  # of a list that is told
BEYOND = 8  # scenes after the first difference, by which wrong answers that make it are told apart
NOT_OF_A_MISTAKE = (ENDED, REFUSED, "SystemExit")


class Scene(NamedTuple):
    """One thing to try: `run()` returns what it showed, a value or {what: value}, of plain data,
    arrays or tensors. Numbers within `near` of the largest one are the same."""

    name: str
    run: Callable[[], object]
    near: float = NEAR


class Wrong(NamedTuple):
    """A known mistake: its sentence, the mistake first and the mend second, and the answer's
    text."""

    sentence: str
    text: str


class Topic(Family, family="bigtrain_lab.grading.topics"):
    """An exercise: folder.py makes one of each folder in topics/.

    right      {what is special: text that defines `answer`}
    wrong      {name: Wrong(sentence, text)}
    hints      three, from a question to nearly the answer
    allows     the modules of this library that an answer may import
    forbids    functions and classes of torch that are the answer already, by their full names
    probe      (answer, draw) -> scenes; `draw`, a random.Random, gives sizes and seeds
    """

    right: ClassVar[Mapping[str, str]]
    wrong: ClassVar[Mapping[str, Wrong]]
    hints: ClassVar[tuple[str, str, str]]
    allows: ClassVar[tuple[str, ...]] = ()
    forbids: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    @abstractmethod
    def probe(answer, draw: random.Random) -> Iterator[Scene]:
        """The scenes, in the order in which a mistake should be told. Everything is drawn outside
        of `Scene.run`, so that each answer meets the same."""

    @classmethod
    def findings(cls, answer, seed: int | None = None) -> list[str]:
        """What is wrong with an answer, in sentences; empty when it is right.

        `seed` draws the sizes and numbers; without one they are new at each check.
        Impossible where the answer cannot travel to a process of its own.
        """
        if not callable(answer):
            return [
                "There is no answer yet, but"
                f" {'nothing' if answer is None else f'a {type(answer).__name__}'}: give the"
                " function or class that you wrote."
            ]
        seed = secrets.randbelow(10**6) if seed is None else seed
        with Box(cls, seed, answer=answer) as own, Box(cls, seed, texts=cls.right) as known:
            found = own.rows("answer")
            rights = [cls.sound(name, known.rows(name)) for name in cls.right]
        at = first_difference(found, rights)
        if at is None:
            return []
        if at == len(found):
            return [
                f"Your answer ended the check after {at} of its scenes: let it compute, and return."
            ]
        if found[at].raised in NOT_OF_A_MISTAKE:
            return [found[at].told, seen(found[at].scene, seed)]
        texts = cls.wrong_texts()
        with Box(cls, seed, texts=texts, until=Enough(rights, at)) as known:
            wrongs = {name: known.rows(name) for name in texts}
        return cls.diagnosis(found, rights, wrongs, seed)

    @classmethod
    def diagnosis(
        cls, found: list[Row], rights: list[list[Row]], wrongs: Mapping[str, list[Row]], seed: int
    ) -> list[str]:
        """The sentence of the known mistake that an answer is like, then what was seen."""
        at = first_difference(found, rights)
        if at is None:
            return []
        alike = {
            name: sum(map(same, found, rows))
            for name, rows in wrongs.items()
            if at < len(rows) and same(found[at], rows[at]) and first_difference(rows, rights) == at
        }
        sentence = [cls.wrong[max(alike, key=alike.get)].sentence] if alike else []
        if found[at].raised:
            return [*dict.fromkeys((*sentence, found[at].told)), seen(found[at].scene, seed)]
        right = nearest(found[at], [rows[at] for rows in rights if at < len(rows)])
        return [*sentence, f"{difference(found[at], right)} {seen(found[at].scene, seed)}"]

    @classmethod
    def sound(cls, name: str, rows: list[Row]) -> list[Row]:
        """What a right answer showed; RuntimeError where it raised, since then this exercise is
        broken."""
        if rows[-1].raised:
            raise RuntimeError(
                f"{cls.name}: the right answer {name!r} failed with {rows[-1].scene}:"
                f" {rows[-1].told}"
            )
        return rows

    @classmethod
    def wrong_texts(cls) -> dict[str, str]:
        """The text of every wrong answer."""
        return {name: wrong.text for name, wrong in cls.wrong.items()}


class Verdict(tuple):
    """The findings on an answer, one a line when printed; true when there are none."""

    def __bool__(self) -> bool:
        return not len(self)

    def __repr__(self) -> str:
        return "\n".join(self) or "right."


def check(topic: str, answer, seed: int | None = None) -> Verdict:
    """What is wrong with an answer to the exercise called `topic`: print it, or ask whether it is
    true."""
    return Verdict(Topic.named(topic).findings(answer, seed))


def hint(topic: str, number: int) -> None:
    """Print hint 1, 2 or 3 of an exercise: a question first, nearly the answer last."""
    if number not in (1, 2, 3):
        raise Impossible(f"There is no hint {number}: ask for 1, 2 or 3.")
    print(Topic.named(topic).hints[number - 1])


def assert_right(topic: str, answer, seed: int | None = None) -> None:
    """AssertionError with the findings unless the answer is right: for nbval, and for a grader."""
    if found := Topic.named(topic).findings(answer, seed):
        raise AssertionError("\n".join(found))


# -- likeness -----------------------------------------------------------------------------------


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


class Enough(NamedTuple):
    """Whether a wrong answer's rows are enough: BEYOND scenes from its first difference on, or that
    is known to be another one than `at`, where one is given."""

    rights: list[list[Row]]
    at: int | None = None

    def __call__(self, rows: list[Row]) -> bool:
        first = first_unlike(rows, self.rights)
        if first is None:
            return self.at is not None and len(rows) > self.at
        return self.at not in (None, first) or len(rows) > first + BEYOND


def same(a: Row, b: Row) -> bool:
    """Whether two answers did the same in a scene."""
    if a.scene != b.scene or a.raised or b.raised:
        return (a.scene, a.raised, kind_of(a.told)) == (b.scene, b.raised, kind_of(b.told))
    return alike(a.value, b.value, a.near)


def kind_of(told: str) -> str:
    """An error's sentence without the answer's line, nor the names that it used for what was
    missing."""
    return re.sub(r", at your line.*|(?<=IndexError).*|(?<=object has no attribute).*", "", told)


def alike(a, b, near: float) -> bool:
    """Whether two values are the same, numbers within `near` of the largest of b."""
    if a == b:  # most are
        return True
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key], near) for key in a)
    if (a_numbers := numbers(a)) is None or (b_numbers := numbers(b)) is None:
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(alike(x, y, near) for x, y in zip(a, b))
        return a == b
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
    """What is another than in a right answer, with both values."""
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
    what = ", at ".join(filter(None, (name[:1].upper() + name[1:], where)))
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
