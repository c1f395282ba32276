"""Values: families, meshes, costs, traces."""

import importlib
import json
import re
import warnings
from abc import ABCMeta, abstractmethod
from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest

from bigtrain_lab import Action, Cost, Hardware, Impossible, Mesh, Schedule, Trace, simulate
from bigtrain_lab.core import Family, Histogram, Link, Memory, Scalar, Span, Transfer
from bigtrain_lab.core.hardware import PROFILES, TAGS, TICKS_PER_SECOND


@pytest.fixture
def Shape():
    class Shape(Family, family=""):
        pass

    return Shape


def typed(family, qualname, module="__main__", **body):
    """A class as a notebook cell makes it."""
    return type(qualname, (family,), {"__module__": module, "__qualname__": qualname, **body})


def test_subclassing_with_a_name_joins_or_replaces_and_without_stays_abstract(Shape):
    a = typed(Shape, "A", "lib", name="a")
    typed(Shape, "Part", "lib")
    assert Shape.all() == {"a": a} and Shape.named("a") is a
    with pytest.raises(Impossible, match="no shape called 'b': choose one of a"):
        Shape.named("b")
    typed(Shape, "Mine", name="one")
    again = typed(Shape, "Mine", name="two")  # the same cell runs again
    assert Shape.all() == {"a": a, "two": again}


def test_a_library_name_is_refused_to_others_also_where_it_comes_late(Shape):
    """cloudpickle makes the class first and sets its name afterwards."""
    late = typed(Shape, "Late")
    late.name = "late"
    assert Shape.all() == {"late": late}
    a = typed(Shape, "A", "lib", name="a")
    with pytest.raises(Impossible, match="taken by lib.A: give B another `name`"):
        typed(Shape, "B", name="a")
    assert Shape.all() == {"late": late, "a": a}
    late.name = "a"
    with pytest.raises(Impossible, match="taken by lib.A: give Late another `name`"):
        Shape.all()


FILES = {
    "__init__": (
        "from bigtrain_lab.core.family import import_files\nfrom .shape import"
        " Shape\nimport_files(__name__, __path__)\n"
    ),
    "shape": (
        "from bigtrain_lab.core import Family\nclass Shape(Family, family=__package__):\n    pass\n"
    ),
    "circle": "from .shape import Shape\nclass Circle(Shape):\n    name = 'circle'\n",
}


@pytest.mark.parametrize(
    "text, line, why",
    [
        ("def half(:\n", 1, "SyntaxError: invalid syntax"),
        (
            "import nothing_of_this_name\n",
            1,
            "ModuleNotFoundError: No module named 'nothing_of_this_name'",
        ),
        (
            (
                "from .shape import Shape\nclass Square(Shape):\n    name = 'square'\nclass"
                " Bad(Shape):\n    name = 1 / 0\n"
            ),
            5,
            "ZeroDivisionError: division by zero",
        ),
        (
            "from .shape import Shape\nclass Round(Shape):\n    name = 'circle'\n",
            2,
            "Impossible: The name 'circle' is taken by .*circle.Circle",
        ),
    ],
    ids=["syntax", "import", "class", "name"],
)
def test_a_file_that_does_not_import_keeps_no_other_out(text, line, why, tmp_path, monkeypatch):
    package = f"shapes_{tmp_path.name.replace('-', '_')}"
    (tmp_path / package).mkdir()
    for name, source in {
        **FILES,
        "line": text,
        "triangle": FILES["circle"].replace("Circle", "Triangle").replace("circle", "triangle"),
    }.items():
        (tmp_path / package / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    Shape = importlib.import_module(package).Shape
    told = (
        f"{tmp_path / package / 'line.py'}, line {line}: {why}.*; nothing of this file is there"
        " until it is mended"
    )
    with pytest.warns(UserWarning, match=told):
        assert list(Shape.all()) == ["circle", "triangle"]
    with (
        pytest.warns(UserWarning),
        pytest.raises(
            Impossible, match=f"no shape called 'line': choose one of circle, triangle. {told}"
        ),
    ):
        Shape.named("line")


def test_a_member_without_a_name_is_told_and_a_base_is_not(Shape):
    typed(typed(Shape, "Base"), "Mine", name="mine")
    abstract = ABCMeta(
        "Abstract",
        (Shape,),
        {
            "__module__": "__main__",
            "__qualname__": "Abstract",
            "draw": abstractmethod(lambda self: None),
        },
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(Shape.all()) == ["mine"]
    typed(abstract, "Forgotten", draw=lambda self: None)
    said = 'Forgotten has no name of its own, so it is in no menu: write name = "..." in the class.'
    with pytest.warns(UserWarning, match=re.escape(said)):
        assert list(Shape.all()) == ["mine"]


def test_mesh_is_row_major_and_its_last_axis_neighbours():
    mesh = Mesh(dp=2, pp=3, tp=2)
    assert mesh.size == 12 and mesh.coords(7) == {"dp": 1, "pp": 0, "tp": 1}
    assert all(mesh.rank(**mesh.coords(i)) == i for i in range(12))
    assert (
        mesh.peers(7, "tp") == (6, 7)
        and mesh.peers(7, "pp") == (7, 9, 11)
        and mesh.peers(7, "dp") == (1, 7)
    )


BOTH = (Action("F", 0, 1), Action("B", 0, 0))


@pytest.mark.parametrize(
    "cost, step, rank, ticks",
    [
        (Cost({"F": 0.1}), BOTH[:1], 0, 100),  # not 101: 0.1 means one tenth
        (Cost({"F": np.float64(0.1)}), BOTH[:1], 0, 100),
        (Cost({"F": 0.0001}), BOTH[:1], 0, 1),
        (Cost({"F": [1, 2]}), (Action("F", 1, 0),), 0, 2000),
        (Cost({"F": 1, "B": 2}), BOTH, 0, 3000),
        (Cost({"F": 1, "B": 2, "F+B": 2.5}), BOTH, 0, 2500),
        (Cost({"F": 1}, slowdown={1: 1.5}), BOTH[:1], 1, 1500),
    ],
)
def test_durations_are_exact_and_rounded_up_once(cost, step, rank, ticks):
    assert cost.duration(step, rank) == ticks


def test_a_lane_has_its_share_of_a_link():
    link = Link(5, 2, 1)
    cost = Cost({}, links={(0, 1): link, (1, 0): link}, shares={"comm:dp": "0.25"})
    for lane, gap, all_reduce in (("compute", 20, 30), ("comm:dp", 80, 90)):
        assert (cost.link(0, 1, lane).gap(10), cost.link(0, 1, lane).alpha) == (gap, 5)
        assert cost.collective("all_reduce", 10, (0, 1), lane) == all_reduce


@pytest.mark.parametrize(
    "wrong, told",
    [
        (lambda: Mesh(dp=0), "dp is 0: a mesh needs"),
        (lambda: Mesh(dp=2).coords(2), "Rank 2"),
        (lambda: Mesh(dp=2).peers(0, "x"), "no axis 'x'"),
        (lambda: Cost({}, shares={"a": "0.6", "b": "0.5"}), "shares .* all together at most 1"),
        (lambda: Cost({"F": float("inf")}), "is no cost"),
        (lambda: Cost({"F": float("nan")}), "is no cost"),
        (lambda: Cost({"F": "x"}), "is no cost"),
        (lambda: Cost({"F": -1}), "must not be negative"),
        (lambda: Cost({"F": 1}, {"F": -5}), "must not be negative"),
        (lambda: Cost({"F": 1}, slowdown={0: -1}), "must not be negative"),
        (lambda: Cost({"F": 1}, overlap_slowdown=-1), "must not be negative"),
        (lambda: Cost({}, links={(0, 1): Link()}).collective("gather", 1, [0, 1]), "'gather'"),
        (lambda: PROFILES["a100-nvlink"].seconds(1, 1, "int3"), "no speed for int3"),
        *(
            (lambda text=text: Action.parse(text), "is not an action")
            for text in ("F0", "2X0", "2F", "")
        ),
    ],
)
def test_what_cannot_be_is_a_sentence(wrong, told):
    with pytest.raises(Impossible, match=told):
        wrong()


def test_a_step_beside_a_busy_lane_takes_its_slowdown_longer():
    cost = Cost({"F": 1, "B": 2}, slowdown={1: 1.5}, overlap_slowdown=1.13)
    assert [cost.duration(BOTH, rank, beside=yes) for rank in (0, 1) for yes in (False, True)] == [
        3000,
        3390,
        4500,
        5085,
    ]
    third = Cost({"F": Fraction(1, 3)}, overlap_slowdown=1.13)
    assert [third.duration(BOTH[:1], 0, beside=yes) for yes in (False, True)] == [
        334,
        377,
    ]  # ceil(1130 / 3), not 1.13 * 334


def test_a_collective_costs_its_ring():
    """By hand: links of 7 ticks and 3/2 ticks a byte inside a node of 2, of 100 ticks and 5 ticks a
    byte between nodes."""
    inside, between = Link(7, 3, 2), Link(100, 5, 1)
    links = {
        (a, b): inside if a // 2 == b // 2 else between
        for a in range(6)
        for b in range(6)
        if a != b
    }
    cost = Cost({}, links=links, node_size=2)
    by_hand = {  # of 11 bytes, on two ranks of a node and on four of two nodes
        "all_reduce": (2 * 7 + 17, 6 * 100 + 83),
        "reduce_scatter": (7 + 9, 3 * 100 + 42),
        "all_gather": (7 + 9, 3 * 100 + 42),
        "broadcast": (7 + 17, 3 * 100 + 55),
        "barrier": (2 * 7, 6 * 100),
    }
    for kind, (two, four) in by_hand.items():
        assert (cost.collective(kind, 11, [0, 1]), cost.collective(kind, 11, [3, 2, 1, 0])) == (
            two,
            four,
        ), kind
        assert cost.collective(kind, 11, [4]) == Cost({}).collective(kind, 10**9, range(8)) == 0
    slow = replace(
        cost, links={**links, (0, 2): Link(10**6)}
    )  # no link of the ring 0 1 2 3, however its ranks are named
    assert (
        slow.collective("barrier", 0, [0, 2, 1, 3])
        == slow.collective("barrier", 0, range(4))
        == 6 * 100
    )


def test_the_bandwidth_of_a_collective_falls_with_the_nodes_as_published():
    """H100: 436 GB/s on one node of 8, 100 GB/s on eight nodes, in the measure of nccl-tests (bus
    bandwidth)."""
    h100, size = PROFILES["h100-nvlink"], 10**13  # bytes, so many that latency does not count
    cost = Cost({}, **h100.prices(256))

    def bus(ranks):
        return (
            size
            * 2
            * (len(ranks) - 1)
            / len(ranks)
            / (cost.collective("all_reduce", size, ranks) / TICKS_PER_SECOND)
        )

    assert bus(range(8)) == pytest.approx(436e9, rel=1e-3) and bus(range(64)) == pytest.approx(
        100e9, rel=5e-3
    )
    assert bus(range(0, 64, 8)) == pytest.approx(50e9, rel=1e-3)  # one rank a node has one port
    rates = [h100.bus_bytes_per_s(nodes) for nodes in range(1, 100)]
    assert rates == sorted(rates, reverse=True) and set(rates[63:]) == {32.9e9}
    between = Hardware("x", collective_bytes_per_s=((1, 400e9), (4, 100e9))).bus_bytes_per_s(2)
    assert between == pytest.approx(200e9)  # the geometric mean


def test_an_all_reduce_of_several_nodes_takes_a_tree_where_that_is_faster():
    """Four nodes of two ranks: a chain of 1 tick and two levels of 20, up and down."""
    fast, far = Link(1, 1, 8), Link(20, 1, 2)
    links = {(a, b): fast if a // 2 == b // 2 else far for a in range(8) for b in range(8)}
    ring, tree = Cost({}, links=links, node_size=2), 2 * (1 + 2 * 20)
    both = replace(ring, trees=((250, 0.5, 2.0),))  # a quarter of a byte a tick at most
    assert ring.collective("all_reduce", 8, range(8)) == 2 * 7 * 20 + 7
    assert both.collective("all_reduce", 8, range(8)) == 2 * tree + 2 * 8 * 4
    assert replace(ring, trees=((1e6, 0.5, 2.0),)).collective("all_reduce", 8, range(8)) == (
        2 * tree + 2 * 8  # half of the ring's bandwidth
    )
    free = replace(ring, trees=((1e9, 1.0, 0.01),))  # but no tree gathers, or stays in a node
    for cost, kind, size, ranks in (
        (both, "all_reduce", 800, range(8)),
        (free, "all_gather", 8, range(8)),
        (free, "all_reduce", 0, range(2)),
    ):
        assert cost.collective(kind, size, ranks) == ring.collective(kind, size, ranks)


def test_every_number_of_a_profile_has_a_tag_and_a_source():
    wires = {
        f"{place}.{part}" for place in ("inside", "between") for part in ("alpha_s", "bytes_per_s")
    }
    numbers = {each.name for each in fields(Hardware)} - {
        "name",
        "inside",
        "between",
        "launches_ahead",
        "sources",
    } | wires
    for profile in [each for each in PROFILES.values() if not each.textbook]:
        told = {row.name: row for row in profile.constants()}
        assert set(told) == numbers, profile.name
        assert all(
            row.tag in TAGS and row.source and row.value is not None for row in told.values()
        )
        assert (
            profile.links(9)[0, 1] == profile.inside.link()
            and profile.links(9)[0, 8] == profile.between.link()
        )


def test_an_action_takes_its_kernels_time_or_that_of_their_launches():
    a100 = PROFILES["a100-nvlink"]
    assert a100.seconds(312e12, 0, "bfloat16") == pytest.approx(
        1 / 0.859
    )  # the share of the peak that matmuls reach
    assert a100.seconds(312e12, 2 * 2039e9, "bfloat16") == pytest.approx(1 / 0.859 + 2 / 0.9)
    tiny = 312e12 * 3.2e-6  # FLOPs of 3.2 microseconds at the peak, in 36 kernels
    assert a100.seconds(tiny, 0, "bfloat16", operators=36) == pytest.approx(36 * 5e-6)
    assert a100.seconds(312e12, 0, "bfloat16", operators=36) == a100.seconds(312e12, 0, "bfloat16")
    assert replace(a100, launches_ahead=False).seconds(
        tiny, 0, "bfloat16", operators=36
    ) == pytest.approx(36 * 5e-6 + 3.2e-6 / 0.859)
    bare = Hardware(
        "x", flops_per_s={"float32": 8.0}, memory_bytes_per_s=4.0
    )  # what states no share reaches all
    assert bare.seconds(16, 12, "float32", operators=10**6) == 2 + 3


EVENTS = (
    Memory(0, "compute", "weights", "start", 0, 7),
    Span(0, "compute", "F", "0F0", 0, 1000, 0),
    Transfer(1, "compute", "F", "0F0", 1000, 1500, 0, 64),
    Span(1, "compute", "F", "1F0", 1500, 2500, 0),
    Scalar(1, "compute", "loss", "loss", 2500, 0.5),
    Memory(1, "compute", "activations", "1F0", 2500, 9, True),
    Histogram(1, "compute", "exponents", "layer 1", 2500, (-1075, -4, -3, 1025), (1, 1, 2)),
)


def test_a_trace_survives_its_file(tmp_path):
    trace = Trace.of(EVENTS, "modelled", ranks=2, settings={"a": 1})
    assert Trace.load(trace.save(tmp_path / "t.jsonl")) == trace
    assert trace.where(Span, rank=1).events == (EVENTS[3],) and trace.where(
        kind="F", rank=0
    ).events == (EVENTS[1],)


def test_saving_is_whole_or_not_at_all(tmp_path):
    trace = Trace.of(EVENTS, "modelled", ranks=2)
    (tmp_path / "dir").mkdir()
    for place in (tmp_path / "no" / "t", tmp_path / "dir"):
        with pytest.raises(Impossible, match="Cannot write"):
            trace.save(place)
    assert [p.name for p in tmp_path.iterdir()] == ["dir"]


def test_the_chrome_file_has_every_span_and_both_ends_of_each_message(tmp_path):
    nan = Scalar(1, "compute", "loss", "loss", 2600, float("nan"))
    written = Trace.of([*EVENTS, nan], "modelled", ranks=2).to_chrome(tmp_path / "c.json")
    assert "NaN" not in written.read_text(), "which no reader of JSON need take"
    events = json.loads(written.read_text())["traceEvents"]
    assert [
        (e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == "compute"
    ] == [("0F0", 0, 1000), ("1F0", 1500, 1000)]
    assert [(e["ph"], e["pid"], e["ts"]) for e in events if e["ph"] in "sf"] == [
        ("s", 0, 1000),
        ("f", 1, 1500),
    ]
    assert [(e["name"], e["args"]) for e in events if e["ph"] == "C"] == [
        ("bytes weights", {"weights": 7}),
        ("loss", {"loss": 0.5}),
        ("bytes activations", {"activations": 9}),
    ]


# -- where a step ends -----------------------------------------------------------------------------


def test_a_step_ends_with_the_last_update_of_all_ranks():
    """Windows of 4, 4 and 2 micro-batches are steps of unequal length; what follows the last update
    is no part of a step."""
    spans = [
        Span(rank, "compute", kind, f"{rank}{kind}{last}", start, end + longer * rank)
        for last, at, updates in ((3, 0, 12), (7, 14, 26), (9, 28, 34))
        for kind, start, end, longer in (("B", at, updates, 0), ("U", updates, updates + 1, 1))
        for rank in (0, 1)
    ]
    trace = Trace.of(
        [*spans, Span(0, "compute", "A", "0A0", 36, 136)],
        "predicted",
        ticks_per_unit=1,
        ranks=2,
        steps=3,
    )
    assert trace.step_ends == (14, 28, 36) and trace.step_time == 12 and trace.makespan == 136
    broken = Trace.of(
        [s for s in spans if s.start < 28 or s.rank == 0],
        "modelled",
        ticks_per_unit=1,
        ranks=2,
        steps=2,
    )
    assert broken.step_ends == (14, 28), "rank 1 has not made the last update"


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_steps_that_flow_into_one_another_end_with_their_last_update(steps):
    """Updates of a step that broke off end none."""
    dream = simulate(Schedule.named("pipedream")(4, 8), {"F": 1, "B": 2}, steps=3)
    ends = [33, 57, 81][:steps]
    begun = replace(
        dream,
        events=tuple(e for e in dream.events if dream.units(e.end) <= ends[-1] + 9),
        steps=steps,
        settings={**dream.settings, "unfinished": steps < 3},
    )
    assert [begun.units(tick) for tick in begun.step_ends] == ends
    assert begun.step_time == {1: 33, 2: 28.5, 3: 27}[steps]


def test_a_trace_without_updates_is_divided_evenly():
    trace = Trace.of(
        [Span(0, "compute", "F", "0F0", 10, 30)], "predicted", ticks_per_unit=1, steps=2
    )
    assert trace.step_ends == (20, 30) and trace.step_time == 10
    assert Trace((), "predicted").step_ends == (0,) and Trace((), "predicted").step_time == 0
