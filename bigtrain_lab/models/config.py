"""A model's sizes, and where a pipeline may cut it.

The model is a list: an embedding, `layers` blocks, a head. A stage is a slice [first, last) of that
list.
"""

from dataclasses import dataclass, fields

from ..core import DTYPES, Impossible, refuse
from ..core.later import torch


class InFormat:
    """A configuration whose weights are in the number format that `dtype` names; torch's own dtype
    is taken too. It has a `width` that its `heads` share, and a `dropout`."""

    dtype: str

    @property
    def torch_dtype(self) -> "torch.dtype":
        return getattr(torch, self.dtype)

    @property
    def item_bytes(self) -> int:
        return DTYPES[self.dtype].itemsize

    def __post_init__(self):
        """Refuse a size that is no count, heads that cannot share the width, and a dropout that is
        no share; name the format."""
        require_counts(
            **{each.name: getattr(self, each.name) for each in fields(self) if each.type is int}
        )
        if self.width % self.heads:
            raise Impossible(
                f"{self.heads} heads cannot share a width of {self.width} equally: "
                f"take {_nearest_divisors(self.width, self.heads)} heads."
            )
        refuse(
            (
                not 0 <= self.dropout < 1,
                f"dropout={self.dropout} is no share of values to drop: take 0 or more, and less "
                "than 1.",
            )
        )
        object.__setattr__(self, "dtype", format_of(self.dtype))


@dataclass(frozen=True)
class GPTConfig(InFormat):
    """Sizes of a GPT. `tied` uses the token table as the head's matrix; `dtype` is that of the
    weights; with fewer `kv_heads` than heads, groups of heads share keys and values;
    `fused_attention` is one kernel, which keeps no probabilities."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    sequence: int = 128
    vocabulary: int = 256
    dropout: float = 0.0
    tied: bool = False
    dtype: str = "float32"
    kv_heads: int | None = None
    fused_attention: bool = False

    def __post_init__(self):
        refuse(
            (
                self.fused_attention and self.dropout,
                "A fused attention would draw its dropout inside the kernel, another in each run:"
                " take dropout=0, or fused_attention=False.",
            )
        )
        super().__post_init__()
        if self.kv_heads is not None:
            require_counts(kv_heads=self.kv_heads)
            if self.heads % self.kv_heads:
                raise Impossible(
                    f"{self.heads} heads cannot share {self.kv_heads} heads of keys and values"
                    f" equally: take {_nearest_divisors(self.heads, self.kv_heads)}."
                )

    @property
    def pieces(self) -> int:
        """Length of the list that a pipeline cuts: the embedding, the blocks, the head."""
        return self.layers + 2


@dataclass(frozen=True)
class EncoderConfig(GPTConfig):
    """Sizes of an encoder: those of a GPT, and the number of classes."""

    layers: int = 2
    width: int = 64
    sequence: int = 40
    vocabulary: int = 512
    classes: int = 21


@dataclass(frozen=True)
class TranslatorConfig(InFormat):
    """Sizes; `layers` of the encoder and of the decoder each, `vocabulary` of each language,
    `longest` sentence; `padding`: the id that fills a short source and is not read; None: every id
    is read; `embedding_scale` multiplies a word's row of a table before its position is added:
    sqrt(width) in the paper's section 3.4."""

    layers: int = 6
    width: int = 512
    heads: int = 8
    inner: int = 2048
    vocabulary: int = 32_000
    longest: int = 512
    dtype: str = "float32"
    dropout: float = 0.0
    padding: int | None = None
    embedding_scale: float = 1.0


def split(config: GPTConfig, stages: int) -> list[tuple[int, int]]:
    """The slice [first, last) of each stage: blocks shared equally, embedding with the first, head
    with the last.

    Left-over blocks go to the stages just before the last: the last has the head to compute, and
    the first
    holds the activations of most micro-batches under 1F1B.  6 blocks, 4 stages: 1 2 2 1.
    """
    require_counts(stages=stages)
    refuse(
        (
            stages > config.layers,
            f"{stages} stages need at least {stages} layers; the model has {config.layers}: "
            f"take {config.layers} stage{'s' * (config.layers > 1)} or {stages} layers.",
        )
    )
    each, over = divmod(config.layers, stages)
    blocks = [each + (stages - 1 - over <= stage < stages - 1) for stage in range(stages)]
    ends = [1 + sum(blocks[:stage]) for stage in range(1, stages)]
    return list(zip([0, *ends], [*ends, config.pieces]))


def tied_weights(config: GPTConfig, stages: int) -> dict[str, dict[int, str]]:
    """What a tied model, cut into so many stages, has copies of: name -> {stage: the weight's name
    there}."""
    if not config.tied or stages == 1:
        return {}
    return {
        "embedding": {
            0: "layers.0.token.weight",
            stages - 1: f"layers.{config.pieces - 1}.logits.weight",
        }
    }


def require_cuttable(config: GPTConfig, stages: int):
    refuse(
        (
            stages > config.pieces,
            f"{stages} stages need at least {stages} pieces; the model has {config.pieces}, its"
            f" embedding and head among them: take {config.pieces} stages or {stages - 2} layers.",
        )
    )


def require_slice(first: int, last: int, pieces: int):
    refuse(
        (
            not 0 <= first < last <= pieces,
            f"A stage from {first} up to {last} is not within the model's {pieces} pieces: "
            f"take 0 <= first < last <= {pieces}.",
        )
    )


def require_counts(**counts):
    refuse(
        *(
            (
                isinstance(value, bool) or not isinstance(value, int) or value < 1,
                f"{name}={value!r} is too small or not a whole number: take 1 or more.",
            )
            for name, value in counts.items()
        )
    )


def format_of(dtype) -> str:
    """The name of a dtype, or of its name. Impossible for one that holds no fractions."""
    name = str(dtype).removeprefix("torch.")
    refuse(
        (
            name not in DTYPES,
            f"dtype={dtype} holds no fractions: take torch.float32 or torch.float64.",
        )
    )
    return name


def _nearest_divisors(width: int, heads: int) -> str:
    divisors = [d for d in range(1, width + 1) if width % d == 0]
    below, above = (
        max(d for d in divisors if d <= heads),
        min((d for d in divisors if d >= heads), default=None),
    )
    return f"{below}" if above is None else f"{below} or {above}"
