"""Checkpoints, of one rank or of several, that cannot be written, read or used: each in one
sentence."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from pickle import PickleError

import torch
from torch import Tensor

from ...core import Impossible
from . import refuse

MARK, DIGITS = b"\nsha256 ", 64


def digest(path, size: int) -> bytes:
    """Return the SHA-256 of the first `size` bytes of a file, in hexadecimal digits."""
    with open(path, "rb") as file, mmap(file.fileno(), size, access=ACCESS_READ) as content:
        return sha256(content).hexdigest().encode()


def stated_digest(path) -> bytes:
    """Return the digest that `save` wrote behind a file."""
    with open(path, "rb") as file:
        file.seek(max(0, Path(path).stat().st_size - len(MARK) - DIGITS))
        mark, stated = file.read(len(MARK)), file.read()
    refuse(
        (
            mark != MARK,
            (
                f"{path} is no checkpoint, or is damaged, or of a version without "
                "digests: name another, or save again what torch.load gives."
            ),
        )
    )
    return stated


def loaded(path, stated: bytes | None = None, compares: bool = True) -> dict:
    """Load a file, whose digest is the stated one where one is; its values stay on the disk until
    they are read. `compares`: the digest with the content."""
    with read(path):
        own = stated_digest(path)
        size = Path(path).stat().st_size - len(MARK) - DIGITS
        refuse(
            (
                stated not in (None, own),
                (
                    f"{path} is of another save, or is damaged: copy the files of one save, or name"
                    " another checkpoint."
                ),
            ),
            (
                compares and digest(path, size) != own,
                (
                    f"{path} is no checkpoint, or is damaged, its digest is another: name one that "
                    "was saved here."
                ),
            ),
        )
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


@contextmanager
def written(path: Path, partial: Path):
    """Around a write: a failed one leaves nothing aside. torch's writer turns some errors of the
    file into its own."""
    try:
        yield
    except Exception as error:
        with suppress(OSError):
            partial.unlink()
        cause = error
        while cause and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        whole = ", and the one before is whole" if path.is_file() else ""
        cause = cause or error
        told = (
            "since it could not be written, or reading it would execute code: keep tensors, "
            "numbers and texts of Python, such as float(x) of a number of NumPy."
            if isinstance(error, (AttributeError, TypeError, PickleError))
            else f"({getattr(cause, 'strerror', None) or cause}){whole}: free some space, or "
            "choose another place."
        )
        raise Impossible(f"The checkpoint {path} was not saved {told}") from error


@contextmanager
def read(path):
    try:
        yield
    except (Impossible, MemoryError, torch.OutOfMemoryError):
        raise
    except FileNotFoundError as error:
        raise Impossible(
            f"There is no checkpoint {error.filename or path}: train from the start, name another, "
            "or copy the files of all ranks."
        ) from error
    except OSError as error:
        raise Impossible(
            f"The checkpoint {path} cannot be read ({error.strerror or error}): name "
            "one that you may open."
        ) from error
    except Exception as error:  # whatever torch raises of other bytes
        raise Impossible(
            f"{path} is no checkpoint, or is damaged: name one that was saved here."
        ) from error


def refuse_parts(training) -> None:
    refuse(
        (
            getattr(training, "parts", None),
            (
                "Each rank holds a part of this training's state, and one file would have one part:"
                " let all ranks save it together, by techniques.saved_shards."
            ),
        ),
        (
            getattr(getattr(training, "pipeline", None), "versions", None),
            (
                "A checkpoint keeps no older weights of an asynchronous schedule, nor the"
                " optimizers of its pipeline: take a synchronous schedule, such as 1f1b."
            ),
        ),
    )


def facts(weights: Mapping[str, Tensor], groups: Iterable) -> dict[str, object]:
    """Describe what a checkpoint fits: the shape of each weight, and of each optimizer's
    `param_groups` how many parameters and which settings they have."""
    return {name: (*each.shape,) for name, each in weights.items()} | {
        f"optimizer {at}": [(len(group["params"]), *sorted(group)) for group in own]
        for at, own in enumerate(groups)
    }


def refuse_other(there: Mapping, here: Mapping, name) -> None:
    """Refuse a checkpoint of another training: one that says otherwise of anything."""
    refuse(
        *(
            (
                there.get(key) != here.get(key),
                f"{name} is of another training, {key} is {there.get(key, 'missing')!s:.70} there "
                f"and {here.get(key, 'missing')!s:.70} here: train with what it had, or name "
                "another.",
            )
            for key in sorted((*there, *here), key=lambda key: "optimizer" in key)  # weights first
        )
    )


# -- of several ranks ------------------------------------------------------------------------------


def refuse_under_way(sharded) -> None:
    refuse(
        (
            sharded.under_way,
            (
                f"Rank {sharded.group.rank} saves or loads a checkpoint while a "
                "step is under way: do it between the optimizer's step and the next forward."
            ),
        )
    )


def together(group, work: Callable[[], object]):
    """Return what the work gives, when all ranks have done theirs; Impossible, with the same
    sentence, where one could not."""
    told, found = "", None
    try:
        found = work()
    except Impossible as error:
        told = f"Rank {group.rank}: {error}"
    others = group.differing(told, "a checkpoint")
    refuse((told or any(others), next(filter(None, [*others, told]), "")))
    return found
