"""What the encoder holds, multiplies, moves and saves, from its configuration alone: the GPT's tables for embedding and blocks,
and the head's own rows.

    head:   weights 2 D + (2 D + 1) C       matmul flops 4 B D C forward, twice that backward
            saved 8 B + (4 B D + 4 B + B C) z     rows of the marks; the norm's input and statistics, the product's input,
                                                  log-probabilities

Exact for float32, float64 and mixed precision, as models/account.py is; padding is computed and saved as words are. Letters as there, C classes.
"""

from collections.abc import Iterator
from math import prod

import torch

from . import account
from .account import Matmul, Movement, Saved
from .encoder import EncoderConfig

FULL = ("norm.input", ".mean", ".rstd", ".probabilities", ".log_probabilities")  # in float32 under a policy of mixed precision


def encoder_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of each weight, in the order of `named_parameters`."""
    D, head = config.width, f"layers.{config.pieces - 1}"
    return account.parameter_shapes(config, 0, config.pieces - 1) | {
        f"{head}.norm.weight": (D,), f"{head}.norm.bias": (D,),
        f"{head}.relation.weight": (config.classes, 2 * D), f"{head}.relation.bias": (config.classes,)}


def encoder_parameters(config: EncoderConfig) -> int:
    return sum(map(prod, encoder_shapes(config).values()))


def encoder_matmuls(config: EncoderConfig, batch: int) -> list[Matmul]:
    """Every matrix product of one forward."""
    return [*account.matmuls(config, 0, config.pieces - 1, batch),
            Matmul(f"layers.{config.pieces - 1}.relation", batch, 2 * config.width, config.classes)]


def encoder_flops(config: EncoderConfig, batch: int) -> tuple[int, int]:
    """(forward, backward): two products in the backward for each one of the forward."""
    forward = sum(matmul.flops for matmul in encoder_matmuls(config, batch))
    return forward, 2 * forward


def encoder_movements(config: EncoderConfig, batch: int) -> list[Movement]:
    """Every operator that is no matmul, by the rules of account.movements; the mask is of one row a sentence here."""
    z, head = config.dtype.itemsize, f"layers.{config.pieces - 1}"
    body = [row for row in account.movements(config, 0, config.pieces - 1, batch) if not row.name.endswith(".causal values")]
    marked, whole = 2 * batch * config.width * z, batch * config.sequence * config.width * z
    return [*body, Movement(f"{head}.marks", marked, 2, 2), Movement(f"{head}.marks gradient", whole, 0, 1),
            Movement(f"{head}.norm", marked, 2, 3), Movement(f"{head}.loss", batch * config.classes * z, 2, 4)]


def encoder_saved(config: EncoderConfig, batch: int, half: torch.dtype | None = None, policy: bool = True) -> list[Saved]:
    """The distinct storages that autograd packs in a training forward and its loss, without weights and what it was given.

    `half`: the format of weights and activations in a training of mixed precision. Its policy runs norms, softmax and loss
    in float32, and what is cast for them is saved in float32; without the policy everything is half.
    """
    z, D, head = config.dtype.itemsize, config.width, f"layers.{config.pieces - 1}"
    table = [*account.saved_bytes(config, 0, config.pieces - 1, batch),
             Saved(f"{head}.marks.rows", 8 * batch), Saved(f"{head}.norm.input", 2 * batch * D * z),
             Saved(f"{head}.norm.mean", 2 * batch * z), Saved(f"{head}.norm.rstd", 2 * batch * z),
             Saved(f"{head}.relation.input", 2 * batch * D * z),
             Saved(f"{head}.log_probabilities", batch * config.classes * z)]
    return table if half is None else [each for row in table for each in in_half(row, z, half, policy, config.dropout)]


def in_half(row: Saved, z: int, half: torch.dtype, policy: bool, dropout: float) -> Iterator[Saved]:
    """The same storage in mixed precision; softmax's float32 probabilities have a half copy, for the product with v."""
    values = row.bytes // z
    if row.name.endswith((".keep", ".rows")):
        yield row
    elif policy and row.name.endswith(FULL):
        yield row._replace(bytes=values * 4)
        if row.name.endswith(".probabilities") and not dropout:
            yield Saved(f"{row.name} in half", values * half.itemsize)
    else:
        yield row._replace(bytes=values * half.itemsize)
