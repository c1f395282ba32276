"""The experiment checkpoint: what it predicts for a plan, what a real run then holds and does, and
how deep a model fits."""

import pytest

from bigtrain_lab.core import Impossible
from bigtrain_lab.experiments.checkpoint import Checkpoint
from bigtrain_lab.experiments.depths import deepest, within
from bigtrain_lab.models import GPTConfig
from bigtrain_lab.models.chain_weights import gpt_weights, with_one_block
from bigtrain_lab.order.recompute.plan import advances, peak_bytes
from bigtrain_lab.order.recompute.plans.selective import selective_share, transformer_bytes


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_selective_makes_again_is_attention_s_square_without_its_last_product(dropout):
    """B rows, H heads, S tokens: scores 2 B S^2 D flops; scaled, masked, softmax: read and written
    once each, the mask made (4 S^2)."""
    config = GPTConfig(layers=1, width=16, heads=2, sequence=8, dropout=dropout)
    (_, forwards, plain), (_, same, longer) = (
        gpt_weights(config, 3, inside) for inside in (False, True)
    )
    scores = 3 * 2 * 8 * 8
    moved = 4 * (6 * scores + 4 * 8 * 8) + (scores * (4 * 4 + 2) if dropout else 0)
    assert forwards == same and plain[0] == longer[0] and plain[2] == longer[2]
    assert (longer[1].flops - plain[1].flops, longer[1].moved_bytes - plain[1].moved_bytes) == (
        2 * 3 * 8 * 8 * 16,
        moved,
    )
    for rows in (4, 7, 64):  # a slider's places are told by forms
        assert gpt_weights(config, rows) == with_one_block.__wrapped__(
            config, False, (rows, 8, 16, config.vocabulary)
        )


def test_four_times_deeper_in_the_same_memory():
    base = Checkpoint(plan="keep-all", layers=4, rows=16, sequence=64, steps=2)
    memory = base.simulated().peak_bytes(0)
    deep = {"keep-all": 4, "selective": 8, "sqrt": 11, "halving": 64}
    assert {plan: deepest(base, plan, memory).layers for plan in deep} == deep
    chosen = within(base, "optimal", 16, memory)
    assert (
        chosen.simulated().peak_bytes(0) <= memory
        and round(chosen.work(chosen.simulated()), 2) == 1.24
    )
    assert within(base, "sqrt", 12, memory) is None
    with pytest.raises(
        Impossible, match="No model of 2 layers fits into 1,000,000 bytes by keep-all"
    ):
        deepest(base, "keep-all", 10**6)


def test_the_published_bytes_of_a_transformer():
    """Korthikanti et al. 2022, s = h = 2048, a = 16, 24 layers, one row."""
    GB = [
        round(transformer_bytes(2048, 1, 2048, 16, 24, how) / 1e9, 2)
        for how in ("none", "selective", "full")
    ]
    assert (
        GB == [11.48, 3.42, 0.20] and round(transformer_bytes(2048, 1, 2048, 16) / 1e9, 2) == 0.48
    )
    assert round(selective_share(2048, 2048), 3) == 0.048


@pytest.mark.parametrize("settings", [{"plan": "sqrt"}, {"plan": "revolve", "model": "mlp"}])
def test_what_a_chain_of_weights_foretells_is_what_its_layers_do(settings):
    """Which the table of parity/ finds in a run: what is saved, and what runs again."""
    asked = Checkpoint(
        **{"layers": 6, "width": 16, "heads": 2, "sequence": 8, "rows": 2, "budget": 80} | settings
    )
    found = {each.name: each.of(asked.predict()) for each in asked.quantities}
    assert found["forwards run again, a step"] == advances(asked.ops)
    assert found["saved activations, peak"] == peak_bytes(asked.ops, asked.chain)
