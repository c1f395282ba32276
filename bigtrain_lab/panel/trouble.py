"""What a panel shows where something is wrong: the sentence, and for a run that failed who waited for whom."""

from html import escape

from ..figures.waits import drawing


def trouble(problem: str, run=None) -> str:
    """`run`: the run that failed, where it is a run that the problem is about."""
    picture = drawing(run.waits) if run is not None else ""
    shown = f'<div class="btl-waits">{picture}</div>' if picture else ""
    return f'<div class="btl-trouble" role="alert">{escape(problem)}</div>{shown}'
