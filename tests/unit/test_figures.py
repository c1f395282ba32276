"""Figures draw what a trace answers, and the player's bytes hold every event of it; the microscope
puts the last step of several trainings side by side."""

import json
from itertools import combinations

import numpy as np
import pytest

from bigtrain_lab import Action, Cost, simulate
from bigtrain_lab.core import (
    MEMORY_KINDS,
    Alive,
    Impossible,
    Link,
    Memory,
    Peak,
    Span,
    Trace,
    Transfer,
    over_step,
    peak,
)
from bigtrain_lab.core.waited import waited
from bigtrain_lab.order.rates import sent_so_far
from bigtrain_lab.order.schedules.gpipe import GPipe
from bigtrain_lab.order.schedules.one_f_one_b import OneFOneB
from bigtrain_lab.order.schedules.pipedream import PipeDream
from bigtrain_lab.panel.picture import window
from bigtrain_lab.view import figures, packed, palette
from bigtrain_lab.view.figures import memory
from bigtrain_lab.view.figures.memory import byte_ticks
from bigtrain_lab.view.packed import LISTED, pack


def trace_of(schedule=OneFOneB, ranks=4, micro_batches=8, **links):
    changes = {
        Action(kind, stage, m): (("activations", size),)
        for kind, size in (("F", 1000), ("B", -1000))
        for stage in range(ranks)
        for m in range(micro_batches)
    }
    cost = Cost(
        {"F": 1, "B": 2, "U": 0},
        messages={"F": 512, "B": 512},
        changes=changes,
        resident=dict.fromkeys(range(ranks), (("weights", 500),)),
        **links,
    )
    return simulate(schedule(ranks, micro_batches), cost)


def boxes(figure):
    """(row, start, width, text) of every box."""
    return {
        (y, base, x, text)
        for bar in figure.data
        if bar.name not in ("waits", "idle")
        for y, base, x, text in zip(bar.y, bar.base, bar.x, bar.text or [None] * len(bar.y))
    }


def test_timeline_has_a_box_for_each_span():
    trace = trace_of()
    drawn = boxes(figures.timeline(trace))
    assert len(drawn) == len(trace.spans()) == 4 * (8 + 8 + 1)
    assert drawn >= {("rank 0", 0, 1, "F0"), ("rank 3", 4, 2, "B0"), ("rank 0", 31, 2, "B7")}


@pytest.mark.parametrize(
    "cost", [{}, {"links": {(a, b): Link(9, 1, 10) for a in range(4) for b in range(4)}}]
)
def test_gaps_of_the_timeline_are_the_waits_and_the_idle_time_that_the_trace_tells(cost):
    trace = trace_of(**cost)
    drawn = {
        bar.name: sum(bar.x)
        for bar in figures.timeline(trace).data
        if bar.name in ("waits", "idle")
    }
    shares, whole = trace.shares(), 4 * trace.makespan
    assert drawn == pytest.approx({"waits": shares.waits * whole, "idle": shares.idle * whole})
    assert bool(cost) == (shares.waits > 0)
    assert shares.idle > 0  # so the player's legend has it
    assert [json.loads(pack(each))["idles"] for each in (trace, trace_of(ranks=1))] == [True, False]


def test_colour_by_version_prints_the_version():
    # batch 5 on worker 0: p-1 = 3 behind
    assert {("F5<br>v2", "rank 0"), ("F5<br>v5", "rank 3")} <= {
        (text, row) for row, _, _, text in boxes(figures.versions(trace_of(PipeDream)))
    }


LMS = np.array(
    [[0.31399, 0.63951, 0.04649], [0.15537, 0.75789, 0.08670], [0.01775, 0.10944, 0.87256]]
)


@pytest.mark.parametrize(
    "blind",  # to reds, greens, blues: a cone is made of the others (Vienot et al. 1999)
    [
        [[0, 1.05118, -0.05116], [0, 1, 0], [0, 0, 1]],
        [[1, 0, 0], [0.9513, 0, 0.04866], [0, 0, 1]],
        [[1, 0, 0], [0, 1, 0], [-0.86744, 1.86727, 0]],
    ],
)
def test_a_colour_blind_reader_tells_the_boxes_of_a_training_on_data_apart(blind):
    """Forward, backward, update, evaluation, reading and copying, beside what is exposed."""
    boxes = [*map(palette.PHASES.get, "FBULTDC"), palette.WAIT]
    rgb = np.array([[int(each[i : i + 2], 16) / 255 for i in (1, 3, 5)] for each in boxes]) ** 2.2
    seen = (np.linalg.inv(LMS) @ blind @ LMS @ rgb.T).clip(0, 1).T ** (1 / 2.2)
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 0.15


def test_memory_stacks_kinds_in_order_and_ends_where_the_trace_does():
    trace = trace_of()
    figure = figures.memory(trace)
    weights, activations = (line for line in figure.data if line.yaxis == "y")
    assert (weights.name, activations.name) == ("weights", "activations")
    assert max(activations.y) == trace.peak_bytes(0, "activations") == 4000
    assert {line.x[-1] for line in figure.data} == {33}


def test_a_peak_inside_an_action_stands_on_a_stem_and_the_axis_reaches_it():
    """As on a clock that knows actions' ends alone: what the title says can be seen."""
    trace = trace_of(GPipe, ranks=1)
    alive = [
        Alive(0, "compute", kind, "x", 2000, count, (1,), "float32", "", "")
        for kind, count in (("weights", 500), ("activations", 9300))
    ]
    peaked = figures.memory(Trace.of([*trace, *alive], "modelled", ranks=1))
    title = peaked.layout.title.text
    assert "peak inside an action 9.8 kB" in title and "ends of actions 8.5 kB" in title
    (stem,) = (line for line in peaked.data if line.name == "peak inside an action")
    assert list(stem.x) == [2, 2] and list(stem.y) == [1500, 9800]  # one action's end before it
    assert peaked.layout.yaxis.range[1] > 9800


@pytest.mark.parametrize(
    "peak,most,ticks",
    [
        (1_920_000, 4, [0, 500_000, 1_000_000, 1_500_000, 1_920_000]),
        (4_554_000, 1, [0, 4_554_000]),
        (8_554, 1, [0, 5_000, 8_554]),
        (7, 4, [0, 7]),
    ],
)
def test_bytes_are_told_at_round_places_and_at_the_peak(peak, most, ticks):
    assert byte_ticks(peak, most)["tickvals"] == ticks


def test_compare_puts_each_clock_under_the_other():
    trace = trace_of()
    figure = figures.compare([trace, trace])
    assert boxes(figure) == boxes(figures.timeline(trace))  # once on each pair of axes
    assert figure.layout.xaxis2.matches == "x" and len(figure.layout.annotations) == 2


def test_a_figure_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(Impossible, match="no figure called 'pie'.*timeline"):
        figures.figure("pie", trace_of())


@pytest.mark.parametrize("name", ["timeline", "memory", "versions", "compare"])
def test_an_empty_trace_draws(name):
    assert figures.figure(name, Trace((), "measured", ranks=2)) is not None


def test_waits_name_the_message():
    found = waited(trace_of())
    first, back = found[1, "compute", "1F0"], found[0, "compute", "0B0"]
    assert (first.ticks, first.message.name, first.message.src) == (1000, "0F0", 0)
    assert (back.ticks, back.message.name) == (6000, "1B0")
    assert (0, "compute", "0F1") not in found


# -- the player's bytes ----------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [GPipe, OneFOneB, PipeDream])
def test_player_holds_every_event_and_the_levels_of_the_trace(schedule):
    trace = trace_of(schedule, links={(a, b): Link(100, 1, 10) for a in range(4) for b in range(4)})
    told = json.loads(pack(trace))
    assert (
        len(told["spans"]) == len(trace.spans()) and told["end"] / told["ticks"] == trace.makespan
    )
    assert len(told["transfers"]) == len(trace.transfers()) == 48
    assert json.loads(pack(trace, pinned=trace))["levels"] == 2 * told["levels"]
    for rank, levels in enumerate(told["levels"]):
        assert [(tick, sum(held)) for tick, *held in levels] == trace.levels(rank)
        for column, kind in enumerate(MEMORY_KINDS, 1):
            assert [(level[0], level[column]) for level in levels] == trace.levels(rank, kind)


# -- the microscope --------------------------------------------------------------------------------


def trained(weights=4_000_000, sent=1000, clock="predicted", ranks=2, per_tick=1):
    """Two steps of F and U, 10 ticks each; activations live in each F, and the optimizer's state
    from the first U on; rank 1 holds a byte less."""
    events = []
    for rank in range(ranks):
        events.append(Memory(rank, "compute", "weights", "start", 0, weights - rank))
        for step in range(2):
            begin = 10 * step
            events += [
                Span(rank, "compute", "F", f"0F{step}", begin * per_tick, (begin + 6) * per_tick),
                Memory(
                    rank, "compute", "activations", f"0F{step}", (begin + 6) * per_tick, 1_000_000
                ),
                Transfer(
                    (rank + 1) % ranks,
                    "comm:dp",
                    "all_reduce",
                    f"bucket {step}",
                    (begin + 6) * per_tick,
                    (begin + 8) * per_tick,
                    rank,
                    sent,
                ),
                Span(
                    rank,
                    "compute",
                    "U",
                    f"0U{step}",
                    (begin + 8) * per_tick,
                    (begin + 10) * per_tick,
                ),
                Memory(rank, "compute", "activations", f"0U{step}", (begin + 10) * per_tick, 0),
                Memory(
                    rank, "compute", "optimizer", f"0U{step}", (begin + 10) * per_tick, 2 * weights
                ),
            ]
    return Trace.of(events, clock, unit="s", ticks_per_unit=1000, ranks=ranks, steps=2)


def stack(figure, axis):
    return {line.name: (list(line.x), list(line.y)) for line in figure.data if line.xaxis == axis}


def test_each_training_is_a_column_and_each_rank_a_row():
    figure = figures.microscope(
        {
            "data <parallel>": trained(),
            "sharded": trained(weights=1_000_000, sent=1500, clock="modelled", per_tick=2),
        }
    )
    assert stack(figure, "x") == {
        "weights": ([0, 6, 10, 10], [4_000_000] * 4),
        "activations": ([0, 6, 10, 10], [0, 1_000_000, 0, 0]),
        "optimizer": ([0, 6, 10, 10], [8_000_000] * 4),
    }
    assert stack(figure, "x3")["weights"][1][0] == 3_999_999 and stack(figure, "x2")["weights"] == (
        [0, 12, 20, 20],
        [1_000_000] * 4,
    )
    assert stack(figure, "x5")["sent by a rank"] == (
        [0, 6, 8, 10],
        [0, 0, 1000, 1000],
    )  # of this step alone
    assert {axis.range for axis in figure.select_xaxes()} == {(0, 20)}  # the longer step is seen
    assert {axis.range[1] for axis in figure.select_yaxes(row=1)} == {1.04 * 13_000_000}
    first, second = (each.text for each in figure.layout.annotations if "peak" in each.text)
    assert "peak <b>13 MB</b>, sends <b>1 kB</b>" in first and "&lt;parallel&gt;" in first
    assert "peak <b>4 MB</b>, sends <b>1.5 kB</b>" in second and "modelled" in second


def test_what_a_machine_measured_has_a_scale_of_its_own_and_many_ranks_are_told():
    figure = figures.microscope(
        {"a": trained(ranks=6), "b": trained(ranks=6, clock="measured", per_tick=7)}
    )
    assert {axis.range for axis in figure.select_xaxes(col=1)} == {(0, 10)} and {
        axis.range for axis in figure.select_xaxes(col=2)
    } == {(0, 70)}
    assert "ranks 0 to 3 of 6 are drawn" in figure.layout.title.text and figure.layout.height <= 420
    with pytest.raises(Impossible, match="nothing of memory"):
        figures.microscope(Trace((Span(0, "compute", "F", "0F0", 0, 1),), "predicted"))


def test_of_many_readings_the_highest_of_each_stretch_are_kept():
    events = [
        Span(0, "compute", "F", "0F0", 0, 1000),
        *(Memory(0, "compute", "weights", "0F0", 1 + at, 10 + at % 7) for at in range(999)),
    ]
    trace = Trace.of(events, "predicted")
    kept = over_step(trace, 0, 0, 50)
    assert (
        len(kept) == 50
        and {read.bytes for read in kept} == {16}
        and sent_so_far(trace, 0, 0) == [(0, 0), (1000, 0)]
    )


# -- what the script of the player is told ---------------------------------------------------------


def test_of_very_many_readings_inside_actions_each_action_s_highest_is_kept(monkeypatch):
    heights = {(0, "0F0", 100): (1, 2, 3, 4), (0, "0F1", 640): (4, 5, 6), (1, "1B0", 50): (9, 7, 8)}
    events = [
        Memory(rank, "compute", "activations", name, begin + 10 * i, count, True)
        for (rank, name, begin), readings in heights.items()
        for i, count in enumerate(readings)
    ]

    def drawn():
        trace = Trace.of(events, "measured", unit="s", ranks=2)
        return [[sum(held) for _, *held in own] for own in json.loads(pack(trace))["levels"]]

    assert drawn() == [[1, 2, 3, 4, 4, 5, 6], [9, 7, 8]]
    monkeypatch.setattr(packed, "INSIDE", 2)
    assert drawn() == [[4, 6], [9]]


def test_a_lane_without_boxes_has_a_row_and_its_messages_lead_from_lane_to_lane():
    def chunk(rank, start):
        return Transfer(rank, "comm:dp", "sum", "chunk", start, start + 3, 1 - rank, 80)

    sent = [
        chunk(1, 2),
        chunk(0, 6),
        Transfer(1, "compute", "B", "0B0", 3, 4, 0, 8),
        Transfer(1, "x", "F", "y", 7, 9, 0, 8),
    ]
    packed = json.loads(
        pack(Trace.of([Span(0, "compute", "B", "0B0", 0, 9), *sent], "modelled", ranks=2))
    )
    assert packed["rows"] == [
        [0, "compute"],
        [0, "comm:dp"],
        [1, "compute"],
        [1, "comm:dp"],
        [1, "x"],
    ]
    assert [t[7:] for t in packed["transfers"]] == [
        ["chunk", 1, 3],
        ["B0", 0, 2],  # as its box is called
        ["chunk", 3, 1],
        ["y", 0, 4],
    ]  # nothing comes to rank 0 on x


# -- the peak of memory ----------------------------------------------------------------------------


def memories(*readings, more=(), clock="measured"):
    """A trace of (time, action, kind, bytes, inside?) of rank 1, whose actions are 1F0 from 0 to 20
    and 1B0 from 20 to 40."""
    spans = [Span(1, "compute", "F", "1F0", 0, 20), Span(1, "compute", "B", "1B0", 20, 40)]
    events = [
        Memory(1, "compute", kind, name, time, size, *inside)
        for time, name, kind, size, *inside in readings
    ]
    return Trace.of([*events, *spans, *more], clock, ranks=2)


LEVELS = [
    (0, "start", "weights", 100),
    (20, "1F0", "activations", 50),
    (40, "1B0", "activations", 0),
    (40, "1B0", "gradients", 40),
]


def test_a_peak_is_the_first_highest_reading_inside_actions_or_at_their_end():
    assert peak(memories(*LEVELS), 1) == Peak(1, 20, "1F0", {"weights": 100, "activations": 50})
    inside = [
        (25, "1B0", "activations", 45, True),
        (26, "1B0", "temporaries", 30, True),
        (27, "1B0", "activations", 10, True),
    ]
    assert peak(memories(*LEVELS, *inside), 1) == Peak(
        1, 26, "1B0", {"weights": 100, "activations": 45, "temporaries": 30}, True
    )
    assert peak(memories(*LEVELS), 0) is None
    assert [
        peak(memories(*levels), 1).place for levels in (LEVELS, LEVELS[:1], [*LEVELS, *inside])
    ] == ["after 1F0", "before its first action", "in 1B0"]


def test_what_was_read_inside_actions_is_stacked_with_the_rest():
    """A ledger's readings are of all kinds, a meter's of activations alone; none is carried into
    the next action."""
    weights, activations, temporaries = (
        MEMORY_KINDS.index(kind) for kind in ("weights", "activations", "temporaries")
    )

    def told(*inside):
        packed = json.loads(pack(memories(*LEVELS, *inside)))
        bars = [
            bar
            for bar in memory(memories(*LEVELS, *inside), rank=1).data
            if bar.name == "activations"
        ]
        return (
            (packed["deep"], [span[-1] for span in packed["spans"]]),
            [
                (tick, held[weights], held[activations], held[temporaries])
                for tick, *held in packed["levels"][1]
            ],
            tuple(bars[0].y),
        )

    meter = told((10, "1F0", "activations", 45, True))
    assert meter[0] == (False, [True, False])
    assert meter[1] == [
        (0, 100, 0, 0),
        (10, 100, 45, 0),
        (20, 100, 50, 0),
        (40, 100, 0, 0),
    ]
    ledger = told(
        (10, "1F0", "activations", 45, True),
        (10, "1F0", "temporaries", 8, True),
        (15, "1F0", "temporaries", 9, True),
    )
    assert ledger[0] == (True, [True, False]) and ledger[1] == [
        (0, 100, 0, 0),
        (10, 100, 45, 8),
        (15, 100, 45, 9),
        *meter[1][2:],
    ]
    assert memory(memories(*LEVELS), rank=1).layout.title.text == "measured: peak bytes 150 B"
    assert meter[2] == (0, 45, 50, 0, 0) and ledger[2] == (0, 45, 45, 50, 0, 0)


def alive(*sizes, start=27):
    return [
        Alive(
            1,
            "compute",
            "activations",
            "addmm",
            start,
            size,
            (2, size),
            "float32",
            "blocks.0.mlp",
            "1F0",
        )
        for size in sizes
    ]


def test_the_peak_lists_its_largest_storages():
    storages = [
        Alive(1, "compute", "weights", "up.weight", 27, 100, (5, 5), "float32"),
        *alive(*range(1, 15)),
    ]
    tick, where, kinds, count, rows = json.loads(pack(memories(*LEVELS, more=storages)))["peaks"][1]
    activations, weights = MEMORY_KINDS.index("activations"), MEMORY_KINDS.index("weights")
    assert (tick, where, count) == (27, "in B0", 15) and kinds == [
        [weights, 100],
        [activations, 105],
    ]
    assert rows[:2] == [
        [weights, 100, "up.weight", [5, 5], "float32", "", ""],
        [activations, 14, "addmm", [2, 14], "float32", "blocks.0.mlp", "F0"],
    ]
    assert [
        peak(memories(*LEVELS, more=alive(7, start=time)), 1).action for time in (20, 21, 40)
    ] == ["1F0", "1B0", "1B0"]
    assert [row[1] for row in rows[1:]] == list(range(14, 3, -1)) and len(rows) == LISTED


def test_storages_that_a_run_told_together_are_counted_one_by_one():
    rest = [
        Alive(1, "compute", "weights", "40 smaller ones", 27, 90),
        Alive(1, "compute", "activations", "3 smaller ones", 27, 6),
    ]
    _, _, _, count, rows = json.loads(pack(memories(*LEVELS, more=[*alive(5, 4), *rest])))["peaks"][
        1
    ]
    assert count == 45 and [row[1] for row in rows] == [5, 4]


def test_a_box_is_labelled_by_the_number_that_tells():
    """Of a pipeline the micro-batch, of layers that run one by one the layer; an update by its
    step."""
    spans = [
        Span(0, "compute", name[-2], name, at, at + 1)
        for at, name in enumerate(("3F0", "11A2", "3B0", "0U4"))
    ]

    def told(**facts):
        packed = json.loads(pack(Trace.of(spans, "predicted", settings={"facts": facts})))
        return [span[3] for span in packed["spans"]], packed["terms"]

    assert told(terms={"stage": "layer", "micro_batch": "pass"}) == (
        ["F3", "A11", "B3", "U4"],
        [["stage", "layer"], ["micro_batch", "pass"]],
    )
    # steps are counted from 1
    assert told(terms={"stage": "layer", "micro_batch": "step"})[0] == ["F3", "A11", "B3", "U5"]
    assert told(terms={"micro_batch": "step"})[0] == ["3F1", "11A3", "3B1", "0U5"]
    assert (
        told()
        == (["3F0", "11A2", "3B0", "0U4"], [["micro_batch", "micro-batch"], ["stage", "stage"]])
        == told(terms={"what": "else"})
    )


def test_the_steps_that_are_drawn_have_the_storages_of_a_peak_among_them():
    """And it is known of them that steps before were read inside actions."""
    again = [
        Span(1, "compute", "F", "1F1", 40, 60),
        Span(1, "compute", "B", "1B1", 60, 80),
        Memory(1, "compute", "activations", "1F1", 60, 90),
    ]
    trace = Trace.of(
        [
            *memories(
                *LEVELS, (10, "1F0", "temporaries", 8, True), more=alive(200, start=75)
            ).events,
            *again,
        ],
        "measured",
        ranks=2,
        steps=2,
    )
    assert [len(window(trace, step, 1).at_peak(1)) for step in (0, 1)] == [0, 1]
    first, second = (json.loads(pack(window(trace, step, 1)))["peaks"][1] for step in (0, 1))
    deep = [json.loads(pack(window(trace, 1, 1), whole=of))["deep"] for of in (None, trace)]
    assert first[:2] == [20, "after F0"] and second[:2] == [35, "in B1"] and deep == [False, True]


def test_a_step_is_cut_at_its_last_update():
    updates = [
        Span(1, "compute", "U", f"1U{number}", start, start + 2)
        for number, start in ((0, 140), (1, 150))
    ]
    trace = Trace.of([*memories(*LEVELS, more=updates)], "predicted", ranks=2, steps=2)
    assert json.loads(pack(trace))["step_ends"] == [142, 152]
    assert json.loads(pack(window(trace, 1, 1), trace.step_ends[1:]))["step_ends"] == [2]
