"""The example of the lessons: its 93,255,680 weights, what it computes, and its bytes."""

import pytest
import torch

from bigtrain_lab.models import (
    Translator,
    TranslatorConfig,
    cross_entropy,
    parameter_shapes,
    translator_parameters,
    translator_steps,
)
from tests.unit.test_dry_run import Witness, differences

TINY = TranslatorConfig(
    layers=2, width=16, heads=2, inner=40, vocabulary=120, longest=12, dtype=torch.float64
)


def pairs(samples, source, target):
    draw = torch.Generator().manual_seed(0)
    return [
        torch.randint(TINY.vocabulary, (samples, tokens), generator=draw)
        for tokens in (source, target)
    ]


def test_the_decoder_sees_no_later_word_and_all_of_the_source():
    model, (source, target) = Translator(TINY), pairs(2, 7, 5)
    logits, later, other = model(source, target), target.clone(), source.clone()
    later[:, 3], other[:, -1] = (target[:, 3] + 1) % 120, (source[:, -1] + 1) % 120
    assert torch.equal(model(source, later)[:, :3], logits[:, :3]) and not torch.allclose(
        model(source, later)[:, 3:], logits[:, 3:]
    )
    assert not torch.allclose(model(other, target)[:, 0], logits[:, 0])


@pytest.mark.parametrize("source, target", [(5, 7), (9, 4)])
def test_its_storages_are_those_that_torch_holds(source, target):
    model, ids = Translator(TINY), pairs(3, source, target)
    seen = Witness(*ids, *model.buffers()).train(
        model, lambda: cross_entropy(model(*ids), ids[1]), "adam", 2
    )
    assert differences(translator_steps(TINY, 3, source, target), seen) == []


def test_the_numbers_of_the_lesson():
    config = TranslatorConfig()
    P = translator_parameters(config)
    assert P == 93_255_680
    assert (
        P
        == 6 * (4 + 8) * 512**2
        + 12 * (2 * 512 * 2048 + 2048)
        + 6 * (5 + 7) * 512
        + 3 * 32_000 * 512
        + 4 * 512
    )
    account = translator_steps(config, 30, 64, 64)  # 1,920 target tokens
    tensors = len(parameter_shapes(config))
    assert account.after("0B1") == {
        "weights": 4 * P,
        "gradients": 4 * P,
        "optimizer": 8 * P + 4 * tensors,
        "temporaries": 4,
    }
    assert round(16 * P / 1e6) == 1492 and round(4 * P / 1e6, 1) == 373.0
    assert [row.bytes for row in account.at_peak()[:3]] == [1920 * 32_000 * 4] * 3  # 245.8 MB each
    assert account.peak_of(0) == 1_905_098_248 < 2e9 < account.peak_of(1) == 2_651_144_316
