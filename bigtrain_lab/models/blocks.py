"""The pieces of a GPT: embedding, pre-norm blocks of attention and MLP, head, loss.

    attention(x) = softmax(q k^T / sqrt(K) + unseen) v          q, k, v = x W_qkv + b
    block:   x += attention(norm(x));   x += mlp(norm(x));      mlp(x) = gelu(x W_up + b) W_down + b

The forward multiplies 24 B S D^2 + 4 B S^2 D flops a block and saves B H S^2 probabilities for the
backward, the term that grows with the square of the sequence. What a position may not see gets
-inf: those after it (GPT), or a batch's padding (encoder). That mask is made anew in each forward
and added, so it is no state and is not saved. GELU is the tanh approximation, GPT-2's. Vaswani et
al. 2017 (arXiv:1706.03762), section 3.2; Radford et al. 2019 (GPT-2), section 2.3.

Shapes: B batch, S and T sequence (queries, keys), D width, H heads, K width of a head, V
vocabulary.
"""

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from bigtrain_lab.core import refuse

from .config import GPTConfig
from .dropout import Dropout, Noise


class Linear(nn.Linear):
    """nn.Linear that draws nothing: `initialise` fills it."""

    def reset_parameters(self):
        """Leave the weights as they are."""


class Table(nn.Embedding):
    """nn.Embedding that draws nothing: `initialise` fills it."""

    def reset_parameters(self):
        """Leave the weights as they are."""


class Positions(Table):
    """A row for each place in a sequence: of a length, its first rows."""

    def forward(self, length: int):
        return self.weight[:length]


class Embedding(nn.Module):
    def __init__(self, config: GPTConfig, path: str):
        super().__init__()
        self.token = Table(config.vocabulary, config.width, dtype=config.torch_dtype)
        self.position = Positions(config.sequence, config.width, dtype=config.torch_dtype)
        self.dropout = Dropout(config.dropout, f"{path}.dropout")

    def forward(self, ids_BS, noise: Noise | None = None):
        length, longest = ids_BS.shape[1], self.position.num_embeddings
        refuse(
            (
                length > longest,
                f"{length} tokens are longer than the model's sequence={longest}: take at most"
                f" {longest}.",
            )
        )
        return self.dropout(self.token(ids_BS) + self.position(length), noise)


class Attention(nn.Module):
    def __init__(self, config: GPTConfig, path: str):
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads or config.heads
        self.fused = config.fused_attention
        if self.kv_heads == self.heads:
            self.qkv = Linear(config.width, 3 * config.width, dtype=config.torch_dtype)
        else:  # Ainslie et al. 2023 (arXiv:2305.13245)
            self.q = Linear(config.width, config.width, dtype=config.torch_dtype)
            self.kv = Linear(
                config.width,
                2 * config.width // self.heads * self.kv_heads,
                dtype=config.torch_dtype,
            )
        self.out = Linear(config.width, config.width, dtype=config.torch_dtype)
        self.dropout_probabilities = Dropout(config.dropout, f"{path}.dropout_probabilities")
        self.dropout_out = Dropout(config.dropout, f"{path}.dropout_out")

    def forward(self, x_BSD, noise: Noise | None = None, keep_BT=None):
        """Each position sees those before it and itself; with `keep_BT` (True where a token is) all
        that are kept."""
        mixed_BSHK = self.core(*self.projected(x_BSD), noise, keep_BT).transpose(1, 2)
        return self.dropout_out(self.out(mixed_BSHK.flatten(2)), noise)

    def projected(self, x_BSD):
        """Queries, keys and values by head; in a sliced model those of this rank, of all tokens."""
        if hasattr(self, "qkv"):
            return by_head(self.qkv(x_BSD), 3, self.heads)
        (q_BHSK,), kv = (
            by_head(self.q(x_BSD), 1, self.heads),
            by_head(self.kv(x_BSD), 2, self.kv_heads),
        )
        return q_BHSK, *kv.repeat_interleave(self.heads // self.kv_heads, 2)

    def core(self, q_BHSK, k_BHTK, v_BHTK, noise: Noise | None = None, keep_BT=None):
        """What grows with the square of the sequence, apart: much to keep for the backward, little
        to compute again. The fused kernel goes through the tokens block by block, and makes the
        scores again in its backward: Dao et al. 2022 (arXiv:2205.14135)."""
        if self.fused:
            seen = None if keep_BT is None else keep_BT[:, None, None]
            return F.scaled_dot_product_attention(
                q_BHSK, k_BHTK, v_BHTK, seen, is_causal=seen is None
            )
        (B, _, S, K), device = q_BHSK.shape, q_BHSK.device
        scores_BHST = q_BHSK @ k_BHTK.transpose(-2, -1) / math.sqrt(K)
        if keep_BT is None:
            unseen = torch.full((S, S), -math.inf, dtype=scores_BHST.dtype, device=device).triu(1)
        else:
            unseen = torch.zeros((B, 1, 1, S), dtype=scores_BHST.dtype, device=device)
            unseen.masked_fill_(~keep_BT[:, None, None], -math.inf)
        scores_BHST = scores_BHST + unseen
        return self.dropout_probabilities(scores_BHST.softmax(-1), noise) @ v_BHTK


def by_head(x, parts: int, heads: int):
    """(B, S, parts H K) as (parts, B, H, S, K): one contiguous copy, of which the matmuls then save
    views and copy nothing."""
    return x.view(*x.shape[:2], parts, heads, -1).permute(2, 0, 3, 1, 4).contiguous()


class MLP(nn.Module):
    """Two matrices with an activation between: `inner` is the width there."""

    def __init__(
        self, width: int, inner: int, activation: Callable, dropout: Dropout, dtype: torch.dtype
    ):
        super().__init__()
        self.up = Linear(width, inner, dtype=dtype)
        self.down = Linear(inner, width, dtype=dtype)
        self.activation, self.dropout = activation, dropout

    def forward(self, x_BSD, noise: Noise | None = None):
        return self.dropout(self.down(self.activation(self.up(x_BSD))), noise)


def gelu(x):
    return F.gelu(x, approximate="tanh")


class Block(nn.Module):
    def __init__(self, config: GPTConfig, path: str):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, dtype=config.torch_dtype)
        self.attention = Attention(config, f"{path}.attention")
        self.mlp_norm = nn.LayerNorm(config.width, dtype=config.torch_dtype)
        dropout = Dropout(config.dropout, f"{path}.mlp.dropout")
        self.mlp = MLP(config.width, 4 * config.width, gelu, dropout, config.torch_dtype)

    def forward(self, x_BSD, noise: Noise | None = None, keep_BT=None):
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), noise, keep_BT)
        return x_BSD + self.mlp(self.mlp_norm(x_BSD), noise)


def block_slices(config: GPTConfig) -> dict[str, str]:
    """How tensor slicing cuts the blocks of a model: techniques/sliced_model.py."""
    grouped = (config.kv_heads or config.heads) < config.heads
    projections = {"q": "heads", "kv": "kv heads"} if grouped else {"qkv": "heads"}
    return {f"layers.*.attention.{name}": way for name, way in projections.items()} | {
        "layers.*.attention.out": "row",
        "layers.*.mlp.up": "column",
        "layers.*.mlp.down": "row",
    }


class Head(nn.Module):
    def __init__(self, config: GPTConfig, path: str):
        super().__init__()
        self.norm = nn.LayerNorm(config.width, dtype=config.torch_dtype)
        self.logits = Linear(config.width, config.vocabulary, bias=False, dtype=config.torch_dtype)

    def forward(self, x_BSD, noise: Noise | None = None):
        return self.logits(self.norm(x_BSD))


def cross_entropy(logits_BSV, targets_BS):
    """Mean over all tokens of -log softmax(logits)[target], a scalar. Saves the B S V
    log-probabilities."""
    log_probabilities_BSV = logits_BSV.log_softmax(-1)
    return -log_probabilities_BSV.gather(-1, targets_BS.unsqueeze(-1)).mean()


def word_cross_entropy(logits_BSV, targets_BS, padding: int, smoothing: float = 0.0):
    """Mean over the targets that are no padding, a scalar; 0 where there is none. Smoothed, a
    target is 1 - smoothing the word itself and smoothing spread over the V - 1 words: padding gets
    none (Szegedy et al. 2015, arXiv:1512.00567, section 7).
    """
    log_probabilities_BSV = logits_BSV.log_softmax(-1)
    losses_BS = -log_probabilities_BSV.gather(-1, targets_BS.unsqueeze(-1)).squeeze(-1)
    if smoothing:
        of_words_BS = log_probabilities_BSV.sum(-1) - log_probabilities_BSV[..., padding]
        losses_BS = (1 - smoothing) * losses_BS - smoothing / (
            logits_BSV.shape[-1] - 1
        ) * of_words_BS
    words_BS = targets_BS != padding
    return (losses_BS * words_BS).sum() / words_BS.sum().clamp(min=1)
