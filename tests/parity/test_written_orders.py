"""Schedule.of: orders drawn at random are simulated as they must be, and on real ranks they equal
one process."""

import pickle
import random

import pytest

from bigtrain_lab.checks import run_differs
from bigtrain_lab.core import Cost, Impossible, Link
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.order import Schedule, lower, name_of
from bigtrain_lab.order.simulate import simulate


def needed(halved, stages, micro_batches):
    """Action -> what it needs, written anew: backwards whole or halved at random, and their
    updates."""

    def back(s, m, half):
        return f"{s}{half if (s, m) in halved else 'B'}{m}"

    needs = {
        f"{s}F{m}": [f"{s - 1}F{m}"] * (s > 0) for s in range(stages) for m in range(micro_batches)
    }
    for s in range(stages):
        for m in range(micro_batches):
            needs[back(s, m, "I")] = [
                f"{s}F{m}",
                *([back(s + 1, m, "I")] if s + 1 < stages else []),
            ]
            if (s, m) in halved:
                needs[f"{s}W{m}"] = [f"{s}I{m}"]
        needs[f"{s}U{micro_batches - 1}"] = [back(s, m, "W") for m in range(micro_batches)]
    return needs


def drawn(seed, ranks, stages, micro_batches):
    """(texts, needs) of a legal order: stages on any rank, any action that can run next, at times
    two in one step."""
    draw = random.Random(seed)
    homes = [*range(ranks), *(draw.randrange(ranks) for _ in range(stages - ranks))]
    draw.shuffle(homes)
    places = [(s, m) for s in range(stages) for m in range(micro_batches)]
    needs = needed({place for place in places if draw.random() < 0.5}, stages, micro_batches)
    todo = [action for action in needs if seed % 2 or "U" not in action]
    done, orders = set(), [[] for _ in range(ranks)]
    while todo:
        rank = draw.randrange(ranks)
        ready = [a for a in todo if homes[int(a[0])] == rank and done.issuperset(needs[a])]
        step = draw.sample(ready, min(len(ready), draw.choice((1, 1, 2))))
        orders[rank] += ["+".join(step)] * bool(step)
        done.update(step)
        todo = [a for a in todo if a not in done]
    return [" ".join(order) for order in orders], needs


@pytest.mark.parametrize("ranks,stages,micro_batches", [(1, 3, 2), (2, 2, 5), (3, 7, 4), (4, 5, 6)])
def test_a_drawn_order_is_simulated_each_action_once_and_after_what_it_needs(
    ranks, stages, micro_batches
):
    links = {(a, b): Link(10 * a + b, 7, 3) for a in range(ranks) for b in range(ranks)}
    cost = Cost(
        {"F": tuple(range(1, stages + 1)), "B": 3, "I": 2, "W": 1, "F+B": 3},
        dict.fromkeys("FBI", 100),
        links=links,
    )
    for seed in range(60):
        texts, needs = drawn(seed, ranks, stages, micro_batches)
        order = Schedule.of(*texts)
        trace = simulate(order, cost, steps=2)
        first = {a: span for span in trace.spans() for a in span.name.split("+")}
        assert len([a for span in trace.spans() for a in span.name.split("+")]) == 2 * len(needs)
        assert all(
            first[need].end <= first[a].start or first[need] is first[a]
            for a in needs
            for need in needs[a]
        )
        assert all(
            full.startswith(text) for full, text in zip(in_text(order), texts)
        )  # and updates, where none are written


def in_text(schedule):
    return [" ".join(map(name_of, steps)) for steps in schedule.over(1)]


@pytest.mark.parametrize(
    "name", [name for name, cls in Schedule.all().items() if not cls.asynchronous]
)
def test_a_schedule_written_down_is_that_schedule(name):
    schedule = Schedule.named(name)(3, 6)
    written = pickle.loads(pickle.dumps(Schedule.of(*in_text(schedule), name="mine")))
    assert (written.ranks, written.micro_batches, written.stages, written.chunks, written.name) == (
        3,
        6,
        schedule.stages,
        schedule.chunks,
        "mine",
    )
    assert lower(written, 2) == lower(schedule, 2)


@pytest.mark.parametrize(
    "seed,ranks,stages,micro_batches,hardware",
    [(1, 3, 5, 4, "unit"), (2, 2, 4, 3, "rtx3090-pcie"), (4, 4, 8, 5, "unit")],
)
def test_a_drawn_order_on_real_ranks_is_as_predicted_and_as_one_process(
    seed, ranks, stages, micro_batches, hardware, tmp_path
):
    order = Schedule.of(*drawn(seed, ranks, stages, micro_batches)[0])
    assert 0 < len(order.halved) < stages * micro_batches

    class Drawn(PipelineExperiment):  # its name is inherited: no member of the family
        pass

    Drawn.order = property(lambda self: order)
    asked = Drawn(
        ranks=ranks,
        micro_batches=micro_batches,
        hardware=hardware,
        layers=8,
        width=16,
        heads=2,
        sequence=8,
        rows=1,
        steps=2,
        dtype="float64",
        optimizer="sgd",
        learning_rate=0.5,
        schedule="gpipe",
    )
    assert run_differs(asked, asked.run(directory=tmp_path / "run", jitter_s=0.003)) == []


WRONG = {
    "no text": ([], "There is no order: give one text a rank"),
    "an empty text": (["0F0 0B0", " "], "The order of rank 1 is ' '"),
    "no text at all": ([["0F0"]], "The order of rank 0 is .'0F0'."),
    "an unknown letter": (["0F0 0X0 0B0"], "In the order of rank 0, '0X0' is not an action"),
    "half a pair": (["0F0+ 0B0"], "In the order of rank 0, '' is not an action"),
    "a stage on two ranks": (
        ["0F0 1B0", "1F0 0B0"],
        "Rank 0 runs 1B0 and rank 1 1F0: write all actions of a stage on one rank",
    ),
    "both directions": (
        ["0F0 1F1 1B1 0B0", "1F0 0F1 0B1 1B0"],
        "write all actions of a stage on one rank",
    ),
    "a stage left out": (["0F0 2F0 2B0 0B0"], "No rank runs stage 1, and there is a stage 2"),
    "repeated": (["0F0 0F0 0B0"], "Rank 0 runs 0F0 twice"),
    "forgotten": (["0F0 0F1 0B1"], "0B0 is missing on rank 0"),
    "half forgotten": (["0F0 0I0"], "0W0 is missing on rank 0"),
    "whole and half": (["0F0 0B0 0I0 0W0"], "0B0 and a half of it too"),
    "too early": (["0B0 0F0"], "Rank 0 runs 0B0 before 0F0"),
    "a half too early": (["0F0 0W0 0I0"], "Rank 0 runs 0W0 before 0I0"),
    "updated early": (["0F0 0F1 0B0 0U1 0B1"], "Rank 0 runs 0U1 before 0B1"),
    "updated before its W": (
        ["0F0 0F1 0B0 0I1 0U1 0W1"],
        "Rank 0 runs 0U1 before 0W1, whose gradient",
    ),
    "updated by another name": (
        ["0F0 0F1 0B0 0B1 0U0"],
        "Rank 0 runs 0U0, and this schedule updates after every 2",
    ),
    "updated each time": (
        ["0F0 0B0 0U0 0F1 0B1 0U1"],
        "Rank 0 updates stage 0 2 times in 2 micro-batches; this schedule makes 1",
    ),
    "one stage updated": (["0F0 0B0 0U0", "1F0 1B0"], "Rank 1 updates stage 1 0 times"),
    "a deadlock": (
        ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"],
        "rank 0 waits for 1B0 from rank 1; rank 1 waits for 0F1 from rank 0",
    ),
}


@pytest.mark.parametrize("texts, sentence", WRONG.values(), ids=WRONG)
def test_a_text_that_is_no_order_is_refused_in_a_sentence(texts, sentence):
    with pytest.raises(Impossible, match=sentence):
        simulate(Schedule.of(*texts), {"F": 1, "B": 2, "I": 1, "W": 1})
