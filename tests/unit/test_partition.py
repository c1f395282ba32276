"""The cut of a model into stages: the dynamic program against every cut there is, and what the
experiment tells of it."""

import json
import random
from fractions import Fraction
from itertools import combinations, product

import pytest

from bigtrain_lab.checks import clocks_differ, run_differs
from bigtrain_lab.core import Impossible, Span, Trace
from bigtrain_lab.experiments import Experiment
from bigtrain_lab.experiments.partition import Partition
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.models import GPTConfig, timing
from bigtrain_lab.order.partition import (
    Piece,
    Stage,
    balanced,
    by_sizes,
    passing,
    stage_shares,
    stage_time,
    stage_times,
)
from tests.unit.test_runtime_calibrate import FOUND

B = 7  # bytes a unit of time


def every_pipeline(pieces: int, devices: int, most_replicas: int):
    """All stages of all cuts with all replications that use these devices: by hand, and slowly."""
    for count in range(1, min(pieces, devices) + 1):
        for inner in combinations(range(1, pieces), count - 1):
            ends = [0, *inner, pieces]
            for replicas in product(range(1, most_replicas + 1), repeat=count):
                if sum(replicas) == devices:
                    yield [Stage(*place) for place in zip(ends, ends[1:], replicas)]


def every_time(pieces, stages, bytes_per_s):
    """Stages and links, slowest first."""
    return sorted(
        [
            *(stage_time(pieces, stage, bytes_per_s) for stage in stages),
            *(passing(pieces[stage.first - 1], bytes_per_s) for stage in stages if stage.first),
        ],
        reverse=True,
    )


@pytest.mark.parametrize("most_replicas", [1, 2, 4])
@pytest.mark.parametrize("bytes_per_s", [None, B])
def test_no_cut_has_a_faster_slowest_place_and_of_those_it_is_the_evenest(
    most_replicas, bytes_per_s
):
    """With replicas the slowest place alone counts."""
    draw, replicated = random.Random(most_replicas), 0
    for _ in range(150):
        pieces = [
            Piece(str(i), draw.randrange(30), draw.randrange(60), draw.randrange(200))
            for i in range(draw.randrange(1, 7))
        ]
        devices = draw.randrange(1, 5)
        cuts = list(every_pipeline(len(pieces), devices, most_replicas))
        if not cuts:
            with pytest.raises(Impossible, match="devices cannot share a model"):
                balanced(pieces, devices, bytes_per_s, most_replicas)
            continue
        found = balanced(pieces, devices, bytes_per_s, most_replicas)
        times = {tuple(cut): every_time(pieces, cut, bytes_per_s) for cut in cuts}
        least, own = min(times.values()), times[tuple(found)]
        assert own[0] == least[0] and (most_replicas > 1 or own == least)
        replicated += any(stage.replicas > 1 for stage in found)
    assert bool(replicated) == (most_replicas > 1)


@pytest.mark.parametrize(
    "times, sizes",
    [
        ([0.1] * 8, [2] * 4),
        ([0.1] * 12, [4] * 3),
        ([0.1] * 5, [1] * 5),
        ([0.1] * 7, [7]),
        ([1] * 7, [2, 2, 2, 1]),
        ([1, 1, 1, 1, 1, 1, 9], [2, 2, 2, 1]),
    ],
)
def test_cuts_by_hand(times, sizes):
    assert balanced([Piece("", time) for time in times], len(sizes)) == by_sizes(sizes)


def test_replicas_share_the_work_and_sum_their_gradients_by_a_ring():
    pieces = [Piece("a", 10, 0, 70), Piece("b", 2, 14, 700)]
    assert stage_time(pieces, Stage(0, 1, 2), B) == Fraction(
        10, 2
    )  # a ring of 2 sends 70 bytes a replica, in 10 of time
    assert (
        stage_time(pieces, Stage(0, 2, 2), B) == Fraction(770, B) / 2
    )  # now the ring is slower than the work, 12
    assert stage_time(pieces, Stage(1, 2, 4), B) == Fraction(2 * 3 * 700, 4 * B) / 4
    assert stage_time(pieces, Stage(0, 2, 4)) == 3  # links are free
    assert passing(pieces[1], B) == 4  # 14 bytes of activations, 14 of gradient
    convolutions, classifier = (
        [Piece("", 10, 30, 1)] * 4,
        Piece("", 4, 0, 10_000),
    )  # the paper's case: much work, then many weights
    assert balanced([*convolutions, classifier], 4, B, 4) == [Stage(0, 4, 3), Stage(4, 5, 1)]


def test_what_a_stage_took_is_its_mean_without_updates():
    spans = [
        Span(0, "compute", "F", "0F0", 0, 1000),
        Span(0, "compute", "F", "0F1", 1000, 3000),
        Span(0, "compute", "B", "0B0", 3000, 5000),
        Span(0, "compute", "B", "0B1", 5000, 8000),
        Span(0, "compute", "U", "0U1", 8000, 99000),
        Span(1, "compute", "F+B", "1F0+1B0", 0, 7000),
    ]
    assert stage_times(Trace.of(spans, "modelled", ranks=2)) == [4.0, 7.0]
    assert stage_shares(Trace.of(spans, "modelled", ranks=2), 3) == [
        (4, 4 / 11),
        (7, 7 / 11),
        (0, 0),
    ]


# -- the experiments -------------------------------------------------------------------------------


def test_slots_are_shares_of_the_products():
    """Per token: a block multiplies 12 D^2 + 2 S D times, the head D V times; nothing else has
    products."""
    D, S, V, L = 64, 32, 1024, 8
    asked = Partition(width=D, sequence=S, vocabulary=V, layers=L)
    block, head = 12 * D * D + 2 * S * D, D * V
    shares = [0, *[block] * L, head]
    assert [piece.time for piece in asked.pieces] == [
        Fraction(3 * 4 * share, L * block + head) for share in shares
    ]
    assert sum(piece.time for piece in asked.pieces) == 3 * 4
    assert (
        asked.replace(layers=4, ranks=1, partition="balanced").predict().step_time == 3 * 8
    )  # one stage: a perfect share, 8 times


def test_a_perfect_cut_costs_what_the_textbook_says():
    """A head that weighs as much as one block: 3 + 3 + 3 + 3 of 12 pieces, the embedding free."""
    D, S = 64, 64
    asked = Partition(
        width=D, sequence=S, vocabulary=12 * D + 2 * S, layers=11, partition="balanced"
    )
    trace = asked.predict()
    assert [last - first for first, last in asked.slices] == [4, 3, 3, 3]
    assert trace.step_time == 33 and trace.bubble() == pytest.approx(3 / 11)
    equal = asked.replace(
        partition="equal", vocabulary=4 * (12 * D + 2 * S), layers=8
    ).predict()  # 2, 2, 2, 6 of 12
    assert stage_times(equal) == pytest.approx(
        [2, 2, 2, 6], abs=1e-5
    ) and equal.step_time == pytest.approx(8 * 6 + 3 * 2)


PRICED = PipelineExperiment(hardware="a100-nvlink", layers=6)
CUTS = "3 2 5", "3 2 2 2", "1 2 2 2 3", "3 2 2 x", "10 0 0 0", "", "-1 4 4 3"


@pytest.mark.parametrize(
    "asked, slices",
    [
        (PRICED, [(0, 2), (2, 4), (4, 6), (6, 8)]),  # the left-over blocks: stages 1 and 2
        (PRICED.replace(partition="balanced", ranks=8), [(i, i + 1) for i in range(8)]),
        (Partition(ranks=6, layers=4, partition="balanced"), [(i, i + 1) for i in range(6)]),
        (Partition(partition="mine", cut="1, 4,4 1"), [(0, 1), (1, 5), (5, 9), (9, 10)]),
        *((Partition(cut=cut), Partition().slices) for cut in CUTS),  # not used, not read
    ],
)
def test_slices_by_hand(asked, slices):
    assert asked.slices == slices


@pytest.mark.parametrize(
    "asked, sentence",
    [
        *(
            (lambda devices=devices: balanced([Piece("", 1)] * 3, devices), "take 1 to 3")
            for devices in (0, 4, 2.5)
        ),
        (lambda: PRICED.replace(ranks=8), "8 stages need at least 8 layers"),
        (
            lambda: PRICED.replace(partition="balanced", ranks=8, layers=5),
            "8 stages .* the model has 7.* take 7 stages or 6 layers",
        ),
        (
            lambda: PRICED.replace(partition="balanced", hardware="unit"),
            "nothing to balance: .*partition equal",
        ),
        (
            lambda: PRICED.replace(partition="x"),
            "partition is 'x': choose one of equal, balanced",
        ),
        (
            lambda: PRICED.replace(partition="balanced", tied=True, schedule="pipedream"),
            "tied=False, or a synchronous",
        ),
        *(
            (
                lambda cut=cut: Partition(partition="mine", cut=cut),
                "4 stages of 10 pieces: .* with the sum 10",
            )
            for cut in CUTS
        ),
    ],
)
def test_pipelines_that_cannot_be_cut_so_are_refused(asked, sentence):
    with pytest.raises(Impossible, match=sentence):
        asked()


def test_the_table_compares_the_cuts():
    asked = Partition()
    trace = asked.predict()
    table = {quantity.name: quantity.of(trace) for quantity in asked.quantities}
    for name in ("balanced", "worst"):
        assert (
            table[f"step time if cut {name}"] == asked.replace(partition=name).predict().step_time
        )
    assert table["slowest stage, a micro-batch"] == pytest.approx(5) and table[
        "step time"
    ] == pytest.approx(47)
    assert "Stage 3 has 42% of the work" in asked.explain(trace)[0]


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "FOR_S", 0.0)
    monkeypatch.setattr("bigtrain_lab.runtime.calibrate.measured", lambda: FOUND)


SMALL = {"layers": 4, "width": 16, "heads": 2, "sequence": 8, "vocabulary": 256, "rows": 1}


@pytest.mark.slow
def test_a_measured_profile_is_timed_once_and_kept(own_cache, monkeypatch, tmp_path):
    """By each machine its own, also where several share a home folder."""
    asked = Partition(profiled="measured", partition="balanced", **SMALL)
    first = times(asked)
    assert len(first) == 6 and min(first) > 0 and len(set(first[1:5])) == 1  # all blocks are one
    assert times(asked.replace(partition="worst")) == first
    monkeypatch.setattr(timing, "timed", lambda config, batch: [(1.0, 2.0), (1.0, 2.0), (3.0, 6.0)])
    assert times(asked.replace(seed=1)) == first
    assert times(asked.replace(width=32)) == NEW
    monkeypatch.setattr(timing.platform, "node", lambda: "another machine")
    assert times(Partition(profiled="measured", **SMALL)) == NEW
    (tmp_path / "bigtrain_lab/pieces.json").write_text("half a fi")
    assert times(asked.replace(width=48)) == NEW


NEW = [3, 3, 3, 3, 3, 9]


def times(asked) -> list:
    return [piece.time for piece in asked.pieces]


@pytest.mark.slow
def test_a_run_keeps_the_times_that_it_was_cut_by(own_cache, monkeypatch, tmp_path):
    """Whatever the pieces take today, and on another machine; only the same model's times stand for
    it."""
    asked = Partition(profiled="measured", partition="balanced", **SMALL)
    kept = json.loads(json.dumps({"experiment": "partition", **asked.told}))
    (tmp_path / "bigtrain_lab/pieces.json").unlink()
    monkeypatch.setattr(timing, "timed", lambda config, batch: [(1.0, 2.0), (1.0, 2.0), (3.0, 6.0)])
    restored = Experiment.restored(kept)
    assert (
        restored.pieces == asked.pieces and clocks_differ(restored.predict(), asked.predict()) == []
    )
    assert (
        restored.replace(partition="worst").pieces == asked.pieces
        and restored.replace(layers=6).pieces[1:3] == asked.pieces[1:3]
    )
    assert [piece.time for piece in restored.replace(width=32).pieces] == [3, 3, 3, 3, 3, 9]
    assert Partition(**asked.model_dump()).pieces != asked.pieces


@pytest.mark.slow
def test_a_measured_profile_is_one_for_the_prediction_and_all_ranks(own_cache, tmp_path):
    asked = Partition(profiled="measured", partition="balanced", **SMALL)
    # nowhere to find it: the ranks must have it from the experiment
    (tmp_path / "bigtrain_lab/pieces.json").unlink()
    assert run_differs(asked, asked.run(directory=tmp_path / "run"), tolerance=1e-5) == []


@pytest.mark.slow
@pytest.mark.parametrize("timed", ["x", "times of the model", [[1, 2]]])
def test_damaged_times_are_one_sentence(own_cache, timed):
    asked = Partition(profiled="measured", **SMALL)
    facts = asked.facts | {
        "timed": (
            {timing.timed_as(asked.config, asked.rows): [[1, 2]]}
            if timed == "times of the model"
            else timed
        )
    }
    with pytest.raises(
        Impossible, match="what the run kept of its pieces' times cannot be read: run it again"
    ):
        Experiment.restored({"experiment": "partition", **asked.told, "facts": facts})


def test_ranks_of_torchrun_do_not_time_each_their_own(own_cache, monkeypatch):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Impossible, match="has not been measured|have not been timed"):
        Partition(profiled="measured", partition="balanced", **SMALL)
    with pytest.raises(
        Impossible, match="have not been timed .* predict the same settings once without torchrun"
    ):
        timing.piece_seconds(GPTConfig(width=16), 1)


def test_the_lesson_s_balanced_cut_has_the_shortest_step_of_all_84():
    asked = Partition(steps=1, partition="mine")
    steps = []
    for stages in every_pipeline(10, 4, 1):
        cut = " ".join(str(stage.last - stage.first) for stage in stages)
        steps.append(asked.replace(cut=cut).simulated().step_time)
    assert (
        len(steps) == 84 and min(steps) == asked.replace(partition="balanced").simulated().step_time
    )


def test_a_wrong_cut_is_refused_without_the_right_one():
    """The checkpoint of lesson 18 asks for it."""
    task = {"layers": 12, "vocabulary": 4096, "steps": 1}
    answer = " ".join(
        str(last - first) for first, last in Partition(partition="balanced", **task).slices
    )
    with pytest.raises(Impossible, match="as in 11 1 1 1") as refused:
        Partition(partition="mine", cut="4 3 3", **task)
    assert answer == "5 4 4 1" and answer not in str(refused.value)
