"""The player's look and bytes: what its script is told."""

import json

from bigtrain_lab.core import MEMORY_KINDS, Alive, Memory, Peak, Span, Trace, Transfer, peak
from bigtrain_lab.panel.picture import window
from bigtrain_lab.view import packed
from bigtrain_lab.view.figures import memory
from bigtrain_lab.view.packed import LISTED, pack


def test_of_very_many_readings_inside_actions_each_action_s_highest_is_kept(monkeypatch):
    heights = {(0, "0F0", 100): (1, 2, 3, 4), (0, "0F1", 640): (4, 5, 6), (1, "1B0", 50): (9, 7, 8)}
    events = [
        Memory(rank, "compute", "activations", name, begin + 10 * i, count, True)
        for (rank, name, begin), readings in heights.items()
        for i, count in enumerate(readings)
    ]
    trace = Trace.of(events, "measured", unit="s", ranks=2)

    def drawn():
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
    of_steps = told(terms={"stage": "layer", "micro_batch": "step"})[0]
    assert of_steps == ["F3", "A11", "B3", "U5"]  # steps are counted from 1
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
