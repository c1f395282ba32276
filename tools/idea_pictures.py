"""Write the pictures of ideas in the languages of the editions: python tools/idea_pictures.py

notebooks/zh/pictures.tsv has a line for each text of notebooks/pictures/idea_*.svg: the English, a
tab, the translation. A browser takes no notice of the reader's language inside a picture, so each
edition refers to files of its own: notebooks/pictures/zh.
"""

import re
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
TEXT = re.compile(r"(?<=>)[^<>]*[A-Za-z][^<>]*(?=</(?:text|title|desc)>)")


def translated() -> dict[Path, str]:
    """File -> its text, of each picture in each language; KeyError where a text has no line."""
    found = {}
    for table in NOTEBOOKS.glob("*/pictures.tsv"):
        said = dict(line.split("\t") for line in table.read_text(encoding="utf-8").splitlines())
        for path in sorted((NOTEBOOKS / "pictures").glob("idea_*.svg")):
            drawn = TEXT.sub(
                lambda words, said=said: said[words[0]], path.read_text(encoding="utf-8")
            )
            found[path.parent / table.parent.name / path.name] = drawn
    return found


if __name__ == "__main__":
    for path, drawn in translated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn, encoding="utf-8")
