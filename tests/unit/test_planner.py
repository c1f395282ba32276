"""The planner's closed forms beside its lab's predictions, what it refuses, and the lab."""

import json
import random
import re
import shlex
import tomllib
from dataclasses import replace
from itertools import chain, product
from runpy import run_path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bigtrain_lab import Hardware, Impossible
from bigtrain_lab.cli.plan import for_deepspeed, for_megatron, for_torchtitan
from bigtrain_lab.core import Wire, readings
from bigtrain_lab.data.published import PUBLISHED_STEPS
from bigtrain_lab.experiments.plan import PlanACluster, gpt_job, published_seconds
from bigtrain_lab.models import GPTConfig, theory
from bigtrain_lab.planner import OVER, Alike, Plan, Search, Stage, Way, model_job, model_recipe
from bigtrain_lab.view import report, table

LAB = PlanACluster(
    devices=4,
    batch=8,
    pipeline=2,
    layers=4,
    width=128,
    heads=16,
    sequence=64,
    vocabulary=512,
    hardware="a100-nvlink",
    memory_mb=80_000,
)


@pytest.fixture(scope="module")
def search():
    return LAB.search


@pytest.mark.parametrize("way", [Way(), Way(2, True, "full"), Way(2, True, "selective"), Way(8)])
@pytest.mark.parametrize("name", ["before", "block", "after"])
def test_a_piece_is_affine_in_rows_and_in_slices(search, name, way):
    search = Search(gpt_job(LAB.config, LAB.batch), search.hardware, 4)
    told, (one, *_, eight) = search.facts(name, way), search.job.rows
    for at, shown in zip((0, -1), search.job.run((int(one), int(eight)), way)[name]):
        most = {what: getattr(shown, what).max() for what in ("first", "again", "update")}
        products = search.job.drawn(name, way, (2, 3)).products
        for what, own in shown._replace(**most)._asdict().items():
            found = getattr(told._replace(products=products), what)[..., at]
            assert found.tolist() == own.tolist(), what


def test_closed_forms_are_near_what_the_lab_predicts(search):
    """Three of each stage of ZeRO: within 1.5% in time, as simulated within 0.5%, and a tenth in
    memory."""
    draw = random.Random(0)
    drawn = [
        draw.sample([each for each in search.fitting if each.plan.zero == zero], 3)
        for zero in range(4)
    ]
    for each in chain(*drawn):
        trace = LAB.replace(**LAB.settings_of(each.plan)).predict()
        for seconds, near in (each.seconds, 0.015), (search.scheduled(each.plan, "1f1b"), 0.005):
            assert seconds == pytest.approx(trace.step_time, rel=near), each.plan
        assert each.bytes == pytest.approx(
            max(read.bytes for rank in range(4) for read in readings(trace, rank)), rel=0.1
        ), each.plan


@pytest.mark.parametrize("bytes_per_s", [1e8, 1e9, 1e10, 3e11])
def test_the_best_plan_is_the_fastest_as_simulated(search, bytes_per_s):
    """Of all plans, since no closed form is further above its simulation than is said; nor is one
    far below, also where links hold a pipeline or the messages of replicas back."""
    wire = {"inside": Wire("", 1e-6, bytes_per_s), "collective_bytes_per_s": ()}
    found = Search(search.job, replace(search.hardware, **wire), 4)
    steps = {each.plan: found.scheduled(each.plan, "1f1b") for each in found.all}
    assert all(0.92 <= each.seconds / steps[each.plan] <= OVER for each in found.all)
    assert found.best.seconds == min(steps.values()) == steps[found.best.plan]


@pytest.mark.parametrize("zero", range(4))
def test_equal_pieces_are_one_times_their_number(zero):
    """As the same pieces one by one, where buckets fill inside a piece and across several, and
    where links are faster than backwards and slower."""
    for width, bytes_per_s in product((128, 1024), (1e12, 1e11)):
        lab = LAB.replace(layers=24, width=width, devices=2, pipeline=1)
        link = {"inside": Wire("", 1e-6, bytes_per_s), "collective_bytes_per_s": ()}
        search = Search(gpt_job(lab.config, 8), replace(lab.profile, **link), 2)
        alike = Alike(search, [Plan(2, 1, Way(), 1, zero)])
        (stage,) = alike.stages(zero)
        single = Stage([run._replace(count=1) for run in stage.runs for _ in range(run.count)])
        assert [run.count for run in stage.runs] == [1, 24, 1] and len(single.runs) == 26
        for alive, again in ((1, False), (3, True)):
            own, told = (alike.peak(each, alive, again) for each in (stage, single))
            assert own == told
        for own, told in zip(alike.turn(stage, zero), alike.turn(single, zero)):
            assert own == pytest.approx(told)


def test_another_schedule_is_simulated(search):
    """As the lab predicts it. Chunks shorten the bubble, and a long run is drawn from two short
    ones, whose steps are affine in the micro-batches."""
    plan = Plan(1, 2, Way(recompute="full"), 1, 0)
    lab = LAB.replace(**LAB.settings_of(plan), devices=2)

    def step(micro_batches, schedule="1f1b", **chunks):
        few = Search(replace(search.job, batch=micro_batches), search.hardware, 2)
        return few.scheduled(plan, schedule, **chunks)

    assert step(8) == pytest.approx(lab.predict().step_time, rel=0.005)
    assert step(5) == pytest.approx((step(4) + step(6)) / 2)
    two, three, four = (step(m, "interleaved", chunks=2) for m in (4, 6, 8))
    assert four == pytest.approx(2 * three - two) and four < step(8)
    for batch, schedule, chunks, told in (
        (15, "interleaved", {"chunks": 2}, "do not divide 15 micro-batches"),
        (8, "interleaved", {"chunks": 4}, "8 stages need as many blocks"),
        (8, "zb-h1", {}, "halves backwards"),
    ):
        with pytest.raises(Impossible, match=told):
            step(batch, schedule, **chunks)


def test_steps_that_were_published():
    """The published share of the devices' peak is what the model's FLOPs make of the published
    seconds, and a step of ours is within 15% of them."""
    for step in PUBLISHED_STEPS:
        config = GPTConfig(step.layers, step.width, step.heads, 2048, 51_200)
        peak = step.devices * 312e12
        share = 3 * theory.forward_flops(config, step.batch) / (step.selective_s * peak)
        assert share == pytest.approx(step.mfu, rel=0.005)
    small = PUBLISHED_STEPS[0]
    assert published_seconds(small, "full") == pytest.approx(small.full_s, rel=0.15)
    assert published_seconds(small, "selective") == pytest.approx(small.selective_s, rel=0.15)


def test_the_frontier_is_what_no_plan_beats(search):
    times = [each.seconds for each in search.fitting]
    assert times == sorted(times) and search.best == search.frontier[0]
    for each in search.fitting:
        better = [e for e in search.fitting if e.seconds <= each.seconds and e.bytes < each.bytes]
        assert (each in search.frontier) == (not better) or each.bytes in [
            e.bytes for e in search.frontier
        ]


def test_what_next_is_what_saves_most(search):
    """Of a machine that lacks something: more of that, as a search with it says."""
    job, real = search.job, search.hardware
    roomy, slow, fast = (
        Search(job, replace(real, inside=Wire("", 1e-6, rate), collective_bytes_per_s=()), 4)
        for rate in (3e11, 1e8, 2e8)
    )
    least = min(each.bytes for each in roomy.fitting)
    small, room = (Search(job, real, 4, memory_bytes=times * least) for times in (1, 2))
    batch = Search(replace(job, batch=2 * job.batch), roomy.hardware, 4)
    for name, found, better, samples in (
        ("more memory a device", small, room, 1),
        ("twice as fast within nodes", slow, fast, 1),
        ("for as many samples,", roomy, batch, 2),
    ):
        (told,) = [each for each in found.changes() if each.name.endswith(name)]
        assert told.seconds == pytest.approx(better.best.seconds / samples, rel=0.05), name
        assert told.seconds < 0.99 * told.before and len(found.changes()) <= 2


def test_elasticities_are_those_of_a_time():
    """Twice all rates and half of all latencies make half of a step."""
    large = LAB.replace(width=1024, sequence=256)
    job = gpt_job(large.config, 8, precision="bf16")
    search = Search(job, replace(large.profile, launch_s=3e-6), 4)
    for plan in (Plan(2, 1, Way(2), 1, 1), Plan(1, 2, Way(2), 1, 0)):
        told = {constant.name: moves for constant, moves in search.elasticities(plan)}
        shares = [told.pop(f"{what}_share") for what in ("wave", "memory", "matmul")]
        rates = [told[f"{what}_per_s"] for what in ("flops", "memory_bytes")]
        assert shares == pytest.approx([*rates, 0])
        signed = [
            -told[name] if "per_s" in name else told[name]
            for name in {*told} - {"overlap_slowdown"}
        ]
        assert min(signed) >= 0 and sum(signed) == pytest.approx(1, abs=0.01)


def test_what_cannot_be_says_why(search):
    refused = {
        Plan(1, 8, Way(), 1, 0): "stages",
        Plan(1, 1, Way(3), 1, 0): "slices",
        Plan(3, 1, Way(), 1, 0): "samples equally",
    }
    assert all(word in search.impossible(plan) for plan, word in refused.items())
    small = Search(search.job, search.hardware, 1, memory_bytes=10**6)
    assert not small.fitting and min(each.bytes for each in small.large) > 10**6
    with pytest.raises(Impossible, match="Take more devices"):
        small.best  # noqa: B018
    with pytest.raises(Impossible, match="7 replicas cannot share"):
        Search(search.job, search.hardware, 7).best  # noqa: B018


def test_the_lab_measures_a_plan_by_the_best_that_fits():
    """The winner's regret is 1, and no contender's is less; what would be faster does not fit."""
    lab = LAB.replace(memory_mb=7)
    name, seconds = lab.best
    chosen = lab.replace(**lab.contenders[name])
    traces = {rival: lab.replace(**how).predict() for rival, how in lab.rivals().items()}
    assert (
        chosen.regret(chosen.predict())
        == min(lab.regret(traces[each]) for each in lab.contenders)
        == 1
    )
    assert lab.regret(traces["mine"]) > 1.05
    assert (large := f"{lab.search.larger.plan}, too large") == [*traces][-1]
    most = max(read.bytes for rank in range(4) for read in readings(traces[large], rank))
    assert most > 7e6 > max(each.bytes for each in lab.search.fitting)
    rows = [
        table.Rival(each, each == "mine", of, settings={"zero": 0}) for each, of in traces.items()
    ]
    drawn, verdict = table.rivals(rows, 7 * 10**6)
    assert f"{name}<em> · fastest without a catch<" in drawn and "over 7 MB: " in drawn
    assert "<img" not in str(  # of a stranger's trace
        table.rivals(
            [
                table.Rival(
                    "<img",
                    trace=replace(
                        traces["mine"],
                        unit="<img",
                        settings={"facts": {"boxes": {"<img": [[[0, 1], [0, 1]]] * 4}}},
                    ),
                    told={"<img": "<img"},
                    broken="<img",
                )
            ],
            None,
        )
    )
    assert verdict == (
        f"Fastest without a catch: {name}, {lab.regret(traces['mine']):.3g} times as fast as yours."
    )
    kept = rows[-1]._replace(pinned=True)  # of whatever settings it is
    for others in (rows, rows[:-1]):
        assert table.rivals([*others, kept], None)[0].count("fastest") == 1
    assert "a run tells" not in table.answers(  # a dry run will
        report.lined_up(lab.quantities, {"predicted": report.column((), traces["mine"])}),
        lab.answers,
        "predicted",
    )
    said = " ".join(lab.explain(traces["mine"]))
    assert f"{lab.regret(traces['mine']):.2f} times the step of the best, {name}" in said and (
        f"{len(lab.search.fitting)} fit 7 MB" in said
    )


OWN = """
import numpy as np
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, scale, bias=None):
        x = x + self.down(self.up(x * scale).relu()) + bias
        return x, scale


class Model(nn.Module):
    def __init__(self, blocks, calls=1):
        super().__init__()
        self.table, self.norm, self.calls = nn.Embedding(100, 32), nn.LayerNorm(32), calls
        self.blocks = nn.ModuleList(Block(32) for _ in range(blocks))

    def forward(self, ids):
        x = self.table(ids)
        for block in [*self.blocks] * self.calls:
            x, _ = block(x, 0.5, bias=torch.ones(32, device=x.device))
        return self.norm(x) @ self.table.weight.T


def loss(output, targets):
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def data():
    return torch.arange(16).view(2, 8), torch.arange(16).view(2, 8) + 9


def make():
    return Model(6), data(), loss


def encoder():
    layer = nn.TransformerEncoderLayer(32, 4, batch_first=True)
    given = torch.zeros(2, 8, 32, requires_grad=True), torch.zeros(2, 8, 32)
    return nn.TransformerEncoder(layer, 3), given, nn.functional.mse_loss


class Translator(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.table = nn.Embedding(100, 32)
        self.core = nn.Transformer(32, 4, 2, 3, 64, dropout, batch_first=True)

    def forward(self, source, target):
        return self.core(self.table(source), self.table(target)) @ self.table.weight.T


def translator(dropout=0.1):
    return Translator(dropout), ((data()[0], data()[0]), data()[1]), loss


def steady():
    return translator(0.0)


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.register_buffer("angle", torch.ones(8, 8))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        q, k = q * self.angle, k * self.angle
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


def turned():
    model = nn.Sequential(nn.Embedding(100, 32), *(Turned() for _ in range(5)), nn.Linear(32, 100))
    return model, data(), loss


def twice():
    return Model(4, calls=2), data(), loss


class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.g = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, one, other, kept):
        one = one.add_(self.f(other).tanh())
        other = other + self.g(other).tanh()
        kept.update(other=other) if kept is not None else None
        return one, other


class Streams(nn.Module):
    def __init__(self, how=""):
        super().__init__()
        self.table, self.out, self.how = nn.Embedding(100, 32), nn.Linear(32, 100), how
        self.register_buffer("calls", torch.ones(()))
        self.blocks = nn.ModuleList(Stream() for _ in range(4))
        for each in self.blocks:
            each.g.weight = self.blocks[0].g.weight
        self.table.requires_grad_(False)

    def forward(self, ids):
        one = self.table(ids) * self.calls + 0 * self.out.bias.sum()
        if (ids > 99).any():
            one = -one
        other, kept = 2 * one, {} if self.how == "written" else None
        if self.how == "drawn":
            other = other * torch.rand(32)
        for block in self.blocks:
            one, other = block(one, other=other, kept=kept)
            one = one + kept["other"] if kept else one
            if self.how == "read" and other.sum() > 0:
                other = -other
        if self.how == "counted":
            self.calls += 1
        return self.out(one + other)


def streams():
    return Streams(), data(), loss


def drawn():
    return Streams("drawn"), data(), loss


def read():
    return Streams("read"), data(), loss


def written():
    return Streams("written"), data(), loss


def counted():
    return Streams("counted"), data(), loss


def regular():
    model = Streams()
    return model, data(), lambda y, to: loss(y, to) + sum(p.norm() for p in model.parameters())


def numbered():
    model = Streams()
    model.out.weight.data += np.random.rand()
    return model, data(), loss


def masked():
    return Model(4), ((data()[0], torch.ones(8, 8)), data()[1]), loss


def frozen():
    model = Model(4)
    model.norm.bias.requires_grad_(False)
    return model, data(), loss


def unlike():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)), data(), loss
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    return tmp_path / "own.py"


@pytest.mark.parametrize(
    ("name", "blocks", "level", "again"),
    [
        ("make", 6, "none", 0),
        ("encoder", 3, "none", 0),
        ("translator", 3, "none", 0),
        ("turned", 5, "bf16", 8192),
    ],
)
def test_a_model_of_ones_own_is_planned(own, name, blocks, level, again):
    """Its pieces are, together, the whole model, as torch counts its products and its weights: also
    where blocks are given more than one tensor, and where a float32 one meets a half one. A fused
    attention makes scores `again`."""
    make = run_path(str(own))[name]
    job, counter = model_job(make, 8, precision=level), FlopCounterMode(display=False)
    assert job.blocks == blocks
    with torch.device("meta"), counter:
        model, (inputs, targets), loss = make()
        loss(model(*(inputs if type(inputs) is tuple else [inputs])), targets).backward()
    count, runs = {"block": blocks}, job.run((2, 3), Way())
    facts = {each: count.get(each, 1) * runs[each][0].work[:2, 0].sum() for each in runs}
    assert sum(facts.values()) == counter.get_total_flops() + blocks * again
    weights = sum(count.get(each, 1) * own[0].held[2] for each, own in runs.items())
    assert weights == sum(p.nbytes for p in model.parameters()) // (1 + (level == "bf16"))
    assert Search(job, Hardware.named("a100-nvlink"), 2).best.seconds > 0


def test_what_is_no_model_of_blocks_is_refused(own):
    made = run_path(str(own))
    for name, told in (
        ("unlike", "no row of like blocks"),
        ("data", "make.. gave no model"),
        ("twice", "more or less than once"),
        ("frozen", "1 weights get no gradient"),
        ("masked", "differ in their number of samples"),
    ):
        with pytest.raises(Impossible, match=told):
            Search(model_job(made[name], 8), Hardware.named("a100-nvlink"), 1).best


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *((name, "otherwise") for name in ("twice", "drawn", "counted", "regular", "numbered")),
        ("written", "another rank computed"),
        ("read", "trial of the stages failed"),
    ],
)
def test_what_a_cut_would_train_otherwise_is_refused_before_it_runs(own, name, told):
    with pytest.raises(Impossible, match=told):
        model_recipe(run_path(str(own))[name], Plan(1, 2, Way(), 1, 0), 8)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("make", Plan(1, 3, Way(recompute="full"), 2, 0)),
        ("make", Plan(2, 2, Way(), 1, 1)),
        ("steady", Plan(1, 2, Way(), 1, 0)),
        ("streams", Plan(1, 3, Way(), 1, 0)),
    ],
)
def test_a_plan_of_ones_own_model_trains_it_as_torch_does(own, name, plan):
    """Also where a weight is tied over stages or frozen, where blocks are given more than one
    tensor or change it in place, and where the forward reads its input."""
    make = run_path(str(own))[name]
    run = model_recipe(make, plan, 8, "sgd", learning_rate=0.1, steps=2).run()
    run.wait()
    torch.manual_seed(0)
    model, (inputs, targets), loss = make()
    rule = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        rule.zero_grad()
        loss(model(*(inputs if type(inputs) is tuple else [inputs])), targets).backward()
        rule.step()
    named = {key.partition("whole.")[2]: key for key in run.result if "whole." in key}
    for key, weight in model.named_parameters():
        assert run.result[named.pop(key)] == pytest.approx(weight.detach().numpy(), abs=1e-6), key
    assert not named


def test_stages_compute_in_the_formats_of_one(own):
    make = run_path(str(own))["turned"]
    one, two = (
        model_recipe(make, Plan(1, pp, Way(), 1, 0), 8, "sgd", "bf16", 0.1, 2).run()
        for pp in (1, 2)
    )
    assert one.result["loss"] == pytest.approx(two.result["loss"], abs=1e-6)


def test_a_file_is_planned_and_trained_by_the_command_that_it_tells(own, cli):
    told = " ".join(cli("plan", f"{own}:make", "--devices", 2, "--batch", 8)[1].split())
    assert "The fastest is" in told and "To train it: Recipe(..., ranks=" in told
    code, out, _ = cli(*shlex.split(re.search(r"processes here: bigtrain (.*)", told)[1]))
    first, last = map(
        float, re.search(r"steps on 2 ranks: loss (\S+), at the end (\S+)\.", out).groups()
    )
    assert code == 0 and last < first and cli("plan", "--train", 2)[0] == 2


def test_the_plan_of_a_small_gpt_trains_by_the_command_that_it_tells(cli):
    sizes = "--layers 2 --width 32 --heads 2 --sequence 16 --vocabulary 256 --batch 8".split()
    told = " ".join(cli("plan", "--devices", 2, *sizes, "--show", 2)[1].split())
    assert all(words in told for words in ("1% more", "launch_s, assumed"))
    assert cli("plan", "--hardware", "unit")[0] == 2
    step = re.search(r"The fastest is .*?: (.*?) a step", told)[1]
    code, ran, _ = cli(*shlex.split(re.search(r"processes here: bigtrain (.*)", told)[1]))
    assert code == 0 and f"modelled: {step} a step" in " ".join(ran.split())


def test_a_plan_is_said_to_other_libraries():
    """As numbers that each multiplies out to the batch and the devices."""
    sharded = Plan(4, 2, Way(2, True, "selective"), 2, 3)
    words = for_megatron(sharded, 64).replace("\\\n", "").split()
    told = dict(zip(words, words[1:]))
    assert told["--pipeline-model-parallel-size"] == told["--tensor-model-parallel-size"] == "2"
    assert told["--recompute-granularity"] == "selective" and "--sequence-parallel" in words
    assert told["--data-parallel-sharding-strategy"] == "optim_grads_params"
    read = tomllib.loads(for_torchtitan(sharded, 64))
    assert read["training"] == {"local_batch_size": 16, "global_batch_size": 64}
    assert read["parallelism"]["data_parallel_shard_degree"] == 4
    assert read["activation_checkpoint"]["mode"] == "selective"
    plain = json.loads(for_deepspeed(Plan(4, 1, Way(2), 2, 1), 64))
    assert plain["gradient_accumulation_steps"] * 2 * 4 == plain["train_batch_size"] == 64
    for write, plan, told in (
        (for_torchtitan, Plan(4, 1, Way(), 2, 1), "no stage 1"),
        (for_deepspeed, sharded, "said in the script"),
    ):
        with pytest.raises(Impossible, match=told):
            write(plan, 64)
