"""The player's look: what its script is told of colours."""

from bigtrain_lab.figures import palette
from bigtrain_lab.player import LOOK


def test_versions_repeat_their_colours_in_other_shades():
    colours = [colour for colour, _ in LOOK["versions"]]
    assert colours == [palette.version(n) for n in range(21)] and len(set(colours)) == 3 * len(palette.VERSIONS)
    assert all(ink in ("#111111", "#FFFFFF") for _, ink in LOOK["versions"])
