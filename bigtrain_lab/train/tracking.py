"""Metrics of a run in other people's tools: read from the run's directory, as they come.

    ranks --> events of the run's directory --> a thread of the process that launched it -->
    TensorBoard, or W&B

A rank writes nothing else and waits for nobody, so a tool that is slow, or a network that is away,
cannot hold up a training; nor the end of the process: what it has not taken within LAST_S then, the
run's directory has. W&B runs offline unless WANDB_MODE says otherwise: `wandb sync` sends what it
kept.
"""

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from ..core import Impossible, Scalar

# for a tool to take the last metrics, once the process that launched the run has nothing else to do
LAST_S = 30.0
TOOLS = {"tensorboard": "tensorboard", "wandb": "wandb"}  # its name -> its package


def refuse(tool: str) -> None:
    """Impossible where the tool is not installed."""
    if tool in TOOLS and find_spec(TOOLS[tool]) is None:
        raise Impossible(
            f"{TOOLS[tool]} is not installed: pip install 'bigtrain_lab[track]', or take track"
            " none."
        )


def follow(run, tool: str) -> threading.Thread | None:
    """Start a thread that hands a run's scalars to the tool until the run has ended; None: there is
    no tool, or, under torchrun, this is not rank 0's process."""
    if tool not in TOOLS or os.environ.get("RANK", "0") != "0":
        return None
    refuse(tool)
    thread = threading.Thread(
        target=hand_over, args=(run, tool), name=f"bigtrain_lab {tool}", daemon=True
    )
    thread.start()
    atexit.register(thread.join, LAST_S)
    return thread


def hand_over(run, tool: str) -> None:
    """Each scalar of rank 0 once, numbered as it comes under its name."""
    numbers: dict[str, int] = {}
    with SINKS[tool](run) as write:
        for event in run.events("measured"):
            if isinstance(event, Scalar) and event.rank == 0:
                numbers[event.name] = number = numbers.get(event.name, -1) + 1
                write(event.name, event.value, number)


@contextmanager
def tensorboard(run) -> Iterator[Callable]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run.directory / "tensorboard")) as writer:
        yield writer.add_scalar


@contextmanager
def wandb(run) -> Iterator[Callable]:
    import wandb

    mode, alone = os.environ.get("WANDB_MODE", "offline"), wandb.run is None
    with wandb.init(
        project="bigtrain_lab",
        name=run.directory.name,
        dir=str(run.directory),
        mode=mode,
        config=run.settings["settings"],
        settings=wandb.Settings(silent=True, console="off"),
    ) as kept:
        yield lambda name, value, number: kept.log({name: value})
    if alone:
        wandb.teardown()  # its process ends, and has written all


SINKS = {"tensorboard": tensorboard, "wandb": wandb}
