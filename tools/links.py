"""The links of a hardware profile, drawn: the GPUs of two nodes, what a message passes inside a
node and between them.

    time of a message of n bytes = alpha + n / bandwidth          alpha is half of it at n = alpha *
                                                                  bandwidth

As in the model of time (core/lane.py), every GPU has one port of each kind, each way. An SVG.
"""

from html import escape
from typing import NamedTuple

from bigtrain_lab.core import Hardware
from bigtrain_lab.core.hardware import TICKS_PER_SECOND, Wire
from bigtrain_lab.core.words import duration, size

MESSAGE = 100_000_000  # bytes
WIDTH, NODE, GAP = 880, 396, 40
WAYS = {  # a word in a wire's name -> (what moves the bytes, in a few words; the way they go)
    "NVLink": (
        "GPU Direct P2P",
        "one GPU reads and writes the memory of another over NVLink; host memory is not passed",
    ),
    "PCIe": (
        "P2P or shared memory",
        (
            "over PCIe: from GPU to GPU where board and driver allow GPU Direct P2P, else through"
            " shared memory of the host, in two copies"
        ),
    ),
    "InfiniBand": (
        "GPU Direct RDMA",
        (
            "the network card reads and writes GPU memory itself, over PCIe; neither processor nor"
            " host memory is passed"
        ),
    ),
    "Ethernet": (
        "sockets",
        (
            "by TCP: the bytes are copied to host memory, sent, and copied from host memory to the"
            " other GPU"
        ),
    ),
    "gloo": ("sockets", "by TCP over the loopback interface, between processes of one machine"),
}
STYLE = """
.btl-links { font: 13px system-ui, "Segoe UI", Roboto, sans-serif; --ink: #1F2933;
  --soft: #5B6572; --card: #FFFFFF; --box: #F3F5F8; --edge: #C3CAD3; --in: #0072B2;
  --out: #C04A00; --own: #6B7280; --on: #FFFFFF; }
@media (prefers-color-scheme: dark) { .btl-links { --ink: #E8EBEF; --soft: #A9B2BD;
  --card: #16191D; --box: #20252B; --edge: #4A545F; --in: #5AB0EA;
  --out: #F0884A; --own: #9AA5B1; --on: #101418; } }
.btl-links text { fill: var(--ink); } .btl-links .soft { fill: var(--soft); }
.btl-links .strong { font-weight: 600; } .btl-links .mid { text-anchor: middle; }
.btl-links .card { fill: var(--card); stroke: var(--edge); } .btl-links .box { fill: var(--box);
  stroke: var(--edge); } .btl-links .gpu { fill: var(--card); stroke: var(--ink); }
.btl-links .in { stroke: var(--in); fill: none; } .btl-links .out { stroke: var(--out);
  fill: none; } .btl-links .wire { stroke: var(--edge); fill: none; }
.btl-links .in-fill { fill: var(--in); } .btl-links .out-fill { fill: var(--out); }
.btl-links .own-fill { fill: var(--own); } .btl-links .bar text { fill: var(--on); }
"""


class Way(NamedTuple):
    """A kind of link as it is told: a wire, where it is, what moves the bytes."""

    place: str
    wire: Wire
    by: str
    how: str

    def seconds(self, size_bytes: int) -> float:
        """What a lone message of this size takes."""
        link = self.wire.link()
        return (link.alpha + link.gap(size_bytes)) / TICKS_PER_SECOND

    @property
    def even_bytes(self) -> float:
        """The message of which latency is half of the time."""
        return self.wire.alpha_s * self.wire.bytes_per_s


def ways(hardware: Hardware) -> list[Way]:
    """The links of a profile: inside a node, between nodes."""
    told = []
    for place, wire in (("inside a node", hardware.inside), ("between nodes", hardware.between)):
        if wire:
            by, how = next((known for word, known in WAYS.items() if word in wire.name), ("", ""))
            told.append(Way(place, wire, by, how))
    return told


def rate(wire: Wire) -> str:
    return f"{size(wire.bytes_per_s)}/s each way"


def picture(hardware: Hardware) -> str:
    """Two nodes of this hardware and their links, and how long 100 MB take on each."""
    inside, between = hardware.inside, hardware.between
    nodes = 2 if between else 1
    shown = min(hardware.node_size, 8)
    staged = bool(between) and "Ethernet" in between.name  # through host memory
    thing = "rank" if inside and "gloo" in inside.name else "GPU"
    size_told = (
        f"{shown} {thing}{'' if shown == 1 else 's'} in a node"
        if hardware.node_size == shown
        else f"{shown} of the {thing}s of a node"
    )
    parts = [text(24, 34, f"{hardware.name}: {size_told}", "strong", 17)]
    for node in range(nodes):
        parts += node_of(node, shown, thing, inside, between, staged)
    bottom = 192
    if between:
        parts += [
            f'<rect class="out-fill" x="24" y="272" width="{WIDTH - 48}" height="30" rx="6"/>',
            on_bar(
                WIDTH / 2,
                292,
                f"{between.name}: {rate(between)}{'' if staged else ' for each GPU'},"
                f" {duration(between.alpha_s, 's')}",
            ),
        ]
        bottom = 302
    parts += bars(hardware, bottom + 34)
    height = bottom + 34 + 30 * (len(ways(hardware)) + bool(hardware.memory_bytes_per_s)) + 30
    said = f"Links of {hardware.name}. " + " ".join(
        f"{w.place.capitalize()}: {w.wire.name}, {rate(w.wire)}, latency"
        f" {duration(w.wire.alpha_s, 's')}, 100 MB take {duration(w.seconds(MESSAGE), 's')}."
        for w in ways(hardware)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="btl-links" viewBox="0 0 {WIDTH} {height}"'
        f' width="{WIDTH}" height="{height}" role="img"'
        f' aria-label="{escape(said)}">\n<style>{STYLE}</style>\n<rect class="card" x="0.5" y="0.5"'
        f' width="{WIDTH - 1}" height="{height - 1}" rx="8"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def node_of(
    node: int, shown: int, thing: str, inside: Wire | None, between: Wire | None, staged: bool
) -> list[str]:
    """A node: its GPUs, the link that joins them above, what leads out below."""
    left = 24 + node * (NODE + GAP)
    width = min(84.0, (NODE - 32 + 6) / shown - 6)
    first = left + (NODE - shown * width - (shown - 1) * 6) / 2
    middles = [first + width / 2 + i * (width + 6) for i in range(shown)]
    parts = [
        (
            f'<rect class="box" x="{left}" y="48" width="{NODE}" height="{210 if between else 130}"'
            ' rx="8"/>'
        ),
        text(
            left + 14,
            68,
            f"node {node}"
            + (": a network card (NIC) for each GPU" if between and not staged else ""),
            "soft",
        ),
    ]
    if inside:
        parts += [
            (
                f'<rect class="in-fill" x="{left + 14}" y="78" width="{NODE - 28}" height="28"'
                ' rx="6"/>'
            ),
            on_bar(
                left + NODE / 2,
                97,
                f"{inside.name}: {rate(inside)}, {duration(inside.alpha_s, 's')}",
            ),
        ]
    for i, middle in enumerate(middles):
        if inside:
            parts.append(line("in", middle, 106, middle, 124, 4))
        if between:
            parts.append(line("out", middle, 164, middle, 182 if staged else 180, 2))
        parts += [
            (
                f'<rect class="gpu" x="{middle - width / 2:g}" y="124" width="{width:g}"'
                ' height="40" rx="4"/>'
            ),
            text(middle, 141, thing, "mid", 11),
            text(middle, 156, str(node * shown + i), "mid strong"),
        ]
    if between and staged:
        parts += [
            f'<rect class="gpu" x="{left + 14}" y="182" width="{NODE - 28}" height="26" rx="4"/>',
            text(left + NODE / 2, 200, "host memory (over PCIe)", "mid"),
            line("out", left + NODE / 2, 208, left + NODE / 2, 218, 2),
            (
                f'<rect class="gpu" x="{left + NODE / 2 - 60}" y="218" width="120" height="26"'
                ' rx="4"/>'
            ),
            text(left + NODE / 2, 236, "network card", "mid"),
            line("out", left + NODE / 2, 244, left + NODE / 2, 272, 2),
        ]
    elif between:
        for middle in middles:
            parts += [
                (
                    f'<rect class="gpu" x="{middle - width / 2:g}" y="214" width="{width:g}"'
                    ' height="28" rx="4"/>'
                ),
                text(middle, 233, "NIC", "mid", 11),
                line("out", middle, 242, middle, 272, 2),
            ]
        parts += [
            f'<rect class="gpu" x="{left + 14}" y="180" width="{NODE - 28}" height="20" rx="4"/>',
            text(left + NODE / 2, 195, "PCIe", "mid", 12),
        ]
        parts += [line("out", middle, 200, middle, 214, 2) for middle in middles]
    return parts


def bars(hardware: Hardware, top: float) -> list[str]:
    """How long 100 MB take, to scale: from the GPU's own memory, inside a node, between nodes."""
    rows = (
        [
            (
                "own-fill",
                "its own memory",
                MESSAGE / hardware.memory_bytes_per_s,
                f"{size(hardware.memory_bytes_per_s)}/s",
            )
        ]
        if hardware.memory_bytes_per_s
        else []
    )
    rows += [
        (
            "in-fill" if way.wire is hardware.inside else "out-fill",
            way.place,
            way.seconds(MESSAGE),
            way.by,
        )
        for way in ways(hardware)
    ]
    longest = max((row[2] for row in rows), default=1)
    parts = [text(24, top, "100 MB take", "strong")]
    for i, (paint, name, seconds, by) in enumerate(rows):
        y = top + 12 + 30 * i
        long = max(2.0, 420 * seconds / longest)
        parts += [
            text(24, y + 15, name),
            f'<rect class="{paint}" x="150" y="{y:g}" width="{long:.4g}" height="20" rx="3"/>',
            text(158 + long, y + 15, duration(float(f"{seconds:.3g}"), "s"), "strong"),
            text(WIDTH - 24, y + 15, by, "soft end"),
        ]
    return parts


def text(x: float, y: float, words: str, kind: str = "", points: float = 13) -> str:
    end = ' text-anchor="end"' if "end" in kind.split() else ""
    return (
        f'<text x="{x:.5g}" y="{y:g}" class="{kind}"'
        f' font-size="{points}"{end}>{escape(words)}</text>'
    )


def on_bar(x: float, y: float, words: str) -> str:
    return f'<g class="bar">{text(x, y, words, "mid strong")}</g>'


def line(kind: str, x1: float, y1: float, x2: float, y2: float, width: float) -> str:
    return f'<path class="{kind}" d="M{x1:.5g} {y1:g}L{x2:.5g} {y2:g}" stroke-width="{width:g}"/>'
