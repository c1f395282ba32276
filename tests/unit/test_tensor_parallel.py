"""A sliced model is the whole one: outputs, gradients and training, at every degree; what travels and what is alive."""

from functools import partial

import pytest
import torch

from bigtrain_lab.checks.parity import relative_errors
from bigtrain_lab.core import Mesh
from bigtrain_lab.models import (GPT, Encoder, EncoderConfig, GPTConfig, GPTStage, Translator, TranslatorConfig, class_loss, cross_entropy,
                                 encoder_slices, gpt_slices, translator_slices)
from bigtrain_lab.runtime import launch
from bigtrain_lab.techniques.checkpoint import checkpoint
from bigtrain_lab.techniques.sliced_model import sliced, sum_duplicates
from bigtrain_lab.techniques.tensor_parallel import cut_of, gather_slices, vocab_parallel_cross_entropy

SIZES = {"layers": 2, "width": 16, "heads": 8, "sequence": 8, "vocabulary": 32, "dtype": torch.float64}
B, S, D, V = 2, 8, 16, 32
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

    launch(program, t, mesh=Mesh(tp=t), record=False, directory=tmp_path / "run").wait()
