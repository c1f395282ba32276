"""What a rank returned, as an npz: named arrays, stored as they are. Nothing in it is ever executed.

An npz that was read is one that `save` could have written: nothing is compressed, so no array is larger than its file, and
each array has the bytes that its header says.
"""

import io
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import torch

from ..core import Impossible
from ..core.files import open_regular
from .log import LogUnwritable

KINDS = "biufcSU"  # of numpy's dtypes: booleans, numbers and text
MOST_DIRECTORY = 4_000_000  # bytes of a zip file's list of its members


def save(path: Path, results) -> None:
    """Keep named arrays as an npz that is there whole or not at all; Impossible where the program returned something else."""
    if results is None:
        results = {}
    if not isinstance(results, Mapping):
        raise Impossible(f"The program returned {type(results).__name__}: let it return a dict of named arrays, or nothing.")
    partial = path.with_name(path.name + ".partial")
    try:
        with ZipFile(partial, "w") as file:
            for name, value in results.items():
                with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, as_array(name, value), allow_pickle=False)
        partial.replace(path)
    except OSError as error:
        raise LogUnwritable(f"Cannot write {path}: {error.strerror or error}; free some space or choose another directory.") from error
    finally:
        partial.unlink(missing_ok=True)


def as_array(name: str, value) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    array = np.asarray(value)
    if array.dtype.kind not in KINDS:
        raise Impossible(f"The program returned {name} of type {type(value).__name__}: return arrays, tensors or numbers.")
    return array


def read(path: Path, rank: int) -> dict[str, np.ndarray]:
    """What `save` kept; Impossible where a rank's file is gone, or not what `save` writes."""
    try:
        with open_regular(path) as file, Members(Bounded(file)) as members:
            return {info.filename.removesuffix(".npy"): members.array(info) for info in members.stored(os.fstat(file.fileno()).st_size)}
    except FileNotFoundError as error:
        raise Impossible(f"The result of rank {rank} is missing ({path.name}): run it again, or open another run.") from error
    except Exception as error:  # whatever zipfile and numpy raise of a stranger's bytes
        raise Impossible(f"The result of rank {rank} is damaged ({path.name}): run it again, or open another run.") from error


class Bounded(io.BufferedIOBase):
    """A file of which nobody reads more than MOST_DIRECTORY bytes at once: neither zipfile nor numpy needs to."""

    def __init__(self, file):
        self.seek, self.tell, self.seekable, self._file = file.seek, file.tell, file.seekable, file

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(MOST_DIRECTORY + 1 if count < 0 else count if count <= MOST_DIRECTORY else 0)
        if len(data) > MOST_DIRECTORY or count > MOST_DIRECTORY:
            raise BadZipFile("its directory is too large")
        return data


class Members(ZipFile):
    """The arrays in a zip file."""

    def stored(self, size: int):
        """Its members, where they are arrays that lie in a file of that size one beside the other, as they are."""
        members = self.infolist()
        if sum(info.file_size for info in members) > size or any(
                info.compress_type != ZIP_STORED or info.compress_size != info.file_size or not info.filename.endswith(".npy") for info in members):
            raise BadZipFile("its members are not stored arrays")
        return members

    def array(self, info) -> np.ndarray:
        """A member's array, made only where its header tells of as many bytes as there are."""
        with self.open(info) as member:
            version = np.lib.format.read_magic(member)
            read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, _, dtype = read_header(member)
            if dtype.kind not in KINDS or min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != info.file_size - member.tell():
                raise BadZipFile("an array is not what its header says")
        with self.open(info) as member:
            return np.lib.format.read_array(member, allow_pickle=False)
