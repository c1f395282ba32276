"""What the unit tests of models share."""

import pytest


@pytest.fixture
def one_thread():
    """Tensors this small gain nothing from more, and lose much on a busy machine."""
    import torch  # most unit tests have no need of it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
