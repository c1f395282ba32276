"""What the unit tests of models share."""

import asyncio

import pytest


@pytest.fixture
def one_thread():
    """Tensors this small gain nothing from more, and lose much on a busy machine."""
    import torch  # most unit tests have no need of it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_loop_of_others():
    """A browser that a test of the same process drives leaves its event loop running in this thread; a kernel's is asked for by name."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)
