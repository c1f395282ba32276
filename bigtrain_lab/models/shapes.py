"""Weights of the models by name and shape, which are kept: a known model needs no torch."""

from math import prod

from ..core.later import later
from ..runtime.kept import kept
from .config import EncoderConfig, GPTConfig, TranslatorConfig

with later():
    from ..runtime import devices
    from ..train import dry_run
    from . import encoder, gpt, translator


@kept
def parameter_shapes(
    config: GPTConfig | TranslatorConfig, first: int = 0, last: int | None = None
) -> dict[str, tuple[int, ...]]:
    """Name and shape of each weight, in the order of `named_parameters`; of a GPT's stage
    [first, last) where these are given."""

    def make():
        if kind := {TranslatorConfig: translator.Translator, EncoderConfig: encoder.Encoder}.get(
            type(config)
        ):
            return kind(config)
        return gpt.GPTStage(config, first, config.pieces if last is None else last)

    return {
        name: tuple(w.shape) for name, w in devices.built(make, dry_run.META).named_parameters()
    }


def parameters(
    config: GPTConfig | TranslatorConfig, first: int = 0, last: int | None = None
) -> int:
    """Weights of the model or stage, a tied table counted once."""
    return sum(map(prod, parameter_shapes(config, first, last).values()))


def parameter_bytes(
    config: GPTConfig | TranslatorConfig, first: int = 0, last: int | None = None
) -> int:
    return parameters(config, first, last) * config.item_bytes


translator_parameters = parameters
