"""The panels of all experiments in JupyterLab: whatever is new among their settings and figures is
seen whole."""

import pytest
from playwright.sync_api import expect

from bigtrain_lab.experiments import Experiment
from bigtrain_lab.panel.picture import FEW, PLAYED, RIVALS
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
    page = lab.panel("lab.ipynb", call=CALL)
    played = [
        name
        for name, e in panels.items()
        if e.figures[0] in PLAYED or e.figures[0] == RIVALS and len(e().rivals()) <= FEW
    ]
    expect(page.locator(".btl-player[data-time]")).to_have_count(len(played))
    for button in page.get_by_role("button", name="more settings").all():
        button.click()
    settings = sum(
        len(e.knobs().keys() - e.idle_settings(e().model_dump())) for e in panels.values()
    )  # those without effect are hidden
    expect(page.locator(".btl-controls > :visible:not(button)")).to_have_count(settings)
    assert page.evaluate(WIDER) == []
    for at, experiment in enumerate(panels.values()):
        panel = page.locator(".btl-panel").nth(at)
        height = panel.bounding_box()["height"]
        for name in experiment.figures:
            if name in FIGURES and name not in PLAYED:
                panel.get_by_role("button", name=name, exact=True).click()
                of_a_run = name in ("exponents", "underflow", "learning")
                expect(panel.locator(".js-plotly-plot .gtitle")).to_have_count(1 - of_a_run)
        for tab in ("Numbers", "History", "Copy command", "Why?"):
            panel.get_by_role("button", name=tab, exact=True).click()
        assert panel.bounding_box()["height"] == height
