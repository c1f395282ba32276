"""The translator: its 93,255,680 weights, what it computes, and its bytes; then translations word by
word: what is kept changes nothing, a beam of one is greedy, padding is not read."""

from dataclasses import replace

import pytest
import torch

from bigtrain_lab.core import Impossible
from bigtrain_lab.models import (
    Noise,
    Translator,
    TranslatorConfig,
    cross_entropy,
    parameter_shapes,
    translator_parameters,
    translator_steps,
)
from bigtrain_lab.models.blocks import word_cross_entropy
from bigtrain_lab.models.decoding import beam_search, greedy
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


# -- word by word ----------------------------------------------------------------------------------

PAD, BEGIN, END = range(3)
CONFIG = TranslatorConfig(
    layers=2,
    width=16,
    heads=2,
    inner=40,
    vocabulary=9,
    longest=16,
    dtype=torch.float64,
    padding=PAD,
    embedding_scale=4.0,
)
LENGTHS = (7, 2, 5, 1, 6)


def model_of(seed=1500, **changes):
    """Its matrices are large, so that its translations differ in length and words."""
    model = Translator(replace(CONFIG, **changes), seed=1)
    for number, (name, weight) in enumerate(model.named_parameters()):
        if weight.dim() == 2:
            std = 1.0 if name.split(".")[0] in ("source", "target", "logits") else 0.3
            torch.nn.init.normal_(
                weight, std=std, generator=torch.Generator().manual_seed(seed + number)
            )
    return model


def sources():
    ids = torch.randint(
        3, 9, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(2)
    )
    for row, length in zip(ids, LENGTHS):
        row[length - 1], row[length:] = END, PAD
    return ids


def uncached(model, source, words):
    """Log-probability of each next word."""
    with torch.no_grad():
        logits = model(source, torch.tensor([[BEGIN, *words]]))[0, -1]
    logits[[PAD, BEGIN]] = -torch.inf
    return logits.log_softmax(-1)


def test_greedy_takes_the_likeliest_word_and_a_beam_of_one_is_greedy():
    model, source = model_of(), sources()
    found = greedy(model, source, BEGIN, END, PAD, 10)
    for row, length in enumerate(LENGTHS):
        words = []
        while (
            len(words) < 10
            and (word := int(uncached(model, source[row : row + 1, :length], words).argmax()))
            != END
        ):
            words.append(word)
        assert [w for w in found[row].tolist() if w != PAD] == words and found[row].tolist()[
            : len(words)
        ] == words
    assert len({len([w for w in row if w != PAD]) for row in found.tolist()}) > 1
    assert torch.equal(beam_search(model, source, BEGIN, END, PAD, 10, beam=1), found)


def test_a_beam_goes_on_from_the_prefixes_that_it_keeps():
    """Against the same search, literally, which computes each prefix anew; and it is not greedy."""
    source, longest, differ = sources(), 9, 0
    for seed in range(0, 500, 100):
        model = model_of(seed)
        torch.nn.init.zeros_(model.logits.weight[END])  # so that translations are long
        found = beam_search(model, source, BEGIN, END, PAD, longest, beam=3, length_penalty=0.6)
        for row in range(len(source)):
            beam = [((), 0.0)]
            for _ in range(longest):
                grown = [(words, total) for words, total in beam if words[-1:] == (END,)]
                for words, total in (each for each in beam if each not in grown):
                    grown += [
                        ((*words, word), total + log)
                        for word, log in enumerate(
                            uncached(model, source[row : row + 1], words).tolist()
                        )
                    ]
                beam = sorted(grown, key=lambda each: -each[1] / ((5 + len(each[0])) / 6) ** 0.6)[
                    :3
                ]
            assert [w for w in found[row].tolist() if w != PAD] == [
                w for w in beam[0][0] if w != END
            ]
        differ += not torch.equal(found, greedy(model, source, BEGIN, END, PAD, longest))
    assert differ


def test_dropout_is_drawn_for_what_it_drops():
    model, source, target = model_of(dropout=0.5), sources(), torch.ones(5, 3, dtype=torch.int64)
    first, again, other = (model(source, target, Noise(0, 0, number)) for number in (0, 0, 1))
    assert torch.equal(first, again) and not torch.allclose(first, other)
    assert torch.equal(model(source, target), model_of()(source, target))


def test_a_loss_of_padding_alone_is_0_and_sends_no_gradient():
    """What it is of words, with smoothing, is proved by the evaluation of test_translation.py."""
    logits = torch.zeros(2, 4, 6, dtype=torch.float64, requires_grad=True)
    loss = word_cross_entropy(logits, torch.full((2, 4), PAD), PAD, 0.2)
    loss.backward()
    assert loss == 0 and not logits.grad.any()


@pytest.mark.parametrize(
    "asked, told",
    [
        (
            lambda model: beam_search(model, sources(), BEGIN, END, PAD, longest=4, beam=0),
            "^beam=0 is too small",
        ),
        (
            lambda model: model(
                torch.ones(1, 17, dtype=torch.int64), torch.ones(1, 2, dtype=torch.int64)
            ),
            "^17 words are longer than the translator's longest=16: leave such sentences out",
        ),
    ],
)
def test_what_cannot_be_translated_is_one_sentence(asked, told):
    with pytest.raises(Impossible, match=told):
        asked(model_of())
