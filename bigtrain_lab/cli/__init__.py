"""The command line: lab, list, run, predict, show, compare, export, doctor, plan, site and course,
a skin over Experiment, Run and Trace.

Nothing heavy is imported before a command needs it: `bigtrain --help` is instant. Exit codes: 0
done, 1 a run or a check failed, 2 the request cannot be met (one sentence on stderr), 130
interrupted.
"""

import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from .. import __version__
from ..core import CLOCKS, Impossible, refuse
from ..core.files import printable

app = App(
    name="bigtrain",
    version=__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
    help="How large models are trained: predicted at once, and run on real processes.",
)
app.command("bigtrain_lab.cli.course:app", name="course", help="Assignments for a class.")
app.command("bigtrain_lab.cli.lab:lab", name="lab", help="Open the lessons in JupyterLab.")
app.command(
    "bigtrain_lab.cli.plan:plan", name="plan", help="Find the fastest plan that fits your devices."
)
app.command("bigtrain_lab.cli.site:site", name="site", help="Write the labs as static pages.")
Words = Annotated[
    str, Parameter(show=False, allow_leading_hyphen=True)
]  # passed on to the experiments' own commands
Place = Annotated[Path, Parameter(help="a run directory, or a file that predict --save wrote")]
Asked = Annotated[
    Path | None, Parameter(help="a run directory, or a file that predict --save wrote")
]


def main(arguments=None) -> int:
    """Run one command (by default the process's own words) and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # no terminal, however poor, stops what is told
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: print(
                f"bigtrain: {message}", file=sys.stderr
            )
            return app(arguments, exit_on_error=False, print_error=False) or 0
    except (Impossible, CycloptsError) as error:
        print(f"bigtrain: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bigtrain: interrupted.", file=sys.stderr)
        return 130


@app.command(help_flags=[], version_flags=[])
def run(*words: Words) -> int:
    """Run an experiment on real ranks and compare it with its prediction."""
    from ..runtime.process import border

    if not border.speaks():
        warnings.simplefilter("ignore")  # main puts it back
    from . import labs

    return labs.menu("run", labs.run, lambda cls, settings: cls(**settings), words)(
        words, exit_on_error=False, print_error=False
    )


@app.command(help_flags=[], version_flags=[])
def predict(*words: Words) -> int:
    """Predict an experiment: no processes, instant."""
    from ..experiments.known import known
    from . import labs

    return labs.menu("predict", labs.predict, known, words)(
        words, exit_on_error=False, print_error=False
    )


@app.command(name="list")
def list_all() -> int:
    """Say which experiments, schedules, collectives, recompute plans, optimizers, exercises, levels
    of precision and hardware profiles there are."""
    from ..core.hardware import PROFILES
    from ..experiments import Experiment
    from ..grading.catalogue import titles
    from ..order import Collective, Schedule
    from ..order.recompute.plan import Recompute
    from ..runtime import this_machine
    from ..techniques.precision_levels import LEVELS
    from ..train.optimizer import Optimizer
    from ..view.report import hardware_line
    from .screen import columns, screen

    profiles = [*PROFILES.values(), *filter(None, [this_machine(measure=False)])]
    families = {
        "Schedules": Schedule,
        "Collectives": Collective,
        "Recompute plans": Recompute,
        "Optimizers": Optimizer,
    }
    tables = {
        "Experiments": [(name, purpose(cls)) for name, cls in Experiment.all().items()],
        **{
            title: [(name, first_line(cls)) for name, cls in family.all().items()]
            for title, family in families.items()
        },
        "Exercises": [*titles().items()],
        "Precision": [(name, safeguards(level)) for name, level in LEVELS.items()],
        "Hardware": [(p.name, hardware_line(p)) for p in profiles],
    }
    screen().print(*(columns(title, lines) for title, lines in tables.items()))
    return 0


def purpose(experiment_class: type) -> str:
    """An experiment's question, and the names of its settings."""
    return (
        f"{experiment_class.question}\nsettings:"
        f" {', '.join(name.replace('_', '-') for name in experiment_class.model_fields)}"
    )


def first_line(cls: type) -> str:
    """The idea of a member: the first line of its file, or of the class where it was typed in."""
    return (
        ((cls if cls.__module__ == "__main__" else sys.modules[cls.__module__]).__doc__ or "")
        .strip()
        .partition("\n")[0]
    )


def safeguards(level) -> str:
    """What a level of precision computes in, and which safeguards it has."""
    has = [
        name
        for name, there in (
            ("a policy of operators", level.policy),
            ("float32 masters", level.masters),
            ("loss scaling", level.scaling),
        )
        if there
    ]
    return f"computes in {level.format}{': ' if has else ''}{', '.join(has)}"


@app.command
def show(path: Asked = None) -> int:
    """Reopen a run or a saved trace: settings, state, table, timeline."""
    from ..view import report
    from .reopen import reopen
    from .screen import results, screen, timeline

    opened = reopen(path)
    _, run, experiment, traces, *_ = opened
    drawn = traces[run.clock] if run else next(iter(traces.values()))
    console, whole = screen(), not (run and drawn.settings.get("unfinished"))
    console.print(opened.about, style="bold", soft_wrap=True)
    if experiment:
        console.print(
            ", ".join(
                f"{name} {value}"
                for name, value in report.in_effect(experiment).items()
                if value != ""
            )
        )
        console.print(f"Again: {report.command(experiment)}", soft_wrap=True)
    if run and run.state != "done":
        console.print(run.diagnosis or "Its ranks are still at work.")
    if whole and experiment:
        console.print(results(experiment, traces.values()))
    console.print(timeline(drawn, console.width))
    if run and whole:
        console.print(*report.cost_of(run), sep="\n")
    return 0


@app.command
def compare(
    *paths: Place,
    clock: Annotated[
        Literal[CLOCKS] | None,
        Parameter(help="which times; modelled ones where all have them, else predicted ones"),
    ] = None,
) -> int:
    """Put runs or saved traces side by side: settings, quantities, the first event that differs,
    the weights."""
    from ..checks.differences import first_difference
    from . import reopen
    from .screen import amounts_apart, screen, settings_apart

    found = reopen.sides(paths)
    traces = reopen.on_one_clock(found, clock)
    console, letters = screen(), ascii_uppercase[: len(found)]
    for letter, side in zip(letters, found, strict=True):
        console.print(f"{letter}  {side.about}", style="bold", soft_wrap=True)
    settings, lines = reopen.settings_that_differ(found), reopen.lines(found, traces)
    orders = ", the orders are not" if reopen.orders_differ(found) else ""
    console.print(
        settings_apart(letters, settings) if settings else f"The settings are the same{orders}."
    )
    if lines:
        console.print(amounts_apart(letters, traces[0].clock, lines))
    for letter, side, trace in list(zip(letters, found, traces, strict=True))[1:]:
        pair, difference = f"A and {letter}", first_difference(traces[0], trace)
        console.print(
            f"{pair}, {trace.clock}:"
            f" {f'first difference: {difference}' if difference else 'the same, event for event'}.",
            soft_wrap=True,
        )
        if returned := reopen.results_differ({"A": found[0], letter: side}):
            console.print(f"{pair}, what the ranks returned: {returned}", soft_wrap=True)
    return 0


@app.command
def export(
    path: Asked = None,
    *,
    html: Annotated[
        Path | None,
        Parameter(help="the page to write: it plays in any browser, without kernel or network"),
    ] = None,
    chrome: Annotated[
        Path | None,
        Parameter(help="the JSON file to write for Perfetto (ui.perfetto.dev) and Chrome"),
    ] = None,
    clock: Annotated[
        Literal[CLOCKS] | None,
        Parameter(
            help=(
                "which times, or which the page shows first; a run's modelled ones unless you say"
                " otherwise"
            )
        ),
    ] = None,
) -> int:
    """Write a run or a saved trace as one HTML page that plays it, or in the format that Perfetto
    and Chrome open."""
    from ..core import size, write_whole
    from .reopen import reopen
    from .screen import screen

    refuse(
        (
            html is None and chrome is None,
            "Nothing was asked for: name a file to write, by --html or --chrome.",
        )
    )
    _, run, experiment, traces, notes, _ = reopen(path)
    clock = clock or (run.clock if run else next(iter(traces)))
    refuse((clock not in traces, f"{path} has no {clock} times: choose {' or '.join(traces)}."))
    console = screen()
    for note in notes:
        console.print(note, soft_wrap=True)
    if html is not None:
        from ..view.page import page

        written = write_whole(html, page(traces, experiment, run, clock, notes))
        console.print(
            f"The page is in {html} ({size(written.stat().st_size)}): any browser plays it.",
            soft_wrap=True,
        )
    if chrome is not None:
        traces[clock].to_chrome(chrome)
        console.print(
            f"The {clock} trace is in {chrome}: open it at ui.perfetto.dev or chrome://tracing.",
            soft_wrap=True,
        )
    return 0


@app.command
def doctor(
    *,
    ranks: Annotated[int, Parameter(help="how many ranks you mean to run")] = 4,
    peer: Annotated[
        str | None, Parameter(help="host:port of another machine: check the way to it instead")
    ] = None,
    constants: Annotated[
        bool,
        Parameter(
            negative="", help="list every number that prices a plan, with its source, instead"
        ),
    ] = False,
) -> int:
    """Check what the labs need: one line each, with the mend."""
    from ..doctor import findings, peer_findings
    from ..runtime.torchrun.peers import Peer
    from .screen import census, screen, tell_findings

    if constants:
        screen().print(*census(), sep="\n")
        return 0
    refuse((ranks < 1, f"ranks is {ranks}: ask for at least 1."))
    return tell_findings(findings(ranks) if peer is None else peer_findings(Peer.of(peer)))
