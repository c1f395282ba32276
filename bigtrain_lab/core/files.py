"""Files: one that is written is there whole or not at all; one that is read is regular, bounded and checked.

What is read may be a stranger's. So only regular files are opened (a pipe, a device or a folder could block for ever), no more
bytes are taken than such a file has in truth, and JSON becomes a value only where it is of its type.
"""

import json
import os
import re
import stat
from contextlib import suppress
from errno import EINVAL, ENOSPC
from pathlib import Path
from typing import Any, BinaryIO

from .impossible import Impossible

MOST_BYTES = 4_000_000  # of a file of JSON: those of a run have some kilobytes
ESCAPE = re.compile(r'\\(?:[\\"nt/]|([bfr]|u[0-9a-f]{4}))')  # as json.dumps writes them; group 1: of a control character
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def write_whole(path, text: str) -> Path:
    """Write a text file so that it is there whole or not at all; Impossible, in a sentence, where it cannot be."""
    path = Path(path)
    if not path.name or path.is_dir():
        raise Impossible(f"Cannot write {path}: it is a folder; name a file in it.")
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise Impossible(f"Cannot write {path}: {error.strerror or error}; "
                         f"{'free some space' if error.errno == ENOSPC else 'choose another place'}.") from error
    return path


def open_regular(path) -> BinaryIO:
    """A regular file, open for reading. OSError where there is none, or something else: nothing here waits."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # asked first: to open a device may already do something
            raise OSError(EINVAL, "it is not a regular file")
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:
        raise OSError(EINVAL, "no file can have this name") from error
    file = os.fdopen(number, "rb")
    if not stat.S_ISREG(os.fstat(number).st_mode):  # it was replaced in between
        file.close()
        raise OSError(EINVAL, "it is not a regular file")
    return file


def read_bounded(path, most: int = MOST_BYTES) -> bytes:
    """All bytes of a regular file that has no more than `most`; OSError where it is none or has more."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(EINVAL, f"it has more than {most:,} bytes")
    return data


def clean_json(data: bytes, finite: bool = True) -> bytes:
    """The same JSON in UTF-8, with a replacement character for each control character (a terminal would obey it) and each half of a
    surrogate pair. ValueError where it is no JSON, nested too deep, or has a number that is not `finite`."""
    try:
        text = json.dumps(json.loads(data), ensure_ascii=False, allow_nan=not finite)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return UNPRINTABLE.sub("\ufffd", ESCAPE.sub(lambda found: "\\ufffd" if found[1] else found[0], text)).encode()


def clean_line(line: bytes) -> bytes:
    """The same of a line of a log, at once where nothing can be in it; what a rank reports may be infinite."""
    return line if line.isascii() and b"\\" not in line else clean_json(line, finite=False)


def printable(text: str) -> str:
    """Text for a terminal or a page: without control characters other than line ends and tabs."""
    return UNPRINTABLE.sub("\ufffd", text)


def complaint(error: ValueError) -> str:
    """What is wrong with a value that was read, in a few words: pydantic's first finding and its place, without the value."""
    if not (found := getattr(error, "errors", None)):
        return printable(str(error))[:120]
    first: dict[str, Any] = found(include_input=False, include_context=False, include_url=False)[0]
    place = printable(".".join(map(str, first["loc"][:3])))[:80]
    said = printable(first["msg"])[:120]
    return f"{place}: {said}" if place else said
