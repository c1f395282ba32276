"""The encoder: padding changes nothing, every word counts, and the class is read at the marks."""

from dataclasses import replace

import pytest
import torch

from bigtrain_lab.core import Impossible
from bigtrain_lab.models import (
    GPT,
    Encoder,
    EncoderConfig,
    class_loss,
)

TINY = EncoderConfig(layers=2, width=12, heads=3, sequence=9, vocabulary=17, classes=5)


def given(*words):
    """Sentences of so many words: (ids, which of them are words, marks)."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1, TINY.vocabulary, (len(words), TINY.sequence), generator=draw)
    keep = torch.arange(TINY.sequence) < torch.tensor(words)[:, None]
    return ids * keep, keep, torch.tensor([[1, 3]] * len(words))


@pytest.mark.parametrize("fused", [False, True])
def test_padding_changes_nothing(fused):
    """A sentence of 5 words says the same alone and padded to 9, whatever the padding says."""
    model = Encoder(replace(TINY, dtype=torch.float64, fused_attention=fused))
    ids, keep, marks = given(5, 9, 7)
    logits = model(ids, keep, marks)
    torch.testing.assert_close(
        model(ids[:1, :5], keep[:1, :5], marks[:1]), logits[:1], rtol=1e-12, atol=1e-14
    )
    other = torch.where(keep, ids, 16)
    torch.testing.assert_close(model(other, keep, marks), logits, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(model(other, torch.ones_like(keep), marks)[0], logits[0])


def test_every_word_sees_every_word():
    """A change of the last word reaches the states of the first, and a GPT's only the last."""
    ids, keep, marks = given(9)
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % 17
    encoder, gpt = Encoder(TINY), GPT(replace(TINY))
    assert not torch.equal(encoder(ids, keep, marks), encoder(changed, keep, marks))
    assert torch.equal(gpt(ids)[:, :-1], gpt(changed)[:, :-1])


def test_the_class_is_read_at_the_marks():
    model = Encoder(TINY)
    ids, keep, marks = given(8, 8)
    assert not torch.allclose(model(ids, keep, marks), model(ids, keep, marks.flip(1)))


def test_the_loss_is_torchs():
    logits, labels = torch.randn(6, 5, dtype=torch.float64), torch.randint(5, (6,))
    torch.testing.assert_close(
        class_loss(logits, labels), torch.nn.functional.cross_entropy(logits, labels)
    )


@pytest.mark.parametrize(
    "asked, told",
    [
        (lambda: EncoderConfig(classes=0), "classes=0"),
        (
            lambda: Encoder(TINY)(
                torch.zeros(1, 10, dtype=torch.int64),
                torch.ones(1, 10, dtype=torch.bool),
                torch.zeros(1, 2, dtype=torch.int64),
            ),
            "longer than the model's sequence=9",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(asked, told):
    with pytest.raises(Impossible, match=told):
        asked()
