"""What all tests share: one thread a process, what was predicted, the browser, and CI's rule that
nothing may be skipped."""

import os
import signal
from tempfile import TemporaryDirectory

os.environ["OMP_NUM_THREADS"] = (
    "1"  # before torch is imported, here and in whatever a test starts: tests share the cores
)

import cloudpickle
import pytest

import tests
from bigtrain_lab.runtime.process.border import cache_directory

signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a shell's background job is started deaf to it, and tests interrupt
cloudpickle.register_pickle_by_value(
    tests
)  # programs travel to ranks as from a notebook: a rank imports no test, and no pytest
IN_CI = bool(os.environ.get("CI"))
# Tests change what makes results: what they keep is for the processes of this run, both of pytest's
# and all that these start, and for nobody else. Playwright's own browser stays where it was.
KEPT = TemporaryDirectory(prefix="bigtrain-tests-", ignore_cleanup_errors=True)
os.environ.setdefault("PLAYWRIGHT_BROWSERS_PATH", os.path.join(cache_directory(), "ms-playwright"))
os.environ["BIGTRAIN_LANGUAGE"] = "en"  # whatever the machine of a test speaks
os.environ["XDG_CACHE_HOME"] = os.environ.setdefault("BIGTRAIN_TESTS_KEEP", KEPT.name)


@pytest.fixture(scope="session")
def find_browser() -> str:
    """The path of a Chromium to drive; without one the test is skipped, and in CI it fails."""
    from tools import setup  # which a copy of the tests beside an installed package lacks

    path = setup.find_browser()
    if path is None:
        pytest.skip(
            "NO BROWSER: install your system's `chromium` package or set BROWSER_PATH to one"
        )
    return path


@pytest.fixture
def kept_rights(monkeypatch):
    """Right answers are played once in a run of the tests."""
    from tests.rights import keep  # most tests have no need of torch

    keep(monkeypatch.setattr)


@pytest.fixture
def own_box(monkeypatch):
    """A box for answers, with little patience."""
    from bigtrain_lab.grading import box, likeness  # most tests have no need of torch

    for name, value in {"CPU_S": 1, "WALL_S": 6, "LATE_S": 2}.items():
        monkeypatch.setattr(box, name, value)
    own = box.Box()
    monkeypatch.setattr(likeness, "box", lambda: own)
    yield
    own.close()


def pytest_collection_modifyitems(config, items):
    """Leave out the tests marked `gpu` where there is no NVIDIA GPU, and those marked `pyodide`
    where BIGTRAIN_PYODIDE names no folder (docs/site.md): deselected and counted, not skipped."""
    for mark, there in (("gpu", _has_gpu), ("pyodide", lambda: os.environ.get("BIGTRAIN_PYODIDE"))):
        marked = [item for item in items if item.get_closest_marker(mark)]
        if marked and not there():
            config.hook.pytest_deselected(items=marked)
            items[:] = [item for item in items if item not in marked]


def _has_gpu():
    import torch  # takes seconds, and most selections of tests have no need to ask

    return torch.cuda.is_available()


def _refuse_skip(report):
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _refuse_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _refuse_skip((yield))
