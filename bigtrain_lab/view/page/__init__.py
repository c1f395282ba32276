"""A run as one HTML file that plays in any browser: no kernel, no network, nothing beside it.

The page holds the player as it is (player_*.js, player.js, player.css); page.js stands in for the
kernel's half of it. Clocks whose traces are equal travel once, as gzip in base64: a page of 3 steps
on 4 ranks has 130 kB, 48 of them the player; one of 200 steps 1.4 MB. The page's policy lets the
browser run this script and no other, by its hash, and load nothing at all.
"""

import gzip
import json
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template

from ... import __version__
from ...core import CLOCKS, Trace, counted
from ...experiments import Experiment
from ...experiments.experiment import asked
from .. import report, table
from ..packed import pack
from ..player import Player
from ..spoken import in_html, language, look

HERE = Path(__file__).parent
STILL = "Its ranks were still at work when this page was written."


def page(
    traces: dict[str, Trace],
    experiment: Experiment | None = None,
    run=None,
    clock: str | None = None,
    notes: tuple[str, ...] = (),
) -> str:
    """The page of what was reopened: traces by clock; the experiment, where it is known; the run,
    where there is one; the clock shown first; `notes` on what is missing. Part of a run gets no
    sentences: they would tell of a whole one.
    """
    given = [traces[clock] for clock in CLOCKS if clock in traces]
    first = traces[clock or (run.clock if run and run.clock in traces else given[0].clock)]
    whole = not first.settings.get("unfinished")
    ended = (
        [table.trouble(run.diagnosis or STILL, run, first)] if run and run.state != "done" else []
    )
    style = "".join([asset("page.css"), Player._css, table.STYLE])
    script = f"\n{Player._esm}\n{asset('stand_in.js')}\n{asset('page.js')}"
    name = (
        run.settings["name"]
        if run
        else experiment.name
        if experiment
        else str(first.settings.get("experiment", "a trace"))
    )
    written = Template(asset("page.html")).substitute(
        version=__version__,
        language=language() or "en",
        style=style,
        style_hash=allowed(style),
        script=script,
        script_hash=allowed(script),
        title=escape(f"{name}, {counted(first.ranks, 'rank')}"),
        heading=escape(experiment.question if experiment else name),
        about=escape(
            ". ".join(
                filter(
                    None,
                    [report.about(name, first, run), experiment.describe() if experiment else ""],
                )
            )
        ),
        trouble="\n".join([*ended, *map(table.trouble, notes), ""]),
        tabs="".join(
            '<button type="button" role="tab" aria-controls="btl-play"'
            f' data-clock="{t.clock}">{t.clock}</button>'
            for t in given
        ),
        results=results(given, experiment, whole),
        settings=settings(first, experiment),
        told=(
            "".join(f"<p>{escape(line)}</p>\n" for line in report.cost_of(run))
            if run and whole
            else ""
        ),
        again=(
            "<h2>Again</h2>\n<div"
            f' class="btl-command"><code>{escape(report.command(experiment))}</code></div>\n'
            if experiment
            else ""
        ),
        data=data(given, first.clock, experiment),
    )
    return in_html(
        written.encode(errors="replace").decode()
    )  # a path may hold half characters, which no file of text can


def asset(name: str) -> str:
    """A file of this folder."""
    return (HERE / name).read_text(encoding="utf-8")


def results(given: list[Trace], experiment: Experiment | None, whole: bool) -> str:
    """The table and the sentences."""
    if experiment is None:
        return ""
    by_clock = {trace.clock: trace for trace in given}
    explained = by_clock.get("modelled") or by_clock.get("predicted")
    explains = whole and explained and experiment.is_of(explained.settings)
    rows = report.rows(experiment.quantities, *given, here=report.priced_here(experiment))
    told = experiment.explain(explained) if explains else []
    return f'<div class="btl-results"><div>{table.numbers(rows)}</div>{table.why(told)}</div>'


def settings(trace: Trace, experiment: Experiment | None) -> str:
    """Each setting that has an effect; those that are not at their defaults stand out."""
    values = report.in_effect(experiment) if experiment else asked(trace.settings)
    changed = report.settings(experiment, changed_only=True) if experiment else values
    return "".join(
        f"<div{' class=btl-changed' if name in changed else ''}><dt>{escape(name)}</dt>"
        f"<dd>{escape(report.setting(value))}</dd></div>"
        for name, value in values.items()
    )


def data(given: list[Trace], first: str, experiment: Experiment | None) -> str:
    """What page.js reads, which holds nothing of a run but base64: the bodies of the traces, and
    which clock has which."""
    packed = {
        t.clock: packed_text(pack(t).removeprefix(f'{{"clock":"{t.clock}",'.encode()))
        for t in given
    }
    bodies = [*dict.fromkeys(packed.values())]
    return json.dumps(
        {
            "bodies": bodies,
            "clocks": {clock: bodies.index(body) for clock, body in packed.items()},
            "first": first,
            "limit": experiment.capacity_bytes if experiment else None,
            "look": look(),
        },
        separators=(",", ":"),
    )


def packed_text(body: bytes) -> str:
    """What stand_in.js unpacks."""
    return b64encode(gzip.compress(body, mtime=0)).decode()


def allowed(text: str) -> str:
    """The name by which the page's policy knows a script or a style of it."""
    assert not any(end in text for end in ("</script", "</style", "<!--", "\r")), (
        "this would end its element, or change its hash"
    )
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
