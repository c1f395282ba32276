"""Checkpoints, of one rank or of several, that cannot be written, read or used: each in one
sentence."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from hashlib import sha256
from math import prod
from pathlib import Path
from pickle import PickleError

import torch

from ...core import Impossible
from . import refuse

MARK, DIGITS = b"\nsha256 ", 64
KEYS = {"folder", "digests", "further", "numbers", "apart", "tied"}  # of a checkpoint of ranks


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
    refuse(
        (
            getattr(training, "parts", None),
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
        refuse_other_shapes(shapes(state["weights"][number]), shapes(stage.state_dict()), name)
    refuse_other_optimizers(state["optimizers"], training.optimizers, name)


def shapes(tensors: Mapping) -> dict[str, tuple]:
    return {name: tuple(each.shape) for name, each in tensors.items()}


def refuse_other_shapes(there: Mapping[str, tuple], here: Mapping[str, tuple], name) -> None:
    for key in dict.fromkeys((*there, *here)):
        refuse(
            (
                there.get(key) != here.get(key),
                f"{name} is of another model, {key} is {there.get(key, 'missing')} there and "
                f"{here.get(key, 'missing')} here: build the model with the sizes that it had.",
            )
        )


def refuse_other_optimizers(states: Sequence[Mapping], optimizers: Sequence, name) -> None:
    """Optimizers with other numbers of parameters in a group, or other settings."""
    refuse(
        (
            len(states) != len(optimizers),
            f"{name} has {len(states)} optimizers and the training {len(optimizers)}: train with as"
            " many as it had.",
        ),
        *(
            (
                groups(state["param_groups"]) != groups(optimizer.param_groups),
                f"{name} is of another optimizer: train with the one that it had.",
            )
            for state, optimizer in zip(states, optimizers)
        ),
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
    """What the work gives, when all ranks have done theirs; Impossible, with the same sentence,
    where one could not."""
    told, found = "", None
    try:
        found = work()
    except Impossible as error:
        told = f"Rank {group.rank}: {error}"
    others = group.differing(told, "a checkpoint")
    if told or any(others):
        raise Impossible(next(filter(None, [*others, told])))
    return found


def next_number(path: Path, name: str, folder: str) -> int:
    """After the checkpoint that is there, or where that cannot be read after all folders."""
    if not (path / name).exists():
        return 1
    try:
        folders = [manifest(path, name)["folder"]]
    except Impossible:
        folders = [each.name for each in path.glob(f"{folder}*")]
    numbers = (each.removeprefix(folder) for each in folders)
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)


def manifest(path: Path, name: str) -> dict:
    at = path / name
    refuse(
        (
            path.is_dir() and not at.exists(),
            (
                f"{path} is no checkpoint of ranks, it has no "
                f"{name}: name a folder that was saved by them."
            ),
        )
    )
    with read(path if path.is_file() else at):
        refuse_damaged(at)
        found = torch.load(at, map_location="cpu", weights_only=True, mmap=True)
        ours = isinstance(found, dict) and found.keys() == KEYS
        refuse(
            (
                not ours or Path(found["folder"]).name != found["folder"],
                f"{at} is of no checkpoint of ranks: name a folder that was saved by them.",
            )
        )
    return found


def opened(folder: Path, digests: Mapping[str, bytes], rank: int, ranks: int) -> list[dict]:
    """The files, each of the save that has these digests; of so many ranks that read them, each
    reads its share to the last byte."""
    missing = [name for name in digests if not (folder / name).is_file()]
    refuse(
        (
            bool(missing),
            (
                f"{folder} lacks {', '.join(missing[:1])}, {len(missing)} of "
                f"{len(digests)} files: copy those of all ranks, or name another checkpoint."
            ),
        )
    )
    found = []
    for number, (name, stated) in enumerate(digests.items()):
        with read(at := folder / name):
            refuse(
                (
                    stated_digest(at) != stated,
                    (
                        f"{at} is of another save, or is damaged: copy "
                        "the files of one save, or name another checkpoint."
                    ),
                )
            )
            if number % ranks == rank:
                refuse_damaged(at)
            found.append(torch.load(at, map_location="cpu", weights_only=True, mmap=True))
    return found


def refuse_holes(found, path) -> None:
    """The parts of each parameter make it up."""
    for name, shape in found.shapes.items():
        ends = sorted(part[:2] for part in found.parts(name) if part[0] < part[1])
        whole = [0, *(stop for _, stop in ends)] == [*(start for start, _ in ends), prod(shape)]
        refuse(
            (
                not whole,
                f"The parts of {name} in {path} do not make up the whole: name another checkpoint.",
            )
        )


def refuse_other(found, owned, apart, optimizers, numbers: list[dict[str, int]], path) -> None:
    own = {name: home.weight for name, home in owned.items()}
    saved = found.shapes | shapes(found.manifest["apart"])
    refuse_other_shapes(saved, shapes(own | apart), path)
    refuse_other_optimizers(found.files[0]["optimizers"], optimizers, path)
    refuse(
        (
            found.manifest["numbers"] != numbers,
            (
                f"{path} is of an optimizer that had the "
                "parameters in another order: give them in that order."
            ),
        )
    )
