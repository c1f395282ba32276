"""Figures draw what a trace answers, and the player's bytes hold every event of it."""

import json
from itertools import combinations
from math import cbrt, dist

import pytest

from bigtrain_lab.core import MEMORY_KINDS, Alive, Cost, Impossible, Link, Memory, Span, Trace
from bigtrain_lab.core.waited import waited
from bigtrain_lab.core.words import duration, size
from bigtrain_lab.order.schedule import Action
from bigtrain_lab.order.schedules.gpipe import GPipe
from bigtrain_lab.order.schedules.naive import Naive
from bigtrain_lab.order.schedules.one_f_one_b import OneFOneB
from bigtrain_lab.order.schedules.pipedream import PipeDream
from bigtrain_lab.order.simulate import simulate
from bigtrain_lab.view import figures
from bigtrain_lab.view.figures import palette, words
from bigtrain_lab.view.figures.memory import byte_ticks
from bigtrain_lab.view.figures.timeline import PAPER
from bigtrain_lab.view.player import LOOK, Player, pack


def cost_of(ranks, micro_batches, **links):
    changes = {}
    for stage in range(ranks):
        for m in range(micro_batches):
            changes[Action("F", stage, m)] = (("activations", 1000),)
            changes[Action("B", stage, m)] = (("activations", -1000),)
    return Cost(
        {"F": 1, "B": 2, "U": 0},
        messages={"F": 512, "B": 512},
        changes=changes,
        resident=dict.fromkeys(range(ranks), (("weights", 500),)),
        **links,
    )


def trace_of(schedule=OneFOneB, ranks=4, micro_batches=8, **links):
    return simulate(schedule(ranks, micro_batches), cost_of(ranks, micro_batches, **links))


def boxes(figure):
    """(row, start, width, text) of every box that is not idle."""
    return {
        (y, base, x, text)
        for bar in figure.data
        if bar.name != "idle"
        for y, base, x, text in zip(bar.y, bar.base, bar.x, bar.text or [None] * len(bar.y))
    }


def test_timeline_has_a_box_for_each_span():
    trace = trace_of()
    drawn = boxes(figures.timeline(trace))
    assert len(drawn) == len(trace.spans()) == 4 * (8 + 8 + 1)
    assert (
        ("rank 0", 0, 1, "F0") in drawn
        and ("rank 3", 4, 2, "B0") in drawn
        and ("rank 0", 31, 2, "B7") in drawn
    )


def test_timeline_says_its_clock_and_numbers():
    title = figures.timeline(trace_of()).layout.title.text
    assert title == "1f1b, predicted: 33 slots a step; compute 72.7%, waits 0.0%, idle 27.3%"


def test_idle_is_hatched_behind_all_rows():
    idle = figures.timeline(trace_of()).data[0]
    assert (
        idle.name == "idle"
        and list(idle.y) == ["rank 0", "rank 1", "rank 2", "rank 3"]
        and set(idle.x) == {33}
    )


def test_idle_is_told_only_where_there_is_any():
    told = [figures.timeline(trace_of(Naive, ranks=ranks)).data[0].showlegend for ranks in (1, 2)]
    assert told == [False, True]


def test_colour_by_version_prints_the_version():
    drawn = boxes(figures.versions(trace_of(PipeDream)))
    assert ("F5<br>v2", "rank 0") in {
        (text, row) for row, _, _, text in drawn
    }  # batch 5 on worker 0: p-1 = 3 behind
    assert ("F5<br>v5", "rank 3") in {(text, row) for row, _, _, text in drawn}


def test_many_spans_are_drawn_without_labels():
    figure = figures.timeline(trace_of(GPipe, 8, 32))
    assert len(boxes(figure)) == 8 * 65 and not any(bar.text for bar in figure.data)


def test_memory_stacks_kinds_in_order_and_ends_where_the_trace_does():
    trace = trace_of()
    figure = figures.memory(trace)
    first = [line for line in figure.data if line.yaxis == "y"]
    assert [line.name for line in first] == [
        kind for kind in MEMORY_KINDS if kind in ("weights", "activations")
    ]
    assert max(first[1].y) == trace.peak_bytes(0, "activations") == 4000
    assert {line.x[-1] for line in figure.data} == {33}
    assert len(figures.memory(trace, rank=2).data) == 2


def test_hovering_over_memory_tells_kind_size_and_exact_bytes():
    """On a picture of several ranks also when; on one rank's that heads the label."""
    several, alone = (figures.memory(trace_of(), rank).data[0].hovertemplate for rank in (None, 0))
    assert (
        alone == "weights: %{y:.4~s}B (%{y:,} bytes)<extra></extra>"
        and several == "%{x}<br>" + alone
    )


def test_memory_draws_readings_inside_actions_as_a_line():
    trace = trace_of()
    inside = [
        Memory(1, "compute", "activations", "1F0", 1500, 1700, True),
        Memory(1, "compute", "activations", "1F0", 1700, 900, True),
    ]
    lines = [
        line
        for line in figures.memory(Trace.of([*trace, *inside], "measured", ranks=4)).data
        if line.name == "read inside actions"
    ]
    assert [list(line.y) for line in lines] == [[2200, 1400]] and lines[0].stackgroup is None


def test_a_peak_inside_an_action_stands_on_a_stem_and_the_axis_reaches_it():
    """As on a clock that knows actions' ends alone: what the title says can be seen."""
    trace = trace_of(GPipe, ranks=1)
    alive = [
        Alive(0, "compute", kind, "x", 2000, count, (1,), "float32", "", "")
        for kind, count in (("weights", 500), ("activations", 9300))
    ]
    ends, peaked = (
        figures.memory(trace),
        figures.memory(Trace.of([*trace, *alive], "modelled", ranks=1)),
    )
    assert ends.layout.title.text == "predicted: peak bytes 8.5 kB" and not any(
        line.name == "peak inside an action" for line in ends.data
    )
    assert (
        peaked.layout.title.text
        == "modelled: peak inside an action 9.8 kB, at the ends of actions 8.5 kB"
    )
    (stem,) = (line for line in peaked.data if line.name == "peak inside an action")
    assert list(stem.x) == [2, 2] and list(stem.y) == [1500, 9800]  # one action's end before it
    assert peaked.layout.yaxis.range[1] > 9800 and peaked.layout.yaxis.ticktext[-1] == "9.8 kB  "


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


@pytest.mark.parametrize("name", ["timeline", "memory", "versions", "compare"])
def test_no_figure_paints_its_page(name):
    """None knows whether it is light or dark."""
    layout = figures.figure(name, trace_of()).layout
    assert layout.width is None and layout.paper_bgcolor is None and layout.template == PAPER
    assert {
        PAPER.layout.paper_bgcolor,
        PAPER.layout.plot_bgcolor,
        PAPER.layout.modebar.bgcolor,
    } == {palette.CLEAR}


def test_compare_puts_each_clock_under_the_other():
    trace = trace_of()
    figure = figures.compare([trace, trace])
    assert len(boxes(figure)) == len(
        boxes(figures.timeline(trace))
    )  # the same boxes, once on each pair of axes
    assert figure.layout.xaxis2.matches == "x" and len(figure.layout.annotations) == 2
    assert sum(bar.name == "forward" and bool(bar.showlegend) for bar in figure.data) == 1


def test_figures_by_name():
    assert {"timeline", "memory", "compare", "versions"} <= set(figures.FIGURES)
    assert figures.figure("timeline", trace_of()).data
    with pytest.raises(Impossible, match="no figure called 'pie'.*timeline"):
        figures.figure("pie", trace_of())


@pytest.mark.parametrize("name", ["timeline", "memory", "versions", "compare"])
def test_an_empty_trace_draws(name):
    assert figures.figure(name, Trace((), "measured", ranks=2)) is not None


def test_waits_name_the_message():
    found = waited(trace_of())
    assert found[1, "compute", "1F0"].ticks == 1000
    assert (found[1, "compute", "1F0"].message.name, found[1, "compute", "1F0"].message.src) == (
        "0F0",
        0,
    )
    assert (0, "compute", "0F1") not in found
    assert (
        found[0, "compute", "0B0"].ticks == 6000
        and found[0, "compute", "0B0"].message.name == "1B0"
    )


def test_only_whole_actions_name_a_stage():
    """As the trace itself counts them: a name that a student gave a span may hold anything."""
    assert (
        words.stages_of("2F0+2F1") == ("2", "2")
        and words.stages_of("block2F0") == words.stages_of("2F0b") == ()
    )


def test_labels():
    assert (
        words.label("2F0") == "F0"
        and words.label("2F0", True) == "2F0"
        and words.label("2F0+2F1+2F2") == "F0–2"
    )
    assert words.label("1F5+1B2") == "F5+B2" and words.label("bucket 3") == "bucket 3"
    assert words.labels(trace_of(Naive))["3B" + "+3B".join(map(str, range(8)))] == "B0–7"


@pytest.mark.parametrize(
    "count,text",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1536, "1.536 kB"),
        (6_000_000, "6 MB"),
        (80 * 10**9, "80 GB"),
        (999_999, "1 MB"),
        (5 * 10**15, "5,000 TB"),
    ],
)
def test_sizes(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    "value,unit,text",
    [
        (33.0, "slot", "33 slots"),
        (1, "slot", "1 slot"),
        (0.00153, "s", "1.53 ms"),
        (2.5e-6, "s", "2.5 µs"),
        (0, "s", "0 s"),
        (3e-10, "s", "0.3 ns"),
    ],
)
def test_durations(value, unit, text):
    assert duration(value, unit) == text


def test_the_palette_tells_all_apart():
    for colours in (
        palette.PHASES.values(),
        palette.VERSIONS,
        palette.MEMORY.values(),
        palette.CLOCKS.values(),
    ):
        assert len(set(colours)) == len(colours)
    assert list(palette.MEMORY) == list(MEMORY_KINDS)


def lab(colour):
    """CIE 1976 L*a*b* of a colour: there a distance of 2 can just be seen."""
    red, green, blue = (
        (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
        for c in (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    )
    xyz = (
        0.4124 * red + 0.3576 * green + 0.1805 * blue,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        0.0193 * red + 0.1192 * green + 0.9505 * blue,
    )
    x, y, z = (cbrt(t / white) for t, white in zip(xyz, (0.9505, 1, 1.089)))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_the_versions_of_a_long_run_look_apart():
    colours = [palette.version(n) for n in range(21)]
    assert min(dist(lab(a), lab(b)) for a, b in combinations(colours, 2)) > 9  # v7 is not v0
    assert (
        min(dist(lab(a), lab(b)) for a, b in zip(colours, colours[1:])) > 30
    )  # neighbours, at a glance
    assert palette.version(21) == palette.version(0) == palette.VERSIONS[0]
    assert LOOK["versions"] == [
        [colour, palette.ink(colour)] for colour in colours
    ]  # the player's are the figures'


# -- the player's bytes ----------------------------------------------------------------------------


def test_player_holds_every_event():
    trace = trace_of(links={(a, b): Link(100, 1, 10) for a in range(4) for b in range(4)})
    told = json.loads(pack(trace))
    assert (
        len(told["spans"]) == len(trace.spans())
        and len(told["transfers"]) == len(trace.transfers()) == 48
    )
    assert (told["clock"], told["unit"], told["ranks"]) == ("predicted", "slot", 4)
    assert told["end"] / told["ticks"] == trace.makespan


@pytest.mark.parametrize("schedule", [GPipe, OneFOneB, PipeDream])
def test_player_levels_are_the_traces(schedule):
    trace = trace_of(schedule)
    told = json.loads(pack(trace))["levels"]
    for rank in range(4):
        assert [(tick, sum(held)) for tick, *held in told[rank]] == trace.levels(rank)
        for column, kind in enumerate(MEMORY_KINDS, 1):
            assert [(level[0], level[column]) for level in told[rank]] == trace.levels(rank, kind)


def test_player_times_begin_at_zero():
    events = [
        Span(0, "compute", "F", "0F0", 5000, 6000, 0),
        Span(0, "compute", "B", "0B0", 6000, 8000, 0),
    ]
    told = json.loads(pack(Trace.of(events, "measured", unit="s", ticks_per_unit=10**9)))
    assert [span[4:6] for span in told["spans"]] == [[0, 1000], [1000, 3000]] and told[
        "end"
    ] == 3000


def test_player_shows_and_clears():
    player = Player(trace_of(), limit_bytes=10_000)
    assert player.data and player.limit_bytes == 10_000 and player.note == ""
    player.show(None, "Press Run.")
    assert player.data == b"" and player.note == "Press Run."


def test_player_is_one_module_without_imports_or_addresses():
    assert (
        "import " not in Player._esm
        and "http" not in Player._esm
        and "export default" in Player._esm
    )
