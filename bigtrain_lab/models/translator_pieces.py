"""The translator as a chain, so that the gradients of its last layers travel while those of the
first are computed, as a GPT's do.

    source table | encoder layers | norm, target table | decoder layers | norm, output
    x_BSD          x_BSD            [memory_BSD, y_BTD] along the words       logits_BTV

Every piece is called with the sentences too: (x, source_BS, so_far_BT, noise). What a decoder's
layer passes on holds the memory beside its own words: a copy of (S + T) D numbers a layer, which
the whole model does not make. Names and initial values are those of the whole.

Shapes: B batch, S source, T target, D width, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache, partial

import torch
from torch import nn

from ..runtime.devices import built
from ..runtime.kept import kept
from ..techniques.one_process import Sample
from ..techniques.precision_levels import LEVELS
from ..techniques.weight_shapes import Shapes
from ..train import WHOLE, Part, Recipe, Rehearsal, rehearse
from ..train.forms import of_terms
from .blocks import word_cross_entropy
from .config import TranslatorConfig
from .dropout import Noise
from .gpt import initialise
from .translator import Translator, sinusoids

META = torch.device("meta")
PARTS = "source", "encoder", "encoder_norm", "target", "decoder", "decoder_norm", "logits"


def count(config: TranslatorConfig) -> int:
    """Pieces of a translator."""
    return 2 * config.layers + 3


class TranslatorPiece(Translator):
    """Piece `at` of the chain."""

    def __init__(self, config: TranslatorConfig, at: int, seed: int = 0):
        device = torch.empty(0).device
        with META:  # the whole: names and shapes
            super().__init__(config)
        self.at, self.layers, own = at, config.layers, of_piece(config, at)
        for name in PARTS:
            part = getattr(self, name) if name in own else None
            if isinstance(getattr(self, name), nn.ModuleList):
                part = nn.ModuleDict(
                    {
                        path.split(".")[1]: self.get_submodule(path)
                        for path in own
                        if path.startswith(name + ".")
                    }
                )
            setattr(self, name, part)
        self.to_empty(device=device)
        embeds = self.source or self.target
        self.positions = (
            sinusoids(config.longest, config.width).to(device, config.torch_dtype)
            if embeds
            else None
        )
        initialise(self, 2 * config.layers, seed)

    def forward(self, x, source_BS, so_far_BT, noise=None):
        at, S, keep_BS = self.at, source_BS.shape[1], self.keep(source_BS)
        if at == 0:
            return self.embedded(self.source, source_BS, noise=noise)
        if at <= self.layers:
            return self.encoder[str(at - 1)](x, keep_BS=keep_BS, noise=noise)
        if at == self.layers + 1:
            return torch.cat(
                (self.encoder_norm(x), self.embedded(self.target, so_far_BT, noise=noise)), 1
            )
        memory_BSD, y_BTD = x[:, :S], x[:, S:]
        if at == 2 * self.layers + 2:
            return self.logits(self.decoder_norm(y_BTD))
        y_BTD = self.decoder[str(at - self.layers - 2)](y_BTD, memory_BSD, keep_BS, noise)
        return torch.cat((memory_BSD, y_BTD), 1)


def of_piece(config: TranslatorConfig, at: int) -> list[str]:
    """The paths of the whole model's parts that a piece has."""
    L = config.layers
    return [
        ["source"],
        *([f"encoder.{i}"] for i in range(L)),
        ["encoder_norm", "target"],
        *([f"decoder.{i}"] for i in range(L)),
        ["decoder_norm", "logits"],
    ][at]


def joined(pieces: Mapping[int, TranslatorPiece], config: TranslatorConfig) -> Translator:
    """The translator that these pieces are, on the same weights."""
    whole = built(lambda: Translator(config), META)
    for at, piece in pieces.items():
        for path in of_piece(config, at):
            name, _, number = path.partition(".")
            own = getattr(piece, name)
            if number:
                getattr(whole, name)[int(number)] = own[number]
            else:
                setattr(whole, name, own)
    whole.positions = pieces[0].positions
    return whole


# -- dry runs --------------------------------------------------------------------------------------


@kept
def pieces_on_meta(config: TranslatorConfig) -> dict[int, Shapes]:
    """The weights of each piece of the chain."""
    return {
        at: Shapes.of(built(partial(TranslatorPiece, config, at), META))
        for at in range(count(config))
    }


@lru_cache(maxsize=1024)
def part(
    config: TranslatorConfig,
    at: int,
    shape: tuple[int, int, int],
    smoothing: float = 0.0,
    level: str | None = None,
    rehearsal: Rehearsal = WHOLE,
    replicas: int = 1,
) -> Part:
    """The dry run of a piece on micro-batches of a shape (B, S, T), by TERMS; layers are alike. A
    single row is a case of its own, since torch copies less there; so is a length of 1, which has
    its own dry run.
    """
    alike = [0, *[1] * config.layers, 2, *[3] * config.layers, 4][at]
    settled = replace(config, layers=1), alike, smoothing, level, rehearsal, replicas
    if min(shape[1:]) == 1:
        return piece_run(*settled, shape)
    return of_terms(piece_run, settled, *terms_of(alike, shape[0] == 1), shape)


TERMS = (  # of each kind of piece
    ("", "S", "BS"),
    ("", "BS", "BSS"),
    ("", "T", "BS", "BT"),
    ("", "TT", "BS", "BT", "BST", "BTT"),
    ("", "BS", "BT"),
)
SHAPES = (2, 3, 5), (3, 5, 4), (4, 7, 9), (5, 4, 7), (7, 9, 11), (6, 8, 3), (8, 6, 13)


@cache
def terms_of(at: int, single: bool) -> tuple[tuple, tuple]:
    """The terms of a kind of piece, and the shapes that tell and check them; of a single row some
    terms are equal."""
    terms = dict.fromkeys(term.replace("B", "" if single else "B") for term in TERMS[at])
    shapes = [(1, *lengths) if single else (rows, *lengths) for rows, *lengths in SHAPES]
    return (
        tuple(tuple(map("BST".index, term)) for term in terms),
        tuple(shapes[: len(terms) + 1]),
    )


@kept
def piece_run(
    config: TranslatorConfig,
    at: int,
    smoothing: float,
    level: str | None,
    rehearsal: Rehearsal,
    replicas: int,
    shape: tuple[int, int, int],
) -> Part:
    """A piece of a chain of one layer each, on micro-batches of one shape."""
    B, S, T = shape
    arriving = torch.empty(
        B,
        S if at < 3 else S + T,
        config.width,
        dtype=LEVELS[level].dtype if level else config.torch_dtype,
        device=META,
    )
    recipe = recipe_of(
        config,
        shape,
        smoothing,
        level,
        replicas,
        lambda _: TranslatorPiece(config, at),
    )
    return rehearse(recipe, rehearsal, int(at > 0), 1 + (at > 0) + (at < 4), arriving)


def recipe_of(
    config: TranslatorConfig,
    shape: tuple[int, int, int],
    smoothing: float,
    level: str | None,
    replicas: int,
    model,
) -> Recipe:
    """A training on micro-batches of one shape."""
    B, S, T = shape

    def data(number: int) -> Sample:
        source, target, so_far = (torch.zeros(B, length, dtype=torch.int64) for length in (S, T, T))
        return Sample(source, target, (source.clone(), so_far, Noise(0, 0, number)))

    return Recipe(
        model=model,
        data=data,
        optimizer=torch.optim.Adam,
        replicas=replicas,
        precision=level,
        clip=1.0,
        loss=lambda logits, targets: word_cross_entropy(logits, targets, config.padding, smoothing),
        weights=lambda window: [1 / len(window)] * len(window),
    )
