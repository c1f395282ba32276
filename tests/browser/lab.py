"""A JupyterLab server and a Chromium on this machine: the fixtures of these tests and the browser
benchmark use it."""

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

LAPTOP = {"width": 1366, "height": 768}
PATIENCE_S = 180  # for whatever a test waits for: a loaded machine is slow, and not wrong
DRAWN = """() => [...document.querySelectorAll(
    '.btl-player[data-revision], .btl-rivals, .btl-curves, .btl-lens .js-plotly-plot')].some(e => e.offsetParent)"""
NO_SPLASH = "() => document.querySelector('#jupyterlab-splash') === null"


@contextmanager
def lab_server(folder: Path):
    """Yields (address, token, folder of the notebooks); ends the server, and its kernels with it,
    by pid."""
    notebooks = folder / "notebooks"
    notebooks.mkdir(parents=True)
    token = secrets.token_hex(8)
    root = str(Path(__file__).resolve().parents[2])
    environment = {
        **os.environ,
        **{
            name: str(folder / name.lower())
            for name in (
                "JUPYTER_CONFIG_DIR",
                "JUPYTER_DATA_DIR",
                "JUPYTER_RUNTIME_DIR",
                "JUPYTERLAB_SETTINGS_DIR",
                "JUPYTERLAB_WORKSPACES_DIR",
                "IPYTHONDIR",
                "HOME",
            )
        },
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    quiet = (
        folder
        / "jupyterlab_settings_dir/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    )
    quiet.parent.mkdir(parents=True)
    quiet.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jupyter",
                "lab",
                "--no-browser",
                "--allow-root",
                "--ip=127.0.0.1",
                "--port=0",
                f"--IdentityProvider.token={token}",
                f"--ServerApp.root_dir={notebooks}",
                "--LabApp.expose_app_in_browser=True",
            ],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    about = folder / f"jupyter_runtime_dir/jpserver-{server.pid}.json"
    try:
        until = time.monotonic() + 2 * PATIENCE_S
        while time.monotonic() < until:
            if server.poll() is not None:
                raise RuntimeError(
                    "JupyterLab ended: " + (folder / "server.log").read_text()[-2000:]
                )
            try:
                address = f"http://127.0.0.1:{json.loads(about.read_text())['port']}"
                urllib.request.urlopen(
                    f"{address}/api/status?token={token}", timeout=PATIENCE_S
                ).close()
                break
            except (
                OSError,
                ValueError,
            ):  # it has not said its port yet, or not all of it, or does not answer
                time.sleep(0.2)
        else:
            raise RuntimeError(
                "JupyterLab did not answer: " + (folder / "server.log").read_text()[-2000:]
            )
        yield address, token, notebooks
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def write_notebook(path: Path, cells: list[str]) -> Path:
    """A notebook of code cells."""
    path.write_text(
        json.dumps(
            {
                "cells": [
                    {
                        "cell_type": "code",
                        "id": f"cell-{i}",
                        "metadata": {},
                        "source": text,
                        "outputs": [],
                        "execution_count": None,
                    }
                    for i, text in enumerate(cells)
                ],
                "metadata": {
                    "kernelspec": {
                        "display_name": "Python 3",
                        "language": "python",
                        "name": "python3",
                    }
                },
                "nbformat": 4,
                "nbformat_minor": 5,
            }
        )
    )
    return path


class Watched:
    """A page that keeps what it asked for and what its console complained of, and shows a player."""

    def __init__(self, page):
        self.page, self.requests, self.complaints = page, [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda m: self.complaints.extend([m.text] * (m.type == "error")))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    @property
    def player(self):
        return self.page.locator(".btl-player").first

    def data(self, name: str) -> str:
        """The player's data-<name>."""
        return self.player.get_attribute(f"data-{name}")

    def until(self, name: str, condition: str) -> str:
        """Wait until the player's data-<name>, as `value`, meets a condition in JavaScript; returns
        it."""
        self.page.wait_for_function(
            "name => { const value = document.querySelector('.btl-player')?.getAttribute('data-'"
            f" + name); return {condition}; }}",
            arg=name,
        )
        return self.data(name)


class Lab(Watched):
    """One page of JupyterLab. A notebook that was open before finds its kernel again, where that
    was kept: it has imported the library and started its fork server."""

    def __init__(self, browser, address: str, token: str, notebooks: Path, viewport=None):
        super().__init__(browser.new_page(viewport=viewport or LAPTOP))
        self.address, self.token, self.notebooks = address, token, notebooks

    @property
    def outside(self) -> list[str]:
        """What was asked of other machines."""
        own = self.address, self.address.replace("http", "ws"), "data:", "blob:"
        return [url for url in self.requests if not url.startswith(own)]

    def open(self, name: str, cells: list[str], run: bool = True):
        """Write the notebook, show it and, unless told otherwise, run all of it; returns the
        page."""
        write_notebook(self.notebooks / name, cells)
        self.page.goto(f"{self.address}/doc/tree/{name}?token={self.token}&reset")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.page.wait_for_function(
            "() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.isReady"
        )
        if run:
            self.command("notebook:run-all-cells")
        return self.page

    def command(self, name: str, **arguments) -> None:
        self.page.evaluate(
            "([name, arguments]) => { window.jupyterapp.commands.execute(name, arguments); }",
            [name, arguments],
        )

    def panel(self, name: str, *cells: str, call: str = 'panel = show("pipeline")\npanel'):
        """Open a notebook that shows the pipeline panel, then the other cells; returns the page
        once the panel is drawn."""
        self.open(name, [f"from bigtrain_lab.panel import show\n{call}", *cells])
        self.page.wait_for_function(DRAWN)
        return self.page

    def slider(self, setting: str):
        """The handle of a setting's slider."""
        return self.page.locator(
            ".widget-slider", has=self.page.locator(f".widget-label:text-is('{setting}')")
        ).locator(".noUi-handle")

    def cells(self, quantity: str):
        """A row of the table: its name, predicted, modelled, measured, difference."""
        name = self.page.locator(f"td:text-is('{quantity}')")
        return self.page.locator(".btl-results tr", has=name).locator("td")

    def row(self, quantity: str) -> list[str]:
        """Their texts, but for the name."""
        cells = self.cells(quantity)
        cells.first.wait_for(state="attached")  # the player may be drawn before the table
        return cells.all_text_contents()[1:]

    def theme(self, name: str) -> None:
        """Change the theme, and wait for JupyterLab's splash to leave before and after.

        Two splashes within its fade of 200 ms make JupyterLab remove the one element twice.
        """
        self.page.wait_for_function(NO_SPLASH)
        self.command("apputils:change-theme", theme=name)
        self.page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=name)
        self.page.wait_for_function(NO_SPLASH)

    def close(self, keeps_kernel: bool = False) -> None:
        """End the kernel, or what the notebook left in it, then the page."""
        context = "window.jupyterapp?.shell?.currentWidget?.sessionContext"
        if keeps_kernel:
            self.page.evaluate(
                f"code => {context}.session.kernel.requestExecute({{ code }}).done", CLEAN
            )
        else:
            self.page.evaluate(f"() => {context}?.shutdown()")
        self.page.close()


# A schedule that a cell defined leaves the menus of the notebooks that follow.
# The widgets that modules share are opened anew by the next page's first cell. Opened here, they
# would be told to that page only when it asks for what the kernel holds, and a panel drawn before
# the answer lacks each slider that needs one of them.
CLEAN = """import sys
from bigtrain_lab.order.schedule import Schedule
from ipywidgets import Widget
Schedule._members[:] = [each for each in Schedule._members if each.__module__ != "__main__"]
Widget.close_all()
def once(events):
    shared = [value for name, module in sys.modules.items() if name.startswith("bigtrain_lab.")
              for value in vars(module).values() if isinstance(value, Widget)]
    def reopen(*_):
        events.unregister("pre_run_cell", reopen)
        for widget in shared:
            widget.open()
    events.register("pre_run_cell", reopen)
once(get_ipython().events)
%reset -f"""


@contextmanager
def chromium(executable: str):
    """The browser that the tests drive."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * PATIENCE_S)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ],
            timeout=1000 * PATIENCE_S,
        )
        browser.on("context", lambda context: context.set_default_timeout(1000 * PATIENCE_S))
        try:
            yield browser
        finally:
            browser.close()
