"""A checkpoint of which each rank writes its own part, and which any number of ranks reads.

    NAME/shards-000003/rank-0.of-2.pt   w[0:4], and its moments               from rank 0 of 2
                       rank-1.of-2.pt   w[4:5], b[0:2], and their moments     from rank 1 of 2
    NAME/whole.pt                       the name "shards-000003", the digests of its files, and what
                                        all ranks have alike

    save   each rank writes its file; all wait; rank 0 renames the new whole.pt into place, then
           deletes older folders; all wait
    load   a rank reads whole.pt, and from each file the elements that are its own now; before
           anything changes, all compare digests, each those of its share of the files

The checkpoint changes in one moment, that rename. A crash before it leaves the last checkpoint
whole, and a new folder that nobody reads. A crash after it leaves the new checkpoint whole. All
files are of one save, since a file of another save has another digest. All ranks wait at the end,
since rank 0 might otherwise delete the folder of a rank's next save.

Elements are stored by the name of their parameter and their place in it. So 3 ranks read what 4
wrote: w[0:2] lies in the first file.

Cost: with Adam in float32 a rank writes 12 psi / N bytes for psi parameters, and no rank ever has
the whole. The disk holds two checkpoints during a save. Files are memory-mapped: a rank reads its
own elements, and for the digests its share of the files. All ranks need one file system.
Source: Lian et al. 2024, Universal Checkpointing (arXiv:2406.18820), section 3, for parts that are
found by what they are and not by who wrote them.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import saved
from .guards import saved as guard
from .shards import assembled

WHOLE, FOLDER = "whole.pt", "shards-"
ORDER = "the optimizers' order of parameters"


def save(path, sharded, optimizer: Optimizer | Sequence[Optimizer], **further) -> None:
    """Put the state of a sharded module, and of the optimizer of its pieces, under this name,
    whole; or leave what was there. All ranks call it, between two steps.

    sharded    a FullyShardedDataParallel, Replicas, or a ZeroOptimizer, which knows the parameters
               that it was given: keep buffers, and other parameters, in `further`; of a recipe the
               training's `.parts`, each stage of a pipeline under its own name
    optimizer  one, or several
    further    what else is to be kept; rank 0's counts

    Impossible, on all ranks, where one of them could not write.
    """
    sharded = getattr(sharded, "replicas", sharded)
    path, group = Path(path), sharded.group
    guard.refuse_under_way(sharded)
    numbers = (each.name.removeprefix(FOLDER) for each in path.glob(f"{FOLDER}*"))
    last = max((int(number) for number in numbers if number.isdecimal()), default=0)
    number = torch.tensor([1 + last], device=group.device)
    sharded.follow_weights()
    folder = path / f"{FOLDER}{group.unrecorded().broadcast(number).item():06}"
    own = {
        "parts": {
            each.name: (
                tuple(each.weight.shape),
                each.start,
                each.stop,
                each.stepped.detach().clone(),
            )
            for each in sharded.homes
        },
        "optimizers": [each.state_dict() for each in listed(optimizer)],
    }
    guard.together(group, lambda: saved.save(folder / file(group.rank, group.size), own))

    def conclude() -> None:
        with guard.read(folder):
            digests = [
                guard.stated_digest(folder / file(rank, group.size)) for rank in range(group.size)
            ]
        saved.save(
            path / WHOLE,
            {
                "folder": folder.name,
                "digests": digests,
                "further": further,
                "facts": facts_of(sharded, listed(optimizer)),
                **beside(sharded),
            },
        )
        for each in path.glob(f"{FOLDER}*"):
            if each.name < folder.name:
                shutil.rmtree(each, ignore_errors=True)

    guard.together(group, lambda: group.rank or conclude())


@torch.no_grad()
def load(path, sharded, optimizer: Optimizer | Sequence[Optimizer]) -> dict:
    """Restore a sharded module and its optimizer, on any number of ranks; returns `further`.
    Impossible, with nothing changed, where the checkpoint is of others."""
    sharded = getattr(sharded, "replicas", sharded)
    owned, group = {each.name: each for each in sharded.homes}, sharded.group
    apart, facts = beside(sharded)["apart"], facts_of(sharded, listed(optimizer))
    guard.refuse_under_way(sharded)

    def mine(name: str, parts: list) -> Tensor:
        own = owned[name]
        return assembled(parts, own.start, own.stop).view(own.stepped.shape)

    def checked() -> tuple[Shards, list[dict], dict[str, Tensor]]:
        with guard.read(path):
            found = Shards(path, group.rank, group.size)
            guard.refuse_other(found.manifest["facts"], facts, path)
            values = {name: mine(name, found.parts[name]) for name in owned}
            values |= {
                name: found.manifest["apart"][name].view_as(tensor)
                for name, tensor in apart.items()
            }
            return found, found.optimizers(mine), values

    found, states, values = guard.together(group, checked)
    for each, state in zip(listed(optimizer), states):
        each.load_state_dict(state)
    for name, tensor in (apart | {name: own.stepped for name, own in owned.items()}).items():
        tensor.copy_(values[name])
    sharded.refresh()
    return found.manifest["further"]


def whole(path) -> dict:
    """Read the same in one process: "weights" for the module's load_state_dict, "optimizers" for
    those of optimizers of its parameters, and `further`."""
    with guard.read(path):
        found = Shards(path)

        def joined(name: str, parts: list) -> Tensor:
            return assembled(parts, 0, prod(found.shapes[name])).view(found.shapes[name])

        weights = {name: joined(name, parts) for name, parts in found.parts.items()}
        weights |= {name: weights[first] for name, first in found.manifest["tied"].items()}
        return {
            "weights": weights | found.manifest["apart"],
            "optimizers": found.optimizers(joined),
            **found.manifest["further"],
        }


class Shards:
    """Files of a checkpoint; their values stay on the disk until they are read. Rank `rank` of
    `ranks` that read them compares the digests of its share. `parts`: of each parameter, its
    (start, stop, elements) as each rank wrote them."""

    def __init__(self, path, rank: int = 0, ranks: int = 1):
        path = Path(path)
        self.manifest = guard.loaded(path / WHOLE)
        folder, digests = path / self.manifest["folder"], self.manifest["digests"]
        self.files = [
            guard.loaded(folder / file(number, len(digests)), each, number % ranks == rank)
            for number, each in enumerate(digests)
        ]
        self.shapes = {name: part[0] for name, part in self.files[0]["parts"].items()}
        self.parts = {n: [each["parts"][n][1:] for each in self.files] for n in self.shapes}

    def optimizers(self, join: Callable[[str, list], Tensor]) -> list[dict]:
        """Return their state_dicts; join(name, parts) makes a value of the ranks' parts of it."""
        shapes = {name: part[3].shape for name, part in self.files[0]["parts"].items()}

        def value(at: int, name: str, number: int, key: str, first: Tensor) -> Tensor:
            return join(
                name,
                [
                    (start, stop, each["optimizers"][at]["state"][number][key])
                    for each, (start, stop, _) in zip(self.files, self.parts[name])
                ],
            )

        return [
            changed(state, numbers, shapes, partial(value, at))
            for at, (state, numbers) in enumerate(
                zip(self.files[0]["optimizers"], self.manifest["facts"][ORDER])
            )
        ]


def full_optimizer_state(sharded, optimizer: Optimizer) -> dict:
    """Return the state_dict that the optimizer would have of the whole parameters, on every rank.
    All ranks call it together."""
    sharded = getattr(sharded, "replicas", sharded)
    owned = {each.name: each for each in sharded.homes}
    return changed(
        optimizer.state_dict(),
        numbers_of(sharded, optimizer),
        {name: each.stepped.shape for name, each in owned.items()},
        lambda name, number, key, value: owned[name].whole(value, sharded.group),
    )


def load_full_optimizer_state(sharded, optimizer: Optimizer, state_dict: dict) -> None:
    """Load a state_dict of an optimizer of the whole parameters; each rank keeps its part."""
    sharded = getattr(sharded, "replicas", sharded)
    owned = {each.name: each for each in sharded.homes}
    groups = state_dict["param_groups"], optimizer.param_groups
    guard.refuse_other(*(guard.facts({}, [each]) for each in groups), "The state")
    optimizer.load_state_dict(
        changed(
            state_dict,
            numbers_of(sharded, optimizer),
            {name: each.weight.shape for name, each in owned.items()},
            lambda name, number, key, value: owned[name].part(value),
        )
    )


def changed(
    state_dict: dict,
    numbers: Mapping[str, int],
    shapes: Mapping[str, tuple],
    change: Callable[[str, int, str, Tensor], Tensor],
) -> dict:
    """Apply change(name, number, key, value) to each value of an optimizer's state_dict that has an
    element for each of its parameter's, by the shape that `shapes` gives. Of a parameter without
    dimensions, a value is left alone where other parameters have one number under its key."""
    state = dict(state_dict["state"])
    scalars = {
        key
        for name, number in numbers.items()
        if tuple(shapes[name]) != ()
        for key, value in state.get(number, {}).items()
        if isinstance(value, Tensor) and value.dim() == 0
    }
    for name, number in numbers.items():
        for key, value in state.pop(number, {}).items():
            along = (
                isinstance(value, Tensor)
                and tuple(value.shape) == tuple(shapes[name])
                and key not in scalars
            )
            own = change(name, number, key, value) if along and key != "step" else deepcopy(value)
            state.setdefault(number, {})[key] = own
    return {key: value for key, value in state_dict.items() if key != "rank"} | {"state": state}


def numbers_of(sharded, optimizer: Optimizer) -> dict[str, int]:
    """Map a parameter's name to its number in the optimizer's state_dict."""
    numbers = {
        id(piece): number
        for number, piece in enumerate(
            chain.from_iterable(group["params"] for group in optimizer.param_groups)
        )
    }
    return {
        home.name: numbers[id(home.stepped)]
        for home in sharded.homes
        if id(home.stepped) in numbers
    }


def facts_of(sharded, optimizers: Sequence[Optimizer]) -> dict[str, object]:
    """Describe what a checkpoint fits."""
    weights = beside(sharded)["apart"] | {each.name: each.weight for each in sharded.homes}
    return guard.facts(weights, (each.param_groups for each in optimizers)) | {
        ORDER: [numbers_of(sharded, each) for each in optimizers]
    }


def listed(optimizer: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    return [optimizer] if isinstance(optimizer, Optimizer) else [*optimizer]


def beside(sharded) -> dict[str, dict]:
    """Collect what is not cut, which all ranks have: buffers and frozen parameters "apart", by the
    names of the module's state_dict; and further names of "tied" parameters, each with the first.
    torch has no public name for the buffers that a state_dict leaves out."""
    named = partial(sharded.module.named_parameters, remove_duplicate=False)
    first = {parameter: name for name, parameter in sharded.module.named_parameters()}
    cut = {each.name for each in sharded.homes}
    apart = {name: p.detach() for name, p in named() if first[p] not in cut}
    buffers = {
        name: buffer
        for path, part in sharded.module.named_modules(remove_duplicate=False)
        for name, buffer in part.named_buffers(path, recurse=False, remove_duplicate=False)
        if name.rpartition(".")[2] not in part._non_persistent_buffers_set
    }
    return {
        "apart": apart | buffers,
        "tied": {name: first[p] for name, p in named() if name != first[p] and first[p] in cut},
    }


def file(rank: int, ranks: int) -> str:
    return f"rank-{rank}.of-{ranks}.pt"
