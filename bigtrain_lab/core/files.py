"""A file that is there whole or not at all."""

from contextlib import suppress
from pathlib import Path

from .impossible import Impossible


def write_whole(path, text: str) -> Path:
    """Write a text file so that it is there whole or not at all; Impossible, in a sentence, where it cannot be."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise Impossible(f"Cannot write {path}: {error.strerror or error}; free some space or choose another place.") from error
    return path
