"""The table predicted | modelled | measured | difference, and the sentences beside it, as one piece of HTML."""

from html import escape

from .. import report
from ..core import CLOCKS, Trace

SHOWN, NAMED = 5, 4  # sentences; settings that have changed
CONTROLS = """<style>
.btl-panel .btl-controls { display: contents; } .btl-panel .btl-idle { display: none; }
body[data-jp-theme-light="false"] .btl-panel select { color-scheme: dark; --jp-widgets-dropdown-arrow: url("data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'\
  viewBox='0 0 18 18'%3E%3Cpath fill='%23ccc' d='M5.2 5.9 9 9.7l3.8-3.8L14 7.1l-5 5-5-5z'/%3E%3C/svg%3E"); }
.btl-controls .widget-label { text-align: left; min-width: max-content; } .btl-controls .widget-readout { min-width: 34px; max-width: none; flex: 0 0 auto; width: auto; }
</style>"""
STYLE = """<style>
.btl-question { font-size: 16px; font-weight: 600; line-height: 1.3; margin: 2px 0 4px; color: var(--jp-ui-font-color0, #111); }
.btl-results { display: flex; flex-wrap: wrap; gap: 6px 28px; align-items: flex-start; font-size: 12px; line-height: 1.45;
  color: var(--jp-ui-font-color0, #111); }
.btl-results table { border-collapse: collapse; font-variant-numeric: tabular-nums; flex: 0 0 auto; }
.btl-results th, .btl-results td { padding: 1px 14px 1px 0; text-align: right; white-space: nowrap; border: 0; }
.btl-results th:first-child, .btl-results td:first-child, .btl-results .btl-last { text-align: left; }
.btl-results .btl-pinned { border-left: 1px solid var(--jp-border-color1, #bbb); padding-left: 14px; }
.btl-changes { margin: 4px 0 0; max-width: 640px; overflow-wrap: anywhere; color: var(--jp-ui-font-color1, #333); }
.btl-results thead th { border-bottom: 1px solid var(--jp-border-color1, #bbb); font-weight: 600; }
.btl-results .btl-none { color: var(--jp-ui-font-color3, #999); }
.btl-results .btl-stale { opacity: .45; }
.btl-results .btl-equal { color: #0B7A4B; font-weight: 600; } .btl-results .btl-unequal { color: #C2410C; font-weight: 600; }
body[data-jp-theme-light="false"] .btl-equal { color: #4ADE9A; } body[data-jp-theme-light="false"] .btl-unequal { color: #FB9A5A; }
.btl-results .btl-soft { color: var(--jp-ui-font-color2, #666); }
.btl-why { flex: 1 1 300px; min-width: 260px; } .btl-why details { max-height: 200px; overflow: auto; } .btl-why p { margin: 0 0 4px; }
.btl-why summary { cursor: pointer; color: var(--jp-ui-font-color2, #666); }
.btl-status { font-size: 12px; line-height: 1.3; color: var(--jp-ui-font-color1, #333); overflow: hidden; }
.btl-status progress { width: 90px; vertical-align: middle; margin-right: 8px; accent-color: var(--jp-brand-color1, #1976d2); }
.btl-trouble { border-left: 4px solid #C2410C; background: var(--jp-layout-color2, #f4f4f4); padding: 8px 12px; font-size: 13px;
  line-height: 1.45; color: var(--jp-ui-font-color0, #111); white-space: pre-wrap; overflow-wrap: anywhere; max-height: 320px; overflow: auto; }
.btl-waits { margin: 10px 4px 2px; color: var(--jp-ui-font-color0, #111); } .btl-waits svg { max-width: 100%; height: auto; display: block; }
.btl-describe { font-size: 12px; line-height: 1.4; color: var(--jp-ui-font-color2, #666); margin: 8px 0 0 10px; }
.btl-about .widget-html-content, .btl-about > div { min-width: 0; flex: 1 1 0; } .btl-about .btl-describe { margin: 2px 0 0 10px; max-height: 2.8em;
  overflow: hidden; overflow-wrap: anywhere; display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; }
.btl-command { line-height: 1.3; } .btl-command span { font-size: 11px; color: var(--jp-ui-font-color2, #666); }
.btl-soft { font-size: 12px; color: var(--jp-ui-font-color2, #666); }
.btl-history select { font-family: var(--jp-code-font-family, monospace); font-size: 12px; }
.btl-waiting { opacity: .45; }
.btl-command code { display: block; background: var(--jp-layout-color2, #f4f4f4); padding: 5px 9px; font-size: 12px; user-select: all;
  overflow-wrap: anywhere; color: var(--jp-ui-font-color0, #111); }
</style>"""


def heading(question: str) -> str:
    """The question, and the style of the controls and of all that the panel says in HTML."""
    return f'{CONTROLS}{STYLE}<div class="btl-question">{escape(question)}</div>'


def results(quantities, traces: dict[str, Trace], sentences: list[str], stale: str, here: bool = True) -> str:
    """Table and sentences of some traces as HTML; `stale`, what has changed, greys what the last run gave; `here` as of `report.rows`."""
    return html(report.rows(quantities, *traces.values(), here=here), sentences, stale)


def html(rows: list[report.Row], sentences: list[str], stale: str = "", pinned: str = "", changes: list[str] = ()) -> str:
    """The same of rows. `pinned` is the clock of the pinned column, if there is one; `changes` say what has changed since."""
    grey = ' class="btl-stale"' if stale else ""
    heads = "".join(f"<th{grey if clock != 'predicted' else ''}>{clock}</th>" for clock in CLOCKS)
    heads += f'<th class="btl-last">{f"{stale} changed" if stale else "difference"}</th>'
    heads += f'<th class="btl-pinned">pinned ({pinned})</th><th class="btl-last">now against it</th>' if pinned else ""
    body = "".join(
        f"<tr><td>{escape(row.quantity)}</td>" + "".join(
            f"<td{grey if clock != 'predicted' else ''}>{cell(getattr(row, clock))}</td>" for clock in CLOCKS)
        + f'<td class="btl-last">{"" if stale else difference(row)}</td>'
        + (f'<td class="btl-pinned">{cell(row.pinned)}</td><td class="btl-last">{against(row, pinned, stale)}</td>' if pinned else "") + "</tr>"
        for row in rows)
    return (f'<div class="btl-results"><div><table><thead><tr><th></th>{heads}</tr></thead>'
            f"<tbody>{body}</tbody></table>{told_changes(changes) if pinned else ''}</div>{why(sentences)}</div>")


def against(row: report.Row, clock: str, stale: str) -> str:
    """From what is pinned to what is there now: on the pinned clock, where it has a number that is not stale, else predicted."""
    now = None if stale else getattr(row, clock)
    now = now or row.predicted
    if now is None or row.pinned is None or now.unit != row.pinned.unit:
        return ""
    return f'<span class="btl-soft">{escape(report.gap(row.pinned, now))}</span>'


def told_changes(changes: list[str]) -> str:
    """What has changed since the pinned run, in a sentence; the rest under the pointer where it is much."""
    if not changes:
        return '<p class="btl-changes">pinned: with the settings of now</p>'
    more = f"; and {len(changes) - NAMED} more" if len(changes) > NAMED else ""
    return f'<p class="btl-changes" title="{escape("; ".join(changes))}">pinned: {escape("; ".join(changes[:NAMED]))}{more}</p>'


def why(sentences: list[str]) -> str:
    """What is said of the whole comes first and bold, then the ranks; the first few are shown, the rest is folded."""
    told = [f"<p>{escape(s)}</p>" if report.of_a_rank(s) else f"<p><b>{escape(s)}</b></p>" for s in report.whole_first(sentences)]
    folded = f"<details><summary>{len(told) - SHOWN} more</summary>{''.join(told[SHOWN:])}</details>" if len(told) > SHOWN else ""
    return f'<div class="btl-why">{"".join(told[:SHOWN])}{folded}</div>' if told else ""


def cell(amount: report.Amount | None) -> str:
    """A value in human units; the pointer finds the exact one."""
    if amount is None:
        return '<span class="btl-none">–</span>'
    exact = f"{amount.value:,} bytes" if amount.unit == "B" else f"{amount.value!r} {amount.unit}"
    return f'<span title="{escape(exact)}">{escape(str(amount))}</span>'


def difference(row: report.Row) -> str:
    """The row's comparisons: green where what must be equal is, red where it is not, else softly."""
    colours = {True: "btl-equal", False: "btl-unequal", None: "btl-soft"}
    return " &nbsp;".join(f'<span class="{colours[told.holds]}">{escape(told.text)}</span>' for told in row.differences)
