"""A file that is there whole or not at all."""

from contextlib import suppress
from errno import ENOSPC
from pathlib import Path

from .impossible import Impossible


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
