"""The player in JupyterLab, where keys are commands too, and themes change. What it does by itself
is proved on a run's page."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow

CELL = """from bigtrain_lab.view.player import Player
from bigtrain_lab.order.schedules.pipedream import PipeDream
from bigtrain_lab.order.simulate import simulate
player = Player(simulate(PipeDream(4, 8), {"F": 1, "B": 2, "U": 0.5}))
player"""
VIEW = "value - document.querySelector('.btl-player').dataset.from"
CORNER = """() => { const canvas = document.querySelector('.btl-player canvas');
    return [...canvas.getContext('2d').getImageData(3, canvas.height - 8, 1, 1).data].slice(0, 3); }"""


@pytest.fixture
def player(lab):
    lab.open("lab.ipynb", [CELL, "1 + 1"])
    lab.page.wait_for_selector(".btl-player[data-revision]")
    return lab


def test_keys_and_the_notebook_keeps_its_cells(player):
    """z, x, f, s and v are commands of JupyterLab too: there x cuts the cell away."""
    canvas, end = player.player.locator("canvas"), player.data("end")

    def press(*keys):
        canvas.focus()
        for key in keys:
            player.page.keyboard.press(key)

    press("z", "z")
    player.until("to", f"{VIEW} < {end} / 3")
    press("x", "x", "x", "v")
    player.until("to", f"{VIEW} === {end}")
    player.until("lens", "value === 'true'")
    assert player.page.locator(".jp-Notebook .jp-Cell").count() == 2
    press("z", "f")
    player.until("to", f"value === '{end}'")


def test_mouse_themes_and_another_trace(player):
    page, box = player.page, player.player.locator("canvas").bounding_box()
    end = float(player.data("end"))
    page.mouse.move(box["x"] + 106, box["y"] + 18)
    tip = player.player.locator(".btl-tip")
    expect(tip).to_contain_text("F0: forward of micro-batch 0, stage 0, rank 0")
    page.keyboard.down("Control")
    page.mouse.move(box["x"] + 300, box["y"] + 30)
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    player.until("to", f"{VIEW} < {end} * 0.9")
    assert page.evaluate(CORNER) == [255, 255, 255]
    for key, begins in (("g", b"<svg"), ("G", b"\x89PNG")):
        with page.expect_download() as download:
            player.player.locator("canvas").press(key)
        saved = Path(download.value.path()).read_bytes()
        assert saved.startswith(begins)
        if key == "g":  # the very boxes and legend, as text
            ElementTree.fromstring(saved)
            assert b">F1<" in saved and b">B backward<" in saved and b">rank 3<" in saved
    keys = player.player.locator(".btl-keys")
    player.player.locator("canvas").press("?")
    expect(keys).to_contain_text("space plays and pauses")
    player.player.locator("canvas").press("Escape")
    expect(keys).to_be_hidden()
    player.theme("JupyterLab Dark")
    page.wait_for_function(f"() => ({CORNER})().every(channel => channel < 60)")
    player.theme("JupyterLab Light")
    page.wait_for_function(f"() => ({CORNER})().every(channel => channel > 240)")
    page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute(
        {code: 'player.show(simulate(PipeDream(2, 4), {"F": 1, "B": 2}))'}).done"""
    )
    player.until("spans", "value === '24'")
