"""A sliced model is the whole one, at every degree: outputs, gradients, masks, states; what cannot be
sliced is refused.

Training, half formats and optimizers over slices are proved by tests/compose; what travels and what
is held by the lab, whose runs are as predicted."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import distributed as dist, nn
from torch.nn import functional as F

from bigtrain_lab import Action, Impossible
from bigtrain_lab.checks import tensors_differ
from bigtrain_lab.models import (
    GPT,
    Encoder,
    EncoderConfig,
    GPTConfig,
    GPTStage,
    Noise,
    Translator,
    TranslatorConfig,
    class_loss,
    cross_entropy,
    encoder_slices,
    gpt_slices,
    saved_bytes,
    theory,
    translator_slices,
)
from bigtrain_lab.models.blocks import Positions
from bigtrain_lab.order.plan import SLICES
from bigtrain_lab.runtime.devices import built
from bigtrain_lab.runtime.talk.group import Alone
from bigtrain_lab.techniques import (
    LARS,
    ColumnParallelLinear,
    DistributedDataParallel,
    DynamicLossScaler,
    MixedPrecision,
    RowParallelLinear,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)
from bigtrain_lab.techniques.checkpoint import checkpoint, recomputed
from bigtrain_lab.techniques.clip import clip_grad_norm
from bigtrain_lab.techniques.sliced_model import (
    load_whole_state_dict,
    sliced,
    sum_duplicates,
    whole_state_dict,
)
from bigtrain_lab.techniques.tensor_parallel import cut_of, gather_slices
from bigtrain_lab.techniques.tied import TiedWeight
from bigtrain_lab.train.dry_run import dry_run

from .threads import Absent, on_processes, on_threads, patched

SIZES = {
    "layers": 1,
    "width": 16,
    "heads": 8,
    "sequence": 8,
    "vocabulary": 32,
    "dtype": torch.float64,
}
B, S, D, V = 2, 8, 16, 32
CONFIG, TIED, ENCODER = GPTConfig(**SIZES), GPTConfig(**SIZES, tied=True), EncoderConfig(**SIZES)
GROUPED = GPTConfig(**SIZES, kv_heads=2)
TRANSLATOR = TranslatorConfig(
    layers=1, width=D, heads=8, inner=32, vocabulary=V, longest=S, dtype=torch.float64
)
ROTARY = {
    "token": "vocabulary",
    **dict.fromkeys(("q", "k", "v", "gate", "up", "logits"), "column"),
    **dict.fromkeys(("out", "down"), "row"),
}
WRONG_WAY = gpt_slices(CONFIG) | {
    "layers.*.mlp.up": "split row",
    "layers.*.mlp.down": "column gather",
}


def ids(seed=0):
    return torch.randint(V, (B, S), generator=torch.Generator().manual_seed(seed))


def token_loss(logits, group):
    targets = ids(1)[:, : logits.shape[1]]
    return (
        vocab_parallel_cross_entropy(logits, targets, group)
        if group
        else cross_entropy(logits, targets)
    )


def token_case(model, group, forward=lambda model: model(ids())):
    logits = forward(model)
    token_loss(logits, group).backward()
    return {"logits": gather_slices(logits, group) if group else logits}


def encoder_case(model, group):
    logits = model(
        ids(), torch.arange(S) < torch.tensor([[8], [5]]), torch.tensor([[1, 3], [0, 4]])
    )
    class_loss(logits, torch.tensor([2, 1])).backward()
    return {"logits": logits}


class Rotary(nn.Module):
    """A block whose positions turn queries and keys, after Su et al. 2021 (arXiv:2104.09864), and
    whose MLP has a gate."""

    def __init__(self):
        super().__init__()
        draw = partial(nn.Linear, bias=False, dtype=torch.float64)
        torch.manual_seed(0)
        self.token = nn.Embedding(V, D, dtype=torch.float64)
        self.norms = nn.ModuleList(nn.RMSNorm(D, dtype=torch.float64) for _ in range(3))
        self.q, self.k, self.v, self.out = (draw(D, D) for _ in range(4))
        self.gate, self.up, self.down = draw(D, 32), draw(D, 32), draw(32, D)
        self.logits = draw(D, V)

    def forward(self, ids_BS):
        x_BSD = self.token(ids_BS)
        normed_BSD = self.norms[0](x_BSD)
        q, k, v = (
            each(normed_BSD).unflatten(-1, (-1, 2)).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x_BSD = x_BSD + self.out(mixed.transpose(1, 2).flatten(2))
        normed_BSD = self.norms[1](x_BSD)
        x_BSD = x_BSD + self.down(F.silu(self.gate(normed_BSD)) * self.up(normed_BSD))
        return self.logits(self.norms[2](x_BSD))


def turned(x_BHSK):
    angle_S = torch.arange(x_BHSK.shape[-2], dtype=x_BHSK.dtype, device=x_BHSK.device)
    a, b = x_BHSK.unbind(-1)
    return torch.stack(
        (a * angle_S.cos() - b * angle_S.sin(), a * angle_S.sin() + b * angle_S.cos()), -1
    )


CASES = {
    "gpt": (partial(GPT, CONFIG), gpt_slices(CONFIG), token_case, False),
    "tied": (partial(GPT, TIED), gpt_slices(TIED), token_case, False),
    "wrong way": (partial(GPT, CONFIG), WRONG_WAY, token_case, False),
    "sequence": (partial(GPT, TIED), gpt_slices(TIED), token_case, True),
    "recomputed": (
        partial(GPT, CONFIG),
        gpt_slices(CONFIG),
        partial(token_case, forward=lambda model: checkpoint(model, ids())),
        False,
    ),
    "recomputed sequence": (
        partial(GPT, CONFIG),
        gpt_slices(CONFIG),
        partial(token_case, forward=lambda model: checkpoint(model, ids())),
        True,
    ),
    "shared heads": (partial(GPT, GROUPED), gpt_slices(GROUPED), token_case, False),
    "shared heads, sequence": (partial(GPT, GROUPED), gpt_slices(GROUPED), token_case, True),
    "rotary": (Rotary, ROTARY, token_case, False),
    "rotary, sequence": (Rotary, ROTARY, token_case, True),
    "rotary, sequence, recomputed": (
        Rotary,
        ROTARY,
        partial(token_case, forward=lambda model: checkpoint(model, ids())),
        True,
    ),
    "encoder": (partial(Encoder, ENCODER), encoder_slices(ENCODER), encoder_case, False),
    "translator": (
        partial(Translator, TRANSLATOR),
        translator_slices(TRANSLATOR),
        partial(token_case, forward=lambda model: model(ids(3), ids()[:, :6])),
        False,
    ),
}


def own_parts(model, whole, group):
    """Of values by the names of a whole model, what this rank of a sliced one has."""
    cuts = {
        name: cut
        for name, p in model.named_parameters(remove_duplicate=False)
        if (cut := cut_of(p))
    }
    return {
        name: cuts[name].part(each, group.rank, group.size) if name in cuts else each
        for name, each in whole.items()
    }


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


def alike(ours, theirs, limit=1e-12, of=""):
    ours, theirs = (
        {name: each.detach() for name, each in found.items()} for found in (ours, theirs)
    )
    assert tensors_differ(ours, theirs, limit) == [], of


def losses_alike(group):
    """Of a cross-entropy and its gradient: ignored targets, half formats."""
    logits = 5 * torch.randn(
        3, 7, V, dtype=torch.float64, generator=torch.Generator().manual_seed(4)
    )
    targets = torch.randint(V, (3, 7), generator=torch.Generator().manual_seed(5))
    targets[0, 2:5], targets[2, 1] = -100, 3
    for options in ({}, {"ignore_index": 3}):
        for dtype, limit in ((torch.float64, 1e-12), (torch.bfloat16, 0)):
            kept = targets.clamp(min=0) if "ignore_index" in options else targets
            whole = logits.to(dtype, copy=True).requires_grad_()
            shard = whole.detach().chunk(group.size, -1)[group.rank].clone().requires_grad_()
            expected = F.cross_entropy(
                whole.flatten(0, 1).to(torch.float64), kept.flatten(), **options
            )
            found = vocab_parallel_cross_entropy(
                shard, kept, None if dist.is_initialized() else group, **options
            )  # torch's default group
            for loss in (3 * expected, 3 * found):
                loss.backward()
            alike(
                {"loss": found, "grad": shard.grad.double()},
                {"loss": expected, "grad": whole.grad.chunk(group.size, -1)[group.rank].double()},
                limit or 3e-3,
            )


def parts_do_not_depend_on_ranks(group):
    """Of layers alone, whose sizes cut the blocks that generators draw."""
    for make in (
        partial(ColumnParallelLinear, 5, 200),
        partial(RowParallelLinear, 24, 150),
        partial(VocabParallelEmbedding, 200, 3),
    ):
        ours, theirs = make(group, seed=3), make(Alone(), seed=3)
        expected = own_parts(ours, theirs.state_dict(), group)
        assert all(torch.equal(p, expected[name]) for name, p in ours.state_dict().items())
        assert len(theirs.weight.unique()) > 0.99 * theirs.weight.numel()


def every_case(group):
    for case, (make, plan, run, sequence) in CASES.items():
        ours, theirs = sliced(make(), plan, group, sequence), make()
        found, expected = run(ours, group), run(theirs, None)
        if sequence:
            sum_duplicates(ours, group)
        alike(found, expected, of=case)
        alike(gradients(ours), own_parts(ours, gradients(theirs), group), of=case)
    return {}


@pytest.mark.parametrize(
    "over, t",
    [(on_threads, 1), (on_threads, 2), (on_threads, 4), (on_threads, 8), (on_processes, 2)],
)
def test_sliced_models_equal_one_process(over, t):
    over(every_case, t)


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("proof", [losses_alike, parts_do_not_depend_on_ranks])
def test_losses_and_first_values_are_alike(proof, t):
    on_threads(proof, t)


@pytest.mark.parametrize("sequence", [False, True])
def test_masks_differ_inside_and_are_equal_outside_a_sliced_region(sequence):
    """And are right in number, and the same when they are drawn again."""
    config, noise = replace(CONFIG, dropout=0.3), Noise(1, 2, 3)

    def program(group):
        model = sliced(GPT(config), gpt_slices(config), group, sequence)
        block = model.layers["1"]
        for dropout, differ in (
            (block.attention.dropout_probabilities, True),
            (block.attention.dropout_out, sequence),
            (block.mlp.dropout, sequence),
        ):
            kept = dropout(torch.ones(100, 100), noise) > 0
            masks = group.all_gather(kept.flatten().to(torch.uint8)).view(group.size, -1)
            assert abs(masks.float().mean() - 0.7) < 4 * (0.3 * 0.7 / masks.numel()) ** 0.5
            together = (masks[0] * masks[1]).float().mean()  # of independent masks 0.49
            assert abs(together - 0.49) < 0.02 if differ else torch.equal(masks[0], masks[1])
        twice = []
        for forward in (model, partial(checkpoint, model)):
            model.zero_grad()
            token_loss(forward(ids(), noise), group).backward()
            twice.append(gradients(model))
        assert all(torch.equal(twice[0][name], again) for name, again in twice[1].items())
        duplicates = [p.grad.flatten() for p in model.parameters() if cut_of(p) is None]
        every = group.all_gather(torch.cat(duplicates)).view(group.size, -1)
        assert torch.allclose(every[0], every[1], rtol=1e-12, atol=1e-14) != sequence

    on_threads(program, 2)


def test_a_norm_counts_once_what_several_ranks_hold():
    """Bare tensors, as a script gives them: a bias that is not cut, and a tied weight."""

    def program(group):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        model = sliced(model, {"0": "column", "2": "row"}, group) if group else model
        row, tied = RowParallelLinear(4, 2, group or Alone()), nn.Parameter(torch.ones(5))
        if group:
            TiedWeight(group, "tied", {0: 0, 1: 1}, {group.rank: tied})
        (model(torch.ones(1, 3)).sum() + tied.sum() + row.bias.sum()).backward()
        learnt = [*model.parameters(), tied, row.bias]
        if group:
            mp, half = MixedPrecision("bf16"), RowParallelLinear(4, 2, group)
            replica = DistributedDataParallel(ColumnParallelLinear(3, 4, group), Alone())
            with mp:
                mp.backward(mp.prepare(half)(torch.ones(1, 2)).sum())
            replica(torch.ones(1, 3)).sum().backward()
            replica.finish_gradient_synchronization()
            for own in (learnt, mp.parameters(), replica.parameters()):
                with pytest.raises(Impossible, match="of which other ranks have the rest"):
                    nn.utils.clip_grad_norm_(own, 1.0, foreach=True)
            assert clip_grad_norm(mp.parameters(), 9.0, group) == pytest.approx(10**0.5)
            norm = clip_grad_norm(learnt, 1.0, group)
            LARS(learnt, group=group).step()  # it may read norms, which it sums over the ranks
            return norm
        return float(nn.utils.clip_grad_norm_(learnt, 1.0))

    assert on_threads(program, 2) == pytest.approx([program(None)] * 2)


def test_a_checkpoint_loads_at_another_degree():
    whole = GPT(TIED, seed=1).state_dict()

    def program(group):
        model = sliced(GPT(TIED), gpt_slices(TIED), group)
        load_whole_state_dict(model, whole, group)
        found = whole_state_dict(model, group)
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], each) for name, each in whole.items())
        assert model.layers["0"].token.weight is model.layers["2"].logits.weight
        return len(model.layers["0"].token.weight)

    assert [on_threads(program, t) for t in (2, 4)] == [[V / 2] * 2, [V / 4] * 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("t, sequence", [(2, False), (4, False), (4, True)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_a_sliced_block_saves_has_the_closed_form(dtype, t, sequence, dropout):
    config = GPTConfig(**SIZES | {"layers": 3, "dtype": dtype, "dropout": dropout})
    one, two = (
        sum(row.bytes for row in saved_bytes(config, 1, last, B, t, sequence)) for last in (2, 3)
    )
    assert two - one == theory.block_saved_bytes(config, B, t, sequence)


def test_matrices_of_one_input_gather_it_once_each_way():
    """The three inputs of seven matrices: of q, k and v, of gate and up, of the logits."""

    def program(rank):
        with rank.aside():
            model = built(Rotary, rank.device)
            given = ids().to(rank.device)
        model = sliced(model, ROTARY, rank.group(SLICES), True)
        for step, way in enumerate((partial(checkpoint, model), model)):
            with rank.span(Action("F", 0, step)):
                logits = way(given)
            with rank.span(Action("B", 0, step)):
                logits.sum().backward()
        with rank.span("evaluation"), torch.no_grad():
            model(given)

    acted = dry_run(program, slices=4).actions
    calls = {name: Counter(call.kind for call in each.called) for name, each in acted.items()}
    forward, backward = (Counter(all_gather=gathers, reduce_scatter=3) for gathers in (3, 3 + 3))
    assert calls == {
        "0F0": forward,
        "0B0": forward + backward,
        "0F1": forward,
        "0B1": backward,
        "evaluation": forward,
    }


def test_what_is_gathered_once_more_is_right_however_the_graph_is_used():
    """Walked through twice, in parts, of a frozen matrix, of an input that was there before; and
    told of a change in place."""

    def program(group):
        whole, model = Rotary(), sliced(Rotary(), ROTARY, group, True)
        for each in (whole, model):
            each.k.weight.requires_grad_(False)
        losses = token_loss(whole(ids()), None), token_loss(model(ids()), group)
        for one in ("q", "v", "up"):
            theirs, ours = (
                torch.autograd.grad(loss, each.get_parameter(f"{one}.weight"), retain_graph=True)
                for loss, each in zip(losses, (whole, model))
            )
            alike({f"{one}.weight": ours[0]}, own_parts(model, {f"{one}.weight": theirs[0]}, group))
        for _ in range(2):
            for loss in losses:
                loss.backward(retain_graph=True)
        sum_duplicates(model, group)
        learnt, theirs = (
            {name: p.grad for name, p in each.named_parameters() if p.grad is not None}
            for each in (model, whole)
        )
        alike(learnt, own_parts(model, theirs, group))
        x = torch.ones(B, S // group.size, D, dtype=torch.float64)
        with torch.no_grad():
            model.up(x)
        model.gate(x.requires_grad_()).sum().backward()
        assert x.grad.abs().sum() > 0  # not what was gathered without gradients
        for given, changed in [(x.detach(),) * 2, (x, model.up.weight)]:
            y = model.up(given)
            with torch.no_grad():
                changed.add_(1)
            assert not torch.equal(model.up(given), y)  # not what was gathered before
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()

    on_threads(program, 2)


@pytest.mark.parametrize(
    "heads, width, batch", [(64, 6144, 4), (96, 12288, 1), (128, 20480, 1), (160, 25600, 1)]
)
def test_a_layer_keeps_what_is_published(heads, width, batch):
    """Korthikanti et al. 2022, table 2, of the models of figures 1 and 7: of 22 B, 175 B, 530 B and
    1 T weights, in bytes a number of the hidden state, on 8 ranks."""
    t, S = 8, 2048
    config = GPTConfig(3, width, heads, S, 51_200, 0.1, dtype=torch.bfloat16)
    plain, square = (lambda stage, *given: stage(*given)), 5 * heads * S / width
    for published, sequence, forward in (
        (10 + 24 / t + square / t, False, plain),
        (34 / t + square / t, True, plain),
        (10 + 24 / t, False, recomputed("selective")),
        (34 / t, True, recomputed("selective")),
        (2, False, recomputed("keep-none")),
    ):
        one, two = (
            sum(row.bytes for row in saved_bytes(config, 1, last, batch, t, sequence, forward))
            for last in (2, 3)
        )
        assert (two - one) / (batch * S * width) == pytest.approx(published, rel=2e-4)


# -- refusals --------------------------------------------------------------------------------------


Many = partial(Absent, 0)


def gpt(**sizes):
    return GPT(GPTConfig(**SIZES | sizes))


def stepped(model, scaler):
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    scaler.step(torch.optim.SGD(model.parameters(), 0.1))


BLOCK = {"layers.1.mlp.up": "column", "layers.1.mlp.down": "row"}
REFUSED = {
    "heads": (
        lambda: sliced(gpt(vocabulary=33), gpt_slices(CONFIG), Many(3)),
        "The number of heads of layers.1.attention is 8, .* take 6 or 9",
    ),
    "vocabulary": (
        lambda: sliced(gpt(vocabulary=30), gpt_slices(CONFIG), Many(4)),
        "vocabulary of layers.0.token is 30, .* take 28 or 32",
    ),
    "features": (
        lambda: ColumnParallelLinear(4, 2, Many(4)),
        "out_features is 2, which 4 ranks cannot share equally: take 4,",
    ),
    "inputs": (
        lambda: sliced(gpt(width=8), {"layers.1.attention.out": "row"}, Many(3)),
        "in_features of layers.1.attention.out is 8",
    ),
    "no module": (
        lambda: sliced(gpt(), {"layers.*.mlp.upp": "column"}, Many(2)),
        "no such module: the nearest are layers.1.mlp.up.*attribute elsewhere",
    ),
    "whole gradients": (
        lambda: sum_duplicates(sliced(gpt(), BLOCK, Many(2)), Many(2)),
        "layers.0.token.weight was not sliced with sequence=True",
    ),
    "a scaler alone": (
        lambda: stepped(sliced(gpt(), gpt_slices(CONFIG), Many(2)), DynamicLossScaler()),
        "give DynamicLossScaler.* all ranks",
    ),
    "nothing": (lambda: sliced(gpt(), {}, Many(2)), "names no module"),
    "other stage": (lambda: sliced(GPTStage(CONFIG, 0, 1), BLOCK, Many(2)), "names no module"),
    "way": (
        lambda: sliced(gpt(), {"layers.1.mlp.up": "rows"}, Many(2)),
        "by 'rows': choose one of column, row",
    ),
    "kind": (
        lambda: sliced(gpt(), {"layers.1.mlp": "column"}, Many(2)),
        "it is a MLP: name a Linear",
    ),
    "key-value heads": (
        lambda: sliced(gpt(heads=12, width=24, kv_heads=4), {"*.kv": "kv heads"}, Many(3)),
        "kv heads .* is 4, .* take 3 or 6",
    ),
    "no heads": (
        lambda: sliced(gpt(), {"layers.1.mlp.up": "heads"}, Many(2)),
        "MLP does not say how many",
    ),
    "tied": (
        lambda: sliced(gpt(tied=True), {"layers.0.token": "vocabulary"}, Many(2)),
        "layers.2.logits share a weight",
    ),
    "sequence": (lambda: sliced(gpt(), BLOCK, Many(2), True), "says where the sequence is cut"),
    "table left": (
        lambda: sliced(
            Rotary(), {path: way for path, way in ROTARY.items() if path != "token"}, Many(2), True
        ),
        "cut the table of tokens by 'vocabulary'",
    ),
    "wrong way": (lambda: sliced(gpt(), WRONG_WAY, Many(2), True), "take sequence=False"),
    "long": (
        lambda: sliced(gpt(), gpt_slices(CONFIG), Many(2), True)(ids()[:, :5]),
        "the sequence is 5, .* take 4 or 6",
    ),
    "id": (
        lambda: sliced(gpt(), gpt_slices(CONFIG), Many(2))(ids() + 30),
        "outside the vocabulary of 32: take ids from 0 to 31",
    ),
    "target": (
        lambda: vocab_parallel_cross_entropy(torch.zeros(2, 5), torch.tensor([3, 10]), Many(2)),
        "id 10 is outside",
    ),
    "table": (
        lambda: sliced(
            nn.ModuleDict({"token": nn.Embedding(8, 4, padding_idx=0)}),
            {"token": "vocabulary"},
            Many(2),
        ),
        "knows no padding_idx",
    ),
    "torch's dropout": (
        lambda: sliced(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)), {"0": "column"}, Many(2)),
        "draws another mask on each rank",
    ),
    "module hooks": (
        lambda: sliced(hooked(gpt()), BLOCK, Many(2)),
        "has hooks or parametrizations",
    ),
    "head width": (
        lambda: sliced(attention_of(4, 16, 24), {"qkv": "heads"}, Many(2)),
        "makes 24 features of 16",
    ),
    "a forward of its own": (
        lambda: sliced(nn.Sequential(Scaled(16, 16)), {"0": "row"}, Many(2)),
        "this Scaled has a forward of its own",
    ),
    "an instance's own": (
        lambda: sliced(nn.Sequential(patched(nn.Linear(16, 16))), {"0": "row"}, Many(2)),
        "this Linear has a forward of its own",
    ),
    "a table's own": (
        lambda: sliced(nn.Sequential(Positions(16, 16)), {"0": "vocabulary"}, Many(2)),
        "Positions has .* take a plain Embedding",
    ),
    "grouped in one": (
        lambda: sliced(attention_of(8, 32, 64), {"qkv": "heads"}, Many(2)),
        "makes 64 features of 32.* cut by 'kv heads'",
    ),
    "grouped, wide": (
        lambda: sliced(attention_of(8, 32, 96, 4), {"qkv": "heads"}, Many(2)),
        "makes 96 features of 32.* cut by 'kv heads'",
    ),
    "grouped, as wide": (
        lambda: sliced(attention_of(4, 16, 16, 2), {"qkv": "heads"}, Many(2)),
        "queries alone, and nothing beside it",
    ),
    "a gate of its own": (
        lambda: sliced(nn.Sequential(Gated(16, 16)), {"0": "column"}, Many(2)),
        "this Gated has a gain and a gate of its own",
    ),
    "slices assigned": (
        lambda: ColumnParallelLinear(2, 4, Many(2), seed=0).load_state_dict({}, assign=True),
        "would replace slices",
    ),
    "replicas": (
        lambda: DistributedDataParallel(sliced(gpt(), BLOCK, Many(2)), Many(2)),
        "parts, not copies: give the group of the replicas",
    ),
}


def hooked(model):
    model.get_submodule("layers.1.mlp.up").register_forward_hook(lambda *_: None)
    return model


class Scaled(nn.Linear):
    def forward(self, x):
        return 3 * super().forward(x)


class Gated(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.gain, self.gate = 1.5, nn.Parameter(torch.ones(1))


def attention_of(heads: int, width: int, features: int, kv_heads: int | None = None):
    module = nn.ModuleDict({"qkv": nn.Linear(width, features)})
    module.heads, module.kv_heads = heads, kv_heads or heads
    return module


@pytest.mark.parametrize("call, sentence", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_sliced_is_refused(call, sentence):
    with pytest.raises(Impossible, match=sentence):
        call()


@pytest.mark.parametrize(
    "plans, seeds, told",
    [
        (
            (gpt_slices(CONFIG), BLOCK),
            (0, 0),
            "slice different models.*rank 0: layers.*rank 1: layers",
        ),
        ((BLOCK, {"layers.1.mlp.upp": "column"}), (0, 0), "slice different models"),
        ((BLOCK, BLOCK), (0, 1), "different weights, .*rank 0: layers.0.token.weight .*rank 1: "),
    ],
    ids=["plan", "no module", "values"],
)
def test_ranks_that_slice_otherwise_are_told_all_of_them(plans, seeds, told):
    def program(group):
        with pytest.raises(Impossible, match=told):
            sliced(GPT(CONFIG, seeds[group.rank]), plans[group.rank], group)
        return "told"

    assert on_threads(program, 2) == ["told"] * 2


@pytest.mark.parametrize("way, features", [(nn.GELU(), 8), (nn.Softmax(-1), 8), (nn.GLU(-1), 4)])
def test_what_mixes_the_features_between_a_column_and_a_row_is_refused(way, features):
    """Also of weights that come after the cut."""

    def program(group):
        torch.manual_seed(0)
        one, model = (nn.Sequential(nn.Linear(4, 8), way, nn.Linear(features, 4)) for _ in range(2))
        sliced(model, {"0": "column", "2": "row"}, group)
        load_whole_state_dict(model, one.state_dict(), group)
        x = torch.arange(12.0).view(3, 4).sin()
        return [torch.allclose(model(x), one(x), atol=1e-5) for _ in range(2)]

    with (
        nullcontext()
        if isinstance(way, nn.GELU)
        else pytest.raises(Impossible, match="another output than the whole")
    ):
        assert on_threads(program, 2) == [[True, True]] * 2


WAYS = {
    "module": lambda down, y: down(y),
    "nan": lambda down, y: down(y) * float("nan"),  # told of by others, and equal on all ranks
    "F.linear": lambda down, y: F.linear(y, down.weight),
    "F.dropout": lambda down, y: F.dropout(down(y)),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_parts_weights_that_are_whole_on_every_rank_is_refused(way):
    def program(group):
        torch.manual_seed(0)
        model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)).double()
        model.forward = lambda x: model[0](WAYS[way](model[2], model[1](x)))
        sliced(model, {"1": "column", "2": "row"}, group)
        torch.manual_seed(group.rank)
        for _ in range(3):
            model(torch.arange(12.0, dtype=torch.float64).view(3, 4).sin()).exp().sum().backward()
            torch.optim.SGD(model.parameters(), 0.1).step()

    with (
        nullcontext()
        if way in ("module", "nan")
        else pytest.raises(Impossible, match="have parted")
    ):
        on_threads(program, 2)


def test_a_loss_of_ignored_targets_alone_sends_no_gradient():
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    vocab_parallel_cross_entropy(logits, torch.full((3,), -100), Alone()).backward()
    assert torch.equal(logits.grad, torch.zeros(3, 5))
