"""Checkpoints that cannot be written, read or used: each in one sentence."""

from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from hashlib import sha256
from pathlib import Path
from pickle import PickleError

import torch

from ...core import Impossible
from ..shards import STEPPED
from . import refuse

MARK, DIGITS = b"\nsha256 ", 64


def digest(path, size: int) -> bytes:
    """SHA-256 of the first `size` bytes of a file, in hexadecimal digits."""
    found = sha256()
    with open(path, "rb") as file:
        while part := file.read(min(size, 2**20)):
            found.update(part)
            size -= len(part)
    return found.hexdigest().encode()


def stated_digest(path) -> bytes:
    """The digest that `save` wrote behind a file."""
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


def refuse_damaged(path) -> None:
    stated = stated_digest(path)
    found = digest(path, Path(path).stat().st_size - len(MARK) - DIGITS)
    refuse(
        (
            stated != found,
            (
                f"{path} is no checkpoint, or is damaged, its digest is another: name "
                "one that was saved here."
            ),
        )
    )


@contextmanager
def written(path: Path, partial: Path):
    """Around a write: a failed one leaves nothing aside. torch's writer turns some errors of the
    file into its own."""
    try:
        yield
    except Exception as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, (AttributeError, TypeError, PickleError)):
            raise Impossible(
                f"The checkpoint {path} was not saved ({error}): keep tensors, numbers and texts."
            ) from error
        cause = error
        while cause and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        full = cause.errno in (ENOSPC, EDQUOT, EFBIG)
        advice = "free some space" if full else "choose another place"
        whole = ", and the one before is whole" if path.is_file() else ""
        raise Impossible(
            f"The checkpoint {path} was not saved ({cause.strerror or cause}){whole}: {advice}."
        ) from error


def refuse_unreadable(partial: Path) -> None:
    """Reading executes nothing, so it takes tensors, numbers and texts."""
    try:
        torch.load(partial, map_location="cpu", weights_only=True, mmap=True)
    except PickleError as error:
        raise Impossible(
            "The checkpoint was not saved, since reading it would execute code: keep "
            "tensors, numbers and texts of Python, such as float(x) of a number of "
            "NumPy."
        ) from error


@contextmanager
def read(path):
    try:
        yield
    except (Impossible, MemoryError, torch.OutOfMemoryError):
        raise
    except FileNotFoundError as error:
        raise Impossible(
            f"There is no checkpoint {path}: train from the start, or name another."
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
    parameters = (p for stage in training.stages.values() for p in stage.parameters())
    refuse(
        (
            any(p in STEPPED for p in parameters),
            (
                "Each rank holds a part of this training's state, and one file would have one part:"
                " let all ranks save it together, by techniques.saved_shards."
            ),
        )
    )


def refuse_other_model(state, training, name) -> None:
    keys = ("update", "weights", "precision", "optimizers", "random")
    refuse(
        (
            not isinstance(state, dict) or not all(key in state for key in keys),
            f"{name} is no checkpoint of a training: name one that was saved by it.",
        )
    )
    refuse(
        (
            state["weights"].keys() != training.stages.keys(),
            (
                f"{name} has {len(state['weights'])} stages and the model {len(training.stages)},"
                " or others: train with the stages that it had."
            ),
        )
    )
    for number, stage in training.stages.items():
        saved, own = state["weights"][number], stage.state_dict()
        shapes = [{key: tuple(w.shape) for key, w in each.items()} for each in (saved, own)]
        for key in dict.fromkeys((*saved, *own)):
            there, here = (each.get(key, "missing") for each in shapes)
            if there != here:
                raise Impossible(
                    f"{name} is of another model, {key} is {there} there and {here} "
                    "here: build the model with the sizes that it had."
                )
    saved = [groups(each["param_groups"]) for each in state["optimizers"]]
    refuse(
        (
            saved != [groups(each.param_groups) for each in training.optimizers],
            f"{name} is of another optimizer: train with the one that it had.",
        )
    )


def refuse_other_data(there: dict, here: dict, name) -> None:
    for key, own in here.items():
        refuse(
            (
                there.get(key) != own,
                (
                    f"{name} would go on with other batches, {key} is {there.get(key)} there and"
                    f" {own} here: give what it had, or another directory."
                ),
            )
        )


def groups(param_groups) -> list[tuple]:
    """How many parameters each has, and which settings."""
    return [(len(group["params"]), sorted(group.keys() - {"params"})) for group in param_groups]


def parts(state, *sizes: int) -> list[int]:
    """With what is left."""
    refuse(
        (
            len(state) < sum(sizes),
            (
                "The checkpoint's random states are of other versions of "
                "Python, NumPy or torch: install those, or train from the start."
            ),
        )
    )
    return [*sizes, len(state) - sum(sizes)]
