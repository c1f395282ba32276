"""`run` and `predict`: one command an experiment, whose options are made from its knobs when they
are asked for."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import Parameter as Option, Signature, getdoc, signature
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from ..view import report
from .screen import follow, results, said, screen, timeline, title

KNOBS, MORE, OWN = (
    Group(name, sort_key=i) for i, name in enumerate(("Settings", "More settings", "Options"))
)


def menu(verb: str, act: Callable, make: Callable, words: Sequence[str]) -> App:
    """A command for the experiment that the words begin with, else for each, with its knobs and the
    keyword options of `act(experiment, *, ...)`, on what `make(cls, settings)` returns."""
    from ..experiments import Experiment

    commands = App(
        name=f"bigtrain {verb}",
        help=getdoc(act),
        version_flags=[],
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    labs = Experiment.all()
    for name in [name for name in labs if name in words[:1]] or labs:
        commands.command(command(labs[name], act, make), name=name)
    return commands


def command(cls: type, act: Callable, make: Callable) -> Callable:
    """`act` on an experiment of this class, with a signature that cyclopts makes options from."""
    from ..runtime.process import border

    own = {
        name: p for name, p in signature(act).parameters.items() if p.kind is Option.KEYWORD_ONLY
    }

    def act_on(**given) -> int:
        options = {name: given.pop(name) for name in own if name in given}
        settings = {option.name: option.default for option in knobs} | given
        errors = screen(stderr=True, quiet=not border.speaks())
        with errors.status("predicting"):
            experiment = make(cls, settings)
        if idle := cls.idle_settings(settings) & set(given):
            names = ", ".join(sorted(name.replace("_", "-") for name in idle))
            errors.print(f"Not used with these settings: {names}.")
        return act(experiment, **options)

    act_on.__doc__ = cls.question
    knobs = [
        Option(
            name,
            Option.KEYWORD_ONLY,
            default=field.get_default(call_default_factory=True),
            annotation=annotation(field),
        )
        for name, field in cls.model_fields.items()
    ]
    act_on.__signature__ = Signature([*knobs, *own.values()])
    return act_on


def annotation(field):
    """A field's option: its help says range and unit. Numbers are checked by the experiment, whose
    sentence says the range."""
    knob, kind = field.json_schema_extra["knob"], field.annotation
    limits = (
        f"{knob.low:,.13g} to {knob.high:,.13g}"
        if knob.low is not None and knob.high is not None
        else ""
    )
    about = f"{limits} {knob.unit}".strip()
    numeric = {int: "INT", float: "FLOAT"}.get(kind)
    return Annotated[
        int | float | str if numeric else kind,
        Parameter(
            help=f"{knob.help} ({about})" if about else knob.help,
            choices=[str(choice) for choice in knob.menu() or ()] or None,
            metavar=numeric,
            converter=as_written if numeric else None,
            group=MORE if knob.more else KNOBS,
        ),
    ]


def as_written(_, tokens) -> int | float | str:
    """A number as it was typed (cyclopts would round 1.5 to an int), or the text that is none."""
    for kind in (int, float):
        try:
            return kind(tokens[0].value)
        except ValueError:
            continue
    return tokens[0].value


def run(
    experiment,
    *,
    directory: Annotated[
        Path | None,
        Parameter(
            group=OWN, help="where the run is kept, new or empty; else a new folder under runs/"
        ),
    ] = None,
    stall_s: Annotated[
        float,
        Parameter(
            group=OWN,
            help="seconds without any progress after which the ranks are ended as hanging",
        ),
    ] = 30.0,
    clock: Annotated[
        bool,
        Parameter(
            group=OWN, help="carry the modelled clock; without it only wall times are recorded"
        ),
    ] = True,
    device: Annotated[
        Literal["cpu", "auto", "cuda"],
        Parameter(
            group=OWN,
            help="where ranks compute; auto takes GPUs where they are (not tested on any)",
        ),
    ] = "cpu",
) -> int:
    """Run an experiment on real ranks and compare it with its prediction."""
    from ..runtime import RankFailed, warm
    from ..runtime.process.border import place_given

    place = place_given()  # under torchrun one rank speaks for all
    quiet = bool(place and place.index)
    console, errors = screen(quiet=quiet), screen(stderr=True, quiet=quiet)
    console.print(title(experiment))
    with errors.status("predicting"):
        if not place:
            warm()  # the ranks' server loads meanwhile
        predicted = None if quiet else experiment.predict()
    try:
        with errors.status("starting the ranks"):
            started = experiment.run(
                directory=directory, stall_s=stall_s, clock=clock, device=device
            )
    except RankFailed as failure:  # under torchrun: one rank tells all, the others a sentence
        screen(stderr=True).print(f"The run failed.\n{failure}", soft_wrap=True)
        return 1
    if quiet:
        return 0
    try:
        follow(started, predicted, errors)
    except KeyboardInterrupt:
        started.stop()
    if started.state == "stopped":
        errors.print(
            f"Stopped: the ranks have ended. What they wrote is kept in {started.directory}."
        )
        return 130
    if started.state == "failed":
        errors.print(
            f"The run failed.\n{started.diagnosis}\nWhat the ranks wrote is kept in"
            f" {started.directory}."
        )
        return 1
    traces = [predicted, *started.traces().values()]
    console.print(
        results(experiment, traces),
        said(experiment, traces),
        *report.cost_of(started),
        sep="\n",
    )
    console.print(
        f"The run is kept in {started.directory}: see it again with bigtrain show.", soft_wrap=True
    )
    return 0


def predict(
    experiment,
    *,
    save: Annotated[
        Path | None, Parameter(group=OWN, help="also write the predicted trace to this file")
    ] = None,
) -> int:
    """Predict an experiment: no processes, instant."""
    console, trace = screen(), experiment.trace
    console.print(
        title(experiment),
        results(experiment, [trace]),
        timeline(trace, console.width),
        said(experiment, [trace]),
        sep="\n",
    )
    if save:
        replace(trace, settings={"experiment": experiment.name, **trace.settings}).save(save)
        console.print(f"The predicted trace is in {save}.", soft_wrap=True)
    return 0
