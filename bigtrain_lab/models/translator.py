"""The translator that this course takes as its example: an encoder-decoder transformer.

    encoder layer   4 D^2 + 2 D I + I + 5 D        decoder layer   8 D^2 + 2 D I + I + 7 D        I: inner width of the MLP
    whole           L (both) + 3 V D + 4 D         = 93,255,680 for L = 6, D = 512, I = 2048, V = 32,000

The norm comes before each branch and once more at each end; ReLU, sinusoidal positions (no weights), no bias in attention or
output, and three matrices of V x D: source table, target table, output. There is no dropout, and padding is read as words are.
Vaswani et al. 2017 (arXiv:1706.03762), section 3; the norm's place as in Xiong et al. 2020 (arXiv:2002.04745).

Shapes: B batch, S source, T target or query, U keys, D width, H heads, K width of a head, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

from .blocks import Linear, Table, by_head
from .config import require_count, require_floating
from .gpt import initialise


@dataclass(frozen=True)
class TranslatorConfig:
    """Sizes; `layers` of the encoder and of the decoder each, `vocabulary` of each language, `longest` sentence."""

    layers: int = 6
    width: int = 512
    heads: int = 8
    inner: int = 2048
    vocabulary: int = 32_000
    longest: int = 512
    dtype: torch.dtype = torch.float32

    def __post_init__(self):
        for name in ("layers", "width", "heads", "inner", "vocabulary", "longest"):
            require_count(name, getattr(self, name))
        require_floating(self.dtype)


class Attention(nn.Module):
    """Over its own input, or (`crosses`) over a memory."""

    def __init__(self, config: TranslatorConfig, crosses: bool):
        super().__init__()
        D, plain = config.width, {"bias": False, "dtype": config.dtype}
        self.heads = config.heads
        if crosses:
            self.q, self.kv = Linear(D, D, **plain), Linear(D, 2 * D, **plain)
        else:
            self.qkv = Linear(D, 3 * D, **plain)
        self.out = Linear(D, D, **plain)

    def forward(self, x_BTD, memory_BSD=None, causal: bool = False):
        if memory_BSD is None:
            q_BHTK, k_BHUK, v_BHUK = by_head(self.qkv(x_BTD), 3, self.heads)
        else:
            (q_BHTK,), (k_BHUK, v_BHUK) = by_head(self.q(x_BTD), 1, self.heads), by_head(self.kv(memory_BSD), 2, self.heads)
        scores_BHTU = q_BHTK @ k_BHUK.transpose(-2, -1) / math.sqrt(q_BHTK.shape[-1])
        if causal:
            scores_BHTU = scores_BHTU + torch.full(scores_BHTU.shape[-2:], -math.inf, dtype=x_BTD.dtype, device=x_BTD.device).triu(1)
        return self.out((scores_BHTU.softmax(-1) @ v_BHUK).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config: TranslatorConfig):
        super().__init__()
        self.up = Linear(config.width, config.inner, dtype=config.dtype)
        self.down = Linear(config.inner, config.width, dtype=config.dtype)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Layer(nn.Module):
    """Of the encoder; with `crosses` of the decoder, which sees no later word and reads the memory."""

    def __init__(self, config: TranslatorConfig, crosses: bool):
        super().__init__()
        self.crosses = crosses
        self.attention_norm, self.attention = nn.LayerNorm(config.width, dtype=config.dtype), Attention(config, False)
        if crosses:
            self.cross_norm, self.cross = nn.LayerNorm(config.width, dtype=config.dtype), Attention(config, True)
        self.mlp_norm, self.mlp = nn.LayerNorm(config.width, dtype=config.dtype), MLP(config)

    def forward(self, x_BTD, memory_BSD=None):
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), causal=self.crosses)
        if self.crosses:
            x_BTD = x_BTD + self.cross(self.cross_norm(x_BTD), memory_BSD)
        return x_BTD + self.mlp(self.mlp_norm(x_BTD))


class Translator(nn.Module):
    def __init__(self, config: TranslatorConfig, seed: int = 0):
        super().__init__()
        D, V, dtype = config.width, config.vocabulary, config.dtype
        self.source, self.encoder = Table(V, D, dtype=dtype), nn.ModuleList(Layer(config, False) for _ in range(config.layers))
        self.encoder_norm = nn.LayerNorm(D, dtype=dtype)
        self.target, self.decoder = Table(V, D, dtype=dtype), nn.ModuleList(Layer(config, True) for _ in range(config.layers))
        self.decoder_norm, self.logits = nn.LayerNorm(D, dtype=dtype), Linear(D, V, bias=False, dtype=dtype)
        self.register_buffer("positions", sinusoids(config.longest, D).to(dtype), persistent=False)
        initialise(self, 2 * config.layers, seed)

    def forward(self, source_BS, target_BT) -> torch.Tensor:
        """Logits (B, T, V) of the word after each of the target's; ids are int64."""
        memory_BSD = self.encode(source_BS)
        return self.logits(self.decode(target_BT, memory_BSD))

    def encode(self, ids_BS):
        x_BSD = self.source(ids_BS) + self.positions[:ids_BS.shape[1]]
        for layer in self.encoder:
            x_BSD = layer(x_BSD)
        return self.encoder_norm(x_BSD)

    def decode(self, ids_BT, memory_BSD):
        x_BTD = self.target(ids_BT) + self.positions[:ids_BT.shape[1]]
        for layer in self.decoder:
            x_BTD = layer(x_BTD, memory_BSD)
        return self.decoder_norm(x_BTD)


def translator_slices(config: TranslatorConfig) -> dict[str, str]:
    """How techniques/sliced_model.py cuts a translator."""
    cut = {"source": "vocabulary", "target": "vocabulary", "logits": "vocabulary", "*.attention.qkv": "heads", "*.cross.q": "heads",
           "*.cross.kv": "heads"}
    return cut | {"*.out": "row", "*.mlp.up": "column", "*.mlp.down": "row"}


def sinusoids(longest: int, width: int) -> torch.Tensor:
    """(longest, D): sin and cos of place / 10000^(2i/D)."""
    places, pairs = torch.arange(longest, dtype=torch.float64), torch.arange(-(-width // 2), dtype=torch.float64)
    angles = places[:, None] / 10_000 ** (2 * pairs / width)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :width]
