"""A checkpoint that a crash cannot spoil, and from which a training goes on as if nothing had been.

    save      write NAME.partial  ->  fsync  ->  rename to NAME  ->  fsync of the folder
              killed before the rename: NAME is the old one, whole; after it: the new one, whole
    go on     weights (t), masters, optimizer moments, loss scale, update t, epoch and place in it, and the state of each
              rank's random generators: what is left out begins anew, and the two runs part at the next update

rename(2) replaces a name in one step, but only fsync before it makes sure that the new name does not stand for an empty
file after a power failure. A full disk shows in the write or in the fsync, so before the rename.
The names are those of the model itself, not of what surrounds it ("module."): one process can read them.
Cost: 12 bytes a parameter with Adam in float32 (14 with half weights), and for a moment twice that on the disk; one rank of
those that hold the same writes, all read. The write is as long as the disk takes, and no rank trains meanwhile.
Source: rename, fsync in POSIX.1-2017; what a run must keep: torch.save's "general checkpoint", and 5.1 of Mohan et al. 2021
(CheckFreq, FAST).
"""

import os
import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .guards import saved as guard


def save(path, state: dict) -> None:
    """Put the state under this name, whole; or leave what was there, whole. Impossible where it cannot be written."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    with guard.written(path, partial):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load(path) -> dict:
    """What was saved, on the host; reading executes nothing. Impossible where it is no such file."""
    with guard.read(path):
        return torch.load(path, map_location="cpu", weights_only=True)


def state_of(training, group, update: int, **further) -> dict:
    """All that the next update depends on, after `update` updates: the same on every rank of the group, which has the model
    whole on each. All ranks call it together. `further`: what else is to be kept."""
    return {"update": update, "weights": {number: stage.state_dict() for number, stage in training.stages.items()},
            "precision": training.precision.state_dict(), "optimizers": [each.state_dict() for each in training.optimizers],
            "random": group.unrecorded().all_gather(random_state(group.device)[None]), **further}


def restore(state: dict, training, rank: int, name="the checkpoint") -> int:
    """Make a training what it was, before its first update; the number of updates that are done. Of more ranks than were saved the
    last ones draw as at a start. Impossible where the model has other sizes."""
    guard.refuse_other_model(state, training, name)
    for number, stage in training.stages.items():
        stage.load_state_dict(state["weights"][number])
    training.precision.load_state_dict(state["precision"])
    for optimizer, own in zip(training.optimizers, state["optimizers"]):
        optimizer.load_state_dict(own)
    if rank < len(state["random"]):
        set_random_state(state["random"][rank])
    return state["update"]


def random_state(device) -> Tensor:
    """The states of torch's generators, on the host and on the device, of Python's and of NumPy's: bytes."""
    version, words, gauss = random.getstate()
    _, keys, place, has_gauss, cached = np.random.get_state()
    own = np.array([*words, *keys, place, has_gauss], dtype=np.int64)
    floats = np.array([np.nan if gauss is None else gauss, cached])
    on_device = [torch.cuda.get_rng_state(device)] if torch.device(device).type == "cuda" else []
    return torch.cat([torch.from_numpy(own).view(torch.uint8), torch.from_numpy(floats).view(torch.uint8), torch.get_rng_state(), *on_device])


def set_random_state(state: Tensor) -> None:
    words, keys = len(random.getstate()[1]), len(np.random.get_state()[1])
    own, floats, host, device = state.clone().split_with_sizes(guard.parts(state, 8 * (words + keys + 2), 16, len(torch.get_rng_state())))
    own, (gauss, cached) = own.view(torch.int64).tolist(), floats.view(torch.float64).tolist()
    random.setstate((3, tuple(own[:words]), None if gauss != gauss else gauss))
    np.random.set_state(("MT19937", own[words:words + keys], *own[words + keys:], cached))
    torch.set_rng_state(host.clone())  # which must lie at the beginning of a storage
    if len(device) and torch.cuda.is_available():
        torch.cuda.set_rng_state(device.clone())
