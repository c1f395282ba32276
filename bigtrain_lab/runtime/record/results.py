"""What a rank returned, as an npz of named arrays. Reading it executes nothing.

`read` accepts only what `save` could have written. Nothing is compressed, so no array is larger
than its file, and each array has the bytes that its header states.
"""

import io
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from numpy.lib import format as npy

from ...core import Impossible, grouped, ranks, refuse
from ...core.files import open_regular
from .log import writing

KINDS = "biufcSU"  # of numpy's dtypes: booleans, numbers and text
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # by version
MOST_DIRECTORY = 4_000_000  # bytes of a zip file's list of its members


def save(path: Path, results) -> None:
    """Write named arrays as an npz, whole or not at all. Impossible for any other result."""
    refuse(
        (
            not isinstance(results, Mapping | None),
            f"The program returned {type(results).__name__}: "
            "let it return a dict of named arrays, or nothing.",
        )
    )
    partial = path.with_name(path.name + ".partial")
    try:
        with writing(path), ZipFile(partial, "w") as file:
            for name, value in (results or {}).items():
                with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, as_array(name, value), allow_pickle=False)
        with writing(path):
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def as_array(name: str, value) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    array = np.asarray(value)
    refuse(
        (
            array.dtype.kind not in KINDS,
            f"The program returned {name} of type {type(value).__name__}: "
            "return arrays, tensors or numbers.",
        )
    )
    return array


def read(path: Path, rank: int) -> dict[str, np.ndarray]:
    """What `save` wrote. Impossible where the file is missing, or is not one of `save`."""
    again = f"({path.name}): run it again, or open another run"
    try:
        with open_regular(path) as file, ZipFile(Bounded(file)) as members:
            stored = members.infolist()
            refuse(
                (
                    sum(info.file_size for info in stored) > os.fstat(file.fileno()).st_size,
                    "its members are compressed, or overlap",
                ),
                error=BadZipFile,
            )
            return {info.filename.removesuffix(".npy"): array(members, info) for info in stored}
    except FileNotFoundError as error:
        raise Impossible(f"The result of rank {rank} is missing {again}.") from error
    except Exception as error:  # whatever zipfile and numpy raise of a stranger's bytes
        raise Impossible(f"The result of rank {rank} is damaged {again}.") from error


def replicas_differ(results: list[dict[str, np.ndarray]]) -> list[str]:
    """A sentence on each name of which several ranks returned arrays that are not equal to the
    bit: which ranks, and how far apart."""
    found = []
    for name in dict.fromkeys(name for arrays in results for name in arrays):
        alike = grouped(  # what is equal to the bit -> its ranks
            ((array.dtype.str, array.shape, array.tobytes()), rank)
            for rank, arrays in enumerate(results)
            if (array := arrays.get(name)) is not None
        )
        if len(alike) > 1:
            others = [results[who[0]][name] for who in alike.values()]
            who = " against ".join(ranks(each) for each in alike.values())
            found.append(f"{name} is not one on all ranks that returned it: {who}{apart(others)}.")
    return found


def apart(arrays: list[np.ndarray]) -> str:
    """The end of a sentence: how far arrays are apart."""
    shapes = dict.fromkeys((array.shape, array.dtype.name) for array in arrays)
    if len(shapes) > 1:
        return ", of " + " and ".join(f"{dtype} of shape {shape}" for shape, dtype in shapes)
    if arrays[0].dtype.kind in "SU":
        return ", as texts"
    wide = complex if arrays[0].dtype.kind == "c" else float
    with np.errstate(invalid="ignore"):
        far = max(np.abs(array.astype(wide) - arrays[0].astype(wide)).max() for array in arrays[1:])
    if far == 0:
        return ", apart in the signs of zeros"
    return f", {far:.3g} apart at most" if far > 0 else ", of which not all is a finite number"


class Bounded(io.BufferedIOBase):
    """A file that refuses to give more than MOST_DIRECTORY bytes at once, which bounds zipfile's
    memory."""

    def __init__(self, file):
        self.seek, self.tell, self.seekable, self._file = file.seek, file.tell, file.seekable, file

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(min(count, MOST_DIRECTORY + 1) if count >= 0 else MOST_DIRECTORY + 1)
        refuse((len(data) > MOST_DIRECTORY, "its directory is too large"), error=BadZipFile)
        return data


def array(members: ZipFile, info) -> np.ndarray:
    """Return a member's array, made only where its header states as many bytes as there are."""
    with members.open(info) as member:
        shape, _, dtype = HEADERS[npy.read_magic(member)](member)
        refuse(
            (
                dtype.kind not in KINDS or not dtype.itemsize or min(shape, default=0) < 0,
                "it is no array of numbers or text",
            ),
            (
                prod(shape) * dtype.itemsize != info.file_size - member.tell(),
                "an array is not what its header says",
            ),
            error=BadZipFile,
        )
    with members.open(info) as member:
        return npy.read_array(member, allow_pickle=False)
