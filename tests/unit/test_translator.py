"""The example of the lessons: its 93,255,680 weights, and its bytes as a model of that shape holds them."""

import math

import pytest
import torch
from torch import nn

from bigtrain_lab.models import TranslatorConfig, cross_entropy, translator_parameters, translator_shapes, translator_steps
from tests.unit.test_peak import Witness, differences


class Attention(nn.Module):
    def __init__(self, width, heads, crosses):
        super().__init__()
        self.heads = heads
        if crosses:
            self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
        else:
            self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def by_head(self, x, parts):
        return x.view(*x.shape[:2], parts, self.heads, -1).permute(2, 0, 3, 1, 4).contiguous()

    def forward(self, x, memory=None, causal=False):
        if memory is None:
            q, k, v = self.by_head(self.qkv(x), 3)
        else:
            q = self.by_head(self.q(x), 1).squeeze(0)
            k, v = self.by_head(self.kv(memory), 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if causal:
            unseen = torch.full((x.shape[1],) * 2, -math.inf, device=x.device).triu(1)
            scores = scores + unseen
        probabilities = scores.softmax(-1)
        mixed = (probabilities @ v).transpose(1, 2).reshape(x.shape)
        return self.out(mixed)


class MLP(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Layer(nn.Module):
    def __init__(self, config, crosses):
        super().__init__()
        width, self.causal = config.width, crosses
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, config.heads, False)
        if crosses:
            self.cross_norm, self.cross = nn.LayerNorm(width), Attention(width, config.heads, True)
        self.mlp_norm, self.mlp = nn.LayerNorm(width), MLP(width, config.inner)

    def forward(self, x, memory=None):
        x = x + self.attention(self.attention_norm(x), causal=self.causal)
        if memory is not None:
            x = x + self.cross(self.cross_norm(x), memory)
        return x + self.mlp(self.mlp_norm(x))


class Translator(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, layers = config.width, range(config.layers)
        self.source, self.encoder = nn.Embedding(config.vocabulary, width), nn.ModuleList(Layer(config, False) for _ in layers)
        self.encoder_norm = nn.LayerNorm(width)
        self.target, self.decoder = nn.Embedding(config.vocabulary, width), nn.ModuleList(Layer(config, True) for _ in layers)
        self.decoder_norm, self.logits = nn.LayerNorm(width), nn.Linear(width, config.vocabulary, bias=False)

    def encode(self, ids, positions):
        x = self.source(ids) + positions
        for layer in self.encoder:
            x = layer(x)
        return self.encoder_norm(x)

    def decode(self, ids, positions, memory):
        x = self.target(ids) + positions
        for layer in self.decoder:
            x = layer(x, memory)
        return self.decoder_norm(x)

    def forward(self, source, target, source_positions, target_positions):
        memory = self.encode(source, source_positions)
        return self.logits(self.decode(target, target_positions, memory))


def trained(config, samples, source, target, device="cpu"):
    with torch.device(device):
        model = Translator(config)
        ids = [torch.zeros(samples, tokens, dtype=torch.long) for tokens in (source, target)]
        positions = [torch.zeros(tokens, config.width) for tokens in (source, target)]
    assert {name: tuple(weight.shape) for name, weight in model.named_parameters()} == translator_shapes(config)
    return Witness(*ids, *positions).train(model, lambda: cross_entropy(model(*ids, *positions), ids[1]), "adam", 2)


@pytest.mark.parametrize("layers, heads, source, target", [(1, 2, 5, 7), (2, 4, 9, 4), (3, 2, 6, 6)])
def test_the_account_is_what_torch_holds(layers, heads, source, target):
    config = TranslatorConfig(layers=layers, width=8 * heads, heads=heads, inner=40, vocabulary=120)
    assert differences(translator_steps(config, 3, source, target), trained(config, 3, source, target)) == []


@pytest.mark.slow
def test_so_it_is_at_its_full_size_where_nothing_is_computed():
    config = TranslatorConfig()
    assert differences(translator_steps(config, 30, 64, 64), trained(config, 30, 64, 64, "meta")) == []


def test_the_numbers_of_the_lesson():
    config = TranslatorConfig()
    P = translator_parameters(config)
    assert P == 93_255_680
    assert P == 6 * (4 + 8) * 512**2 + 12 * (2 * 512 * 2048 + 2048) + 6 * (5 + 7) * 512 + 3 * 32_000 * 512 + 4 * 512
    account = translator_steps(config, 30, 64, 64)  # 1,920 target tokens
    tensors = len(translator_shapes(config))
    assert account.after("B1") == {"weights": 4 * P, "gradients": 4 * P, "optimizer": 8 * P + 4 * tensors, "temporaries": 4}
    assert round(16 * P / 1e6) == 1492 and round(4 * P / 1e6, 1) == 373.0
    assert [row.bytes for row in account.at_peak()[:3]] == [1920 * 32_000 * 4] * 3  # 245.8 MB each
    assert account.peak_of(0) == 1_905_098_248 < 2e9 < account.peak_of(1) == 2_651_144_316
