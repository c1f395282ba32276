"""What the catalogue of another language lacks: `python tools/sentences.py zh [WING ...]`.

bigtrain_lab/languages/zh/WING.po has a translation of each sentence of that wing that a person
reads. Sentences are found in the source: string literals, and f-strings with a hole {0} for each
value. HTML gives the words between its tags and those under the pointer. Names, keys and the like
have no space between two words, and are not asked for.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from html import escape, unescape
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "bigtrain_lab"
sys.path.insert(0, str(REPOSITORY))

from bigtrain_lab.core import said  # noqa: E402
from bigtrain_lab.view.spoken import WORDS  # noqa: E402

CHECKING = "box", "inside", "likeness", "ranks", "text", "trainings"
# of each wing: the files of which every sentence is shown, those of which refusals by Impossible
# are, and those of which refusals by `refuse` are too
WINGS = {
    "panel": (["panel/*.py", "view/*.py", "view/page/page.html"], []),
    "pictures": (["view/figures/*.py"], []),
    "labs": (["experiments/*.py"], []),
    "orders": (["order/explain.py"], [], ["core/*.py", "order/**/*.py"]),
    "runs": (["runtime/failure/*.py"], [], ["runtime/**/*.py"]),
    "techniques": ([], ["techniques/**/*.py"], ["models/*.py", "train/**/*.py", "data/*.py"]),
    "checks": ([f"grading/{name}.py" for name in CHECKING], []),
    "mistakes": (["grading/topics/*/wrong.md"], []),
    "hints": (["grading/topics/*/exercise.md"], []),
    "compared": (["grading/topics/*/probe.py"], []),
    "player": (["view/player/*.js", "view/page/page.js", "order/holdings.py", "core/peak.py"], []),
}
# styles, types, patterns, code, and places of plotly, which read like words
NO_WORDS = re.compile(
    r"\\d|;\w|px\b|^[\w.]+\[|\| None|\w=\S|^from |^import |btl-|prefers-|^Space |^-m "
    r"|aria-|data-|\[\{|^(?:top|middle|bottom) (?:left|center|right)$|^holds of$"
    r"|^\^|\.\*|^class |^def |^except |^return |reaches\(|^answer = |^\w+ = |\(takes\|"
    r"|^bigtrain_lab (?:panel|prediction)$|^\W*(?:ms|mJ|Wh|TFLOP/s|GiB)\W*$"
)
REGEX = re.compile(r"(?<=[ (!,])/(?![/*\s])(?:\\.|\[[^\]\n]*\]|[^/\n\\\[])+/[gims]*(?=[\s,.;)])")
COMMENT = re.compile(r"/\*.*?\*/|(?<!:)//[^\n]*", re.DOTALL)


def are_words(text: str) -> bool:
    """True for what a person reads: two words, or one beside a hole."""
    told, holes = said.HOLE.subn(" ", text)
    words = re.findall(r"[A-Za-z]{2,}", told)
    return " " in text and len(words) + bool(holes) > 1 and words and not NO_WORDS.search(text)


def template(node: ast.AST) -> str:
    """The text of a literal, or of an f-string with {} for its holes."""
    if isinstance(node, ast.Constant):
        return re.sub(r"(?<!%)\{[\w.]*(?::[^{}]*)?\}", "{}", node.value)
    return "".join(template(v) if isinstance(v, ast.Constant) else "{}" for v in node.values)


def literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, template) of all strings but docstrings, annotations and parts of f-strings."""
    silent = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            silent |= {id(value) for value in node.values}
            silent |= {id(v.format_spec) for v in node.values if isinstance(v, ast.FormattedValue)}
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(id(node.value))
        for kind in ("annotation", "returns"):
            silent |= {id(each) for each in ast.walk(getattr(node, kind, None) or ast.Pass())}
    for node in ast.walk(tree):
        text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (text or isinstance(node, ast.JoinedStr)) and id(node) not in silent:
            yield node.lineno, template(node)


def refusals(tree: ast.AST, calls=("Impossible",)) -> Iterator[tuple[int, str]]:
    """The same of what these calls say, but where they raise another `error` than Impossible."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in calls:
            if "error" not in {keyword.arg for keyword in node.keywords}:
                yield from literals(ast.Expression(node))


def compared(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The same of the names of what an exercise compares: keys of what its functions return, but
    of those that its scenes are made of."""
    for node in tree.body:
        for each in ast.walk(node if getattr(node, "name", "scenes") != "scenes" else ast.Pass()):
            for key in each.keys if isinstance(each, ast.Dict) else []:
                if isinstance(key, ast.Constant):
                    name = str(key.value).split(" [")[0]  # without words for its places
                    yield key.lineno, name[:1].upper() + name[1:]


def of_script(text: str) -> Iterator[tuple[int, str]]:
    """(line, template) of the strings of a script, with {} for what its templates put in."""
    text = REGEX.sub("", COMMENT.sub(lambda each: "\n" * each[0].count("\n"), text))

    def inside(at: int, end: str) -> int:
        """Read code from here to `end`; where it stands."""
        while at < len(text) and text[at] != end:
            if text[at] in "\"'`":
                at = string(at)
            elif text[at] == "{":
                at = inside(at + 1, "}")
            at += 1
        return at

    found = []

    def string(at: int) -> int:
        quote, begin, told = text[at], at, ""
        at += 1
        while text[at] != quote:
            if text[at : at + 2] == "\\u":
                told, at = told + chr(int(text[at + 2 : at + 6], 16)), at + 5
            elif text[at] == "\\":
                told, at = told + text[at + 1], at + 1
            elif quote == "`" and text[at : at + 2] == "${":
                at, told = inside(at + 2, "}"), told + "{}"
            else:
                told += text[at]
            at += 1
        found.append((text[:begin].count("\n") + 1, told))
        return at

    inside(0, "\0")
    return iter(found)


def of_mistakes(text: str) -> Iterator[tuple[int, str]]:
    """The same of what a list of mistakes tells of each, and of the hints of an exercise and the
    titles of its steps."""
    of_mistakes = re.finditer(r"^## .+\n((?:(?!```).+\n)+)```", text, re.MULTILINE)
    of_hints = re.finditer(r"^\d\. ((?:.+\n)+?)(?=\d\. |\n|\Z)", text, re.MULTILINE)
    for found in of_hints if "\n## Hints\n" in text else of_mistakes:
        told = " ".join(re.sub(r" \(\d points?\):[^$]*", "", found[1]).split())
        yield text[: found.start()].count("\n") + 1, escape(told, quote=False)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a template that a person reads, their holes numbered."""
    for words in WORDS.findall(f">{text}<"):
        for each in said.SENTENCES.split(words):
            told = re.sub(r"(?:\{\})+", "{}", unescape(each).strip())
            parts = told.split("{}")
            told = parts[0] + "".join(f"{{{n}}}{part}" for n, part in enumerate(parts[1:]))
            if not words.startswith("<") and are_words(told):
                yield told


def spoken(wing: str) -> dict[str, str]:
    """Sentence -> the place where it is made, of a wing."""
    found = {}
    refused = partial(refusals, calls=("Impossible", "refuse", "refuse_any"))
    readers = compared if wing == "compared" else literals, refusals, refused
    for globs, read in zip(WINGS[wing], readers):
        for file in sorted({file for glob in globs for file in PACKAGE.glob(glob)}):
            text = file.read_text(encoding="utf-8")
            told = {
                ".md": of_mistakes,
                ".js": of_script,
                ".html": lambda page: [(1, re.sub(r"\$\w+", "{}", page))],
            }.get(file.suffix, lambda source, read=read: read(ast.parse(source)))
            for line, words in told(text):
                for each in sentences(words):
                    found.setdefault(each, f"{file.relative_to(PACKAGE)}:{line}")
    return found


def lacking(language: str, wing: str) -> dict[str, str]:
    known = said.catalogue(language)
    return {text: place for text, place in spoken(wing).items() if text not in known}


def main(language: str, *wings: str) -> int:
    lacks = 0
    for wing in wings or WINGS:
        for text, place in lacking(language, wing).items():
            lacks += 1
            print(f'#: {place}\nmsgid {json.dumps(text, ensure_ascii=False)}\nmsgstr ""\n')
    print(f"{lacks} sentences lack their translation.", file=sys.stderr)
    return bool(lacks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if sys.argv[1:] else __doc__)
