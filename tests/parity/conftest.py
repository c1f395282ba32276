"""One thread a process: the ranks under test already share the cores."""

import torch

torch.set_num_threads(1)
