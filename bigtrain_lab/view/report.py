"""A run in words: the table predicted | modelled | measured, amounts in human units, the command
that repeats it.

Values and text only, shared by the command line and the panel; nothing here draws, starts processes
or imports torch.
"""

import shlex
from math import isfinite
from operator import methodcaller
from typing import NamedTuple

from ..core import CLOCKS, Hardware, Scalar, Trace, counted, duration, grouped, number, size
from ..order import HOLDS, launched
from .words import labels as labels_of, row_name, rows_of

TIMES = ("slot", "s")
LAUNCHES = "of it launches"
SHARES = (
    "compute share",
    LAUNCHES,
    "waits share",
    "idle share",
)  # the last rows of the table of several ranks
THIS_MACHINE = "this-machine"  # the profile that runtime.calibrate measures


class Amount(NamedTuple):
    """A number with its unit, as text in human units: 33 slots, 1.53 ms, 27.3%, 1.2 MB."""

    value: float
    unit: str
    apart: str = ""  # why it is not what a prediction knows of

    def __str__(self) -> str:
        if self.unit in TIMES:
            return duration(self.value, self.unit)
        if self.unit == "B":
            return size(self.value)
        return (
            f"{self.value:.1f}%"
            if self.unit == "%"
            else f"{number(self.value)} {self.unit}".rstrip()
        )


class Row(NamedTuple):
    """One quantity on the three clocks, None where there is none; `unit` is the prediction's.
    `pinned` is from another run. `exact`: predicted and modelled are equal, and compare: a
    difference that begins with ≠ says that they are not."""

    quantity: str
    unit: str
    predicted: Amount | None
    modelled: Amount | None
    measured: Amount | None
    differences: tuple[str, ...] = ()
    pinned: Amount | None = None
    exact: bool = True

    @property
    def difference(self) -> str:
        return ", ".join(self.differences)


Column = dict[str, Amount]  # quantity -> what a trace says of it


def rows(quantities, *traces: Trace | None, here: bool = True) -> list[Row]:
    """A row a quantity of an experiment; each trace goes into the column of its clock. `here`: see
    `priced_here`."""
    return lined_up(
        quantities,
        {trace.clock: column(quantities, trace) for trace in traces if trace is not None},
        here=here,
    )


def priced_here(experiment) -> bool:
    """Whether the hardware that prices an experiment is the machine that runs it. An A100's seconds
    compare with no CPU's."""
    return getattr(getattr(experiment, "profile", None), "name", THIS_MACHINE) == THIS_MACHINE


def column(quantities, trace: Trace) -> Column:
    """What a trace says of each quantity, and what its ranks did with their time; nothing where it
    is part of a run."""
    if trace.settings.get("unfinished"):
        return {}
    told = {
        q.name: Amount(value, trace.unit if q.unit in TIMES else q.unit, q.apart(trace))
        for q in quantities
        if (value := q.of(trace)) is not None
    }
    compute, *others = trace.shares()
    shares = zip(SHARES, (compute, launched(trace) or None, *others))
    return told | {
        name: Amount(100 * share, "%")
        for name, share in shares
        if trace.ranks > 1 and share is not None
    }


def lined_up(
    quantities, columns: dict[str, Column], pinned: Column | None = None, here: bool = True
) -> list[Row]:
    """A row a quantity, and one each of the shares of the time, from the columns of the clocks."""
    shares = [
        (name, "%", False) for name in SHARES if any(name in column for column in columns.values())
    ]
    found = (
        (name, unit, exact, [columns.get(clock, {}).get(name) for clock in CLOCKS])
        for name, unit, exact in (*((q.name, q.unit, q.exact) for q in quantities), *shares)
    )
    return [
        Row(
            name,
            unit,
            *amounts,
            differences(*amounts, exact, here),
            (pinned or {}).get(name),
            exact,
        )
        for name, unit, exact, amounts in found
    ]


def differences(
    predicted: Amount | None,
    modelled: Amount | None,
    measured: Amount | None,
    exact: bool = True,
    here: bool = True,
) -> tuple[str, ...]:
    """Modelled against predicted (where `exact`, they must be equal, unless it says why it is
    apart), then measured, where its unit is the same; a time where the prediction is of the machine
    that is `here`. Equal is "as planned", and no mark of success: both take the same prices."""
    told = []
    if predicted is not None and modelled is not None:
        if modelled[:2] == predicted[:2]:
            told.append("as planned")
        elif modelled.apart:
            told.append(f"modelled {gap(predicted, modelled)} ({modelled.apart})")
        else:
            told.append(f"{'≠ ' * exact}modelled {gap(predicted, modelled)}")
    if (
        predicted is not None
        and measured is not None
        and measured.unit == predicted.unit
        and (here or measured.unit not in TIMES)
    ):
        told.append(f"measured {gap(predicted, measured)}")
    return tuple(told)


def whole_first(sentences: list[str]) -> list[str]:
    """What is said of the whole, then the ranks, each in the order given."""
    return sorted(sentences, key=methodcaller("startswith", "Rank "))


def gap(a: Amount, b: Amount) -> str:
    """From a to b in percent of a; from nothing, and between shares, in their own unit."""
    if a[:2] == b[:2]:
        return "equal"
    change = b.value - a.value
    if a.unit == "%":
        return f"{change:+.1f} points"
    if not a.value:
        return ("+" if change > 0 else "-") + str(Amount(abs(change), a.unit))
    return f"{float(f'{100 * change / abs(a.value):.3g}'):+,.12g}%"


def outcome(run) -> str:
    """How a run ended, in words: its state, or which number it ended with that is none."""
    last = (
        {event.name: event.value for event in run.trace().where(Scalar, kind="scalar")}
        if run.state == "done"
        else {}
    )
    broken = [f"{name} {value:g}" for name, value in last.items() if not isfinite(value)]
    return f"ended with {', '.join(broken)}" if broken else run.state


def about(name: str, trace: Trace, run) -> str:
    """Which run this is, in a line."""
    started = run and run.settings["started"].replace("T", " ").replace("+00:00", " UTC")
    return (
        f"{name} on {counted(trace.ranks, 'rank')}, started {started}: {outcome(run)}"
        if run
        else f"{name} on {counted(trace.ranks, 'rank')}: a saved {trace.clock} trace"
    )


def summary(facts: dict) -> str:
    """What a run cost, from `Run.summary()`, in one sentence."""
    parts = [f"{Amount(facts['step_time'], facts['unit'])} a step", str(facts["shares"])]
    if (hours := facts["device_hours"]) is not None:  # a clock of slots knows none
        parts += [
            f"{hours:,.3g} device-hours"
            if hours >= 0.01
            else f"{duration(3600 * hours, 's')} of device time",
            energy(facts["energy_wh"]),
        ]
    return f"{facts['clock']}: {', '.join(parts)}."


def energy(watt_hours: float | None) -> str:
    if watt_hours is None:
        return "energy unknown (no watts)"
    if watt_hours >= 1:
        return f"{watt_hours:,.3g} Wh"
    joules = 3600 * watt_hours
    return f"{joules:,.4g} J" if joules >= 1 or not joules else f"{1000 * joules:.3g} mJ"


def reported(trace: Trace) -> list[str]:
    """Each number that the ranks reported, first and last: "loss 5.56 -> 5.21"."""
    values = grouped(
        (event.name, event.value)
        for event in trace.where(Scalar, kind="scalar")
        if not event.name.startswith(HOLDS)
    )
    return [
        f"{name} {number(of[0])}"
        + (f" -> {number(of[-1])} ({len(of)} values)" if len(of) > 1 else "")
        for name, of in values.items()
    ]


def cost_of(run) -> list[str]:
    """What the ranks reported, what the run cost, how far its clocks were apart."""
    from ..runtime.torchrun.offset import told

    clocks = told(run.settings.get("hosts", []))
    return [*reported(run.trace()), summary(run.summary()), *([clocks] if clocks else [])]


def hardware_line(profile: Hardware) -> str:
    """A hardware profile in one line."""
    if profile.textbook:
        return "slots of the papers' figures: F = 1, B = 2, links free"
    parts = (
        ", ".join(
            f"{dtype} {flops / 1e12:.3g} TFLOP/s" for dtype, flops in profile.flops_per_s.items()
        ),
        profile.memory_bytes
        and f"{size(profile.memory_bytes)} at {size(profile.memory_bytes_per_s)}/s",
        *(
            f"{wire.name} {size(wire.bytes_per_s)}/s"
            for wire in (profile.inside, profile.between)
            if wire
        ),
        profile.watts and f"{profile.watts:g} W",
        profile.launch_s and f"{duration(profile.launch_s, 's')} a launch",
    )
    return "; ".join(filter(None, parts))


def settings(experiment, changed_only: bool = False) -> dict[str, object]:
    """An experiment's settings by name as the command line writes them, in order."""
    return {
        name.replace("_", "-"): getattr(experiment, name)
        for name, field in type(experiment).model_fields.items()
        if not changed_only
        or getattr(experiment, name) != field.get_default(call_default_factory=True)
    }


def in_effect(experiment) -> dict[str, object]:
    """The settings without those that have no effect beside the others."""
    idle = {name.replace("_", "-") for name in experiment.idle_settings(experiment.model_dump())}
    return {name: value for name, value in settings(experiment).items() if name not in idle}


def setting(value) -> str:
    """A setting's value in a sentence."""
    return (
        {True: "on", False: "off", "": "none"}.get(value, str(value))
        if isinstance(value, (bool, str))
        else str(value)
    )


def told_settings(experiment) -> str:
    """The settings that have an effect and differ from their defaults: "schedule gpipe, ranks
    8"."""
    used = in_effect(experiment)
    return ", ".join(
        f"{name} {setting(value)}"
        for name, value in settings(experiment, changed_only=True).items()
        if name in used
    )


def changes(was, now) -> list[str]:
    """The settings in which two experiments differ: "schedule gpipe, now 1f1b"."""
    before, after = (
        {"experiment": was.name, **settings(was)},
        {"experiment": now.name, **settings(now)},
    )
    return [
        f"{name} {setting(value)}, now {setting(after[name])}"
        for name, value in before.items()
        if name in after and after[name] != value
    ]


def command(experiment, verb: str = "run") -> str:
    """The shell command that repeats this experiment; settings at their defaults are left out."""
    parts = ["bigtrain", verb, experiment.name]
    for name, value in settings(experiment, changed_only=True).items():
        parts += (
            [f"--{'' if value else 'no-'}{name}"]
            if isinstance(value, bool)
            else [f"--{name}", str(value)]
        )
    return shlex.join(parts)


TWO_NODES = (
    'torchrun --nnodes=2 --nproc-per-node={} --rdzv-backend=c10d --rdzv-endpoint="$HEAD_NODE:29400"'
)


def commands(experiment) -> dict[str, str]:
    """The same run by each launcher: what it is called -> the command line, or the cell that shows
    its panel. The one for two nodes is typed on each of them, in a folder that both see, with the
    first one's name in HEAD_NODE; it is left out where the ranks do not divide by 2.
    """
    shell = command(experiment)
    module = "-m bigtrain_lab" + shell.removeprefix("bigtrain")
    asked = "".join(
        f", {name.replace('-', '_')}={value!r}"
        for name, value in settings(experiment, changed_only=True).items()
    )
    lines = {
        "shell": shell,
        "a cell of a notebook": f'from bigtrain_lab import show; show("{experiment.name}"{asked})',
        "torchrun, one node": f"torchrun --standalone --nproc-per-node={experiment.ranks} {module}",
    }
    if experiment.ranks % 2 == 0:
        lines["torchrun, two nodes"] = f"{TWO_NODES.format(experiment.ranks // 2)} {module}"
    return lines


class Cell(NamedTuple):
    """One character of a text timeline: what is printed, the action's kind ("" where idle), odd or
    even box."""

    text: str
    kind: str
    odd: bool


IDLE = Cell("·", "", False)


def strip(trace: Trace, columns: int) -> tuple[list[tuple[str, list[Cell]]], str]:
    """The timeline in so many columns: as many of the first training steps as leave a box two
    columns wide. Returns (name, cells) of each lane, and the sentence that says what it shows."""
    spans = [s for s in trace.boxes() if s.end > s.start]
    if not spans:
        return [], "Nothing has run yet."
    begin = min(e.start for e in (*spans, *trace.transfers()))
    last = max(e.end for e in (*spans, *trace.transfers()))
    ends = [end - begin for end in (*trace.step_ends[:-1], last)]
    small = sorted(s.end - s.start for s in spans)[
        len(spans) // 4
    ]  # not the smallest: an update may last next to nothing
    steps = max([1, *(number for number, end in enumerate(ends, 1) if 2 * end <= columns * small)])
    length = (
        ends[steps - 1] if ends[steps - 1] > 0 else last - begin
    )  # of a damaged trace a step may end before it begins
    scale = columns / length
    if trace.unit == "slot" and scale * trace.ticks_per_unit >= 1:
        scale = (
            int(scale * trace.ticks_per_unit) / trace.ticks_per_unit
        )  # whole columns a slot: equal boxes look equal
    columns = min(columns, round(scale * length))
    labels, by_lane = labels_of(trace), grouped(((span.rank, span.lane), span) for span in spans)
    lanes = []
    for lane in rows_of(trace):
        cells, odd = [IDLE] * columns, False
        for span in by_lane.get(lane, ()):
            first, last = round((span.start - begin) * scale), round((span.end - begin) * scale)
            if first >= columns or (first == last and cells[first] is not IDLE):
                continue
            room = max(1, min(last, columns) - first)
            text = next(
                (t for t in (labels.get(span.name, span.name), span.kind[:1]) if len(t) <= room),
                " ",
            ).ljust(room)
            cells[first : first + room] = [
                Cell(character, span.kind[:1], odd) for character in text
            ]
            odd = not odd
        lanes.append((row_name(lane), cells))
    of = counted(trace.steps, "step")
    shown = (
        of
        if steps == trace.steps
        else f"the first of {of}"
        if steps == 1
        else f"the first {steps} of {of}"
    )
    told, blank = (
        (shown, "idle")
        if not trace.settings.get("unfinished")
        else ("part of a run", "idle, or not known")
    )
    return (
        lanes,
        f"{trace.clock}: {told}, {duration(trace.units(length), trace.unit)}; · is {blank}",
    )
