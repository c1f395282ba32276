"""What a lab tells beside what the table of parity/ proves of all: a section a lab. Those of which more
is to be told have a file of their own."""

import json
import shutil
from statistics import median

import pytest
import torch

from bigtrain_lab.checks import run_differs
from bigtrain_lab.core import Impossible, Scalar, Trace
from bigtrain_lab.core.words import duration
from bigtrain_lab.experiments.accumulate import Accumulate, compared
from bigtrain_lab.experiments.all_reduce import AllReduce
from bigtrain_lab.experiments.compilers import (
    BYTES,
    COMPILED,
    EAGER,
    FIRST,
    FUNCTIONS,
    Compile,
    break_even,
)
from bigtrain_lab.experiments.data_parallel import DataParallel, travels
from bigtrain_lab.experiments.large_batch import LargeBatch, rehearsed
from bigtrain_lab.experiments.layouts import Layouts
from bigtrain_lab.experiments.parameter_server import ParameterServing
from bigtrain_lab.experiments.staleness import Staleness
from bigtrain_lab.experiments.tensor_slicing import TensorSlicing, found
from bigtrain_lab.order import ACCURACY, STEP, TRUST, Part, Together, called, exposed, of_layers
from bigtrain_lab.order.collective import Collective, Move, provenance
from bigtrain_lab.order.holdings import holdings
from bigtrain_lab.techniques.tensor_parallel import Cut
from bigtrain_lab.train.rehearsal import WHOLE
from bigtrain_lab.view import palette
from bigtrain_lab.view.figures import figure
from bigtrain_lab.view.player import pack
from bigtrain_lab.view.report import column
from bigtrain_lab.view.table import parts
from tests.unit.ranks import failed


def table(lab) -> dict:
    """Quantity -> what the prediction says of it."""
    trace = lab.predict()
    return {quantity.name: quantity.of(trace) for quantity in lab.quantities}


# -- layouts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout, forward, backward, held, cut",  # cut: X, W and Y into so many parts
    [
        ("split-n", 0, 25.2, 75.5, [4, 1, 4]),
        ("split-f", 0, 25.2, 75.5, [1, 4, 4]),
        ("split-d", 100.7, 0, 151, [4, 4, 1]),
        ("split-n-f", 0, 16.8, 67.1, [2, 2, 4]),
        ("duplicate", 0, 0, 201.3, [1, 1, 1]),
    ],
)
def test_the_numbers_of_the_lesson_on_layouts(layout, forward, backward, held, cut):
    sent_forward, sent_backward, _, memory = table(Layouts(layout=layout)).values()
    assert (sent_forward / 1e6, sent_backward / 1e6, memory / 1e6) == pytest.approx(
        (forward, backward, held), abs=0.05
    )
    assert [
        (each.count("<rect"), palette.IDLE in each)
        for each in parts(Layouts(layout=layout).predict()).split("<svg")[1:]
    ] == [(count, count == 1) for count in cut]


def test_the_axis_that_sends_more_belongs_inside_a_node():
    """Of 33.6 and 8.4 MB a rank, the sum of Y along the columns and of dW along the rows, one has
    150 GB/s and the other 12.5."""
    near, far = (
        [
            *table(
                Layouts(layout="split-n-d", node_size=2, hardware="v100-nvlink", swapped=swapped)
            ).values()
        ]
        for swapped in (False, True)
    )
    assert near[:2] == far[:2] == [33_554_432, 8_388_608]
    assert far[2] - near[2] == pytest.approx(
        (33_554_432 - 8_388_608) * (1 / 12.5e9 - 1 / 150e9), rel=1e-3
    )


# -- parameter-server ------------------------------------------------------------------------------


def test_what_a_straggler_costs():
    """Slow for good, a bound waits as the round does: see test_parameter_server.py. Hiccups of as much
    time: it does not."""

    def rate(mode, **asked):
        told = table(ParameterServing(mode=mode, steps=100, **asked))
        return (
            told["gradients applied a slot"],
            told["bytes through the busiest server's port, in and out"],
        )

    synchronous, bounded, asynchronous = (
        rate(mode, slow=1, hiccups=0.25)[0] for mode in ("synchronous", "bounded", "asynchronous")
    )
    assert synchronous < 1.5 and bounded > 2 and asynchronous > bounded
    one, two = (rate("synchronous", servers=servers)[1] for servers in (1, 2))
    assert two < 0.6 * one and one == 100 * 4 * 2 * ParameterServing().server_bytes[0]


# -- compile ---------------------------------------------------------------------------------------

COMPILE_SMALL = {"rows": 70, "columns": 96, "dtype": "float64", "steps": 2}


def test_the_numbers_of_the_lesson_on_compile():
    eager, ours, graph = (
        table(Compile(rows=4000, compiler=name)) for name in ("eager", "ours", "cuda-graph")
    )
    assert (eager["kernels a step"], eager[BYTES]) == (9, 1_344_000_000)
    assert (ours["kernels a step"], ours[BYTES], graph["kernels a step"]) == (1, 128_000_000, None)
    large, small = (
        " ".join(lab.explain(lab.predict()))
        for lab in (Compile(rows=4000), Compile(rows=64, columns=64))
    )
    assert "10.5 times as fast" in large and "a factor of 1.37" in large
    assert ["lasts longer than the launch" in text for text in (large, small)] == [True, False]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_launched_at_once_costs_one_launch(function):
    """A small tensor's kernels take the time of their launches, which a CUDA graph pays once a
    pass; a large one's that of its bytes."""

    def step_s(compiler, rows):
        return (
            Compile(function=function, rows=rows, columns=rows, compiler=compiler)
            .predict()
            .step_time
        )

    assert step_s("cuda-graph", 64) <= step_s("ours", 64) < step_s("eager", 64)
    assert step_s("ours", 8192) < step_s("cuda-graph", 8192) <= step_s("eager", 8192)


def test_what_a_machine_lacks_is_told(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    for refused, said in (
        (lambda: Compile(compiler="cuda-graph").run(), "none is visible here"),
        (lambda: Compile(compiler="inductor").run(), "install g\\+\\+"),
        (Compile().hlo, "pip install 'bigtrain-lab\\[xla\\]'"),
    ):
        with pytest.raises(Impossible, match=said):
            refused()


def test_xla_fuses_the_nine_operators_too():
    """The real compiler, where JAX is installed: nine operators before, one fusion after."""
    pytest.importorskip("jax")
    before, after = Compile(**COMPILE_SMALL).hlo()
    assert before.count("tanh(") == 1 and "fusion(" not in before and after.count("fusion(") == 1


@pytest.mark.parametrize(
    "eager, compiled, steps, said",
    [
        ([5.0, 6.0, 7.0], [1.0, 2.0, 3.0], 3, "earned back after 3 steps"),
        ([1.0, 2.0, 3.0], [5.0, 6.0, 7.0], 0, "never earned back"),
        ([2.0, 4.0, 6.0], [1.0, 2.0, 3.0], None, "neither is faster within that spread"),
    ],
)
def test_no_winner_is_told_within_the_spread_of_what_was_measured(eager, compiled, steps, said):
    asked = Compile(**COMPILE_SMALL)
    predicted = asked.predict()
    scalars = [
        Scalar(0, "compute", "scalar", name, 0, value)
        for name, values in ((FIRST, [10.0]), (EAGER, eager), (COMPILED, compiled))
        for value in values
    ]
    measured = Trace.of([*predicted, *scalars], **predicted.header() | {"clock": "measured"})
    assert column(asked.quantities, measured)["eager call, here, median"].value == median(eager)
    assert break_even(measured) == steps and said in " ".join(asked.explain(measured))


# -- tensor-slicing --------------------------------------------------------------------------------

TENSOR_SLICING_LARGE = {
    "slices": 4,
    "rows": 8,
    "sequence": 512,
    "width": 1024,
    "heads": 16,
    "vocabulary": 32000,
    "layers": 1,
    "steps": 1,
}


def test_the_numbers_of_the_lesson_on_tensor_slicing():
    right, wrong = (
        TensorSlicing(cut=cut, **TENSOR_SLICING_LARGE).predict()
        for cut in ("column-row", "row-column")
    )
    layer = {
        (c.module[9:], c.way): c.bytes for c in called(right) if c.module.startswith("layers.1.")
    }
    assert layer == {
        key: pytest.approx(25.166e6, rel=1e-4)
        for key in (
            ("attention.out", "F"),
            ("mlp.down", "F"),
            ("mlp.up", "B"),
            ("attention.qkv", "B"),
        )
    }
    forward = [
        sum(c.bytes for c in called(each) if "mlp" in c.module and c.way == "F")
        for each in (right, wrong)
    ]
    assert forward[1] == 4.5 * forward[0]
    said = " ".join(TensorSlicing(**TENSOR_SLICING_LARGE).explain(right))
    assert all(
        number in said
        for number in ("100.7 MB", "75.58 MB", "3,072 tokens", "49.15 kB", "524.3 MB", "10,667")
    )
    assert "4.5 times the bytes" in " ".join(
        TensorSlicing(cut="row-column", **TENSOR_SLICING_LARGE).explain(wrong)
    )


def test_a_part_is_found_by_its_numbers_and_no_other():
    whole = torch.randn(24, 12, generator=torch.Generator().manual_seed(1))
    queries = [Part("w", 4 + start, 8 + start, 0, 12, 24, 12) for start in (0, 8, 16)]
    assert [*found("w", Cut(0, 3).part(whole, 1, 2), whole)] == queries
    assert [*found("w", Cut(1).part(whole, 2, 3), whole)] == [Part("w", 0, 24, 8, 12, 24, 12)]
    wrong = whole[:, :6].clone()
    wrong[5, 5] += 1
    assert [part[1:3] for part in found("w", wrong, whole)] == [(0, 5), (6, 24)]
    assert [*found("w", torch.zeros(3, 12), whole)] == []


# -- large-batch -----------------------------------------------------------------------------------


def test_two_replicas_say_how_far_each_layer_went(tmp_path):
    """By LAMB each layer's step is the rate's share of its weights; the last updates are looked at,
    where not all are."""
    asked = LargeBatch(
        batch=64,
        samples=1024,
        layers=2,
        width=16,
        dtype="float64",
        replicas=2,
        at_once=4,
        norm="batch",
    )  # 8 micro-batches of a replica
    trace = asked.run(directory=tmp_path / "run").wait()
    steps, ratios = of_layers(trace, STEP), of_layers(trace, TRUST)
    assert [*steps] == [*ratios] == ["layers.0", "layers.1", "head"]
    for values in steps.values():
        assert values == pytest.approx([asked.rate(update) for update in range(1, 17)], rel=1e-9)
    assert len({tuple(values) for values in ratios.values()}) == 3
    assert len(trace.where(Scalar, name=ACCURACY)) == asked.steps == 16
    assert len(figure("trust", trace).frames) == 16


@pytest.mark.parametrize("task", ["digits", "text"])
def test_all_batches_are_of_the_same_samples_in_one_order(task):
    """Across the ends of passes too; and none of them is examined."""
    several = [
        LargeBatch(task=task, batch=batch, at_once=at_once, samples=4096, dtype="float64")
        for batch, at_once in ((32, 32), (2048, 64), (4096, 4096))
    ]
    streams = [
        torch.cat([lab.micro_batch(n)[0] for n in range(lab.steps * lab.micro_batches)])
        for lab in several
    ]
    assert (
        all(torch.equal(stream, streams[0]) for stream in streams[1:]) and len(streams[0]) == 4096
    )
    assert not torch.equal(streams[0][:1347], streams[0][1347:2694])
    if task == "digits":
        assert not (streams[0][:, None] == several[0].examined[0][None, :50]).all(-1).any()


def test_the_rate_grows_with_the_batch_by_the_rule_then_rises_and_falls():
    rates = {
        scaling: LargeBatch(batch=512, learning_rate=0.01, scaling=scaling).full_rate
        for scaling in ("none", "square-root", "linear")
    }
    assert rates == pytest.approx({"none": 0.01, "square-root": 0.04, "linear": 0.16})
    lab = LargeBatch(batch=512, samples=512 * 20, scaling="none", learning_rate=1.0, warm_up=0.2)
    assert [lab.rate(update) for update in (1, 2, 4, 5, 20)] == pytest.approx(
        [0.25, 0.5, 1, 16 / 17, 1 / 17]
    )
    assert 0 < LargeBatch(batch=1024, samples=1024).rate(1) < LargeBatch(batch=1024).full_rate


@pytest.mark.parametrize("batch", [32, 64, 128, 1024])
@pytest.mark.parametrize("settings", [{"norm": "batch"}, {"task": "text", "layers": 1}])
def test_a_move_of_the_batch_is_told_by_forms_as_a_dry_run_tells_it(settings, batch):
    lab = LargeBatch(batch=batch, **settings)
    settled = tuple(lab.shaped.items()), lab.members(lab.shaped), WHOLE
    assert lab.stage_run(0, WHOLE) == rehearsed.__wrapped__(*settled, (batch,))


# -- staleness -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule,delays",
    [
        ("1f1b", "0, 0, 0, 0"),
        ("pipedream", "3, 2, 1, 0"),
        ("pipedream-vertical-sync", "3, 3, 3, 3"),
        ("pipedream-2bw", "1, 1, 1, 1"),
    ],
)
def test_each_stage_s_delay(schedule, delays):
    lab = Staleness(schedule=schedule)
    assert lab.describe().endswith(delays)
    assert (f"that are {delays[0]} update" in lab.explain(lab.predict())[0]) == (delays[0] != "0")


def test_a_run_by_old_weights_is_drawn_beside_plain_sgd():
    """2BW: an update a batch. Plain torch tells the losses, at the run's own times."""
    lab = Staleness(schedule="pipedream-2bw", ranks=2, micro_batches=2, steps=3)
    told = [Scalar(1, "compute", "scalar", "loss", 7 * n, 9.0) for n in range(6)]
    beside, _ = lab.beside(Trace.of(told, "modelled", ranks=2))
    model = torch.nn.Sequential(*(lab.recipe.model(stage) for stage in range(2)))
    sgd, losses = torch.optim.SGD(model.parameters(), lab.learning_rate), []
    for n in range(6):
        sample = lab.samples(n)
        loss = torch.nn.functional.mse_loss(model(sample.inputs), sample.targets)
        (loss / 2).backward()
        losses.append(loss.item())
        if n % 2:
            sgd.step()
            sgd.zero_grad()
    assert [(e.start, e.value) for e in beside] == [(7 * n, of) for n, of in enumerate(losses)]
    assert lab.replace(schedule="1f1b").beside(beside) == (None, "")


# -- all-reduce: whose gradients each chunk holds, read from real numbers and replayed -------------


def test_all_reduces_stand_side_by_side_and_no_other_collective():
    assert {*Collective.all()} - {*AllReduce().rivals()} == {
        "all-gather",
        "broadcast",
        "reduce-scatter",
    }


def test_a_chunk_that_no_set_of_gradients_makes_is_nobody_s():
    asked = AllReduce(ranks=3, megabytes=0.01)
    parts = [asked.brought(1, 1, 9)[rank] for rank in range(3)]
    assert [asked.held(1, tensor) for tensor in (parts[0], parts[0] + parts[2], sum(parts))] == [
        1,
        5,
        7,
    ]
    assert [asked.held(1, tensor) for tensor in (2 * parts[0], parts[0] + 1e-3)] == [0, 0]


@pytest.mark.parametrize(
    "collective, ranks, number, words",
    [
        ("ring", 4, 1, ("every rank", "next rank on the ring", "adds")),
        ("star", 4, 1, ("ranks 1, 2 and 3", "to rank 0", "adds")),
        ("star", 4, 2, ("rank 0 sends", "to ranks 1, 2 and 3", "copies it")),
        ("halving-doubling", 8, 2, ("ranks 0 and 2, 1 and 3", "exchange 2 chunks")),
        ("bidirectional-ring", 5, 2, ("each of its two neighbours", "adds")),
        ("tree", 8, 5, ("rank 0 sends one chunk to rank 2, 1 to 3", "copies it")),
    ],
)
def test_each_round_is_one_sentence(collective, ranks, number, words):
    said = holdings(AllReduce(collective=collective, ranks=ranks).predict()).rounds[number - 1][1]
    assert [each for each in words if each not in said] == []


@pytest.mark.parametrize("collective", Collective.all())
def test_the_player_is_told_each_chunk_s_way(collective):
    """What is carried is what the sender held before the round; what the receiver holds then is
    that, or both."""
    asked = AllReduce(collective=collective, ranks=8, node_size=4)
    packed, states = json.loads(pack(asked.predict()))["chunks"], [*provenance(asked.order)]
    assert (
        packed["start"] == states[0]
        and len(packed["rounds"]) == len(asked.order.checked) == len(states) - 1
    )
    carried = sorted(
        (move, before[move.src][move.chunk])
        for before, moves in zip(states, asked.order.checked)
        for move in moves
    )
    assert sorted((Move(*way[:4]), way[6]) for way in packed["moves"]) == carried
    held = [list(row) for row in packed["start"]]
    for _, rank, chunk, now in packed["changes"]:
        held[rank][chunk] = now
    assert held == states[-1] and {
        (end, dst, chunk) for _, dst, chunk, _, _, end, _ in packed["moves"]
    } == {tuple(c[:3]) for c in packed["changes"]}


def test_traces_of_strangers_and_of_many_ranks_tell_no_chunks():
    assert holdings(AllReduce(ranks=9).predict()) is None
    trace = AllReduce(ranks=2).predict()
    wrong = [
        Scalar(0, "compute", "scalar", name, 0, value)
        for name, value in (
            ("holds of round 1 chunk 9999", 1.0),
            ("holds of round 0 chunk 0", float("nan")),
            ("holds of round 0 chunk 1", 4.0),
            ("holds of x", 1.0),
        )
    ]
    assert holdings(Trace.of(wrong, "modelled", ranks=2)) is None
    assert holdings(Trace.of([*trace.events, *wrong[:2]], **trace.header())) == holdings(trace)


# -- data-parallel: what is exposed, by closed forms; cycles and priorities; its mistakes ----------


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_without_overlap_all_of_the_ring_is_exposed(replicas):
    """2 (N-1) alpha a bucket, and 2 (N-1)/N of the gradients' bytes."""
    experiment = DataParallel(replicas=replicas, overlap=False, bucket_mb=0.5)
    wire, plan = experiment.profile.inside, experiment.lowered
    buckets = [op for op in plan.lanes[0, "comm:dp"] if isinstance(op, Together)]
    gradients = sum(p.nbytes for each in experiment.stages.values() for p in each.parameters())
    count, share = len(buckets) // experiment.steps, 2 * (replicas - 1) / replicas
    found, computed_s = table(experiment), experiment.predict().busy(0) / experiment.steps
    alone = table(experiment.replace(replicas=1))["step time"]
    ring_s = count * 2 * (replicas - 1) * wire.alpha_s + share * gradients / wire.bytes_per_s
    assert found["exposed communication a step"] == pytest.approx(ring_s, rel=1e-6)
    assert found["bytes sent a rank and step"] == pytest.approx(share * gradients, rel=1e-6)
    assert found["step time"] == pytest.approx(computed_s + ring_s, rel=1e-6) and computed_s > alone
    assert found["speed-up over one replica"] == pytest.approx(
        replicas * alone / found["step time"]
    )
    assert (
        f"a step is {duration(alone, 's')} as on one" in experiment.explain(experiment.predict())[0]
    )


@pytest.mark.parametrize(
    "changes", [{}, {"bucket_mb": 0.1}, {"bucket_mb": 0.1, "split_parameters": True}]
)
def test_overlap_hides_all_but_the_embedding(changes):
    """Its gradient is the last and comes at once, whatever the buckets."""
    fast = DataParallel(**{"link_gb_s": 30.0, "bucket_mb": 0.5} | changes)
    embedding_s = 4 / 3 * sum(p.nbytes for p in fast.stages[0].parameters()) / 30e9
    waits, late = (exposed(fast.replace(overlap=over).predict()) for over in (True, False))
    assert embedding_s < waits < 0.8 * late


@pytest.mark.parametrize("cycle_ms", [0.05, 0.3, 5])
def test_a_cycle_takes_what_is_ready_on_all_ranks(cycle_ms):
    """And no more: by the times of the backward, with a straggler among the ranks. All bytes leave
    in the order of the layers."""
    asked = DataParallel(
        strategy="fused-cycle", cycle_ms=cycle_ms, bucket_mb=100, fault="straggler", steps=1
    )
    trace, ticks = asked.predict(), round(cycle_ms * 1e9)
    done = {
        layer: max(s.end for s in trace.spans() if s.name == f"{layer}B0")
        for layer in range(asked.config.pieces)
    }
    sizes = {
        layer: sum(p.nbytes for p in module.parameters()) for layer, module in asked.stages.items()
    }
    lane = [
        s for s in trace.spans(1) if s.lane == "comm:dp"
    ]  # of the straggler: a request, a message, and so on
    free, left = 0, sorted(sizes, reverse=True)
    for request, message in zip(lane[::2], lane[1::2], strict=True):
        at = -(-max(free, done[left[0]]) // ticks) * ticks
        ready = [layer for layer in left if done[layer] <= at]
        (sent,) = {t.bytes for t in trace.transfers(1) if t.name == message.name}
        assert (request.name[:5], request.start, message.start) == ("cycle", at, request.end)
        assert sent == pytest.approx(4 / 3 * sum(sizes[layer] for layer in ready), rel=1e-4)
        free, left = message.end, left[len(ready) :]
    assert left == [] and len(lane) == 2 * {0.05: 8, 0.3: 7, 5: 1}[cycle_ms]


def test_push_pull_lets_the_front_layers_go_first():
    """All is ready at once: the pieces go from the first layer to the last. Beside the backward
    none waits for one that is not ready."""
    for overlap in (False, True):
        order = [
            int(name.split()[1])
            for name in travels(
                DataParallel(
                    strategy="push-pull", overlap=overlap, link_gb_s=0.5, steps=1
                ).predict(),
                0,
            )
        ]
        assert (order == sorted(order, reverse=True)) != overlap and order[1:] == sorted(
            order[1:], reverse=True
        )


@pytest.mark.parametrize(
    "settings, told",
    [
        (
            {"mistake": "absent", "fault_at": 0},
            (
                "at one time: ranks 0 and 2 bucket 0 of batch 0, all_reduce (sum) of float32 of"
                " shape (4144,); rank 1 bucket 1"
            ),
        ),
        (
            {"mistake": "short"},
            "waits in bucket 0 of batch 1 for rank 1, which has finished without calling it.",
        ),
    ],
)
def test_a_replica_that_does_otherwise_is_named(settings, told, tmp_path):
    sizes = {"layers": 2, "width": 16, "vocabulary": 256, "sequence": 8, "steps": 2}
    run = failed(DataParallel(**sizes, bucket_mb=0.02, **settings).run(directory=tmp_path / "run"))
    assert told in run.diagnosis


# -- accumulate: what its two rules differ by, and what a device that holds one micro-batch can train

ACCUMULATE_SMALL = {"layers": 1, "width": 16, "heads": 2, "sequence": 16, "dtype": "float64"}


def test_what_the_table_says(tmp_path):
    """With a short last window."""
    asked = Accumulate(**ACCUMULATE_SMALL)
    predicted, modelled = asked.predict(), asked.run(directory=tmp_path / "run").wait()
    told = {q.name: (q.of(predicted), q.of(modelled)) for q in asked.quantities}
    assert told["step time"][0] == 10.5  # 10 micro-batches of 3 slots, 3 updates of half a slot
    saved, whole = told["activations, peak"][0], told["activations, window in one pass"][0]
    loss = asked.config.item_bytes
    assert whole - loss == 4 * (saved - loss)  # the large batch saves four times as much
    (expected, _), (unknown, off) = (
        told[f"gradient off by, mean of means{of}"] for of in (", expected", "")
    )
    assert unknown is None and 10 < off < 1.2 * expected
    assert told["gradient off by, token-weighted"][1] < 1e-10
    errors = [e.value for e in modelled.where(Scalar, name="error, mean of means")]
    assert off == pytest.approx(50 * sum(errors[:2]))  # the last, short window is another question


def test_both_rules_are_one_on_equal_lengths():
    asked = Accumulate(**ACCUMULATE_SMALL, spread=1.0)
    told = compared(asked.recipe.model(0), [asked.micro_batch(n) for n in range(4)])
    assert told["error, mean of means"] == told["error, token-weighted"] < 1e-13


def test_windows_and_lengths():
    asked = Accumulate(accumulation=4, spread=16, sequence=64, sequences=2)
    assert (
        asked.tokens() == [8, 20, 50, 128]
        and asked.tokens(1) == [128] * 4
        and Accumulate(accumulation=1).tokens() == [128]
    )
    assert asked.steps == 3 and asked.windows()[-1] == (8, 9)
    assert [int((asked.micro_batch(n)[1] >= 0).sum()) for n in range(5)] == [8, 20, 50, 128, 8]
    assert "made of 2 micro-batches, not 4" in asked.explain(asked.predict())[-1]


def test_a_device_that_holds_one_micro_batch_trains_a_window_of_eight(tmp_path):
    """And the comparison with the window in one pass, which it could not hold, is made beside the
    run."""
    asked = Accumulate(**ACCUMULATE_SMALL, accumulation=8, micro_batches=8)
    asked = asked.replace(memory_mb=2 * asked.predict().peak_bytes(0) / 1e6)
    assert asked.activations(8) > 1.5 * asked.capacity_bytes
    assert run_differs(asked, asked.run(directory=tmp_path / "run")) == []
