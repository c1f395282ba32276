"""The encoder: padding changes nothing, every word counts, and a dry run of it finds what torch
itself counts."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bigtrain_lab.core import Impossible
from bigtrain_lab.models import (
    GPT,
    Encoder,
    EncoderConfig,
    Noise,
    built,
    class_loss,
    parameter_shapes,
    parameters,
    theory,
)
from bigtrain_lab.runtime.memory import owned
from bigtrain_lab.techniques.mixed_precision import LEVELS, MixedPrecision
from bigtrain_lab.train.dry_run import dry_run

TINY = EncoderConfig(layers=2, width=12, heads=3, sequence=9, vocabulary=17, classes=5)
NOISE = Noise(3, 1, 0)


def given(config, batch, words=None):
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1, config.vocabulary, (batch, config.sequence), generator=draw)
    keep = (
        torch.arange(config.sequence)
        < torch.tensor(words or [config.sequence - 1] * batch)[:, None]
    )
    marks = torch.tensor([[1, 3]] * batch)
    return ids * keep, keep, marks, torch.randint(config.classes, (batch,), generator=draw)


def test_padding_changes_nothing():
    """A sentence of 5 words says the same alone and padded to 9, whatever the padding says."""
    model = Encoder(replace(TINY, dtype=torch.float64))
    ids, keep, marks, _ = given(TINY, 3, words=[5, 9, 7])
    logits = model(ids, keep, marks)
    torch.testing.assert_close(
        model(ids[:1, :5], keep[:1, :5], marks[:1]), logits[:1], rtol=1e-12, atol=1e-14
    )
    other = torch.where(keep, ids, 16)
    torch.testing.assert_close(model(other, keep, marks), logits, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(model(other, torch.ones_like(keep), marks)[0], logits[0])


def test_every_word_sees_every_word():
    """A change of the last word reaches the states of the first, and a GPT's only the last."""
    ids, keep, marks, _ = given(TINY, 1, words=[9])
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % 17
    encoder, gpt = Encoder(TINY), GPT(replace(TINY))
    assert not torch.equal(encoder(ids, keep, marks), encoder(changed, keep, marks))
    assert torch.equal(gpt(ids)[:, :-1], gpt(changed)[:, :-1])


def test_the_class_is_read_at_the_marks():
    model = Encoder(TINY)
    ids, keep, marks, _ = given(TINY, 2)
    assert not torch.allclose(model(ids, keep, marks), model(ids, keep, marks.flip(1)))
    states = {}
    model.layers["3"].relation.register_forward_pre_hook(lambda module, x: states.update(pair=x[0]))
    model.layers["2"].register_forward_hook(lambda module, x, y: states.update(x=y))
    model(ids, keep, marks)
    norm = model.layers["3"].norm
    assert torch.equal(
        states["pair"][1], torch.cat([norm(states["x"][1, 1]), norm(states["x"][1, 3])])
    )


def test_named_shapes_and_the_closed_form_are_those_of_the_module():
    model = Encoder(TINY)
    assert parameter_shapes(TINY) == {name: tuple(w.shape) for name, w in model.named_parameters()}
    assert (
        parameters(TINY)
        == theory.encoder_weights(TINY)
        == sum(p.numel() for p in model.parameters())
    )


def test_the_loss_is_torchs():
    logits, labels = torch.randn(6, 5, dtype=torch.float64), torch.randint(5, (6,))
    torch.testing.assert_close(
        class_loss(logits, labels), torch.nn.functional.cross_entropy(logits, labels)
    )


def run_of(config, batch, level="fp32"):
    """The actions of a dry run: a forward with its loss, and the backward."""
    examples, mp = given(config, batch), MixedPrecision(level)

    def program(rank):
        model, moved = (
            mp.prepare(built(lambda: Encoder(config), rank.device)),
            [each.to(rank.device) for each in examples],
        )
        rank.watch(lambda: owned.of([model]) | {"inputs": moved})
        with rank.span("F"), mp:
            loss = class_loss(model(*moved[:3], NOISE), moved[3])
        with rank.span("B"):
            loss.backward()

    return dry_run(program).actions


@pytest.mark.parametrize("batch", [1, 4])
def test_flops_equal_torchs_counter(batch):
    model, (ids, keep, marks, labels) = Encoder(TINY), given(TINY, batch)
    with FlopCounterMode(display=False) as forward:
        loss = class_loss(model(ids, keep, marks), labels)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    run = run_of(TINY, batch)
    assert (run["F"].work.flops, run["B"].work.flops) == (
        forward.get_total_flops(),
        backward.get_total_flops(),
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_saved_bytes_of_each_precision_are_exact(level, dropout):
    config, mp = replace(TINY, dropout=dropout), MixedPrecision(level)
    assert run_of(config, 4, level)["F"].after["activations"] == packed_bytes(
        mp.prepare(Encoder(config)), given(config, 4), mp
    )


def packed_bytes(model, examples, precision=None):
    """Bytes of the distinct storages that autograd packs, less the weights and what was given."""
    (ids, keep, marks, labels), storages = examples, {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        precision or nullcontext(),
    ):
        loss = class_loss(model(ids, keep, marks, NOISE), labels)
    for known in (ids, keep, marks, labels, *model.parameters()):
        storages.pop(known.untyped_storage().data_ptr(), None)
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


def test_what_cannot_be_built_is_refused():
    with pytest.raises(Impossible, match="classes=0"):
        EncoderConfig(classes=0)
    with pytest.raises(Impossible, match="longer than the model's sequence=9"):
        Encoder(TINY)(
            torch.zeros(1, 10, dtype=torch.int64),
            torch.ones(1, 10, dtype=torch.bool),
            torch.zeros(1, 2, dtype=torch.int64),
        )
