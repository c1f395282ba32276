"""A checkpoint that a crash cannot spoil, and from which a training goes on as if nothing had been.

    save     write NAME.partial, its digest behind it  ->  fsync  ->  rename to NAME  ->  fsync of
             the folder; killed before the rename: NAME is the old one, whole; after it: the new
             one, whole
    go on    weights, masters, the optimizer's moments, the loss scale, the number of updates done,
             the place in the data, and the state of each rank's random generators

What is left out begins anew, and the two runs part at the next update. rename(2) replaces a name in
one step, but only fsync before it makes sure that after a power failure the new name does not stand
for an empty file. A full disk shows in the write or in the fsync, so before the rename. No zip
reader heeds what stands behind the archive. A digest in a file of its own would need a second
rename: killed between the two, a whole file would have another's. The names of the weights are the
model's own, without a wrapper's "module.": one process reads them. Cost: 12 bytes a parameter with
Adam in float32, 14 where weights are half and have masters; twice that on the disk for a moment.
One rank of those that hold the same writes, and all wait for it at their next collective. Source:
rename and fsync in POSIX.1-2017; Mohan et al. 2021 (CheckFreq, FAST), section 5, for what the state
of a run is.
"""

import operator
import os
import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .guards import saved as guard


def save(path, state: dict) -> None:
    """Write the state under this name, whole; or leave what was there, whole. Impossible where it
    cannot be written, or where `load` could not read it again."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    with guard.written(path, partial):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            torch.save(state, file)
            file.flush()
            file.write(guard.MARK + guard.digest(partial, file.tell()))
            file.flush()
            os.fsync(file.fileno())
        guard.refuse_unreadable(partial)
        partial.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load(path) -> dict:
    """Read what was saved, to the host; reading executes nothing. Impossible where it is no such
    file, or its digest is another."""
    with guard.read(path):
        guard.refuse_damaged(path)
        return torch.load(path, map_location="cpu", weights_only=True)


def state_of(training, group, update: int, **further) -> dict:
    """Gather all that the next update depends on, after `update` updates. All ranks of the group
    call it; each has the whole model, so all get the same. `further`: what else is kept."""
    guard.refuse_parts(training)
    return {
        "update": update,
        "weights": {number: stage.state_dict() for number, stage in training.stages.items()},
        "precision": training.precision.state_dict(),
        "optimizers": [each.state_dict() for each in training.optimizers],
        "random": gathered(random_state(group.device), group),
        **further,
    }


def gathered(own: Tensor, group) -> Tensor:
    """Gather a row of each rank, on the host; no trace records it."""
    return group.unrecorded().all_gather(own[None].to(group.device)).cpu()


def restore(state: dict, training, rank: int, name="the checkpoint") -> int:
    """Restore a training, before its first update; returns the number of updates done. Of more
    ranks than were saved the last ones draw as at a start. Impossible where the model has other
    sizes."""
    guard.refuse_parts(training)
    with guard.read(name):
        guard.refuse_other_model(state, training, name)
        for number, stage in training.stages.items():
            stage.load_state_dict(state["weights"][number])
        training.precision.load_state_dict(state["precision"])
        for optimizer, own in zip(training.optimizers, state["optimizers"]):
            optimizer.load_state_dict(own)
        if rank < len(state["random"]):
            set_random_state(state["random"][rank])
        return operator.index(state["update"])


def random_state(device) -> Tensor:
    """Return the states of Python's generator, NumPy's, and torch's on the host and on the device,
    in bytes."""
    version, words, gauss = random.getstate()
    _, keys, place, has_gauss, cached = np.random.get_state()
    own = np.array([*words, *keys, place, has_gauss], dtype=np.int64)
    floats = np.array([np.nan if gauss is None else gauss, cached])
    on_device = [torch.cuda.get_rng_state(device)] if torch.device(device).type == "cuda" else []
    numbers = (torch.from_numpy(each).view(torch.uint8) for each in (own, floats))
    return torch.cat([*numbers, torch.get_rng_state(), *on_device])


def set_random_state(state: Tensor) -> None:
    words, keys = len(random.getstate()[1]), len(np.random.get_state()[1])
    sizes = guard.parts(state, 8 * (words + keys + 2), 16, len(torch.get_rng_state()))
    own, floats, host, device = state.clone().split_with_sizes(sizes)
    own, (gauss, cached) = own.view(torch.int64).tolist(), floats.view(torch.float64).tolist()
    random.setstate((3, tuple(own[:words]), None if gauss != gauss else gauss))
    np.random.set_state(("MT19937", own[words : words + keys], *own[words + keys :], cached))
    torch.set_rng_state(host.clone())  # which must lie at the beginning of a storage
    if len(device) and torch.cuda.is_available():
        torch.cuda.set_rng_state(device.clone())
