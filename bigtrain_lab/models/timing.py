"""What a piece of the model really takes on this machine: its forward and its backward, timed alone
and kept.

All blocks are alike, so three pieces are timed: embedding, block, and head with its loss. Each time
is the least of several on one thread, which is what a rank on a CPU has; in a run ranks share
cores, caches and memory, so there it takes longer.
"""

import platform
import time

import torch

from ..core import refuse
from ..runtime.devices import threads
from ..runtime.machine import keep, kept
from ..runtime.process.border import place_given
from .blocks import cross_entropy
from .config import GPTConfig
from .dropout import Noise
from .gpt import GPTStage

NAME = "pieces"  # of what is kept
FOR_S, LEAST = 0.25, 5  # seconds of repeating a piece; and how often at least
MOST_S = 1e6  # of a piece, in a note of times that somebody may have changed


def piece_seconds(config: GPTConfig, batch: int) -> list[tuple[float, float]]:
    """(forward, backward) of each piece for one micro-batch: what was kept, else timed now, in
    about a second.

    Impossible under torchrun where none were kept: each rank would time its own and cut the model
    elsewhere.
    """
    about = (  # home folders are shared by machines
        f"{timed_as(config, batch)}, torch {torch.__version__}, {platform.node()}"
    )
    found = kept(NAME)
    if about not in found:
        refuse(
            (
                place_given(),
                "The pieces of this model have not been timed on this machine, and ranks of"
                " torchrun would each find other times: predict the same settings once without"
                " torchrun, or take the counted profile.",
            )
        )
        found[about] = timed(config, batch)
        keep(NAME, found)
    return of_pieces(config, found[about])


def timed_as(config: GPTConfig, batch: int) -> str:
    """What the times of a model's pieces depend on, but for the machine; not the number of
    blocks."""
    return (
        f"width {config.width}, heads {config.heads} on {config.kv_heads or config.heads}, sequence"
        f" {config.sequence}, vocabulary {config.vocabulary}, dropout {config.dropout},"
        f" {config.dtype}, batch {batch}"
    )


def of_pieces(config: GPTConfig, three: list) -> list[tuple[float, float]]:
    """The times of all pieces, from those of embedding, block and head."""
    embedding, block, head = ((float(forward), float(backward)) for forward, backward in three)
    refuse(
        (
            not all(
                0 < seconds < MOST_S for times in (embedding, block, head) for seconds in times
            ),
            "no piece takes so long",
        ),
        error=ValueError,
    )
    return [embedding, *[block] * config.layers, head]


def timed(config: GPTConfig, batch: int) -> list[tuple[float, float]]:
    """Embedding, block, head. The number of threads and torch's generator are what they were,
    afterwards."""
    with threads(1), torch.random.fork_rng(devices=[]):
        return [seconds(config, at, batch) for at in (0, 1, config.pieces - 1)]


def seconds(config: GPTConfig, at: int, batch: int) -> tuple[float, float]:
    """The fastest forward and the fastest backward of piece `at`."""
    stage, is_first, is_last = GPTStage(config, at, at + 1), at == 0, at == config.pieces - 1
    ids = torch.randint(config.vocabulary, (batch, config.sequence))
    given = (
        ids
        if is_first
        else torch.randn(
            batch, config.sequence, config.width, dtype=config.torch_dtype, requires_grad=True
        )
    )
    gradient = (
        torch.ones((), dtype=config.torch_dtype)
        if is_last
        else torch.randn(batch, config.sequence, config.width, dtype=config.torch_dtype)
    )
    best, until, calls = [float("inf")] * 2, time.perf_counter() + FOR_S, 0
    while calls < LEAST or time.perf_counter() < until:
        stage.zero_grad(set_to_none=False)
        begin = time.perf_counter()
        output = stage(given, Noise(0, 0, calls))
        output = cross_entropy(output, ids) if is_last else output
        between = time.perf_counter()
        output.backward(gradient)
        best = [min(best[0], between - begin), min(best[1], time.perf_counter() - between)]
        calls += 1
    return best[0], best[1]
