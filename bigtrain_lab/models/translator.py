"""The translator that this course takes as its example: an encoder-decoder transformer.

    encoder layer   4 D^2 + 2 D I + I + 5 D        I: inner width of the MLP
    decoder layer   8 D^2 + 2 D I + I + 7 D
    whole           L (both) + 3 V D + 4 D         = 93,255,680 for L = 6, D = 512, I = 2048, V =
                                                   32,000

The norm comes before each branch and once more at each end; ReLU, sinusoidal positions (no
weights), no bias in attention or output, and three matrices of V x D: source table, target table,
output. With `padding` no word attends to a source's padding; a target's comes after all its words,
which the causal mask hides. A decoder that keeps each layer's keys and values (`Kept`) computes one
word at a time: O(T) attention a word in place of a whole forward, 2 L B T D numbers kept, and 2 L B
S D of the source. Vaswani et al. 2017 (arXiv:1706.03762), section 3; the norm's place as in Xiong
et al. 2020 (arXiv:2002.04745).

Shapes: B batch, S source, T target or query, U keys, D width, H heads, K width of a head, V
vocabulary.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import nn

from bigtrain_lab.core import refuse

from .blocks import MLP, Linear, Table, by_head
from .config import TranslatorConfig
from .dropout import Dropout, Noise
from .gpt import initialise


@dataclass
class Kept:
    """What a decoder keeps of one source batch: the memory's keys and values, and those of the
    words so far; of each layer."""

    memory: list[tuple] = field(default_factory=list)
    words: list[tuple] = field(default_factory=list)
    length: int = 0

    def rows(self, rows_B) -> None:
        """The words of these rows, in this order: what a beam search goes on with."""
        self.words = [(k[rows_B], v[rows_B]) for k, v in self.words]


class Attention(nn.Module):
    """Over its own input, or (`crosses`) over a memory."""

    def __init__(self, config: TranslatorConfig, crosses: bool, path: str):
        super().__init__()
        D, plain = config.width, {"bias": False, "dtype": config.torch_dtype}
        self.heads = config.heads
        if crosses:
            self.kv_heads = config.heads
            self.q, self.kv = Linear(D, D, **plain), Linear(D, 2 * D, **plain)
        else:
            self.qkv = Linear(D, 3 * D, **plain)
        self.out = Linear(D, D, **plain)
        self.dropout = Dropout(config.dropout, path)

    def forward(
        self, x_BTD, memory_BSD=None, causal: bool = False, keep_BU=None, noise: Noise | None = None
    ):
        """With `keep_BU`, true where a key is a word, no other key is attended to."""
        q_BHTK, k_BHUK, v_BHUK = (
            self.projected(x_BTD)
            if memory_BSD is None
            else (self.queries(x_BTD), *self.of_memory(memory_BSD))
        )
        unseen = (
            torch.full(
                (x_BTD.shape[1], k_BHUK.shape[2]), -math.inf, dtype=x_BTD.dtype, device=x_BTD.device
            ).triu(1)
            if causal
            else None
        )
        return self.dropout(self.mixed(q_BHTK, k_BHUK, v_BHUK, unseen, keep_BU), noise)

    def projected(self, x_BTD):
        return by_head(self.qkv(x_BTD), 3, self.heads)

    def queries(self, x_BTD):
        return by_head(self.q(x_BTD), 1, self.heads)[0]

    def of_memory(self, memory_BSD):
        """Keys and values."""
        return by_head(self.kv(memory_BSD), 2, self.heads)

    def mixed(self, q_BHTK, k_BHUK, v_BHUK, unseen=None, keep_BU=None):
        scores_BHTU = q_BHTK @ k_BHUK.transpose(-2, -1) / math.sqrt(q_BHTK.shape[-1])
        if unseen is not None:
            scores_BHTU = scores_BHTU + unseen
        if keep_BU is not None:
            scores_BHTU = scores_BHTU.masked_fill(~keep_BU[:, None, None], -math.inf)
        return self.out((scores_BHTU.softmax(-1) @ v_BHUK).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Of the encoder; with `crosses` of the decoder, which sees no later word and reads the
    memory."""

    def __init__(self, config: TranslatorConfig, crosses: bool, path: str):
        super().__init__()
        self.crosses = crosses
        self.attention_norm = nn.LayerNorm(config.width, dtype=config.torch_dtype)
        self.attention = Attention(config, False, f"{path}.attention")
        if crosses:
            self.cross_norm, self.cross = (
                nn.LayerNorm(config.width, dtype=config.torch_dtype),
                Attention(config, True, f"{path}.cross"),
            )
        self.mlp_norm = nn.LayerNorm(config.width, dtype=config.torch_dtype)
        dropout = Dropout(config.dropout, f"{path}.mlp")
        self.mlp = MLP(config.width, config.inner, torch.Tensor.relu, dropout, config.torch_dtype)

    def forward(self, x_BTD, memory_BSD=None, keep_BS=None, noise: Noise | None = None):
        """`keep_BS`: where the source has words; the encoder's keys are these, and the memory's."""
        x_BTD = x_BTD + self.attention(
            self.attention_norm(x_BTD),
            causal=self.crosses,
            keep_BU=None if self.crosses else keep_BS,
            noise=noise,
        )
        if self.crosses:
            x_BTD = x_BTD + self.cross(
                self.cross_norm(x_BTD), memory_BSD, keep_BU=keep_BS, noise=noise
            )
        return x_BTD + self.mlp(self.mlp_norm(x_BTD), noise)

    def next(self, x_B1D, words: tuple, memory: tuple, keep_BS=None):
        """The decoder's output for one more word, and the keys and values of all words so far."""
        q, k_BHTK, v_BHTK = self.attention.projected(self.attention_norm(x_B1D))
        if words:
            k_BHTK, v_BHTK = torch.cat((words[0], k_BHTK), 2), torch.cat((words[1], v_BHTK), 2)
        x_B1D = x_B1D + self.attention.mixed(q, k_BHTK, v_BHTK)
        x_B1D = x_B1D + self.cross.mixed(
            self.cross.queries(self.cross_norm(x_B1D)), *memory, keep_BU=keep_BS
        )
        return x_B1D + self.mlp(self.mlp_norm(x_B1D)), (k_BHTK, v_BHTK)


class Translator(nn.Module):
    def __init__(self, config: TranslatorConfig, seed: int = 0):
        super().__init__()
        D, V, dtype = config.width, config.vocabulary, config.torch_dtype
        self.source = Table(V, D, dtype=dtype)
        self.encoder = nn.ModuleList(
            Layer(config, False, f"encoder.{i}") for i in range(config.layers)
        )
        self.encoder_norm = nn.LayerNorm(D, dtype=dtype)
        self.target = Table(V, D, dtype=dtype)
        self.decoder = nn.ModuleList(
            Layer(config, True, f"decoder.{i}") for i in range(config.layers)
        )
        self.decoder_norm, self.logits = (
            nn.LayerNorm(D, dtype=dtype),
            Linear(D, V, bias=False, dtype=dtype),
        )
        self.register_buffer("positions", sinusoids(config.longest, D).to(dtype), persistent=False)
        self.dropouts = nn.ModuleList(
            Dropout(config.dropout, path) for path in ("source", "target")
        )
        self.padding, self.scale = config.padding, config.embedding_scale
        initialise(self, 2 * config.layers, seed)

    def forward(self, source_BS, target_BT, noise: Noise | None = None) -> torch.Tensor:
        """Logits (B, T, V) of the word after each of the target's; ids are int64. Nothing is
        dropped without `noise`."""
        return self.logits(
            self.decode(target_BT, self.encode(source_BS, noise), self.keep(source_BS), noise)
        )

    def keep(self, source_BS):
        """True where a source has words; None where all ids are words."""
        return None if self.padding is None else source_BS != self.padding

    def embedded(self, table, ids_BT, start: int = 0, noise: Noise | None = None):
        end, longest = start + ids_BT.shape[1], len(self.positions)
        refuse(
            (
                end > longest,
                f"{end} words are longer than the translator's longest={longest}: leave such"
                " sentences out, or take a larger longest.",
            )
        )
        dropout = self.dropouts[0 if table is self.source else 1]
        x_BTD = table(ids_BT) if self.scale == 1 else table(ids_BT) * self.scale
        return dropout(x_BTD + self.positions[start:end], noise)

    def encode(self, ids_BS, noise: Noise | None = None):
        x_BSD, keep_BS = self.embedded(self.source, ids_BS, noise=noise), self.keep(ids_BS)
        for layer in self.encoder:
            x_BSD = layer(x_BSD, keep_BS=keep_BS, noise=noise)
        return self.encoder_norm(x_BSD)

    def decode(self, ids_BT, memory_BSD, keep_BS=None, noise: Noise | None = None):
        x_BTD = self.embedded(self.target, ids_BT, noise=noise)
        for layer in self.decoder:
            x_BTD = layer(x_BTD, memory_BSD, keep_BS, noise)
        return self.decoder_norm(x_BTD)

    def read(self, source_BS) -> Kept:
        """What `next` needs of a source."""
        memory_BSD = self.encode(source_BS)
        return Kept(
            [tuple(layer.cross.of_memory(memory_BSD)) for layer in self.decoder],
            [()] * len(self.decoder),
            0,
        )

    def next(self, ids_B, kept: Kept, keep_BS=None) -> torch.Tensor:
        """Logits (B, V) of the word after `ids_B`, the newest of each target, whose other words are
        `kept`; it is kept too."""
        x_B1D = self.embedded(self.target, ids_B[:, None], kept.length)
        for at, layer in enumerate(self.decoder):
            x_B1D, kept.words[at] = layer.next(x_B1D, kept.words[at], kept.memory[at], keep_BS)
        kept.length += 1
        return self.logits(self.decoder_norm(x_B1D))[:, 0]


def translator_slices(config: TranslatorConfig) -> dict[str, str]:
    """How techniques/sliced_model.py cuts a translator."""
    return {
        "source": "vocabulary",
        "target": "vocabulary",
        "logits": "vocabulary",
        "*.attention.qkv": "heads",
        "*.cross.q": "heads",
        "*.cross.kv": "kv heads",
        "*.out": "row",
        "*.mlp.up": "column",
        "*.mlp.down": "row",
    }


def sinusoids(longest: int, width: int) -> torch.Tensor:
    """(longest, D): sin and cos of place / 10000^(2i/D)."""
    places, pairs = (
        torch.arange(longest, dtype=torch.float64),
        torch.arange(-(-width // 2), dtype=torch.float64),
    )
    angles = places[:, None] / 10_000 ** (2 * pairs / width)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :width]
