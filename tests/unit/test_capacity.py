"""A device's memory is a limit: a prediction that exceeds it is told, and a run that does fails,
both naming rank, action and bytes."""

import re
import sys
from contextlib import nullcontext

import psutil
import pytest
import torch

from bigtrain_lab.core import Impossible, Memory, Trace, available_bytes, peak
from bigtrain_lab.core.available import granted
from bigtrain_lab.experiments.pipeline import PipelineExperiment
from bigtrain_lab.order.explain import does_not_fit, excesses
from bigtrain_lab.runtime import RankFailed, launch
from bigtrain_lab.runtime.memory import capacity

SMALL = {
    "ranks": 2,
    "micro_batches": 4,
    "layers": 2,
    "width": 16,
    "heads": 2,
    "sequence": 16,
    "rows": 2,
    "steps": 1,
}


TRACE = Trace.of(
    [
        Memory(rank, "compute", kind, action, time, size)
        for rank, time, action, kind, size in (
            (0, 0, "start", "weights", 1000),
            (1, 0, "start", "weights", 1500),
            (1, 1, "1F0", "activations", 400),
            (0, 2, "0F0", "activations", 1100),
            (1, 3, "1B0", "activations", 0),
            (1, 3, "1B0", "gradients", 700),
            (0, 4, "0F1", "activations", 2000),
        )
    ],
    "predicted",
    ranks=3,
)


def test_each_rank_that_exceeds_is_found_where_it_first_does():
    """1B0 lets go of 400 bytes and takes 700: at no boundary are there 2,600."""
    assert [(e.rank, e.action, e.bytes) for e in excesses(TRACE, 2000)] == [
        (0, "0F0", 2100),
        (1, "1B0", 2200),
    ]
    assert excesses(TRACE, 2199)[0].held == {"weights": 1500, "gradients": 700}
    assert [e.rank for e in excesses(TRACE, 2200)] == [0] and excesses(TRACE, 3000) == excesses(
        TRACE, None
    ) == []


def test_the_sentence_of_a_prediction_that_does_not_fit():
    assert does_not_fit(TRACE, 2000, "Fewer rows would need less.") == [
        "It does not fit: rank 0 would hold 2.1 kB after 0F0 (activations 1.1 kB, weights 1 kB),"
        " 100 bytes more than the 2 kB of its device; its peak would be 3 kB; so would rank 1."
        " Fewer rows would need less."
    ]
    assert does_not_fit(TRACE, 999)[0].startswith(
        "It does not fit: rank 0 would hold 1 kB before its first action (weights 1 kB), 1 byte"
        " more"
    )
    assert does_not_fit(TRACE, 3000) == does_not_fit(TRACE, None) == []


@pytest.mark.parametrize(
    "settings,held",
    [
        ({}, None),
        ({"hardware": "a100-nvlink"}, 80 * 2**30),
        ({"memory_mb": 0.5}, 500_000),
        ({"memory_mb": 2, "hardware": "a100-nvlink"}, 2 * 10**6),
    ],
)
def test_a_device_holds_what_its_profile_states_or_what_the_settings_say(settings, held):
    experiment = PipelineExperiment(**SMALL, **settings)
    assert experiment.capacity_bytes == experiment.cost().capacity_bytes == held


def test_a_run_that_lacks_one_byte_fails_where_it_was_predicted(tmp_path):
    """Rank 1 alone has this peak, inside its backwards."""
    experiment = PipelineExperiment(**SMALL)
    predicted = [peak(experiment.predict(), rank) for rank in range(2)]
    assert predicted[1].bytes > predicted[0].bytes and predicted[1].inside
    most = predicted[1].bytes
    less = experiment.replace(memory_mb=(most - 1) / 1e6)
    [first] = excesses(less.predict(), most - 1)
    run = less.run(directory=tmp_path / "run")
    with pytest.raises(RankFailed, match=f"Rank 1 runs out of memory at {first.action}: "):
        run.wait()
    assert (
        "1 byte too few. Smaller micro-batches (rows) or more ranks would need less on each device."
        in run.diagnosis
    )
    assert [state.what.startswith("no memory, in ") for state in run.waits] == [False, True]
    assert sum(alive.bytes for alive in run.trace().at_peak(1)) == most  # what it held is kept


def test_a_limit_holds_without_a_modelled_clock_and_inside_actions(tmp_path):
    """The weights fit; the activations of an action are more, and gone at its end."""

    def program(rank):
        weight = torch.ones(10, 10, requires_grad=True)
        rank.watch(lambda: {"weights": [weight]})
        with rank.span("work"):
            (weight.exp() * 2).sum().backward()

    launch(program, 1, capacity_bytes=800, directory=tmp_path / "fits").wait()
    with pytest.raises(
        RankFailed,
        match=re.escape(
            "Rank 0 runs out of memory at work: a saved tensor asks for 400 B more than the 400 B held"
            " (weights 400 B), and its device has 799 B, 1 byte too few: "
        ),
    ):
        launch(program, 1, capacity_bytes=799, directory=tmp_path / "fails").wait()
    with pytest.raises(
        RankFailed,
        match=(
            "Rank 0 runs out of memory at the start: it holds 400 B .weights 400 B., and its device"
            " has 399 B, 1 byte too"
        ),
    ):
        launch(program, 1, capacity_bytes=399, directory=tmp_path / "at once").wait()


# -- the machine's own memory ----------------------------------------------------------------------


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(str(text))


@pytest.mark.parametrize(
    "groups, left",
    [
        (
            "0::/job/step\n",
            [700, 400],
        ),  # its own limit, and that of the group around it; the root has none
        ("0::/of/the/host\n", []),  # a container that does not see its path
        ("5:cpu:/x\n4:cpu,memory:/job\n", [110, 10**18 - 5]),
        ("4:cpu:/job\nnonsense\n", []),
        ("", []),
    ],
)
def test_what_a_container_grants(groups, left, tmp_path):
    group(
        tmp_path / "job" / "step",
        memory__max=1000,
        memory__current=350,
        memory__stat="anon 300\ninactive_file 50",
    )
    group(tmp_path / "job", memory__max=800, memory__current=400)
    group(tmp_path, memory__max="max", memory__current=400)
    group(
        tmp_path / "memory" / "job",
        memory__limit_in_bytes=200,
        memory__usage_in_bytes=100,
        memory__stat="total_inactive_file 10\n",
    )
    group(tmp_path / "memory", memory__limit_in_bytes=10**18, memory__usage_in_bytes=5)
    assert list(granted(groups, tmp_path)) == left
    assert 0 < available_bytes() <= psutil.virtual_memory().total


def test_more_than_the_machine_has_is_refused_before_a_process_starts(tmp_path, monkeypatch):
    asked = PipelineExperiment(**{**SMALL, "steps": 200})
    needed = [peak(asked.replace(steps=2).predict(), rank).bytes for rank in range(2)]
    assert asked.needed_bytes() == needed and min(needed) > 0
    monkeypatch.setattr(capacity, "available_bytes", lambda: sum(needed) - 1)
    monkeypatch.setattr(sys.modules[launch.__module__], "Watch", None)
    with pytest.raises(
        Impossible,
        match=(
            r"^The 2 ranks would hold .* of memory at the peak, and this machine has .* available:"
            r" take fewer or "
            "narrower layers, .*Smaller micro-batches"
        ),
    ):
        asked.run(directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(capacity, "available_bytes", lambda: sum(needed))
    capacity.refuse_beyond_memory(needed, [], ["cpu", "cpu"])


@pytest.mark.parametrize(
    "hosts, devices, refused",
    [
        ([], "cpu cpu cpu", "The 3 ranks would hold 6 GB"),
        ([], "cpu cuda:0 cuda:0", None),
        ([], "cuda:0 cpu cpu", "The 2 ranks would hold 5 GB"),
        ([{"ranks": [0, 1]}, {"ranks": [2]}], "cpu cpu cpu", None),
        ([{"ranks": [1, 2]}, {"ranks": [0]}], "cpu cpu cpu", "The 2 ranks on this machine would"),
        ([{"ranks": [0, 1, 2]}], "cpu cpu cpu", "The 3 ranks would hold 6 GB"),
    ],
)
def test_only_what_ranks_hold_in_the_memory_of_this_machine_counts(
    hosts, devices, refused, monkeypatch
):
    monkeypatch.setattr(capacity, "available_bytes", lambda: 4 * 10**9)
    with (
        pytest.raises(Impossible, match=f"^{refused}.* this machine has 4 GB available")
        if refused
        else nullcontext()
    ):
        capacity.refuse_beyond_memory([10**9, 2 * 10**9, 3 * 10**9], hosts, devices.split())
