"""The player's look and bytes: what its script is told."""

import json

from bigtrain_lab import player
from bigtrain_lab.core import MEMORY_KINDS, Memory, Span, Trace
from bigtrain_lab.figures import palette
from bigtrain_lab.player import LOOK, pack


def test_versions_repeat_their_colours_in_other_shades():
    colours = [colour for colour, _ in LOOK["versions"]]
    assert colours == [palette.version(n) for n in range(21)] and len(set(colours)) == 3 * len(palette.VERSIONS)
    assert all(ink in ("#111111", "#FFFFFF") for _, ink in LOOK["versions"])


def test_of_very_many_readings_inside_actions_the_turns_are_kept(monkeypatch):
    """Rank 0 climbs in F0 and again in F1, with a pause between, which must stay flat; rank 1 falls and rises within one action."""
    heights = {(0, "0F0"): (1, 2, 3, 4), (0, "0F1"): (4, 5, 6), (1, "1B0"): (9, 7, 5, 6, 8, 8, 3), (1, "1B1"): (3,)}
    events, tick = [], {0: 100, 1: 50}
    for (rank, name), readings in heights.items():
        begin = tick[rank]
        events += [Memory(rank, "compute", "activations", name, begin + 10 * i, count, True) for i, count in enumerate(readings)]
        tick[rank] += 10 * len(readings) + 500
        events.append(Span(rank, "compute", name[1], name, begin, tick[rank] - 500))
    trace = Trace.of(events, "measured", unit="s", ranks=2)
    kind = MEMORY_KINDS.index("activations")
    every = [[e.rank, e.start - 50, e.bytes, kind] for e in trace if isinstance(e, Memory)]
    assert json.loads(pack(trace))["inside"] == every
    monkeypatch.setattr(player, "INSIDE", len(every) - 1)
    kept = json.loads(pack(trace))["inside"]
    assert [(rank, count) for rank, _, count, _ in kept] == [(0, 1), (0, 4), (0, 4), (0, 6), (1, 9), (1, 5), (1, 8), (1, 8), (1, 3), (1, 3)]
    assert all(reading in every for reading in kept) and kept[1][1] == 80 and kept[2][1] == 50 + 540
