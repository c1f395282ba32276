"""Checkpoints of several ranks that cannot be written, read or used: each in one sentence."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path

import torch

from ...core import Impossible
from . import refuse
from .saved import groups, read, refuse_damaged, stated_digest

KEYS = {"folder", "digests", "further", "numbers", "apart", "tied"}


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


def digests(folder: Path, names: Sequence[str]) -> list[bytes]:
    """What each rank wrote behind its file."""
    with read(folder):
        return [stated_digest(folder / name) for name in names]


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
    here = {name: tuple(each.shape) for name, each in (own | apart).items()}
    beside = found.manifest["apart"].items()
    saved = found.shapes | {name: tuple(each.shape) for name, each in beside}
    for name in dict.fromkeys((*saved, *here)):
        there, own = (shapes.get(name, "missing") for shapes in (saved, here))
        refuse(
            (
                there != own,
                (
                    f"{path} is of another model, {name} is {there} there and {own} "
                    "here: build the model with the sizes that it had."
                ),
            )
        )
    there = found.files[0]["optimizers"]
    refuse(
        (
            len(there) != len(optimizers),
            (
                f"{path} has {len(there)} optimizers and the training "
                f"{len(optimizers)}: train with as many as it had."
            ),
        )
    )
    for state, optimizer in zip(there, optimizers):
        refuse_other_groups(state, optimizer, str(path))
    refuse(
        (
            found.manifest["numbers"] != numbers,
            (
                f"{path} is of an optimizer that had the "
                "parameters in another order: give them in that order."
            ),
        )
    )


def refuse_other_groups(state_dict: dict, optimizer, name: str) -> None:
    refuse(
        (
            groups(state_dict["param_groups"]) != groups(optimizer.param_groups),
            f"{name} is of another optimizer: train with the one that it had.",
        )
    )
