"""The panels of all experiments in JupyterLab: whatever is new among their settings and figures is
seen whole."""

import pytest
from playwright.sync_api import expect

from bigtrain_lab.experiments import Experiment
from bigtrain_lab.panel.picture import PLAYED
from bigtrain_lab.view.figures import FIGURES

pytestmark = pytest.mark.slow

CALL = (
    "from ipywidgets import VBox\nfrom bigtrain_lab.experiments import Experiment\nVBox([show(name)"
    " for name in Experiment.all()])"
)
WIDER = """() => [...document.querySelectorAll('.btl-controls > *, .btl-controls .widget-label, .btl-controls .widget-readout, .jupyter-button, .btl-key')]
    .filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"""


def test_no_label_is_cut_and_the_figures_of_each_prediction_are_drawn(lab):
    panels = Experiment.all()
    page = lab.panel("all.ipynb", call=CALL)
    expect(page.locator(".btl-player[data-revision]")).to_have_count(len(panels))
    for button in page.get_by_role("button", name="more settings").all():
        button.click()
    settings = sum(
        len(e.knobs().keys() - e.idle_settings(e().model_dump())) for e in panels.values()
    )  # those without effect are hidden
    expect(page.locator(".btl-controls > :visible")).to_have_count(settings)
    assert page.evaluate(WIDER) == []
    of_predictions = [
        name
        for experiment in panels.values()
        for name in experiment.figures
        if name in FIGURES and name not in PLAYED
    ]
    drawn = len(of_predictions) - sum(
        name in ("exponents", "underflow", "learning") for name in of_predictions
    )  # those look at a run
    expect(page.locator(".js-plotly-plot .gtitle")).to_have_count(drawn)
