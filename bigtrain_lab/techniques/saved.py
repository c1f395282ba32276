"""A checkpoint that a crash cannot spoil, and from which a training goes on as if never stopped.

    save      write NAME.partial, then its digest  ->  fsync  ->  rename to NAME  ->  fsync folder
    restore   weights, masters, the optimizer's moments, the loss scale, the number of updates, the
              place in the data, and each rank's random generators

A crash before the rename leaves the old file whole. A crash after it leaves the new one whole.
rename(2) replaces a name in one step. Without the fsync before it, a power failure might leave the
new name on an empty file. A full disk shows in the write or in the fsync, so before the rename.

The digest stands behind the zip archive, where no zip reader looks. In a file of its own it would
need a second rename. A crash between the two would leave a file beside another file's digest.

A value that is not in the checkpoint starts anew. The two trainings then differ from the next
update on. Weights have the model's own names, without a wrapper's "module.", so that one process
can read them.

Cost: with Adam in float32 12 bytes a parameter, with half weights and masters 14. A save needs
twice that on the disk. Of ranks that have the same state one writes, and the others wait for it at
their next collective.
Source: rename and fsync in POSIX.1-2017; Mohan et al. 2021 (CheckFreq, FAST) for what the state of
a training is.
"""

import json
import operator
import os
from pathlib import Path

import torch
from torch import Tensor

from .checkpoint.conditions import CPU, HOST, random_states, set_random_states
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
        torch.load(partial, map_location="cpu", weights_only=True, mmap=True)
        partial.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load(path) -> dict:
    """Read what was saved, to the host; reading executes nothing. Impossible where it is no such
    file, or its digest is another."""
    return guard.loaded(path)


def state_of(training, group, update: int, **further) -> dict:
    """Gather all that the next update depends on, after `update` updates. All ranks of the group
    call it. Where each has the whole model all get the same, and one saves it; a rank of a pipeline
    or of slices gets its own part, which it saves and restores. `further`: what else is kept."""
    guard.refuse_parts(training)
    own = random_state(group.device)
    return {
        "update": update,
        "facts": facts_of(training),
        "weights": {number: stage.state_dict() for number, stage in training.stages.items()},
        "precision": training.precision.state_dict(),
        "optimizers": [each.state_dict() for each in training.optimizers],
        "random": group.differing(own, "a checkpoint") or [own] * group.size,  # a rank
        **further,
    }


def facts_of(training) -> dict[str, object]:
    """Describe what a checkpoint fits."""
    weights = {
        f"{name} of stage {number}": weight
        for number, stage in training.stages.items()
        for name, weight in stage.state_dict().items()
    }
    own = training.slices  # their parts have one shape
    of_slice = {"slice": f"{own.rank} of {own.size}"} if own else {}
    return of_slice | guard.facts(weights, (each.param_groups for each in training.optimizers))


def gathered(own: Tensor, group) -> Tensor:
    """Gather a row of each rank, on the host; no trace records it."""
    return group.unrecorded().all_gather(own[None].to(group.device)).cpu()


def restore(state: dict, training, rank: int, name="the checkpoint") -> int:
    """Restore a training, before its first update; returns the number of updates done. Of more
    ranks than were saved the last ones draw as at a start. Impossible where the model has other
    sizes."""
    guard.refuse_parts(training)
    with guard.read(name):
        guard.refuse_other(state["facts"], facts_of(training), name)
        for number, stage in training.stages.items():
            stage.load_state_dict(state["weights"][number])
        training.precision.load_state_dict(state["precision"])
        for optimizer, own in zip(training.optimizers, state["optimizers"]):
            optimizer.load_state_dict(own)
        if rank < len(state["random"]):
            set_random_state(state["random"][rank])
        return operator.index(state["update"])


def random_state(device) -> str:
    """Return the states of Python's generator, NumPy's, and torch's on the host and on the device,
    as JSON."""
    on = [torch.device(device)] if torch.device(device).type == "cuda" else []
    return json.dumps([*random_states([*HOST, *on]).values()], default=lambda each: each.tolist())


def set_random_state(state: str) -> None:
    (version, words, gauss), numpy_s, *torch_s = json.loads(state)
    set_random_states({"python": (version, tuple(words), gauss), "numpy": numpy_s})
    on = [CPU, torch.device("cuda")] if torch.cuda.is_available() else [CPU]
    set_random_states(
        {d: torch.tensor(own, dtype=torch.uint8) for d, own in zip(on, torch_s) if own}
    )
