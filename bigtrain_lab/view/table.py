"""What a panel and a page say in HTML: answers, the clocks' table, sentences, what is wrong."""

from html import escape
from pathlib import Path
from typing import NamedTuple

from ..core import CLOCKS, Memory, Peak, Trace, duration, grouped, peak, size
from ..order import launched, sent_bytes
from . import palette, report, words
from .waits import drawing

FULLEST, OF_A_RANK = "peak memory, fullest rank", "peak memory, rank"
PLANNED = (
    "As planned: the ranks did what the plan says, at the hardware profile's prices. It tests the"
    " program, not those prices; only measured is of this machine."
)
MEANT = {"step time": "step time: the mean over the run's steps"}  # under the pointer
MOST = 3  # numbers above the picture
SAME = 1.005  # times closer than this are the same
LOOKS = {  # of the ranks' time: what it is called, and what it is
    "compute": ("compute", "an action runs"),
    "launches": (
        "launches",
        "of the compute: the device has nothing to do until its host has started the next kernel",
    ),
    "waits": (
        "waits",
        "the rank has nothing else to do, while a message or a sum for it is on its way, or was"
        " lost with its sender",
    ),
    "idle": ("idle", "the rank has nothing to do, and nothing for it is on its way yet"),
}
STYLE = (Path(__file__).with_name("panel.css")).read_text(encoding="utf-8")


def heading(question: str) -> str:
    """The question, and the style of all that is said in HTML."""
    return f'<style>{STYLE}</style><div class="btl-question">{escape(question)}</div>'


def answers(
    rows: list[report.Row],
    names: tuple[str, ...],
    clock: str,
    failed: str = "",
    broken: str = "",
    pinned: str = "",
    stale: str = "",
    then: report.Column | None = None,
) -> str:
    """The numbers that a lab is about, on one clock, and what its time goes to. A run that
    `failed`, or is `broken` since it ended in no number, says so in place of the first; `pinned`:
    the clock of what they are compared with, and `then` its numbers in its own slots; `stale`: what
    has changed since the run."""
    told = {row.quantity: row for row in rows}
    later = "a run tells" * any(  # else a lab is still to tell
        row.predicted for row in rows if row.quantity not in report.SHARES
    )
    slots = [
        slot(
            row,
            clock,
            later,
            # two clocks compare where they must be equal
            row.pinned
            if clock == pinned or row.exact and {clock, pinned} <= {"predicted", "modelled"}
            else None,
            (then or {}).get(row.quantity),
        )
        for row in chosen(rows, names)
    ]
    if failed or broken:
        said = f"<b>{'The run failed.' if failed else escape(broken)}</b>"
        slots[:1] = [f'<div class="btl-failed">{said}</div>']
    by_clock = {
        of: {
            name: amount for name in report.SHARES if (amount := getattr(told.get(name), of, None))
        }
        for of in ("predicted", clock)
    }
    shares = by_clock[clock] or by_clock["predicted"]
    if shares:
        slots.insert(1, bar(shares, pale=not by_clock[clock]))
    return f'<div class="btl-answers {"btl-stale" * bool(stale)}">{"".join(slots)}</div>'


def chosen(rows: list[report.Row], names: tuple[str, ...]) -> list[report.Row]:
    """The rows of a lab's answers, or the first few."""
    told = {row.quantity: row for row in rows}
    ranks = [row for row in rows if row.quantity.startswith(OF_A_RANK)]
    if ranks and FULLEST in names:
        most = [[getattr(row, each) for row in ranks] for each in (*CLOCKS, "pinned")]
        fullest = [max(filter(None, of), key=lambda a: a.value, default=None) for of in most]
        told[FULLEST] = report.Row(FULLEST, "B", *fullest[:3], pinned=fullest[3])
    return [told[name] for name in names or list(told) if name in told][:MOST]


def above(experiment) -> list:
    """The quantities of which `chosen` makes the answers above the picture."""
    names = experiment.answers or [each.name for each in experiment.quantities][:MOST]
    return [
        each
        for each in experiment.quantities
        if each.name in names or FULLEST in names and each.name.startswith(OF_A_RANK)
    ]


def slot(
    row: report.Row,
    clock: str,
    later: str,
    pinned: report.Amount | None,
    then: report.Amount | None,
) -> str:
    """A number, and of which clock where that matters, or against what is pinned, which was `then`
    in its own slots. What is not known
    yet is the prediction, pale; what no prediction knows, such as a loss, comes `later`, and is the
    training's own."""
    amount = getattr(row, clock)
    pale, amount = amount is None, amount or row.predicted
    number, _, unit = str(amount).partition(" ") if amount else ("\u2013", "", "")
    of = ("predicted" if pale else clock) if row.predicted else later * (amount is None)
    gap = f"<small>{of}</small>"
    if amount and pinned and amount.unit == pinned.unit and not pale:
        was, own = (str(each).removesuffix(f" {unit}") for each in (pinned, then or pinned))
        gap = (
            f'<em title="against pinned">{escape(report.gap(pinned, amount))}</em>'
            + f"<small>from {escape(was)}{f', {escape(own)} then' * (own != was)}</small>"
            * (str(pinned) != str(amount))
        )
    return (
        f'<div class="{"btl-pale" * pale}"'
        f' title="{escape(MEANT.get(row.quantity, row.quantity))}">'
        f"<p><b>{escape(number)}</b> {escape(unit)} {gap}</p>"
        f"<span>{escape(row.quantity)}</span></div>"
    )


def lengths(compute: float, launches: float, waits: float, idle: float) -> zip:
    """(look, its part of the ranks' time): the launches are a part of the compute."""
    return zip(LOOKS, (compute - launches, launches, waits, idle))


def bar(shares: report.Column, pale: bool) -> str:
    """Compute, the launches in it, waits and idle, without launches together 100; `pale`: of the
    prediction, while a run's own are not known."""
    known = [shares[name].value if name in shares else 0 for name in report.SHARES]
    drawn = "".join(
        f'<i class="btl-{look}" style="flex:{part}"></i>' for look, part in lengths(*known)
    )
    said = "".join(
        f'<span class="btl-of-{look}" title="{meant}"><i class="btl-{look}"></i>{called}'
        f" {shares[name]}</span>"
        for (look, (called, meant)), name in zip(LOOKS.items(), report.SHARES)
        if name in shares
    )
    return f'<div class="btl-shares {"btl-pale" * pale}"><p>{drawn}</p>{said}</div>'


class Rival(NamedTuple):
    """A row of `rivals`; `own`: it is what the settings say; `stale`: its trace is of earlier ones.
    Without a trace, why there is none. `settings`: those that a click takes; `told`: more of it
    that has a column; `broken`: that such a run ended in no number, or what its catch is."""

    name: str
    own: bool = False
    trace: Trace | None = None
    why: str = "predicting ..."
    stale: bool = False
    settings: dict = {}
    pinned: bool = False
    told: report.Column = {}
    broken: str = ""


def rivals(
    given: list[Rival], limit: int | None, by: str = "", title: str = "", take: str = ""
) -> tuple[str, str]:
    """A row each: what a step takes and goes to, or what is told by the name of `take`, what the
    fullest rank holds, where that differs, and sends. Then, in words, which is the fastest of those
    without a catch, and how much faster than the settings; "" where that is not known."""
    traces = [rival.trace for rival in given if rival.trace]
    fullest = [rival.trace and fullest_rank(rival.trace) for rival in given]
    if not all(take in rival.told for rival in given if rival.trace):
        take = ""
    takes = [
        rival.trace and (rival.told[take].value if take in rival.told else rival.trace.step_time)
        for rival in given
    ]
    large = [
        f"over {size(limit)}: " if limit and held and held.bytes > limit else "" for held in fullest
    ]
    counts = [
        spent and rival.settings and not (over or rival.pinned or rival.broken)
        for rival, spent, over in zip(given, takes, large)
    ]
    fits = [spent for spent, counted in zip(takes, counts) if counted]
    own = next((spent for spent, rival in zip(takes, given) if rival.own and spent), 0)
    verdict, works = (
        "",
        " without a catch"
        * any((over or r.broken) and not r.pinned for over, r in zip(large, given)),
    )
    if max([*fits, own]) > SAME * min(fits, default=own):
        first = [r.name for r, of, fit in zip(given, takes, counts) if fit and of == min(fits)]
        best = f"{by} " * first[0].isdigit() + ", ".join(first)
        ahead = f", {own / min(fits):.3g} times as fast as yours" * (own > SAME * min(fits))
        verdict = f"Fastest{works}: {best}{ahead}."
    if stale := sum(rival.stale for rival in given):
        title, verdict = f"Grey: {stale} of {len(given)}, of earlier settings or to come.", ""
    holds = {held.bytes for held in fullest if held}
    most = max(holds, default=0) * (len(holds) > 1 or len(traces) < 2 or any(large))
    several = any(trace.ranks > 1 for trace in traces)
    told = dict.fromkeys(name for rival in given for name in rival.told)
    others = [name for name in told if name not in (*report.SHARES, take)]  # which have columns
    body = "".join(
        rival_row(
            at,
            rival,
            spent,
            held,
            several,
            over,
            (
                min(fits) if counts[at] and not stale else None,
                max(filter(None, takes), default=0) or 1,
                most,
            ),
            others,
            f"fastest{works}",
        )
        for at, (rival, spent, held, over) in enumerate(zip(given, takes, fullest, large))
    )
    kinds = {e.kind for trace in traces[:1] for e in trace.events if isinstance(e, Memory)}.union(
        *(held.held for held in fullest if held)
    )
    key = [
        *['<i class="btl-launches"></i>launches, a part of compute'] * any(map(launched, traces)),
        *(
            f'<i style="background:{colour}"></i>{kind}'
            for kind, colour in palette.MEMORY.items()
            if most and kind in kinds
        ),
    ]
    sorts = '<th tabindex="0" title="sorts the rows" data-by="{}">{}</th>'.format
    heads = (
        f"{sorts('time', take or 'time a step')}<th></th>"
        + f"{sorts('held', 'peak, fullest rank')}<th></th>" * bool(most)
        + sorts("sent", "sent a rank") * several
        + "<th>compute</th><th>waits</th><th>idle</th>" * several
        + "".join(f"<th>{escape(name)}</th>" for name in others)
        + "<th></th>"
    )
    boxes = [*map(escape, words.facts(traces[0]).get("boxes", {}))] if traces else []
    names = f'<span class="btl-parts"><i>{"</i><i>".join(boxes)}</i></span>' * bool(boxes)
    key += [f"{', '.join(boxes)}: in the colour of the first rank there; grey: all"] * bool(boxes)
    # a limit beyond its column is none
    place = f"--rows:{len(given)};--limit:{100 * (limit or 9 * most) / (most or 1):.2f}%"
    return (
        f'<div class="btl-rivals" style="{place}"><div class="btl-shares"><span>'
        f"<b>{escape(title)}</b> Click a row to take it."
        f"</span><span>{'</span><span>'.join(key)}</span></div>"
        f"<table><thead><tr><th>{names}{escape(by)}</th>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
        "</div>"
    ), verdict


def parts(trace: Trace) -> str:
    """Each matrix of a lab's `boxes`, small, cut as its ranks have it, each part in the colour of
    its first rank; what all have is grey."""
    drawn = ""
    for matrix, boxes in words.facts(trace).get("boxes", {}).items():
        owners, cells = grouped((tuple(map(tuple, box)), at) for at, box in enumerate(boxes)), ""
        high, wide = map(max, zip(*(map(max, box) for box in owners)))
        for ((top, bottom), (left, right)), own in owners.items():
            colour = palette.version(own[0]) if len(own) < len(boxes) else palette.IDLE
            cells += (
                f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"'
                f' fill="{colour}"/>'
            )
        drawn += (
            f'<svg viewBox="0 0 {wide} {high}" preserveAspectRatio="none" role="img"'
            f' aria-label="{escape(matrix)}, {len(owners)}"><title>{escape(matrix)}</title>{cells}'
            "</svg>"
        )
    return f'<span class="btl-parts">{drawn}</span>' if drawn else ""


def fullest_rank(trace: Trace) -> Peak | None:
    """The peak of the rank that holds the most."""
    peaks = filter(None, (peak(trace, rank) for rank in range(trace.ranks)))
    return max(peaks, key=lambda held: held.bytes, default=None)


def rival_row(
    at: int,
    rival: Rival,
    spent: float | None,
    held: Peak | None,
    several: bool,
    over: str,
    scale: tuple,
    others: list[str],
    first: str,
) -> str:
    name = escape(rival.name)
    look = (
        "btl-own " * rival.own
        + "btl-stale " * rival.stale
        + "btl-kept " * rival.pinned
        + "btl-over-limit" * bool(over or rival.broken)
    )
    if (trace := rival.trace) is None:
        return f'<tr class="{look}"><td>{name}</td><td colspan="12">{escape(rival.why)}</td></tr>'
    least, longest, most = scale
    shares, total = trace.shares(), held.bytes if held else 0
    sent = sent_bytes(trace)
    time = [
        f'<i class="btl-{what}" style="width:{100 * share * spent / longest:.2f}%"></i>'
        for what, share in lengths(shares.compute, launched(trace), *shares[1:])
    ]
    kinds = [
        f'<i style="width:{100 * held.held[kind] / most:.2f}%;background:{colour}"></i>'
        for kind, colour in palette.MEMORY.items()
        if held and most and kind in held.held
    ]
    name = (
        f"{parts(trace)}{name}"
        + f"<em> \u00b7 {first}</em>" * (spent == least < longest)
        + f"<em>, {escape(rival.broken)}</em>" * bool(rival.broken)
    )
    memory = f'<td>{over}{size(total)}</td><td class="btl-shares"><p>{"".join(kinds)}</p></td>'
    more = f"<td>{size(round(sent))}</td>" + "".join(f"<td>{s:.1%}</td>" for s in shares)
    told = "".join(f"<td>{escape(str(rival.told.get(name, '–')))}</td>" for name in others)
    run = (
        '<td data-do="run" tabindex="0" role="button"'
        ' title="pin what is shown, and run this beside it">run</td>'
    )
    return (
        f'<tr class="{look}" data-row="{at}" tabindex="0"'
        f' data-time="{spent}" data-held="{total}" data-sent="{sent}"><td>{name}</td>'
        f'<td>{escape(duration(spent, trace.unit))}</td><td class="btl-shares"><p>{"".join(time)}'
        f"</p></td>{memory if most else ''}{more if several else ''}{told}{run}</tr>"
    )


def numbers(
    rows: list[report.Row], stale: str = "", pinned: str = "", changes: list[str] = ()
) -> str:
    """The table; `stale`, what has changed, greys what the last run gave. `pinned`: the clock of
    the pinned column, if there is one; `changes`: what has changed since."""
    grey = ' class="btl-stale"' if stale else ""
    heads = (
        "".join(f"<th{grey if clock != 'predicted' else ''}>{clock}</th>" for clock in CLOCKS)
        + f'<th class="btl-last">{f"{stale} changed" if stale else "difference"}</th>'
        + f'<th class="btl-pinned">pinned ({pinned})</th><th class="btl-last">now against it</th>'
        * bool(pinned)
    )
    body = "".join(
        f'<tr><td title="{escape(MEANT.get(row.quantity, row.quantity))}">'
        f"{escape(row.quantity)}</td>"
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
    told = f'<p class="btl-soft">{PLANNED}</p>' * any(row.modelled for row in rows)
    if pinned:
        changed = escape("; ".join(changes) or "with the settings of now")
        told = f'<p class="btl-changes">pinned: {changed}</p>{told}'
    return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{body}</tbody></table>{told}"


def against(row: report.Row, clock: str, stale: str) -> str:
    """From what is pinned to what is there now: on the pinned clock, where it has a number that is
    not stale, else predicted."""
    now = (None if stale else getattr(row, clock)) or row.predicted
    if now is None or row.pinned is None or now.unit != row.pinned.unit:
        return ""
    return f'<span class="btl-soft">{escape(report.gap(row.pinned, now))}</span>'


def why(sentences: list[str], of: str = "", about: str = "") -> str:
    """What is said of the whole comes first, then the ranks, then what it is `about`. `of`: the
    clock that they are of, where another one is shown."""
    told = [
        *[f'<p class="btl-soft">Of what is {escape(of)}:</p>'] * bool(of),
        *(f"<p>{escape(s)}</p>" for s in report.whole_first(sentences)),
        *[f'<p class="btl-soft">{escape(about)}</p>'] * bool(about),
    ]
    return f'<div class="btl-why">{"".join(told)}</div>' if told else ""


def cell(amount: report.Amount | None) -> str:
    """A value in human units; the pointer finds the exact one."""
    if amount is None:
        return '<span class="btl-none">–</span>'
    exact = f"{amount.value:,} bytes" if amount.unit == "B" else f"{amount.value!r} {amount.unit}"
    return f'<span title="{escape(exact)}">{escape(str(amount))}</span>'


def difference(row: report.Row) -> str:
    """The row's comparisons: red where what must be equal is not."""
    return " &nbsp;".join(
        f'<span class="{"btl-unequal" if told.startswith("≠") else "btl-soft"}">'
        f"{escape(told)}</span>"
        for told in row.differences
    )


def trouble(problem: str, run=None, trace: Trace | None = None) -> str:
    """What is wrong, and where it is a `run` that failed who waited for whom; actions are called as
    the boxes of this `trace` of it."""
    shown = ""
    if run is not None:
        problem = words.in_labels(problem, trace)
        waits = [state._replace(what=words.in_labels(state.what, trace)) for state in run.waits]
        shown = f'<div class="btl-blocked">{drawing(waits)}</div>' * any(w.on for w in waits)
    return f'<div class="btl-trouble" role="alert">{escape(problem)}</div>{shown}'
