"""Checkpoints that cannot be written, read or used: each in one sentence."""

from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from pickle import PickleError

import torch

from ...core import Impossible
from . import refuse


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
            raise Impossible(f"The checkpoint {path} was not saved ({error}): keep tensors, numbers "
                             "and texts.") from error
        cause = error
        while cause and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        full = cause.errno in (ENOSPC, EDQUOT, EFBIG)
        advice = "free some space" if full else "choose another place"
        whole = ", and the one before is whole" if path.is_file() else ""
        raise Impossible(f"The checkpoint {path} was not saved ({cause.strerror or cause}){whole}: "
                         f"{advice}.") from error


def refuse_unreadable(partial: Path) -> None:
    """Reading executes nothing, so it takes tensors, numbers and texts; their values stay on the disk."""
    try:
        torch.load(partial, map_location="cpu", weights_only=True, mmap=True)
    except PickleError as error:
        raise Impossible("The checkpoint was not saved, since reading it would execute code: keep tensors, numbers and texts of "
                         "Python, such as float(x) of a number of NumPy.") from error


@contextmanager
def read(path):
    try:
        yield
    except FileNotFoundError as error:
        raise Impossible(f"There is no checkpoint {path}: train from the start, or name "
                         "another.") from error
    except OSError as error:
        raise Impossible(f"The checkpoint {path} cannot be read ({error.strerror or error}): name "
                         "one that you may open.") from error
    except Exception as error:  # whatever torch raises of other bytes
        raise Impossible(f"{path} is no checkpoint, or is damaged: name one that was saved "
                         "here.") from error


def refuse_parts(training) -> None:
    parameters = (p for stage in training.stages.values() for p in stage.parameters())
    refuse((any(hasattr(p, "piece") for p in parameters), "Each rank holds a part of this "
            "training's state, and one file would have one part: let all ranks save it together, by "
            "techniques.saved_shards."))


def refuse_other_model(state, training, name) -> None:
    keys = ("update", "weights", "precision", "optimizers", "random")
    refuse((not isinstance(state, dict) or not all(key in state for key in keys),
            f"{name} is no checkpoint of a training: name one that was saved by it."))
    refuse((state["weights"].keys() != training.stages.keys(),
            f"{name} has the stages {sorted(state['weights'])} and the model "
            f"{sorted(training.stages)}: train with as many stages."))
    for number, stage in training.stages.items():
        saved, own = state["weights"][number], stage.state_dict()
        shapes = [{key: tuple(w.shape) for key, w in each.items()} for each in (saved, own)]
        for key in dict.fromkeys((*saved, *own)):
            there, here = (each.get(key, "missing") for each in shapes)
            if there != here:
                raise Impossible(f"{name} is of another model, {key} is {there} there and {here} "
                                 "here: build the model with the sizes that it had.")
    saved = [groups(each["param_groups"]) for each in state["optimizers"]]
    refuse((saved != [groups(each.param_groups) for each in training.optimizers],
            f"{name} is of another optimizer: train with the one that it had."))


def groups(param_groups) -> list[tuple]:
    """How many parameters each has, and which settings."""
    return [(len(group["params"]), sorted(group.keys() - {"params"})) for group in param_groups]


def parts(state, *sizes: int) -> list[int]:
    """With what is left."""
    refuse((len(state) < sum(sizes), "The checkpoint's random states are of other versions of "
            "Python, NumPy or torch: install those, or train from the start."))
    return [*sizes, len(state) - sum(sizes)]
