"""The data-parallel lab: what is exposed, by closed forms; cycles and priorities; its mistakes."""

import pytest

from bigtrain_lab.core.words import duration
from bigtrain_lab.experiments.data_parallel import DataParallel, travels
from bigtrain_lab.order import Together, exposed
from bigtrain_lab.runtime import RankFailed
from tests.unit.test_labs import table


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
        f"one replica, {duration(alone, 's')} each" in experiment.explain(experiment.predict())[0]
    )


def test_overlap_hides_all_but_the_embedding():
    """Its gradient is the last and comes at once, whatever the buckets."""
    fast = DataParallel(link_gb_s=30.0, bucket_mb=0.5)
    embedding_s = 4 / 3 * sum(p.nbytes for p in fast.stages[0].parameters()) / 30e9
    for changes in ({}, {"bucket_mb": 0.1}, {"bucket_mb": 0.1, "split_parameters": True}):
        waits, late = (
            exposed(fast.replace(overlap=overlap, **changes).predict()) for overlap in (True, False)
        )
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
    run = DataParallel(
        layers=2, width=16, vocabulary=256, sequence=8, steps=2, bucket_mb=0.02, **settings
    ).run(directory=tmp_path / "run")
    with pytest.raises(RankFailed):
        run.wait()
    assert told in run.diagnosis
