"""The player in JupyterLab: all of it works in the browser, by keyboard and by mouse, in both themes."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow

CELL = """from bigtrain_lab.player import Player
from bigtrain_lab.schedules.pipedream import PipeDream
from bigtrain_lab.simulate import simulate
player = Player(simulate(PipeDream(4, 8), {"F": 1, "B": 2, "U": 0.5}))
player"""


@pytest.fixture
def player(lab):
    lab.open("player.ipynb", [CELL, "1 + 1"])
    lab.page.wait_for_selector(".btl-player[data-revision]")
    return lab


def press(lab, *keys):
    lab.player.locator("canvas").focus()
    for key in keys:
        lab.page.keyboard.press(key)


def test_it_shows_the_whole_trace_and_says_so_in_words(player):
    canvas = player.player.locator("canvas")
    assert (
        player.data("spans") == str(4 * 8 * 3)
        and player.data("clock") == "predicted"
        and player.data("time") == player.data("end")
    )
    assert canvas.get_attribute("role") == "img" and "predicted schedule" in canvas.get_attribute(
        "aria-label"
    )
    expect(player.player.locator(".btl-badge")).to_have_text("predicted")
    expect(player.player.locator(".btl-now")).to_contain_text("96 boxes, 48 messages, 4 ranks")


def test_keyboard(player):
    press(player, "Home")
    player.until("time", "value === '0'")
    press(player, "ArrowRight")
    player.until("time", "value === '1'")
    expect(player.player.locator(".btl-now")).to_contain_text(
        "Now: rank 0 F1, rank 1 F0, rank 2 idle, rank 3 idle"
    )
    press(player, "ArrowRight", "ArrowRight", "ArrowLeft")
    player.until("time", "value === '2'")
    press(player, "End")
    player.until("time", f"value === '{player.data('end')}'")
    press(player, "+", "+")
    assert player.data("speed") == "4"
    press(player, "-")
    assert player.data("speed") == "2"
    press(player, "Home", " ")
    player.until("playing", "value === 'true'")
    player.until("time", "value > 2")
    press(player, " ")
    player.until("playing", "value === 'false'")
    press(player, "v")
    player.until("lens", "value === 'true'")


def test_zoom_by_keyboard_and_the_notebook_keeps_its_cells(player):
    """z, x, f, s and v are commands of JupyterLab too: there x cuts the cell away."""
    whole = float(player.data("end"))
    press(player, "z", "z")
    player.until("to", f"value - document.querySelector('.btl-player').dataset.from < {whole} / 3")
    press(player, "x", "x", "x", "v")
    player.until("to", f"value - document.querySelector('.btl-player').dataset.from === {whole}")
    assert player.page.locator(".jp-Notebook .jp-Cell").count() == 2
    press(player, "z", "f")
    player.until("to", f"value === '{player.data('end')}'")


def test_mouse(player):
    page, box = player.page, player.player.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 106, box["y"] + 18)
    tip = player.player.locator(".btl-tip")
    expect(tip).to_contain_text("F0: forward of micro-batch 0, stage 0, rank 0")
    expect(tip).to_contain_text("weight version 0")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 18)
    end = float(player.data("end"))
    assert 0.3 * end < float(player.until("time", f"value < {end}")) < 0.7 * end
    for _ in range(3):
        player.player.get_by_role(
            "button", name="slower"
        ).click()  # it still plays when the next button is pressed
    player.player.get_by_role("button", name="play (space)").click()
    player.until("playing", "value === 'true'")
    player.player.get_by_role("button", name="pause (space)").click()
    player.player.get_by_role("button", name="one event back").click()
    player.until("playing", "value === 'false'")
    player.player.get_by_role("button", name="colour by weight version").click()
    player.until("lens", "value === 'true'")
    page.keyboard.down("Control")
    page.mouse.move(box["x"] + 300, box["y"] + 30)
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    player.until("to", f"value - document.querySelector('.btl-player').dataset.from < {end} * 0.9")


CORNER = """() => { const canvas = document.querySelector('.btl-player canvas');
    return [...canvas.getContext('2d').getImageData(3, canvas.height - 8, 1, 1).data].slice(0, 3); }"""


def test_both_themes(player):
    assert player.page.evaluate(CORNER) == [255, 255, 255]
    player.theme("JupyterLab Dark")
    player.page.wait_for_function(f"() => ({CORNER})().every(channel => channel < 60)")
    player.theme("JupyterLab Light")
    player.page.wait_for_function(f"() => ({CORNER})().every(channel => channel > 240)")


def test_another_trace_replaces_it(player):
    player.page.evaluate("""() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute(
        {code: 'player.show(simulate(PipeDream(2, 4), {"F": 1, "B": 2}))'}).done""")
    player.until("spans", "value === '24'")
    assert player.data("revision") == "2" and player.data("time") == player.data("end")
