"""Write docs/links.md and its pictures from the hardware profiles: python tools/link_page.py
[FOLDER]"""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from bigtrain_lab.core import Hardware, write_whole  # noqa: E402
from bigtrain_lab.core.hardware import PROFILES  # noqa: E402
from bigtrain_lab.core.words import duration, size  # noqa: E402
from tools.links import MESSAGE, Way, picture, ways  # noqa: E402

DOCS = REPOSITORY / "docs"
SMALL = 1000  # bytes
PAGE = """# Links inside a node and between nodes

What the modelled clock takes for the links of each hardware profile, each number with its source.
Written by `python tools/link_page.py` from `bigtrain_lab/core/hardware.py`; a test holds the two
equal.

A lone message of n bytes takes alpha + n / bandwidth: alpha is the latency, in seconds. Bandwidths
are **each way**; data sheets of NVLink give the sum of both directions, so H100's 900 GB/s are 450
GB/s each way. Network ports are named in bits: 400 Gb/s are 50 GB/s. A GPU can send and receive at
full bandwidth at once, and all its messages of one kind share its one port.

An all-reduce of a backend, of n bytes over N ranks, takes 2 (N - 1) alpha + 2 (N - 1) / N n /
bandwidth. Its bandwidth falls with the number of nodes: the profile holds the published curve, and
where there is none the slowest link crossed counts. Where the profile holds `trees`, an all-reduce
of several nodes takes a tree where that is faster (`Cost.collective`).

## All of them

$overview

## What moves the bytes

$how

The pictures simplify what real machines do:

* NVLink's bandwidth is that of all links of one GPU together. A100, H100 and H200 reach every GPU
  of the node at that speed, through NVSwitch; the eight V100 of a DGX-1 are joined by a mesh, in
  which a pair has only a part of it.
* Each GPU has a network port of its own in the model. Where the GPUs of a node share one card, as
  is usual with 10 Gb Ethernet, they share its bandwidth too: as soon as several of them send at
  once, the modelled time is too short.
* GPU Direct P2P over PCIe is a matter of board and driver: the drivers of GeForce boards such as
  the RTX 3090 do not offer it, and NCCL then goes through shared memory of the host.

$profiles"""


def page(profiles) -> str:
    """The text of docs/links.md."""
    told = [profile for profile in profiles if ways(profile)]
    kinds = {way.by: way.how for profile in told for way in ways(profile)}
    overview = table(
        ("profile", "inside a node", "each way", "latency", "between nodes", "each way", "latency"),
        [
            (
                f"[{p.name}](#{p.name})",
                *(
                    cell
                    for way in ways(p)
                    for cell in (way.wire.name, speed(way), duration(way.wire.alpha_s, "s"))
                ),
            )
            for p in told
        ],
    )
    text = PAGE.replace("$overview", overview).replace(
        "$how", "\n".join(f"* **{by}**: {how}." for by, how in kinds.items())
    )
    return text.replace("$profiles", "\n".join(map(section, told)))


def section(profile: Hardware) -> str:
    """One profile: its picture, its numbers, their sources."""
    numbers = table(
        (
            "link",
            "where",
            "by",
            "each way",
            "latency",
            f"{size(SMALL)} takes",
            f"{size(MESSAGE)} take",
            "latency is half the time of",
        ),
        [
            (
                way.wire.name,
                way.place,
                way.by,
                speed(way),
                duration(way.wire.alpha_s, "s"),
                duration(way.seconds(SMALL), "s"),
                duration(way.seconds(MESSAGE), "s"),
                size(way.even_bytes),
            )
            for way in ways(profile)
        ],
    )
    sources = "\n".join(
        f"* {row.name} ({row.tag}): {row.source}"
        for row in profile.constants()
        if row.name.startswith(("inside", "between", "memory_bytes_per_s", "collective"))
    )
    picture = f"![{alt(profile)}](links/{profile.name}.svg)"
    return f"## {profile.name}\n\n{picture}\n\n{numbers}\n\n{sources}\n"


def alt(profile: Hardware) -> str:
    return f"Two nodes of {profile.name}: " + ", ".join(
        f"{way.wire.name} {way.place} with {speed(way)} each way" for way in ways(profile)
    )


def speed(way: Way) -> str:
    return f"{size(way.wire.bytes_per_s)}/s"


def table(head, rows) -> str:
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)
    )


def write(folder: Path) -> None:
    """The page and a picture for each profile that has links."""
    (folder / "links").mkdir(parents=True, exist_ok=True)
    write_whole(folder / "links.md", page(PROFILES.values()))
    for profile in PROFILES.values():
        if ways(profile):
            write_whole(folder / "links" / f"{profile.name}.svg", picture(profile))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
