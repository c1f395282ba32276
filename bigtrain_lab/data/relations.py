"""Relation classification: which of 21 relations does a sentence state between two marked names?

    [CLS] it is untrue that [E1] Vera Holt [/E1] joined [E2] Arvex Works [/E2] , but ...
        ->  no relation

Sentences come from data/grammar.py and a seed, and are kept as word numbers, padded to one length.
The classes are unbalanced as real ones are: the k-th has a share proportional to k^-1.2 (no
relation 35%, the last 0.9%). The two names are marked as by Baldini Soares et al. 2019
(arXiv:1906.03158, section 3.2); classes name their direction, and "no relation" is one, as in
SemEval-2010 task 8 (Hendrickx et al. 2010). One name in five occurs in dev sentences only, and only
dev puts one in four of the phrases into each frame: what the model is asked is whether it has
learned how sentences mean, not which ones it met.

Ids, the padding mask, the markers' places and the labels are integers and booleans: no number
format of a training applies to them.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from random import Random
from typing import NamedTuple

from bigtrain_lab.core.later import later
from bigtrain_lab.models.config import require_counts
from bigtrain_lab.models.seed import generator, stable_seed

from .grammar import (
    ADVERBS,
    ASSERT,
    CLASSES,
    DENY,
    ENDINGS,
    JOINTS,
    NAMES,
    NEVER,
    NONE,
    RELATIONS,
    RELATIVE,
    Relation,
)

with later():
    import torch

PAD, CLS, E1, E1_END, E2, E2_END = SPECIAL = ("[PAD]", "[CLS]", "[E1]", "[/E1]", "[E2]", "[/E2]")
LONGEST = 40
FRAMES = ("alone", "first", "second", "relative", "list")
SHARES = tuple(k**-1.2 for k in range(1, len(CLASSES) + 1))
HELD_OUT = 5  # one name of so many


class Sentence(NamedTuple):
    words: tuple[str, ...]
    label: int
    frame: str

    def __str__(self):
        return " ".join(self.words[1:])


class Examples(NamedTuple):
    """B sentences of S words: ids and labels int64, `keep` true where a word is, `marks` the places
    of [E1] and [E2]."""

    ids_BS: "torch.Tensor"
    keep_BS: "torch.Tensor"
    marks_B2: "torch.Tensor"
    labels_B: "torch.Tensor"

    def at(self, rows) -> "Examples":
        return Examples(*(tensor[rows] for tensor in self))


@lru_cache(maxsize=1)
def vocabulary() -> tuple[str, ...]:
    """Every word that the grammar can say, the special ones first; a word's number is its place."""
    phrases = [p for r in RELATIONS for p in (*r.forward, *r.inverse)] + [
        *ASSERT,
        *DENY,
        *ADVERBS,
        *JOINTS,
        *ENDINGS,
        *RELATIVE.values(),
    ]
    words = (
        {w for p in phrases for w in p.split()}
        | {w for halves in NAMES.values() for half in halves for w in half}
        | {NEVER, "and", "."}
    )
    return SPECIAL + tuple(sorted(words - {"~", "{s}", "{o}"}))


@lru_cache(maxsize=1)
def numbers() -> dict[str, int]:
    return {word: number for number, word in enumerate(vocabulary())}


@lru_cache(maxsize=8)
def names(kind: str, dev: bool) -> tuple[str, ...]:
    """The names of a kind that a split may use."""
    return tuple(
        name
        for name in map(" ".join, product(*NAMES[kind]))
        if (stable_seed("name", name) % HELD_OUT == 0) == dev
    )


class _Writer:
    """Writes one sentence: draws names that do not repeat, and phrases that the split may use."""

    def __init__(self, draw: Random, dev: bool):
        self.draw, self.dev, self.used = draw, dev, set()

    def name(self, kind: str) -> str:
        while (name := self.draw.choice(names(kind, self.dev))) in self.used:
            pass
        self.used.add(name)
        return name

    def phrase(self, phrases: tuple[str, ...], frame: str) -> str:
        """A way to say it; every fourth combination of phrase and frame is kept for dev."""
        shift = FRAMES.index(frame)
        return self.draw.choice([p for i, p in enumerate(phrases) if self.dev or (i + shift) % 4])

    def adverb(self, phrase: str, never: bool) -> str:
        return phrase.replace("~", NEVER if never else self.draw.choice(ADVERBS))

    def clause(
        self, relation: Relation, frame: str, inverse: bool, never=False
    ) -> tuple[str, str, str]:
        """(the clause, its subject, its object)"""
        s, o = map(self.name, relation.kinds)
        chosen = (
            self.phrase(relation.inverse, frame)
            if inverse
            else "{s} " + self.phrase(relation.forward, frame) + " {o}"
        )
        return self.adverb(chosen, never).replace("{s}", f"<{s}>").replace("{o}", f"<{o}>"), s, o

    def other(self, frame: str) -> tuple[str, str, str]:
        """A clause about other names, true or denied."""
        draw = self.draw
        return self.clause(draw.choice(RELATIONS), frame, draw.random() < 0.4, draw.random() < 0.25)

    def write(self, label: int) -> Sentence:
        """A sentence of this class."""
        draw, number, apart, denied = self.draw, label, False, False
        if (
            CLASSES[label] == NONE
        ):  # a relation is denied, or it is stated of other pairs than the marked one
            apart = not (denied := draw.random() < 0.5)
            number = draw.choices(range(1, len(CLASSES)), SHARES[1:])[0]
        relation, inverse = RELATIONS[(number - 1) // 2], number % 2 == 0
        frame = draw.choice(
            [
                f
                for f in FRAMES
                if not (inverse and f in ("relative", "list")) and not (apart and f == "alone")
            ]
        )
        text, pair = self.framed(relation, inverse, frame, denied, apart)
        return Sentence(marked(f"{text} {draw.choice(ENDINGS)} .", pair), label, frame)

    def framed(self, relation, inverse, frame, denied, apart) -> tuple[str, tuple[str, str]]:
        """(the text, the two names that are marked)"""
        draw = self.draw
        if frame in ("relative", "list"):
            return self.of_one_subject(relation, frame, denied, apart)
        if (
            frame == "second"
        ):  # an opening speaks of the clause behind it, which is the other one here
            core, s, o = self.clause(relation, frame, inverse, denied)
            other, *more = self.other(frame)
            text = f"{draw.choice(ASSERT + DENY)} {other} {draw.choice(JOINTS)} {core}"
        else:
            deny, never = (
                draw.choice(((True, False), (False, True)))
                if denied
                else draw.choice([(False, False)] * 4 + [(True, True)])
            )
            core, s, o = self.clause(relation, frame, inverse, never)
            text, more = f"{draw.choice(DENY if deny else ASSERT)} {core}", ()
            if frame == "first":
                other, *more = self.other(frame)
                text = f"{text} {draw.choice(JOINTS)} {other}"
        return text, (draw.choice((s, o)), draw.choice(more)) if apart else (s, o)

    def of_one_subject(self, relation, frame, denied, apart) -> tuple[str, tuple[str, str]]:
        """Several things said of one subject: in a list, or one of them in a relative clause."""
        draw, kind = self.draw, relation.kinds[0]
        another = draw.choice(
            [r for r in RELATIONS if r.kinds[0] == kind and r is not relation] or [relation]
        )
        subject, *objects = (
            self.name(kind),
            self.name(relation.kinds[1]),
            self.name(another.kinds[1]),
        )
        said = [
            f"{self.adverb(self.phrase(r.forward, frame), never)} <{name}>"
            for r, never, name in zip((relation, another), (denied, draw.random() < 0.25), objects)
        ]
        first, second = said if draw.random() < 0.5 else said[::-1]
        joined = (
            f", {RELATIVE[kind]} {first} , {second}"
            if frame == "relative"
            else f"{first} and {second}"
        )
        return f"{draw.choice(ASSERT)} <{subject}> {joined}", (
            tuple(objects)
            if apart
            else (
                subject,
                objects[0],
            )
        )


def marked(text: str, pair: tuple[str, str]) -> tuple[str, ...]:
    """The words; around the pair's names, the one that comes first gets [E1]. Other names lose
    their brackets."""
    first, second = sorted(pair, key=lambda name: text.index(f"<{name}>"))
    text = text.replace(f"<{first}>", f"{E1} {first} {E1_END}").replace(
        f"<{second}>", f"{E2} {second} {E2_END}"
    )
    return CLS, *text.replace("<", "").replace(">", "").split()


def sentence(seed: int, number: int, dev: bool = False) -> Sentence:
    """The number-th sentence of a split: a function of its arguments only."""
    draw = Random(stable_seed("sentence", seed, dev, number))
    return _Writer(draw, dev).write(draw.choices(range(len(CLASSES)), SHARES)[0])


def encoded(sentences) -> Examples:
    """Word numbers, padded at the end to LONGEST."""
    sentences = list(sentences)
    ids = torch.zeros(len(sentences), LONGEST, dtype=torch.int64)  # [PAD] is word 0
    for row, one in zip(ids, sentences):
        row[: len(one.words)] = torch.tensor([numbers()[word] for word in one.words])
    return Examples(
        ids,
        ids != 0,
        torch.tensor([[one.words.index(E1), one.words.index(E2)] for one in sentences]),
        torch.tensor([one.label for one in sentences]),
    )


@dataclass(frozen=True)
class Relations:
    """A training set and a dev set of so many sentences, made when they are first asked for."""

    seed: int = 0
    train_size: int = 8192
    dev_size: int = 2048

    def __post_init__(self):
        require_counts(train_size=self.train_size, dev_size=self.dev_size)

    @cached_property
    def train(self) -> Examples:
        return encoded(sentence(self.seed, n) for n in range(self.train_size))

    @cached_property
    def dev(self) -> Examples:
        return encoded(sentence(self.seed, n, dev=True) for n in range(self.dev_size))

    def batch(self, step: int, batch: int, micro_batch: int = 0) -> Examples:
        """Training sentences drawn with a generator seeded by (seed, step, micro-batch): the same
        whoever asks, whenever."""
        require_counts(batch=batch)
        draw = generator("relations", self.seed, step, micro_batch)
        return self.train.at(torch.randint(self.train_size, (batch,), generator=draw))
