"""Experiments: settings that cannot be are one sentence, and knobs say what a control needs."""

import re

import pytest

from bigtrain_lab import Experiment, Impossible
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.models.theory import block_flops
from bigtrain_lab.view.report import rows

BAD = [
    ({"micro_batches": 0}, "micro-batches is 0: it must be a whole number from 1 to 32"),
    (
        {"ranks": 4, "layers": 3},
        "4 stages need at least 4 layers; the model has 3: take 3 stages or 4 layers",
    ),
    (
        {"schedule": "interleaved", "chunks": 3},
        (
            "4 ranks with 3 chunks each need at least 12 layers; the model has 8: take 2 chunks or"
            " 12 layers"
        ),
    ),
    (
        {"schedule": "interleaved", "layers": 7},
        "need at least 8 layers; the model has 7: take 1 chunk or 8 layers",
    ),
    (
        {"schedule": "interleaved", "layers": 3, "ranks": 4},
        "the model has 3: take 1 rank or 8 layers",
    ),
    (
        {
            "schedule": "interleaved",
            "layers": 5,
            "partition": "balanced",
            "hardware": "v100-nvlink",
            "micro_batches": 6,
            "ranks": 6,
            "chunks": 2,
        },
        (
            "6 ranks with 2 chunks each need at least 12 pieces; the model has 7, its embedding and"
            " head among them: take 1 chunk or 10 layers"
        ),
    ),
    ({"schedule": "x"}, "no schedule called 'x': choose one of .*1f1b"),
    ({"nope": 1}, "pipeline has no setting 'nope'"),
    ({"heads": 3}, "take 2 or 4 heads"),
    ({"dtype": "float8"}, "dtype is 'float8': choose one of float32, float64"),
    ({"tied": True, "schedule": "pipedream"}, "tied=False, or a synchronous schedule"),
    ({"text": "/nowhere/at all"}, "cannot be read"),
    ({"ranks": 2.5}, "ranks is 2.5: it must be a whole number from 1 to 8"),
    ({"stashing": "x"}, "stashing is 'x': it must be true or false"),
    ({"seed": -1}, "a whole number from 0 to 2,147,483,647"),
    ({"learning_rate": "fast"}, "learning-rate is 'fast'"),
]


REFUSED = [
    *(("pipeline", settings, words) for settings, words in BAD),
    ("all-reduce", {"collective": "hierarchical", "ranks": 9}, "do not fill nodes of 8: take 8"),
    ("checkpoint", {"budget": 1}, r"below the smallest peak .*: take at least 6.5% of keep-all"),
    ("checkpoint", {"plan": "selective", "model": "mlp"}, "an MLP has none"),
    ("combined", {"replicas": 1, "slices": 4, "heads": 2, "width": 16}, "take 4"),
    (
        "combined",
        {"replicas": 4, "pipeline": 1, "micro_batches": 6},
        "cannot be shared equally by 4 replicas: take 8 micro-batches",
    ),
    ("combined", {"zero": 1, "optimizer": "lamb"}, "take adam, tp = 1, or zero = 0"),
    ("data-parallel", {"mistake": "absent", "fault_at": 99}, "can make it at 0 to"),
    ("data-parallel", {"mistake": "swapped", "fault_rank": 5}, "there are ranks 0 to 2"),
    ("data-parallel", {"mistake": "short", "steps": 1}, "One step cannot"),
    ("data-parallel", {"mistake": "absent", "replicas": 1, "fault_rank": 0}, "One replica cannot"),
    ("data-parallel", {"schedule": "pipedream", "pipeline": 2}, "no gradient of a whole window"),
    ("data-parallel", {"pipeline": 4, "layers": 3}, "4 stages need at least 4 layers"),
    ("large-batch", {"batch": 2048, "samples": 1024}, "take more samples, or a smaller batch"),
    ("large-batch", {"batch": 100, "replicas": 3}, "take a multiple of 3"),
    ("layouts", {"layout": "split-d", "d": 1022}, "cannot be cut into 4 equal parts .* make it"),
    ("layouts", {"layout": "split-n-f", "ranks": 6, "rows": 4}, "take rows that divide the ranks"),
    ("parameter-server", {"steps": 500, "slow": 16, "workers": 6}, "a smaller slow, or a bound"),
    ("parameter-server", {"fault": "nan", "fault_rank": 7}, "there are ranks 0 to 4"),
    ("plan", {"pipeline": 3}, "3 stages of 1 slices do not fill 8 devices"),
    ("plan", {"batch": 6, "rows": 2}, "6 samples do not make equally many .* for 2 replicas"),
    ("precision", {"hardware": "titan-rtx-nvlink", "level": "bf16"}, "no speed for bfloat16"),
    ("precision", {"width": 48, "heads": 5}, "5 heads cannot share"),
    ("staleness", {"schedule": "interleaved"}, "take another schedule"),
    ("zero", {"width": 2048}, "a whole number from 16 to 1,024"),  # as in its base
    ("tensor-slicing", {"width": 8192}, "a whole number from 16 to 4,096"),  # which this one varies
    ("tensor-slicing", {"slices": 3}, "vocabulary"),
    ("tensor-slicing", {"slices": 8, "heads": 4}, "heads"),
    ("tensor-slicing", {"cut": "row-column", "sequence_parallel": True}, "sequence=False"),
]


@pytest.mark.parametrize("name, settings, words", REFUSED, ids=lambda v: str(v)[:40])
def test_what_cannot_be_is_one_sentence(name, settings, words):
    with pytest.raises(Impossible, match=words) as refused:
        Experiment.named(name)(**settings)
    assert str(refused.value).count("\n") == 0


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_tiny_stage_takes_the_time_of_its_launches(dropout):
    """On an A100 5 us each: an embedding and two blocks are 38 operators, which were charged 3.2
    us."""
    lab = PipelineExperiment(hardware="a100-nvlink", dropout=dropout, schedule="zb-h1")
    embedding, block, head = (
        {kind: lab.works(kind, at, at + 1)[0].operators for kind in "FBIW"}
        for at in (0, 1, lab.config.pieces - 1)
    )
    assert (embedding["F"], block["F"]) == (
        (2, 18) if not dropout else (5, 18 + 3 * 3)
    )  # each dropout draws, keeps and scales
    assert all(each["F"] <= each["B"] < each["I"] + each["W"] for each in (embedding, block, head))
    for kind, (first, *_, last) in lab.durations().items():
        if kind != "U":
            assert first == pytest.approx(5e-6 * (embedding[kind] + 2 * block[kind])), kind
            assert last == pytest.approx(5e-6 * (2 * block[kind] + head[kind])), kind
    large = lab.replace(width=1024, sequence=512, rows=8)
    assert (
        large.durations()["F"][0]
        > 2 * block_flops(large.config, 8) / (0.859 * 19.5e12)
        > 5e-6 * 2 * block["F"]
    )


@pytest.mark.parametrize("experiment", Experiment.all())
def test_a_word_that_is_on_no_menu_is_one_sentence(experiment):
    chosen = Experiment.named(experiment)
    for name, knob in chosen.knobs().items():
        if (menu := knob.menu()) and chosen.model_fields[name].annotation is str:
            with pytest.raises(Impossible, match=f"choose one of {re.escape(menu[0])}"):
                chosen(**{name: "no such word"})


def test_a_short_text_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "t").write_text("short")
    with pytest.raises(Impossible, match="a sequence of at most 4 or a longer text"):
        PipelineExperiment(text=str(tmp_path / "t"))


def test_a_text_that_changed_is_read_again(tmp_path):
    (tmp_path / "t").write_text("a" * 100)
    asked = PipelineExperiment(text=str(tmp_path / "t"))
    before = asked.samples(0).inputs
    (tmp_path / "t").write_text("b" * 101)
    assert (asked.samples(0).inputs != before).all()


def test_part_of_a_run_counts_the_steps_it_did_and_compares_with_nothing(tmp_path):
    asked = PipelineExperiment(
        steps=200, micro_batches=2, ranks=2, layers=2, width=16, heads=2, sequence=8
    )
    run = asked.run(directory=tmp_path / "run")
    for event in run.events():
        if event.name == "1U9":  # the fifth step's update
            break
    run.stop()
    trace = run.trace("modelled")
    assert 4 <= trace.steps < 200 and trace.settings["unfinished"]
    assert (
        9 <= trace.step_time < 9 * (1 + 2 / trace.steps)
    )  # (m + p - 1)(F + B) = 9 slots, and the part of a step
    (row,) = [
        r for r in rows(asked.quantities, asked.predict(), trace) if r.quantity == "step time"
    ]
    assert str(row.predicted) == "9 slots" and row.modelled is None and row.difference == ""
    assert asked.explain(trace) == [] and asked.explain(asked.predict()) != []
