"""Sentences in two languages, side by side: made from a seed, read from a user's files, or from a
Hugging Face data set.

Held-out pairs are chosen by their source text: all pairs of a held-out source are held out, so no
training pair has its source. Reading takes one pass and keeps all texts and their tokens, about 20
bytes a token. Nothing is fetched unless it is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from io import BytesIO, TextIOWrapper

from bigtrain_lab.core import Impossible, refuse
from bigtrain_lab.models.config import require_counts
from bigtrain_lab.models.seed import stable_seed

from . import numerals
from .tokens import Subwords, Words

MOST_WORDS, MOST_LETTERS = 1000, 10_000  # of a line: one with more is no sentence
Pair = tuple[str, str]


@dataclass(frozen=True)
class Parallel:
    """Training and held-out pairs (source, target), and the tokens of both languages. `chinese`:
    the target is."""

    train: Sequence[Pair] = field(repr=False)
    held_out: Sequence[Pair] = field(repr=False)
    vocabulary: Words | Subwords = field(repr=False)
    chinese: bool = False
    name: str = "pairs"

    def encoded(
        self, held_out: bool = False, longest: int | None = None
    ) -> list[tuple[list[int], list[int]]]:
        """The ids of both sides of each pair; only of those of at most `longest` tokens, an end
        included."""
        found = self._ids[held_out]
        if longest is None:
            return found
        short = [pair for pair in found if max(map(len, pair)) < longest]
        refuse(
            (
                not short,
                f"No pair of {self.name} has at most {longest} tokens: take a longer `longest`.",
            )
        )
        return short

    @cached_property
    def _ids(self):
        """Of the training pairs, and of those that are held out."""
        return [
            [tuple(map(self.vocabulary.encode, pair)) for pair in pairs]
            for pairs in (self.train, self.held_out)
        ]


@lru_cache(maxsize=4)
def generated(
    seed: int = 0, pairs: int = 20_000, held_out: int = 500, digits: int = 8, into: str = "chinese"
) -> Parallel:
    """Numbers and dates from English into Chinese, or into "english"."""
    require_counts(pairs=pairs, held_out=held_out, digits=digits)
    refuse((into not in ("chinese", "english"), f"into is {into!r}: choose chinese or english."))

    def split(size: int, dev: bool) -> list[Pair]:
        found = (numerals.pair(seed, number, dev, digits, turned) for number in range(size))
        return [pair[::-1] for pair in found] if turned else list(found)

    turned = into == "english"
    return Parallel(
        split(pairs, False),
        split(held_out, True),
        Words(numerals.EVERY_WORD),
        not turned,
        "the generated pairs",
    )


def read_pairs(
    source, target=None, held_out: int = 1000, vocabulary: str = "subwords", size: int = 8000
) -> Parallel:
    """A file of lines `source TAB target`, or two files of as many lines. `size`: of the trained
    vocabulary."""
    name, lines = str(source), read_lines(source)
    if target is not None:
        others = read_lines(target)
        refuse(
            (
                len(lines) != len(others),
                f"{name} has {len(lines):,} lines and {target} has {len(others):,}: "
                "line n of one must translate line n of the other.",
            )
        )
        pairs, name = list(zip(lines, others)), f"{name} and {target}"
    else:
        pairs = [tuple(line.split("\t")) if line.strip() else ("", "") for line in lines]
        for number, parts in enumerate(pairs, 1):
            if len(parts) != 2:
                raise Impossible(
                    f"Line {number} of {name} has {len(parts) - 1} tabs: write "
                    "`source TAB target`, one pair a line."
                )
    return of_pairs(pairs, name, held_out, vocabulary, size)


def of_pairs(
    pairs: Sequence[Pair],
    name: str = "pairs",
    held_out: int = 1000,
    vocabulary: str = "subwords",
    size: int = 8000,
) -> Parallel:
    """Split by source text, a tenth at most held out, with a vocabulary of the training pairs."""
    require_counts(held_out=held_out, size=size)
    pairs = [tuple(side.strip() for side in pair) for pair in pairs]
    for number, pair in enumerate(pairs, 1):
        for side, text in zip(("source", "target"), pair):
            if not text and any(pair):
                raise Impossible(
                    f"Line {number} of {name} has no {side}: give both sides of each "
                    "pair, or leave the line out."
                )
            if (words := len(text.split())) > MOST_WORDS or len(text) > MOST_LETTERS:
                raise Impossible(
                    f"Line {number} of {name} has {words:,} words and {len(text):,} "
                    f"letters: write one sentence a line, of at most {MOST_WORDS:,} "
                    f"words and {MOST_LETTERS:,} letters."
                )
    pairs = [pair for pair in pairs if all(pair)]
    sources = sorted({source for source, _ in pairs}, key=partial(stable_seed, "held out"))
    refuse(
        (
            len(sources) < 2,
            f"{name} has {len(sources)} different sources: give at least 2, one to "
            "train on and one to hold out.",
        ),
        (
            vocabulary not in ("subwords", "words"),
            f"vocabulary is {vocabulary!r}: choose subwords or words.",
        ),
    )
    kept = set(sources[: max(1, min(held_out, len(sources) // 10))])
    train = [pair for pair in pairs if pair[0] not in kept]
    texts = [text for pair in train for text in pair]
    found = Words(texts, spaces=True) if vocabulary == "words" else Subwords(texts, size)
    letters = "".join(target for _, target in train[:1000])
    chinese = 2 * sum("\u4e00" <= letter <= "\u9fff" for letter in letters) > len(letters)
    return Parallel(train, [pair for pair in pairs if pair[0] in kept], found, chinese, name)


def read_lines(path) -> list[str]:
    """The lines of a text file in UTF-8."""
    from .text import content_of

    try:
        text = TextIOWrapper(BytesIO(content_of(path)), "utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise Impossible(
            f"{path} is not in UTF-8 (byte {error.start:,}): save it as UTF-8, for "
            "example with iconv."
        ) from error
    refuse(
        (
            "\0" in text,
            f"{path} is no text, or in UTF-16: save it as UTF-8, with iconv for one.",
        ),
        (not text.strip(), f"{path} is empty: give a file with one sentence a line."),
    )
    return text.removesuffix("\n").split("\n")


def from_hugging_face(
    name: str,
    source: str,
    target: str,
    *,
    fetch: bool = False,
    config: str | None = None,
    split: str = "train",
    **options,
) -> Parallel:
    """A data set whose rows have a "translation" of the two languages. Without `fetch` only a copy
    on this machine is read. `options` as for `of_pairs`."""
    try:
        from datasets import DownloadConfig, load_dataset
    except ImportError as error:
        raise Impossible(
            "A Hugging Face data set needs the package datasets, which is not "
            "installed: pip install datasets, or give files of your own."
        ) from error
    try:
        rows = load_dataset(
            name,
            config,
            split=split,
            download_config=DownloadConfig(local_files_only=not fetch),
        )
        pairs = [(row["translation"][source], row["translation"][target]) for row in rows]
    except (KeyError, TypeError) as error:
        raise Impossible(
            f"{name} has no translation from {source} to {target}: take languages that it has."
        ) from error
    except Exception as error:  # whatever a hub, a network or a cache raises
        advice = "check its name and the network" if fetch else "fetch it once with fetch=True"
        raise Impossible(f"{name} is not to be had ({type(error).__name__}): {advice}.") from error
    return of_pairs(pairs, name, **options)
