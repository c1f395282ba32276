"""Data parallelism in one process: scatter the batch, copy the weights, gather the outputs.

    y = [f(w, x_0), f(w, x_1), ...]        x_i: part i of the batch, on device i, in thread i

    forward    scatter x | replicate w | N threads run the parts | gather y on the first device
    backward   the same steps in reverse: the gradients of all copies are summed on the first device

It needs no process group and no change of the loop. It is slower than one process per device:

    weights         are copied in every forward: (N-1) S bytes leave the first device
    gradients       come back in the backward, as many bytes
    operators       of all devices are launched by one interpreter
    first device    it alone has the outputs, the loss and the optimizer's state

Source: Li et al. 2020, PyTorch Distributed (arXiv:2006.15704), section 2.2, on torch's
DataParallel.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from .guards import single_process as guard


class SingleProcessDataParallel(nn.Module):
    """Module whose batch is split over the devices along the first dimension.

        model = SingleProcessDataParallel(model, ["cuda:0", "cuda:1"])
        loss_fn(model(x), y).backward()         # the gradients are those of the whole batch

    devices    one for each part; a device may be listed several times, such as ["cpu", "cpu"]

    Inputs that are tensors, also in tuples, lists and dicts, are split, and must have equally many
    rows. Others go to every part. The output is one tensor, of as many rows for each row of the
    input. Changes of buffers in a forward are kept on the first device only. Parameters are those
    of `module`, on the first device.
    """

    def __init__(self, module: nn.Module, devices: Sequence):
        super().__init__()
        self.devices = [torch.device(device) for device in devices]
        guard.refuse(self.devices)
        self.module = module.to(self.devices[0])

    def forward(self, *inputs, **named) -> Tensor:
        parts = self.scatter((inputs, named))
        modules = [shell(self.module, self.replicate(number)) for number in range(len(parts))]
        recording, kind = torch.is_grad_enabled(), self.devices[0].type
        mixed = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

        def run(number: int) -> Tensor:
            inputs, named = parts[number]
            with torch.set_grad_enabled(recording), torch.autocast(*mixed):
                return modules[number](*inputs, **named)

        with ThreadPoolExecutor(len(parts)) as threads:
            outputs = list(threads.map(run, range(len(parts))))
        guard.refuse_rows(outputs, [*map(rows_of, parts)])
        first = dict(modules[0].named_modules(remove_duplicate=False))
        for path, module in self.module.named_modules(remove_duplicate=False):
            module._buffers.update(first[path]._buffers)  # some may be other tensors now
        return torch.cat([output.to(self.devices[0]) for output in outputs])

    def scatter(self, inputs: tuple) -> list[tuple]:
        """Split the inputs into parts, at most one for each row of the batch."""
        leaves, form = tree_flatten(inputs)
        rows = {len(x) for x in leaves if isinstance(x, Tensor) and x.dim()}
        guard.refuse(self.devices, rows)
        count = max(1, min(len(self.devices), *rows))

        def split(x) -> list:
            if not isinstance(x, Tensor) or not x.dim():
                return [x] * count
            return [part.to(device) for part, device in zip(x.tensor_split(count), self.devices)]

        return [tree_unflatten([*part], form) for part in zip(*map(split, leaves))]

    def replicate(self, number: int) -> dict[int, Tensor]:
        """Copy the weights and buffers to a part's device, by the id of each: tied weights stay
        tied. Autograd records the copy of a weight: its backward adds the gradient to the module's
        own."""
        device, module = self.devices[number], self.module
        return {
            **{id(weight): weight.to(device) for weight in module.parameters()},
            **{id(each): each.to(device, copy=number > 0) for each in module.buffers()},
        }


def rows_of(part: tuple) -> int:
    return next(len(x) for x in tree_leaves(part) if isinstance(x, Tensor) and x.dim()) or 1


def shell(module: nn.Module, copies: dict[int, Tensor]) -> nn.Module:
    """Return the module as it is now, with the copies in place of its own weights and buffers.
    Attributes, modes and hooks are the module's."""
    own = object.__new__(type(module))
    vars(own).update(
        vars(module),
        _parameters={name: copies.get(id(each)) for name, each in module._parameters.items()},
        _buffers={name: copies.get(id(each)) for name, each in module._buffers.items()},
        _modules={name: child and shell(child, copies) for name, child in module._modules.items()},
    )
    return own
