"""A sliced model is the whole one: outputs, gradients and training, at every degree; what travels and what is alive."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bigtrain_lab.checks.parity import relative_errors
from bigtrain_lab.core import Impossible, Mesh
from bigtrain_lab.models import (GPT, Encoder, EncoderConfig, GPTConfig, GPTStage, Noise, Translator, TranslatorConfig, class_loss, cross_entropy,
                                 encoder_slices, gpt_slices, translator_slices)
from bigtrain_lab.runtime import Ledger, RankFailed, launch
from bigtrain_lab.techniques.checkpoint import checkpoint
from bigtrain_lab.runtime.balance import Balance
from bigtrain_lab.runtime.group import Alone
from bigtrain_lab.techniques.sliced_model import load_whole_state_dict, sliced, sum_duplicates, whole_state_dict
from bigtrain_lab.techniques.tensor_parallel import (ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding, cut_of, gather_slices,
                                                     vocab_parallel_cross_entropy)

SIZES = {"layers": 2, "width": 16, "heads": 8, "sequence": 8, "vocabulary": 32, "dtype": torch.float64}
B, S, D, V, STEPS = 2, 8, 16, 32, 50
CONFIG, TIED, ENCODER = GPTConfig(**SIZES), GPTConfig(**SIZES, tied=True), EncoderConfig(**SIZES)
TRANSLATOR = TranslatorConfig(layers=1, width=D, heads=8, inner=32, vocabulary=V, longest=S, dtype=torch.float64)
WRONG_WAY = gpt_slices(CONFIG) | {"layers.*.mlp.up": "split row", "layers.*.mlp.down": "column gather"}


def ids(seed=0):
    return torch.randint(V, (B, S), generator=torch.Generator().manual_seed(seed))


def gpt_loss(model, logits, group):
    return vocab_parallel_cross_entropy(logits, ids(1), group) if group else cross_entropy(logits, ids(1))


def stage_case(model, group):
    x = torch.randn(B, S, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    y = model(x)
    (y * torch.arange(D)).sum().backward()
    return {"output": y, "input's gradient": x.grad}


def gpt_case(model, group, forward=lambda model: model(ids())):
    logits = forward(model)
    gpt_loss(model, logits, group).backward()
    return {"logits": gather_slices(logits, group) if group else logits}


def encoder_case(model, group):
    keep = torch.arange(S) < torch.tensor([[8], [5]])
    logits = model(ids(), keep, torch.tensor([[1, 3], [0, 4]]))
    class_loss(logits, torch.tensor([2, 1])).backward()
    return {"logits": logits}


def translator_case(model, group):
    logits = model(ids(3), ids()[:, :6])
    targets = ids(1)[:, :6]
    (vocab_parallel_cross_entropy(logits, targets, group) if group else cross_entropy(logits, targets)).backward()
    return {"logits": gather_slices(logits, group) if group else logits}


CASES = {
    "gpt": (partial(GPT, CONFIG), gpt_slices(CONFIG), gpt_case, False),
    "tied": (partial(GPT, TIED), gpt_slices(TIED), gpt_case, False),
    "wrong way": (partial(GPT, CONFIG), WRONG_WAY, gpt_case, False),
    "sequence": (partial(GPT, TIED), gpt_slices(TIED), gpt_case, True),
    "recomputed": (partial(GPT, CONFIG), gpt_slices(CONFIG), partial(gpt_case, forward=lambda model: checkpoint(model, ids())), False),
    "recomputed sequence": (partial(GPT, CONFIG), gpt_slices(CONFIG), partial(gpt_case, forward=lambda model: checkpoint(model, ids())), True),
    "stage": (partial(GPTStage, CONFIG, 1, 3), gpt_slices(CONFIG), stage_case, False),
    "encoder": (partial(Encoder, ENCODER), encoder_slices(ENCODER), encoder_case, False),
    "translator": (partial(Translator, TRANSLATOR), translator_slices(TRANSLATOR), translator_case, False),
}


def whole_gradients(model, group):
    found = {}
    for name, p in model.named_parameters():
        cut, grad = cut_of(p), p.grad
        if cut and group.size > 1:
            grad = cut.whole(group.all_gather(grad, [torch.empty_like(grad) for _ in range(group.size)]))
        found[name] = grad
    return found


def alike(ours, theirs, limit=1e-12):
    ours, theirs = ({name: each.detach().numpy() for name, each in found.items()} for found in (ours, theirs))
    assert ours.keys() == theirs.keys()
    errors = relative_errors(ours, theirs)
    worst = max(errors, key=errors.get)
    assert errors[worst] <= limit, (worst, errors[worst])


def trained(model, group, sequence=False):
    """Losses of STEPS steps of Adam."""
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = model(ids(step))
        loss = vocab_parallel_cross_entropy(logits, ids(step + 1), group) if group else cross_entropy(logits, ids(step + 1))
        loss.backward()
        if sequence:
            sum_duplicates(model, group)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def losses_alike(group):
    """Of a cross-entropy and its gradient: ignored targets, smoothing, half formats."""
    logits = 5 * torch.randn(3, 7, V, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    targets = torch.randint(V, (3, 7), generator=torch.Generator().manual_seed(5))
    targets[0, 2:5], targets[2, 1] = -100, 3
    for options in ({}, {"label_smoothing": 0.3}, {"ignore_index": 3}):
        for dtype, limit in ((torch.float64, 1e-12), (torch.bfloat16, 0)):
            kept = targets.clamp(min=0) if "ignore_index" in options else targets
            whole = logits.to(dtype, copy=True).requires_grad_()
            shard = whole.detach().chunk(group.size, -1)[group.rank].clone().requires_grad_()
            expected = F.cross_entropy(whole.flatten(0, 1).to(torch.float64), kept.flatten(), **options)
            found = vocab_parallel_cross_entropy(shard, kept, group, **options)
            for loss in (3 * expected, 3 * found):
                loss.backward()
            expected_grad = whole.grad.chunk(group.size, -1)[group.rank]
            alike({"loss": found, "grad": shard.grad.double()}, {"loss": expected, "grad": expected_grad.double()}, limit or 3e-3)


def parts_do_not_depend_on_ranks(group):
    """Of layers alone, whose sizes cut the blocks that generators draw."""
    for make in (partial(ColumnParallelLinear, 5, 200), partial(RowParallelLinear, 24, 150), partial(VocabParallelEmbedding, 200, 3)):
        ours, theirs = make(group, seed=3), make(Alone(), seed=3)
        assert all(torch.equal(p, theirs.state_dict()[name]) for name, p in whole_state_dict(ours, group).items())
        assert len(theirs.weight.unique()) > 0.99 * theirs.weight.numel()
        a, b = make(group), make(group)  # of torch's own generator: another layer has other values, and duplicates are alike
        assert not torch.equal(a.weight, b.weight)
        biases = [p for p in a.parameters() if cut_of(p) is None]
        assert all((group.all_gather(p.detach()).view(group.size, -1) == p).all() for p in biases)


@pytest.mark.parametrize("t", [1, 2, 4, 8])
def test_sliced_models_equal_one_process(t, tmp_path):
    def program(rank):
        group = rank.group("tp")
        for case, (make, plan, run, sequence) in CASES.items():
            ours, theirs = sliced(make(), plan, group, sequence), make()
            found, expected = run(ours, group), run(theirs, None)
            if sequence:
                sum_duplicates(ours, group)
            try:
                alike(found, expected)
                alike(whole_gradients(ours, group), {name: p.grad for name, p in theirs.named_parameters()})
            except Exception as error:
                error.add_note(case)
                raise
        theirs = GPT(TIED)
        losses = trained(theirs, None)
        for sequence in (False, True):
            ours = sliced(GPT(TIED), gpt_slices(TIED), group, sequence)
            assert torch.allclose(trained(ours, group, sequence), losses, rtol=1e-9, atol=0)
            alike(whole_state_dict(ours, group), theirs.state_dict(), 1e-9)
        losses_alike(group)
        torch.manual_seed(rank.index)
        parts_do_not_depend_on_ranks(group)

    launch(program, t, mesh=Mesh(tp=t), record=False, directory=tmp_path / "run").wait()


def test_masks_differ_inside_and_are_equal_outside_a_sliced_region(tmp_path):
    """And are right in number, and the same when they are drawn again."""
    config = replace(CONFIG, dropout=0.3)

    def program(rank):
        group, noise, found = rank.group("tp"), Noise(1, 2, 3), []
        for sequence in (False, True):
            model = sliced(GPT(config), gpt_slices(config), group, sequence)
            block = model.layers["1"]
            for dropout, differ in ((block.attention.dropout_probabilities, True), (block.attention.dropout_out, sequence), (block.mlp.dropout, sequence)):
                kept = dropout(torch.ones(100, 100), noise) > 0
                masks = group.all_gather(kept.flatten().to(torch.uint8)).view(group.size, -1)
                assert abs(masks.float().mean() - 0.7) < 4 * (0.3 * 0.7 / masks.numel()) ** 0.5
                together = (masks[0] * masks[1]).float().mean()  # of independent masks 0.49
                assert abs(together - 0.49) < 0.02 if differ else torch.equal(masks[0], masks[1])
            gradients = []
            for forward in (model, partial(checkpoint, model)):
                model.zero_grad()
                logits = forward(ids(), noise)
                gpt_loss(model, logits, group).backward()
                gradients.append({name: p.grad for name, p in model.named_parameters()})
            assert all(torch.equal(gradients[0][name], again) for name, again in gradients[1].items())
            duplicates = [p.grad.flatten() for p in model.parameters() if cut_of(p) is None]
            every = group.all_gather(torch.cat(duplicates)).view(group.size, -1)
            assert torch.allclose(every[0], every[1], rtol=1e-12, atol=1e-14) != sequence
            found.append(gradients[0])
        whole = GPT(config)
        cross_entropy(whole(ids(), noise), ids(1)).backward()
        assert not torch.allclose(whole.layers["2"].mlp.up.bias.grad.chunk(2)[rank.index], found[0]["layers.2.mlp.up.bias"])

    launch(program, 2, mesh=Mesh(tp=2), record=False, directory=tmp_path / "run").wait()


def test_a_checkpoint_loads_at_another_degree(tmp_path):
    """And a model sliced in two on each of two replicas trains on as one sliced in four."""
    def program(rank):
        two, four = rank.group("tp"), rank.group()
        model = sliced(GPT(TIED), gpt_slices(TIED), two)
        trained(model, two)
        saved = whole_state_dict(model, two)
        assert {name: each.shape for name, each in saved.items()} == {name: each.shape for name, each in GPT(TIED).state_dict().items()}
        other = sliced(GPT(TIED, seed=1), gpt_slices(TIED), four)
        load_whole_state_dict(other, saved, four)
        again = whole_state_dict(other, four)
        assert all(torch.equal(saved[name], again[name]) for name in saved)
        assert torch.allclose(trained(other, four), trained(model, two), rtol=1e-9, atol=0)
        assert other.layers["0"].token.weight is other.layers["3"].logits.weight and len(other.layers["0"].token.weight) == V / 4

    launch(program, 4, mesh=Mesh(dp=2, tp=2), record=False, directory=tmp_path / "run").wait()


def test_collectives_of_a_step_are_those_of_the_papers(tmp_path):
    """Four all-reduces a layer, or as many bytes by all-gather and reduce-scatter; three of a value a token in the loss."""
    t, token = 2, B * S * 8

    def program(rank):
        group = rank.group("world")
        for name, plan, sequence in (("plain", gpt_slices(CONFIG), False), ("sequence", gpt_slices(CONFIG), True), ("wrong", WRONG_WAY, False)):
            model = sliced(GPT(CONFIG), plan, group, sequence)
            with rank.span(name):
                gpt_case(model, None if name == "none" else group)
            group.barrier(name)
        sum_duplicates(model, group)

    trace = launch(program, t, cost={}, directory=tmp_path / "run").wait()
