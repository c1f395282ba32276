"""Sentences in the language of the reader, at the border where they leave for a person.

Programs make English sentences, by format strings. The catalogue of another language, gettext PO
files under languages/, has each of these strings once, with its holes: "rank {0} sends {1}". A
finished sentence is matched against them, that with the most text first, and its holes are
translated in turn. What no template matches stays English: it may be a name.

A hole {n0} takes a number alone. The full stop of a sentence is no part of a template.
tools/sentences.py lists the sentences that a catalogue lacks.
"""

import json
import os
import re
from functools import cache, lru_cache
from itertools import product
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "languages"
ENTRY = re.compile(r'^msgid (".+")\nmsgstr (".+")$', re.MULTILINE)  # escapes are those of JSON
HOLE = re.compile(r"\\?\{(n?)(\d+)\\?\}")  # in a regular expression too
WORD, PROSE = re.compile(r"[A-Za-z]{2}"), re.compile(r"[A-Za-z]{2} (?:a )?[a-z]{2}")
# the ends of sentences, but not after "et al." or "..."
SENTENCES = re.compile(r"((?<!et al)(?<!\.)\.(?: +(?!\.)|(?=\n)|$)|(?<=[!?]) +|\n|^ +| +$)")
# what stands between the parts of a list: commas and the like, numbers, arrows
BETWEEN = re.compile(r"(, | and |[;:] | -> | *[-+±≠]?(?<!\w)\d[\d.,]*(?:e[-+]?\d+)?(?:%|\b) ?)")


def language() -> str:
    """The reader's: of BIGTRAIN_LANGUAGE, else of JupyterLab, else of the system; "" is English."""
    asked = os.environ.get("BIGTRAIN_LANGUAGE") or of_jupyterlab()
    asked = asked or os.environ.get("LC_ALL") or os.environ.get("LANG", "")
    return asked[:2] if (FOLDER / asked[:2]).is_dir() else ""


@cache
def of_jupyterlab() -> str:
    """The locale that JupyterLab's own settings name, such as zh_CN."""
    place = Path(
        os.environ.get("JUPYTER_CONFIG_DIR", "~/.jupyter"),
        "lab/user-settings/@jupyterlab/translation-extension/plugin.jupyterlab-settings",
    ).expanduser()
    told = place.read_text(encoding="utf-8", errors="replace") if place.is_file() else ""
    return next(iter(re.findall(r'"locale"\s*:\s*"(?!default)(\w+)"', told)), "")


@cache
def catalogue(tongue: str, wing: str = "*") -> dict[str, str]:
    """English -> translation, of one file or of all."""
    files = sorted((FOLDER / tongue).glob(f"{wing}.po"))  # "" has none
    told = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return {json.loads(text): json.loads(other) for text, other in ENTRY.findall(told)}


@cache
def templates(tongue: str, wing: str = "*") -> dict[str, str]:
    """Template -> its longest literal, that with the most text first."""
    texts = sorted(catalogue(tongue, wing), key=lambda text: -len(HOLE.sub("", text)))
    return {text: max(HOLE.split(text)[::3], key=len) for text in texts}


@cache
def pattern(template: str, hole: str = "(.*?)") -> re.Pattern:
    """What a template matches, where its holes take as little text as they can."""
    return re.compile(
        HOLE.sub(
            lambda kind: r"([-+±≠]?[\d.,]+(?:e[-+]?\d+)?%?)" if kind[1] else hole,
            re.escape(template),
        )
    )


def said(text: str) -> str:
    """The text in the language of the reader."""
    return translated(text, tongue) if (tongue := language()) else text


@lru_cache(maxsize=1 << 14)
def translated(text: str, tongue: str) -> str:
    known = catalogue(tongue)
    if text in known or not WORD.search(text):
        return known.get(text, text)
    parts = SENTENCES.split(text)
    if len(parts) > 1:
        return "".join(closed(*each, tongue) for each in zip(parts[::2], [*parts[1::2], ""]))
    # by a template of many letters, which may hold what nobody has translated, such as a path
    likely = ""
    for (template, literal), hole in product(templates(tongue).items(), ("(.*?)", "(.*)")):
        found = literal in text and pattern(template, hole).fullmatch(text)
        if found and all(held.count("(") == held.count(")") for held in found.groups()):
            holes = [translated(held, tongue) for held in found.groups()]
            told = HOLE.sub(lambda hole, holes=holes: holes[int(hole[2])], known[template])
            if not any(map(PROSE.search, holes)):
                return told
            likely = likely or told * (len(HOLE.sub("", template)) > 14)
    parts = BETWEEN.split(text)
    if {*parts[::2]} & known.keys() and all(p in known or " " not in p for p in parts[::2]):
        return "".join(known.get(part, part) for part in parts)
    return likely or text


def closed(text: str, end: str, tongue: str) -> str:
    """A sentence with its end, which is another one where the sentence is translated."""
    told = translated(text, tongue)
    return told + (end if told == text else re.sub(r"\. *", "。", end))
