"""The lessons as they are read, with their outputs, in each language."""

import re
import shutil
from itertools import product
from pathlib import Path
from string import Template

import nbformat
from nbconvert import HTMLExporter

from ...core import write_whole
from ...lesson import RELEASES, editions, translated
from ...view.page import asset

NAMES = {"en": "English", "zh": "中文"}  # of the languages of lessons


def listed(lessons: list[tuple[str, str]]) -> str:
    return "".join(f'<li><a href="lessons/{file}">{title}</a></li>' for file, title in lessons)


def lessons(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Write the lessons as they are read. Returns language -> (file, title) of each."""
    release = next(each for each in RELEASES if each.is_dir())
    shutil.copytree(release / "pictures", folder / "pictures", dirs_exist_ok=True)
    exporter, frame = HTMLExporter(template_name="basic"), Template(asset("lesson.html"))
    ends = {"en": ".html"} | {each: f".{each}.html" for each in editions(release)}
    found = {language: [] for language in ends}
    for path, (language, end) in product(sorted(release.glob("*.ipynb")), ends.items()):
        book = translated(nbformat.read(path, 4), release / language / f"{path.stem}.md")
        book.cells = [cell for cell in book.cells if cell.id != "install"]
        body, _ = exporter.from_notebook_node(book)
        body = re.sub(r'href="(\w+)\.ipynb', rf'href="\1{end}', body)
        body = re.sub(r'<a href="\.\./[^"]*">(.*?)</a>', r"\1", body)  # files of a clone
        title = re.sub("<[^>]*>|¶", "", re.search(r"<h1.*?</h1>", body, re.DOTALL)[0])
        links = (f'<a href="{path.stem}{ends[to]}" lang="{to}">{NAMES[to]}</a>' for to in ends)
        write_whole(
            folder / f"{path.stem}{end}",
            frame.substitute(language=language, title=title, body=body, links=" ".join(links)),
        )
        found[language].append((f"{path.stem}{end}", title))
    return found
