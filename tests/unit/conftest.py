"""What the unit tests share."""

import asyncio

import pytest


@pytest.fixture(autouse=True)
def no_loop_of_others():
    """A browser that a test of the same process drives leaves its event loop running in this
    thread; a kernel's is asked for by name."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)


@pytest.fixture(scope="module")
def server():
    """Ranks fork from a warm server; tests of a module before may have ended theirs."""
    from tests.unit.ranks import warm_up  # most unit tests have no need of ranks

    warm_up()


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """Run one command line in an empty folder: (exit code, stdout, stderr)."""
    from bigtrain_lab.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}-cache")  # no prediction is known

    def call(*words):
        return main([str(word) for word in words]), *capsys.readouterr()

    return call


@pytest.fixture
def family():
    """The registries as they were, afterwards."""
    from bigtrain_lab.experiments import Experiment  # most unit tests have no need of torch
    from bigtrain_lab.order.collective import Collective
    from bigtrain_lab.order.recompute.plan import Recompute
    from bigtrain_lab.order.schedule import Schedule
    from bigtrain_lab.train.optimizer import Optimizer

    families = Collective, Experiment, Optimizer, Schedule, Recompute
    before = {each: list(each._members) for each in families if each.all()}
    yield
    for each, members in before.items():
        each._members[:] = members
