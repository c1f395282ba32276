"""Real text as bytes: every sample is a window of S + 1 bytes, read once as inputs and once, one
on, as targets.

    inputs = text[i : i+S],  targets = text[i+1 : i+S+1],  i uniform from a generator seeded by
                                                           (seed, step, micro-batch)

Which rank asks, when, and what it asked before change nothing. The default text is Python's own
help, which every CPython carries: nothing is downloaded.
"""

import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch

from bigtrain_lab.core import Impossible, counted, refuse
from bigtrain_lab.core.files import open_regular
from bigtrain_lab.models.config import require_counts
from bigtrain_lab.models.seed import generator


@dataclass(frozen=True)
class ByteText:
    """A text of bytes, each of them a token of a vocabulary of 256."""

    content: bytes = field(repr=False)
    name: str = "text"

    def __post_init__(self):
        refuse(
            (
                len(self.content) < 2,
                f"{self.name} holds {counted(len(self.content), 'byte')}: take a text of at least"
                " 2 bytes, one to read and one to predict.",
            )
        )
        object.__setattr__(
            self, "_tokens", torch.frombuffer(bytearray(self.content), dtype=torch.uint8)
        )

    def __len__(self):
        return len(self.content)

    def batch(self, seed: int, step: int, micro_batch: int, batch: int, sequence: int):
        """(inputs, targets), int64, each (batch, sequence): a function of its arguments only."""
        require_counts(batch=batch, sequence=sequence)
        last_start = len(self) - sequence - 1
        refuse(
            (
                last_start < 0,
                f"{self.name} holds {counted(len(self), 'byte')}, a sequence of {sequence} reads"
                f" {sequence + 1}: take a sequence of at most {len(self) - 1} or a longer text.",
            )
        )
        starts = torch.randint(
            last_start + 1, (batch, 1), generator=generator("text", seed, step, micro_batch)
        )
        windows = self._tokens[starts + torch.arange(sequence + 1)].long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def help_text() -> ByteText:
    """Python's help topics in the order of their names: English prose and code, the same on one
    Python version."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise Impossible(
            "This Python comes without its help text (pydoc_data.topics): "
            "name a text file of your own."
        ) from error
    return ByteText(
        "\n".join(topics[name] for name in sorted(topics)).encode(), "Python's help text"
    )


def read_text(path) -> ByteText:
    """Any file, read as bytes."""
    return ByteText(content_of(path), repr(str(path)))


def content_of(path) -> bytes:
    """All bytes of a file that a user names; Impossible, in a sentence, where it cannot be read."""
    try:
        with open_regular(Path(path).expanduser()) as file:  # no device, which may never end
            return file.read()
    except (OSError, TypeError, RuntimeError) as error:
        raise Impossible(
            f"{str(path)!r} cannot be read ({getattr(error, 'strerror', None) or error}): name a "
            "text file that you may open."
        ) from error


def chosen_text(path: str) -> ByteText:
    """The file, as it is now; Python's help where no path is given."""
    try:
        about = os.stat(path)
        return _text(path, about.st_mtime_ns, about.st_size)
    except (OSError, ValueError):
        return _text(path, 0, 0)  # says what is wrong with the path


@lru_cache(maxsize=4)
def _text(path: str, changed_ns: int, size: int) -> ByteText:
    return read_text(path) if path else help_text()
