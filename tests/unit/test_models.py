"""Models: closed forms, parity of stages with the whole, bad input; the encoder of sentences."""

from dataclasses import replace
from functools import partial
from math import pi, sqrt

import pytest
import torch
from torch.func import functional_call

from bigtrain_lab.core import Impossible
from bigtrain_lab.models import (
    GPT,
    Dropout,
    Encoder,
    EncoderConfig,
    GPTConfig,
    GPTStage,
    MLPStage,
    Noise,
    TranslatorConfig,
    class_loss,
    cross_entropy,
    layered_mlp,
    split,
    theory,
    tied_weights,
)
from tests.unit.sizes import DROPPED, NOISE, SMALL


def ids(seed=0, batch=2):
    return torch.randint(
        SMALL.vocabulary, (batch, SMALL.sequence), generator=torch.Generator().manual_seed(seed)
    )


def close(a, b, tolerance=1e-12):
    return torch.linalg.vector_norm(a - b) <= tolerance * torch.linalg.vector_norm(b)


# The weights


def test_initial_values_follow_gpt_2():
    weights = dict(GPT(GPTConfig(layers=8, width=64, heads=4)).named_parameters())
    for name, weight in weights.items():
        if weight.dim() == 1:
            assert torch.all(weight == (1.0 if name.endswith("norm.weight") else 0.0)), name
        else:
            residual = name.endswith(("attention.out.weight", "mlp.down.weight"))
            std = 0.02 / sqrt(2 * 8) if residual else 0.02
            # The standard deviation of n draws is off by 1/sqrt(2n), at most 1.1% here; six of
            # those.
            assert abs(weight.std().item() / std - 1) < 6 / sqrt(2 * weight.numel()), name
    assert not torch.equal(weights["layers.1.mlp.up.weight"], weights["layers.2.mlp.up.weight"])


# The parts do what their names say


def test_no_token_sees_a_later_one():
    stage, x = GPT(replace(SMALL, dtype=torch.float64)), ids()
    changed = x.clone()
    changed[:, 4] = (changed[:, 4] + 1) % SMALL.vocabulary
    before, after = stage(x), stage(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert all(not torch.equal(before[:, t], after[:, t]) for t in range(4, 7))


WIDE = GPTConfig(layers=1, width=24, heads=6, sequence=7, vocabulary=11, dtype=torch.float64)


def queries_keys_values(attention, x, shared):
    if shared == 6:
        return attention.qkv(x).unflatten(-1, (3, 6, 4)).permute(2, 0, 3, 1, 4)
    k, v = attention.kv(x).unflatten(-1, (2, shared, 4)).permute(2, 0, 3, 1, 4)
    return attention.q(x).unflatten(-1, (6, 4)).transpose(1, 2), k, v


@pytest.mark.parametrize("shared", [6, 2])
def test_attention_equals_torchs_own(shared):
    """Also where heads share keys and values, and in one kernel."""
    config = WIDE if shared == 6 else replace(WIDE, kv_heads=shared)
    attention = GPTStage(config, 1, 2).layers["1"].attention
    x = torch.randn(2, 7, 24, dtype=config.torch_dtype, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *queries_keys_values(attention, x, shared), is_causal=True, enable_gqa=True
    )
    assert close(attention(x), attention.out(expected.transpose(1, 2).flatten(2)))
    fused = GPTStage(replace(config, fused_attention=True), 1, 2).layers["1"].attention
    assert close(fused(x), attention(x))
    assert sum(p.numel() for p in GPT(config).parameters()) == theory.gpt_weights(config)


def test_the_mlp_is_gpt_2s():
    config = replace(SMALL, dtype=torch.float64)
    mlp = GPTStage(config, 1, 2).layers["1"].mlp
    x = 100 * torch.randn(
        2, 7, 12, dtype=config.torch_dtype, generator=torch.Generator().manual_seed(0)
    )
    h = mlp.up(x)
    assert close(mlp(x), mlp.down(0.5 * h * (1 + torch.tanh(sqrt(2 / pi) * (h + 0.044715 * h**3)))))


def test_a_tied_head_reads_the_token_table():
    model = GPT(replace(SMALL, tied=True))
    weights = {
        name: torch.zeros_like(w) if "token" in name else w for name, w in model.named_parameters()
    }
    assert functional_call(model, weights, (ids(), None)).abs().max() == 0
    assert torch.equal(model.layers["0"].token.weight, GPT(SMALL).layers["0"].token.weight)


def test_a_mask_depends_on_what_is_dropped_and_on_nothing_else():
    x, drop = torch.ones(50, 20, dtype=torch.float64), Dropout(0.3, "layers.1.mlp.dropout")
    first = drop(x, NOISE)
    torch.rand(3)
    assert torch.equal(first, drop(x, NOISE))
    assert torch.equal(first != 0, drop(x.float(), NOISE) != 0)
    others = [NOISE._replace(**{field: 9}) for field in Noise._fields]
    assert all(not torch.equal(first, drop(x, other)) for other in others)
    assert not torch.equal(first, Dropout(0.3, "layers.2.mlp.dropout")(x, NOISE))
    assert set(first.unique().tolist()) == {0.0, 1 / 0.7}
    assert abs((first == 0).double().mean().item() - 0.3) < 6 * sqrt(0.3 * 0.7 / 1000)


def test_a_mask_is_the_same_on_every_machine_and_day():
    kept = Dropout(0.5, "layers.1.mlp.dropout")(torch.ones(16), Noise(0, 0, 0)) != 0
    assert "".join("01"[k] for k in kept) == "1001001000111000"


def test_dropout_is_the_identity_when_nothing_is_to_be_dropped():
    x = torch.ones(3, 3)
    drop = Dropout(0.5, "here")
    assert drop(x, None) is x and Dropout(0.0, "here")(x, NOISE) is x and drop.eval()(x, NOISE) is x


def test_building_a_model_leaves_torchs_generator_alone():
    before = torch.get_rng_state()
    GPT(SMALL), layered_mlp(4, 16, 4)
    GPT(DROPPED)(ids(), NOISE)
    assert torch.equal(before, torch.get_rng_state())


# Parity: a chain of stages is the whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cuts", [[0, 5], [0, 2, 3, 5], [0, 1, 4, 5], [0, 1, 2, 3, 4, 5]], ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_chain_of_stages_equals_the_whole_bit_for_bit(cuts, dropout, dtype):
    config = replace(SMALL, dropout=dropout, dtype=dtype)
    x, targets = ids(0, batch=3), ids(1, batch=3)
    whole, stages = (
        GPT(config, seed=7),
        [GPTStage(config, *cut, seed=7) for cut in zip(cuts, cuts[1:])],
    )
    expected = dict(whole.named_parameters())
    weights = {name: w for stage in stages for name, w in stage.named_parameters()}
    assert weights.keys() == expected.keys()
    assert all(torch.equal(w, expected[name]) for name, w in weights.items())

    y, hidden = whole(x, NOISE), x
    for stage in stages:
        hidden = functional_call(stage, dict(stage.named_parameters()), (hidden, NOISE))
    assert torch.equal(hidden, y)
    cross_entropy(y, targets).backward()
    cross_entropy(hidden, targets).backward()
    assert all(torch.equal(w.grad, expected[name].grad) for name, w in weights.items())


def test_another_seed_is_another_model_and_dtypes_start_from_one():
    first, other = GPT(SMALL, seed=0), GPT(SMALL, seed=1)
    double = GPT(replace(SMALL, dtype=torch.float64), seed=0)
    assert not torch.equal(first.layers["1"].mlp.up.weight, other.layers["1"].mlp.up.weight)
    for a, b in zip(first.parameters(), double.parameters()):
        assert torch.equal(a, b.float())


# The tiny MLP


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_mlp_stages_equal_the_formula(stages):
    parts = layered_mlp(4, 16, stages, seed=3, dtype=torch.float64)
    (whole,) = layered_mlp(4, 16, seed=3, dtype=torch.float64)
    x = hidden = torch.randn(32, 16, dtype=torch.float64)
    for part in parts:
        hidden = part(hidden, None)
    a, b, c, d = whole.parameters()
    assert torch.equal(hidden, ((x @ a.T).tanh() @ b.T).tanh().matmul(c.T).tanh() @ d.T)


# Where to cut


@pytest.mark.parametrize(
    "layers, stages, blocks",
    [
        (4, 4, [1, 1, 1, 1]),
        (8, 4, [2, 2, 2, 2]),
        (6, 4, [1, 2, 2, 1]),
        (5, 4, [1, 1, 2, 1]),
        (7, 4, [2, 2, 2, 1]),
        (3, 2, [2, 1]),
        (3, 1, [3]),
    ],
)
def test_split_shares_blocks_and_spares_the_ends(layers, stages, blocks):
    cuts = split(replace(SMALL, layers=layers), stages)
    assert cuts[0][0] == 0 and cuts[-1][1] == layers + 2
    assert all(a[1] == b[0] for a, b in zip(cuts, cuts[1:]))
    assert [min(last, layers + 1) - max(first, 1) for first, last in cuts] == blocks


# Bad input: one sentence that says what to change

ENCODER = EncoderConfig(layers=2, width=12, heads=3, sequence=9, vocabulary=17, classes=5)


@pytest.mark.parametrize(
    "ask, mend",
    [
        *(
            (partial(replace, SMALL, **change), mend)
            for change, mend in (
                ({"width": 128, "heads": 5}, "take 4 or 8 heads"),
                ({"width": 12, "heads": 13}, "take 12 heads"),
                ({"heads": 6, "kv_heads": 4}, "6 heads cannot share 4 .* take 3 or 6"),
                ({"layers": 0}, "layers=0.*take 1 or more"),
                ({"sequence": -3}, "sequence=-3.*take 1 or more"),
                ({"width": 2.5}, "width=2.5.*take 1 or more"),
                ({"heads": True}, "heads=True.*take 1 or more"),
                ({"dropout": 0.1, "fused_attention": True}, "take dropout=0, or fused_attention=F"),
                ({"dropout": 1.0}, "dropout=1.0.*less than 1"),
                ({"dropout": -0.1}, "dropout=-0.1.*0 or more"),
                ({"dtype": torch.int64}, "take torch.float32"),
                ({"dtype": "int8"}, "take torch.float32"),
            )
        ),
        (lambda: TranslatorConfig(width=16, heads=3), "16 equally: take 2 or 4 heads."),
        (lambda: split(SMALL, 4), "4 stages need at least 4 layers; the model has 3"),
        (lambda: split(SMALL, 0), "stages=0.*take 1 or more"),
        (lambda: GPTStage(SMALL, 2, 2), "first < last"),
        (lambda: GPTStage(SMALL, 0, 6), "last <= 5"),
        (lambda: GPT(SMALL)(torch.zeros(1, 8, dtype=torch.int64)), "8 tokens.*take at most 7"),
        (lambda: layered_mlp(3, 16, 4), "4 stages need at least 4 layers; the MLP has 3"),
        (lambda: layered_mlp(0, 16), "layers=0"),
        (lambda: layered_mlp(2, 0), "width=0"),
        (lambda: MLPStage(4, 16, 3, 5), "last <= 4"),
        (lambda: EncoderConfig(classes=0), "classes=0"),
        (
            lambda: Encoder(ENCODER)(
                torch.zeros(1, 10, dtype=torch.int64),
                torch.ones(1, 10, dtype=torch.bool),
                torch.zeros(1, 2, dtype=torch.int64),
            ),
            "longer than the model's sequence=9",
        ),
    ],
)
def test_sizes_and_requests_that_cannot_be(ask, mend):
    with pytest.raises(Impossible, match=mend):
        ask()


def test_the_stages_of_a_tied_model_hold_copies_of_its_table():
    config = replace(SMALL, tied=True)
    assert split(config, 1) == [(0, 5)] and tied_weights(config, 1) == tied_weights(SMALL, 2) == {}
    stages = [GPTStage(config, *slice) for slice in split(config, 2)]
    (places,) = tied_weights(config, 2).values()
    copies = [stages[stage].get_parameter(name) for stage, name in places.items()]
    assert (
        list(places) == [0, 1]
        and torch.equal(*copies)
        and torch.equal(copies[0], GPT(config).get_parameter("layers.0.token.weight"))
    )


# -- the encoder: padding changes nothing, every word counts, the class is read at the marks -------


def sentences_of(*words):
    """Sentences of so many words: (ids, which of them are words, marks)."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1, ENCODER.vocabulary, (len(words), ENCODER.sequence), generator=draw)
    keep = torch.arange(ENCODER.sequence) < torch.tensor(words)[:, None]
    return ids * keep, keep, torch.tensor([[1, 3]] * len(words))


@pytest.mark.parametrize("fused", [False, True])
def test_padding_changes_nothing(fused):
    """A sentence of 5 words says the same alone and padded to 9, whatever the padding says. Of words
    that are kept each sees every other: later ones change what is read at the marks."""
    model = Encoder(replace(ENCODER, dtype=torch.float64, fused_attention=fused))
    ids, keep, marks = sentences_of(5, 9, 7)
    logits = model(ids, keep, marks)
    torch.testing.assert_close(
        model(ids[:1, :5], keep[:1, :5], marks[:1]), logits[:1], rtol=1e-12, atol=1e-14
    )
    other = torch.where(keep, ids, 16)
    torch.testing.assert_close(model(other, keep, marks), logits, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(model(other, torch.ones_like(keep), marks)[0], logits[0])


def test_the_class_is_read_at_the_marks():
    model = Encoder(ENCODER)
    ids, keep, marks = sentences_of(8, 8)
    assert not torch.allclose(model(ids, keep, marks), model(ids, keep, marks.flip(1)))


def test_the_loss_is_torchs():
    logits, labels = torch.randn(6, 5, dtype=torch.float64), torch.randint(5, (6,))
    torch.testing.assert_close(
        class_loss(logits, labels), torch.nn.functional.cross_entropy(logits, labels)
    )
