"""What the layers of a chain weigh and cost, by a dry run of each kind of layer, which is kept: a
known chain needs no torch."""

from collections.abc import Sequence
from dataclasses import replace

from ..core.later import later, torch
from ..order.recompute.plan import Chain
from ..runtime.kept import kept
from ..train.account import Work
from ..train.forms import along
from .config import GPTConfig

with later():
    from ..runtime import devices
    from ..techniques import checkpoint
    from ..train import dry_run
    from . import chains, gpt as models

SHAPE = (1, 4, 0.5, 2, 1, 0.25, 3, 1.5)


def gpt_weights(
    config: GPTConfig, rows: int, selective: bool = False
) -> tuple[Chain, tuple[Work, ...], tuple[Work, ...]]:
    """(Chain, work of each forward, of each backward), of a model whose blocks are one. The ids
    count as nothing: they are the caller's."""
    sizes, units = (rows, config.sequence, config.width, config.vocabulary), (1, 1, config.heads, 1)
    settled = replace(config, layers=1, width=config.heads, sequence=1, vocabulary=1), selective
    chain, *works = along(with_one_block, settled, sizes, (1, 2, 2, 1), units)
    return Chain(*(repeated(column, config.layers) for column in chain)), *(
        repeated(each, config.layers) for each in works
    )


@kept
def with_one_block(
    config: GPTConfig, selective: bool, sizes: tuple[int, ...]
) -> tuple[Chain, tuple[Work, ...], tuple[Work, ...]]:
    """The same of one block. `sizes`: rows, sequence, width, vocabulary."""
    rows, sequence, width, vocabulary = sizes
    config = replace(config, sequence=sequence, width=width, vocabulary=vocabulary)
    ids = torch.empty(rows, sequence, dtype=torch.int64, device=dry_run.META)
    inside = checkpoint.selective if selective else None
    return chains.weights_of(
        lambda noise: chains.gpt_layers(
            devices.built(lambda: models.GPT(config), dry_run.META), noise, ids, inside
        ),
        ids,
    )


def repeated(column: Sequence, blocks: int) -> tuple:
    """Of a chain with one block, as with so many: (embedding, block, head) as (embedding, block,
    block, ..., head); a state more is alike."""
    return (*column[:1], *column[1:2] * blocks, *column[2:])


def uneven_widths(layers: int, width: int) -> list[int]:
    """Widths of x_0 .. x_n; the last is the output's, one `width` again."""
    return [*(max(1, int(width * SHAPE[i % len(SHAPE)])) for i in range(layers)), width]


@kept
def mlp_weights(
    layers: int, width: int, rows: int, dropout: float, dtype: str
) -> tuple[Chain, tuple[Work, ...], tuple[Work, ...]]:
    """As `gpt_weights`, of a model whose layers repeat after a round of SHAPE."""
    round_ = len(SHAPE)
    if layers > 2 * round_:
        chain, *works = mlp_weights(layers - round_, width, rows, dropout, dtype)
        return Chain(*(column[:round_] + column for column in chain)), *(
            work[:round_] + work for work in works
        )
    x, targets = (
        torch.empty(rows, width, dtype=getattr(torch, dtype), device=dry_run.META) for _ in range(2)
    )
    return chains.weights_of(
        lambda noise: chains.mlp_layers(
            devices.built(
                lambda: chains.UnevenMLP(layers, width, dropout, dtype=getattr(torch, dtype)),
                dry_run.META,
            ),
            noise,
            targets,
        ),
        x,
        targets,
    )
