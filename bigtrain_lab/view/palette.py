"""One palette for every picture, safe for colour-blind readers; colour is never the only sign
(labels repeat it).

Phases and versions: Okabe and Ito 2008, Color Universal Design. Memory: Paul Tol 2021, Colour
Schemes (muted and bright), other hues than the phases so that a blue box is never read as blue
memory.
"""

from ..core import MEMORY_KINDS

PHASES = {
    "F": "#56B4E9",
    "A": "#BFE0F5",
    "B": "#E69F00",
    "I": "#F0E442",
    "W": "#00A67C",
    "U": "#CC79A7",
    "L": "#0072B2",
    "T": "#9AD0CF",
    "D": "#6C4824",
    "C": "#8A3FFC",
    "S": "#7A5195",
}
PHASE_NAMES = {
    "F": "forward",
    "A": "forward that records nothing",
    "B": "backward",
    "I": "backward: input half",
    "W": "backward: weight half",
    "U": "update",
    "L": "held-out loss",
    "T": "translation",
    "D": "read from the disk",
    "C": "copy to the device",
    "S": "server applies a gradient",
}
OTHER_PHASE = "#9AA5B1"
IDLE = "#C9CED6"
TRANSFER = "#6B7280"
WAIT = "#D55E00"  # vermilion
INK, GRID, CLEAR = (
    "#737B86",
    "rgba(128,128,128,0.22)",
    "rgba(0,0,0,0)",
)  # on any page, light or dark: text, grid, paper

VERSION_SHADES = (0, -0.35, 0.45)  # darker, then lighter: 21 colours before one comes again
VERSIONS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")

MEMORY = dict(
    zip(
        MEMORY_KINDS,
        (
            "#4477AA",
            "#332288",
            "#882255",
            "#CC6677",
            "#DDCC77",
            "#44AA99",
            "#AA4499",
            "#117733",
            "#999933",
            "#BBBBBB",
        ),
        strict=True,
    )
)

CLOCKS = {"predicted": "#6D4AA8", "modelled": "#0B6E4F", "measured": "#B3470B"}


def phase(kind: str) -> str:
    """The colour of a kind of action; an overlapped step ("F+B") has that of its first action."""
    return PHASES.get(kind[:1], OTHER_PHASE)


def version(number: int) -> str:
    """Neighbouring versions differ in hue, those seven apart in shade; the printed number tells
    which."""
    return shaded(
        VERSIONS[number % len(VERSIONS)],
        VERSION_SHADES[number // len(VERSIONS) % len(VERSION_SHADES)],
    )


def shaded(colour: str, by: float) -> str:
    """A colour so much lighter, or where negative darker."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(
        f"{round(c + by * (255 - c) if by > 0 else c * (1 + by)):02X}" for c in channels
    )


def ink(colour: str) -> str:
    """Black or white, whichever is read more easily on this colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#111111" if 0.299 * red + 0.587 * green + 0.114 * blue > 125 else "#FFFFFF"
