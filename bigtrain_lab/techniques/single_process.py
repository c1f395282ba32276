"""Data parallelism in one process: scatter the batch, copy the weights to every device, gather the
outputs.

    y = [f(w, x_0), f(w, x_1), ...]        x_i: part i of the batch, on device i, in thread i

    forward    scatter x | replicate w | N threads run the parts | gather y on the first device
    backward   autograd runs the same backwards: gradients of all copies are summed on the first

It needs no process group and no change of the loop, and it is slower than a process a device: the
weights are copied in every forward, (N-1) S bytes out of the first device, and as many bytes of
gradients come back after the backward has ended; one interpreter launches the operators of all
devices; and the first device alone holds the outputs, the loss and the optimizer's state. Source:
Li et al. 2020, PyTorch Distributed (arXiv:2006.15704), section 2.2, on torch's DataParallel.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .guards.single_process import refuse, refuse_outputs


class SingleProcessDataParallel(nn.Module):
    """The module, whose batch is split over the devices along the first dimension.

        model = SingleProcessDataParallel(model, ["cuda:0", "cuda:1"])
        loss_fn(model(x), y).backward()         # the gradients are those of the whole batch

    devices    one a part; a device may stand there several times, such as ["cpu", "cpu"]

    Inputs are tensors with as many rows, or anything else, which every part gets as it is. The
    output is one tensor. Buffers that a forward changes stay changed on the first device only.
    Parameters are those of `module`, on the first device.
    """

    def __init__(self, module: nn.Module, devices: Sequence):
        super().__init__()
        self.devices = [torch.device(device) for device in devices]
        refuse(self.devices)
        self.module = module.to(self.devices[0])
        # a thread swaps weights into a shape of its own; kept from state_dict and parameters()
        self._shapes = [(deepcopy(module).to("meta"),) for _ in self.devices]

    def forward(self, *inputs) -> Tensor:
        parts = self.scatter(inputs)
        copies = [self.replicate(number) for number in range(len(parts))]
        recording = torch.is_grad_enabled()

        def run(number: int) -> Tensor:
            (shape,) = self._shapes[number]
            shape.train(self.training)
            with torch.set_grad_enabled(recording):
                return functional_call(shape, copies[number], parts[number])

        with ThreadPoolExecutor(len(parts)) as threads:
            outputs = list(threads.map(run, range(len(parts))))
        refuse_outputs(outputs)
        return torch.cat([output.to(self.devices[0]) for output in outputs])

    def scatter(self, inputs: tuple) -> list[tuple]:
        """Split the inputs by part; fewer parts than devices where the batch has fewer rows."""
        rows = {len(x) for x in inputs if isinstance(x, Tensor) and x.dim()}
        refuse(self.devices, rows)
        count = max(1, min(len(self.devices), *rows))

        def split(x) -> list:
            if not isinstance(x, Tensor) or not x.dim():
                return [x] * count
            return [part.to(device) for part, device in zip(x.tensor_split(count), self.devices)]

        return list(zip(*map(split, inputs)))

    def replicate(self, number: int) -> dict[str, Tensor]:
        """Copy the weights and buffers to a part's device. The copy of a weight is an operation of
        the graph, so its backward adds the gradient to the module's own."""
        device, module = self.devices[number], self.module
        weights = dict(module.named_parameters(remove_duplicate=False))
        buffers = dict(module.named_buffers(remove_duplicate=False))
        copies = {id(weight): weight.to(device) for weight in weights.values()}  # ties stay ties
        copies |= {id(each): each.to(device, copy=number > 0) for each in buffers.values()}
        return {name: copies[id(each)] for name, each in (weights | buffers).items()}
