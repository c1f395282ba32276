"""Files: a file is written whole or not at all; a file that is read is regular, bounded and clean.

A run directory may come from a stranger. A pipe, a device or a folder could block for ever, so only
regular files are opened. Reading is bounded in bytes, and control characters are replaced.
"""

import json
import os
import re
import stat
from contextlib import suppress
from errno import EINVAL, ENOSPC
from pathlib import Path
from threading import get_ident
from typing import Any, BinaryIO

from .impossible import Impossible, refuse

MOST_BYTES = 4_000_000  # of a file of JSON: those of a run have some kilobytes
ESCAPE = re.compile(r'\\(?:[\\"nt/]|([bfr]|u[0-9a-f]{4}))')  # of json.dumps; group 1: control
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def write_whole(path, content: str | bytes) -> Path:
    """Write a file so that it is there whole or not at all, whoever else writes it; Impossible, in
    a sentence, where it cannot be."""
    path = Path(path)
    refuse(
        (
            not path.name or os.path.isdir(path),  # Path.is_dir raises for a name that is too long
            f"Cannot write {path}: it is a folder; name a file in it.",
        )
    )
    partial = path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}.partial")
    try:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise Impossible(
            f"Cannot write {path}: {error.strerror or error}; "
            f"{'free some space' if error.errno == ENOSPC else 'choose another place'}."
        ) from error
    return path


def open_regular(path) -> BinaryIO:
    """A regular file, open for reading. OSError for anything else; this never blocks."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # first: opening a device may have effects
            raise OSError(EINVAL, "it is not a regular file")
        flags = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        number = os.open(path, os.O_RDONLY | flags)
    except ValueError as error:
        raise OSError(EINVAL, "no file can have this name") from error
    file = os.fdopen(number, "rb")
    if not stat.S_ISREG(os.fstat(number).st_mode):  # it was replaced in between
        file.close()
        raise OSError(EINVAL, "it is not a regular file")
    return file


def read_bounded(path, most: int = MOST_BYTES) -> bytes:
    """All bytes of a regular file. OSError where it has more than `most`, or is no such file."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(EINVAL, f"it has more than {most:,} bytes")
    return data


def clean_json(data: bytes, finite: bool = True) -> bytes:
    """The same JSON in UTF-8, without control characters, which a terminal would obey, and lone
    surrogates.

    ValueError where it is not JSON, is nested too deep, or has a number that is not `finite`.
    """
    try:
        text = json.dumps(json.loads(data), ensure_ascii=False, allow_nan=not finite)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    text = ESCAPE.sub(lambda found: "\\ufffd" if found[1] else found[0], text)
    return printable(text).encode()


def clean_line(line: bytes) -> bytes:
    """`clean_json` of a line of a log, whose numbers may be infinite; fast for plain ASCII."""
    return line if line.isascii() and b"\\" not in line else clean_json(line, finite=False)


def printable(text: str) -> str:
    """Text for a terminal or a page: without control characters other than line ends and tabs."""
    return UNPRINTABLE.sub("\ufffd", text)


def complaint(error: ValueError) -> str:
    """What is wrong with a value: pydantic's first finding and its place, without the value."""
    if not (found := getattr(error, "errors", None)):
        return printable(str(error))[:120]
    first: dict[str, Any] = found(include_input=False, include_context=False, include_url=False)[0]
    place = printable(".".join(map(str, first["loc"][:3])))[:80]
    said = printable(first["msg"])[:120]
    return f"{place}: {said}" if place else said
