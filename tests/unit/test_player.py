"""The player's look: what its script is told of colours."""

from bigtrain_lab.figures import palette
from bigtrain_lab.player import LOOK, shaded


def test_versions_repeat_their_colours_in_other_shades():
    colours = [colour for colour, _ in LOOK["versions"]]
    assert colours[:7] == list(palette.VERSIONS) and len(set(colours)) == 3 * len(palette.VERSIONS)
    assert all(ink in ("#111111", "#FFFFFF") for _, ink in LOOK["versions"])


def test_a_shade_is_lighter_or_darker_in_every_channel():
    assert shaded("#804020", 0) == "#804020" and shaded("#804020", -0.5) == "#402010" and shaded("#804020", 0.5) == "#C0A090"
