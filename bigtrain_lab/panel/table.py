"""The table predicted | modelled | measured | difference, and the sentences beside it, as one piece of HTML."""

from html import escape

from .. import report
from ..core import CLOCKS, Trace

SHOWN = 5  # sentences
STYLE = """<style>
.btl-question { font-size: 16px; font-weight: 600; line-height: 1.3; margin: 2px 0 4px; color: var(--jp-ui-font-color0, #111); }
.btl-controls .widget-label { text-align: left; } .btl-controls .widget-readout { min-width: 34px; }
.btl-results { display: flex; flex-wrap: wrap; gap: 6px 28px; align-items: flex-start; font-size: 12px; line-height: 1.45;
  color: var(--jp-ui-font-color0, #111); }
.btl-results table { border-collapse: collapse; font-variant-numeric: tabular-nums; flex: 0 0 auto; }
.btl-results th, .btl-results td { padding: 1px 14px 1px 0; text-align: right; white-space: nowrap; border: 0; }
.btl-results th:first-child, .btl-results td:first-child, .btl-results td:last-child, .btl-results th:last-child { text-align: left; }
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
.btl-describe { font-size: 12px; line-height: 1.4; color: var(--jp-ui-font-color2, #666); margin: 8px 0 0 10px; }
.btl-command code { display: block; background: var(--jp-layout-color2, #f4f4f4); padding: 5px 9px; font-size: 12px; user-select: all;
  overflow-wrap: anywhere; color: var(--jp-ui-font-color0, #111); }
</style>"""


def results(quantities, traces: dict[str, Trace], sentences: list[str], stale: bool) -> str:
    """Table and sentences as HTML; `stale` greys what the last run gave."""
    grey = ' class="btl-stale"' if stale else ""
    heads = "".join(f"<th{grey if clock != 'predicted' else ''}>{clock}</th>" for clock in CLOCKS)
    body = "".join(
        f"<tr><td>{escape(row.quantity)}</td>" + "".join(
            f"<td{grey if clock != 'predicted' else ''}>{cell(getattr(row, clock))}</td>" for clock in CLOCKS)
        + f"<td>{'' if stale else difference(row)}</td></tr>"
        for row in report.rows(quantities, *traces.values()))
    return (f'<div class="btl-results"><table><thead><tr><th></th>{heads}<th>{"settings changed" if stale else "difference"}</th></tr></thead>'
            f"<tbody>{body}</tbody></table>{why(sentences)}</div>")


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
