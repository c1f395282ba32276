"""The picture of a profile's links: the committed page is what the tool writes, and what it says
are the profile's numbers."""

import re
from xml.etree import ElementTree

import pytest

from bigtrain_lab.core.hardware import PROFILES
from tools import link_page
from tools.links import MESSAGE, picture, ways


def texts(svg: str) -> list[str]:
    return [
        element.text
        for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]


def test_the_committed_page_is_what_the_tool_writes(tmp_path):
    """After a change of a profile: python tools/link_page.py"""
    link_page.write(tmp_path)
    for path in [link_page.DOCS / "links.md", *(link_page.DOCS / "links").iterdir()]:
        assert (tmp_path / path.relative_to(link_page.DOCS)).read_text() == path.read_text(), (
            path.name
        )


@pytest.mark.parametrize(
    "profile", [each for each in PROFILES.values() if each.inside], ids=lambda profile: profile.name
)
def test_a_picture_says_the_profiles_numbers(profile):
    said = texts(picture(profile))
    gb = f"{profile.inside.bytes_per_s / 1e9:g} GB/s each way"
    assert (
        sum(text.startswith(f"{profile.inside.name}: {gb}, ") for text in said) == 2
    )  # in each of the two nodes
    assert any(
        text.startswith(
            f"{profile.between.name}: {profile.between.bytes_per_s / 1e9:g} GB/s each way"
        )
        for text in said
    )
    assert [text for text in said if re.fullmatch(r"\d+", text)] == [
        str(gpu) for gpu in range(2 * profile.node_size)
    ]
    assert (said.count("NIC") == 2 * profile.node_size) == ("InfiniBand" in profile.between.name)
    assert said.count("host memory (over PCIe)") == (2 if "Ethernet" in profile.between.name else 0)


def test_what_100_mb_take():
    inside, between = ways(PROFILES["h100-nvlink"])
    assert inside.seconds(MESSAGE) == pytest.approx(
        3e-6 + 1e8 / 450e9, abs=1e-12
    )  # 900 GB/s in both directions
    assert between.seconds(MESSAGE) == pytest.approx(5e-6 + 1e8 / 50e9, abs=1e-12)  # 400 Gb/s
    assert inside.seconds(round(inside.even_bytes)) == pytest.approx(2 * 3e-6)
    said = texts(picture(PROFILES["h100-nvlink"]))
    assert "225 µs" in said and "2 ms" in said and "29.9 µs" in said
    assert [way.by for way in (inside, between)] == ["GPU Direct P2P", "GPU Direct RDMA"]
