"""One JupyterLab and one Chromium for all browser tests, and one notebook, hence one kernel; a page
each, watched for outside requests and complaints."""

from pathlib import Path

import pytest

from tests.browser.lab import Lab, chromium, lab_server

ARTIFACTS = Path(__file__).resolve().parents[2] / "test-artifacts"
FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def browser(find_browser):
    with chromium(find_browser) as driven:
        yield driven


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with lab_server(tmp_path_factory.mktemp("lab")) as about:
        yield about


@pytest.fixture
def lab(browser, server, request):
    """A page on the server. A failed test leaves a picture in test-artifacts."""
    made = Lab(browser, *server)
    yield made
    failed = request.node.stash.get(FAILED, False)
    try:
        if failed:
            ARTIFACTS.mkdir(exist_ok=True)
            made.page.screenshot(path=ARTIFACTS / f"{request.node.name}.png", full_page=True)
            print("the browser's console:", *made.complaints, sep="\n")
        else:
            assert made.outside == [], "a request left this machine"
            assert made.complaints == [], "the browser's console complains"
    finally:
        made.close(keeps_kernel=not failed)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report
