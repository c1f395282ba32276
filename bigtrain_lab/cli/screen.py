"""What the command line shows, by rich: tables, the text timeline, a run's progress bar and its
last words."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.console import Console, Group
from rich.table import Column, Table
from rich.text import Text

from ..core import CLOCKS, Span, Trace
from ..view import palette, report

MENTION_S = 120.0  # between two sentences on what takes long
LEVELS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def screen(**options) -> Console:
    """The terminal as it is now; numbers and brackets stay as they are written."""
    return Console(highlight=False, markup=False, emoji=False, **options)


def title(experiment) -> Text:
    """The question, and what the settings amount to."""
    amounts_to = experiment.describe()
    return Text(f"{experiment.name}: {experiment.question}", style="bold") + Text(
        f"\n{amounts_to}" if amounts_to else ""
    )


def table(heads: Iterable, rows: Iterable[Iterable], **about) -> Table:
    """Rows under their heads, without lines."""
    made = Table(*heads, box=None, padding=(0, 2, 0, 0), header_style="bold", **about)
    for row in rows:
        made.add_row(*row)
    return made


def columns(heading: str, lines: list[tuple[str, str]]) -> Table:
    return table(
        (),
        [(Text(name, style="cyan", no_wrap=True), Text(text)) for name, text in lines],
        show_header=False,
        title=heading,
        title_justify="left",
        title_style="bold",
    )


def census() -> list[Table | str]:
    """Every constant that prices a plan, by whose it is, and how many there are of each tag."""
    from ..doctor import constants, worth

    rows = constants()
    tables = [
        columns(
            of,
            [
                (row.name, f"{worth(row.name, row.value)} ({row.tag}: {row.source})".strip())
                for row in own
            ],
        )
        for of, own in groupby(rows, lambda row: row.of)
    ]
    return [
        *tables,
        f"{len(rows)} constants: "
        + ", ".join(f"{count} {tag}" for tag, count in Counter(row.tag for row in rows).items()),
    ]


def told(value) -> str:
    return "–" if value is None else str(value)


def results(experiment, traces) -> Table:
    """The table predicted | modelled | measured | difference, with the clocks that there are."""
    given = {trace.clock: trace for trace in traces}
    shown = [clock for clock in CLOCKS if clock in given] + (
        ["difference"] if len(given) > 1 else []
    )
    rows = report.rows(experiment.quantities, *given.values(), here=report.priced_here(experiment))

    def head(name: str) -> Column:
        if name == "difference":  # it gives way, over two lines, where the screen is narrow
            return Column(name)
        return Column(
            name,
            justify="right",
            no_wrap=True,
            min_width=max(len(told(getattr(row, name))) for row in rows),
        )

    return table(
        [Column("quantity", no_wrap=True), *map(head, shown)],
        [(row.quantity, *(told(getattr(row, name)) for name in shown)) for row in rows],
    )


def timeline(trace: Trace, width: int) -> Group:
    """One row a rank, one coloured box an action."""
    names = max((len(name) for name, _ in report.strip(trace, 1)[0]), default=0) + 1
    lanes, caption = report.strip(trace, max(1, width - names))
    lines = [Text(caption, style="italic")]
    for name, cells in lanes:
        line = Text(f"{name:<{names}}", no_wrap=True)
        for (kind, odd), box in groupby(cells, key=lambda cell: cell[1:]):
            paint = palette.phase(kind)
            style = (
                f"{'bold ' if odd else ''}{palette.ink(paint)} on {paint}" if kind else palette.IDLE
            )
            line.append("".join(cell.text for cell in box), style)
        lines.append(line)
    return Group(*lines)


def said(experiment, traces) -> str:
    """Why the trace looks so: of the modelled clock where there is one, else of the predicted
    one."""
    given = {trace.clock: trace for trace in traces}
    return "\n".join(
        report.whole_first(experiment.explain(given.get("modelled", given["predicted"])))
    )


def settings_apart(letters, rows) -> Table:
    """The settings that differ between runs, a column each."""
    return table(
        [Column(name, overflow="fold") for name in ("setting", *letters)],
        [
            (name, *("–" if value is None else report.setting(value) for value in values))
            for name, values in rows
        ],
    )


def amounts_apart(letters, clock: str, lines) -> Table:
    """Each quantity on one clock in several runs, and how the others differ from the first."""
    return table(
        [
            Column(clock, no_wrap=True),
            *(Column(letter, justify="right", no_wrap=True) for letter in letters),
            *(f"{letter} against {letters[0]}" for letter in letters[1:]),
        ],
        [(name, *map(told, amounts), *differences) for name, amounts, differences in lines],
    )


def follow(run, predicted: Trace, errors: Console) -> None:
    """A progress bar of each rank until the run has ended: its spans so far, of those that the
    prediction has."""
    from rich import progress

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
    threading.Thread(target=mention, args=(run, errors), daemon=True).start()
    with bar:
        tasks = [
            bar.add_task(f"rank {rank}", total=len(predicted.spans(rank)))
            for rank in range(run.ranks)
        ]
        for event in run.events():
            bar.advance(tasks[event.rank], isinstance(event, Span))


def mention(run, errors: Console) -> None:
    """Say now and then what ranks compute that have logged nothing for long."""
    said = time.monotonic()
    while run.state == "running":
        if time.monotonic() - said >= MENTION_S and run.now:
            errors.print(run.now, soft_wrap=True)
            said = time.monotonic()
        time.sleep(0.1)


def tell_findings(found: Iterator) -> int:
    """Print each finding of a doctor as it comes; returns the exit code."""
    console, errors, failed = screen(), screen(stderr=True), False
    while True:
        with errors.status(
            "checking"
        ):  # gone before a line is printed: it must not send that line to stderr
            finding = next(found, None)
        if finding is None:
            return int(failed)
        mend = f". Mend: {finding.mend}" if finding.mend else ""
        line = Text.assemble(
            (f"{finding.level:<5}", LEVELS[finding.level]),
            f"{finding.name:<8} {finding.says}{mend}",
        )
        console.print(line, soft_wrap=True)
        failed |= finding.level == "fail"
