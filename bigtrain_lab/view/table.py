"""What a panel and a page say in HTML: the table of the clocks, its sentences, what is wrong."""

from html import escape
from pathlib import Path

from ..core import CLOCKS
from . import report
from .waits import drawing

SHOWN, NAMED = 5, 4  # sentences; settings that have changed
CONTROLS = """<style>
.btl-panel .btl-controls { display: contents; } .btl-panel .btl-idle { display: none; }
body[data-jp-theme-light="false"] .btl-panel select {
  color-scheme: dark; --jp-widgets-dropdown-arrow: url("data:image/svg+xml,\
%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18'%3E%3Cpath fill='%23ccc' \
d='M5.2 5.9 9 9.7l3.8-3.8L14 7.1l-5 5-5-5z'/%3E%3C/svg%3E"); }
.btl-controls .widget-label { text-align: left; min-width: max-content; }
.btl-controls .widget-readout { min-width: 34px; max-width: none; flex: 0 0 auto; width: auto; }
</style>"""
STYLE = (Path(__file__).with_name("panel.css")).read_text(encoding="utf-8")


def heading(question: str) -> str:
    """The question, and the style of the controls and of all that the panel says in HTML."""
    return f'{CONTROLS}<style>{STYLE}</style><div class="btl-question">{escape(question)}</div>'


def html(
    rows: list[report.Row],
    sentences: list[str],
    stale: str = "",
    pinned: str = "",
    changes: list[str] = (),
) -> str:
    """Table and sentences; `stale`, what has changed, greys what the last run gave. `pinned`: the
    clock of the pinned column, if there is one; `changes`: what has changed since."""
    grey = ' class="btl-stale"' if stale else ""
    heads = "".join(f"<th{grey if clock != 'predicted' else ''}>{clock}</th>" for clock in CLOCKS)
    heads += f'<th class="btl-last">{f"{stale} changed" if stale else "difference"}</th>'
    heads += (
        f'<th class="btl-pinned">pinned ({pinned})</th><th class="btl-last">now against it</th>'
        if pinned
        else ""
    )
    body = "".join(
        f"<tr><td>{escape(row.quantity)}</td>"
        + "".join(
            f"<td{grey if clock != 'predicted' else ''}>{cell(getattr(row, clock))}</td>"
            for clock in CLOCKS
        )
        + f'<td class="btl-last">{"" if stale else difference(row)}</td>'
        + (
            f'<td class="btl-pinned">{cell(row.pinned)}</td><td'
            f' class="btl-last">{against(row, pinned, stale)}</td>'
            if pinned
            else ""
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="btl-results"><div><table><thead><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table>{told_changes(changes) if pinned else ''}</div>"
        f"{why(sentences)}</div>"
    )


def against(row: report.Row, clock: str, stale: str) -> str:
    """From what is pinned to what is there now: on the pinned clock, where it has a number that is
    not stale, else predicted."""
    now = None if stale else getattr(row, clock)
    now = now or row.predicted
    if now is None or row.pinned is None or now.unit != row.pinned.unit:
        return ""
    return f'<span class="btl-soft">{escape(report.gap(row.pinned, now))}</span>'


def told_changes(changes: list[str]) -> str:
    """What has changed since the pinned run, in a sentence; the rest under the pointer where it is
    much."""
    if not changes:
        return '<p class="btl-changes">pinned: with the settings of now</p>'
    more = f"; and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
    return (
        f'<p class="btl-changes" title="{escape("; ".join(changes))}">pinned:'
        f" {escape('; '.join(changes[:NAMED]))}{more}</p>"
    )


def why(sentences: list[str]) -> str:
    """What is said of the whole comes first and bold, then the ranks; the first few are shown, the
    rest is folded."""
    told = [
        f"<p>{escape(s)}</p>" if report.of_a_rank(s) else f"<p><b>{escape(s)}</b></p>"
        for s in report.whole_first(sentences)
    ]
    folded = (
        f"<details><summary>{len(told) - SHOWN} more</summary>{''.join(told[SHOWN:])}</details>"
        if len(told) > SHOWN
        else ""
    )
    return f'<div class="btl-why">{"".join(told[:SHOWN])}{folded}</div>' if told else ""


def cell(amount: report.Amount | None) -> str:
    """A value in human units; the pointer finds the exact one."""
    if amount is None:
        return '<span class="btl-none">–</span>'
    exact = f"{amount.value:,} bytes" if amount.unit == "B" else f"{amount.value!r} {amount.unit}"
    return f'<span title="{escape(exact)}">{escape(str(amount))}</span>'


def difference(row: report.Row) -> str:
    """The row's comparisons: green where what must be equal is, red where it is not, else
    softly."""
    colours = {True: "btl-equal", False: "btl-unequal", None: "btl-soft"}
    return " &nbsp;".join(
        f'<span class="{colours[told.holds]}">{escape(told.text)}</span>'
        for told in row.differences
    )


def trouble(problem: str, run=None) -> str:
    """What is wrong, and where it is a `run` that failed who waited for whom."""
    picture = drawing(run.waits) if run is not None else ""
    shown = f'<div class="btl-waits">{picture}</div>' if picture else ""
    return f'<div class="btl-trouble" role="alert">{escape(problem)}</div>{shown}'
