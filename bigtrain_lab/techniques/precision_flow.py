"""A training step of mixed precision as one weight meets it: in which type each value is, read from
the tensors themselves.

master weight -> weight -> output of its layer -> loss -> scaled loss
     ^                                                        |
moments <- true gradient <- gradient of the weight <- gradient of the output
"""

from collections.abc import Callable

from torch import Tensor
from torch.optim import Optimizer

from ..core.formats import Station
from .guards import refuse
from .mixed_precision import MixedPrecision


def flow(
    mp: MixedPrecision, optimizer: Optimizer, loss_of: Callable[[], Tensor], weight: str
) -> tuple[Station, ...]:
    """Take one training step, and record the stations of the weight of this name. `loss_of()` is
    called inside `with mp`."""
    owner, parameter = (
        mp.model.get_submodule(weight.rpartition(".")[0]),
        mp.model.get_parameter(weight),
    )
    updated = dict(mp.named_parameters()).get(weight)
    refuse(
        (
            updated is None,
            f"{weight} is frozen, so no gradient flows to it: choose one of"
            f" {', '.join(name for name, _ in mp.named_parameters())}.",
        )
    )
    stations: list[Station] = []

    def see(name: str, how: str, tensor: Tensor) -> None:
        stations.append(
            Station(name, how, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        )

    def see_output(module, given, output: Tensor) -> None:
        see("output of its layer", "forward", output)
        output.register_hook(lambda gradient: see("gradient of the output", "backward", gradient))

    if updated is not parameter:
        see("master weight", "", updated)
    see("weight", "rounded" if updated is not parameter else "", parameter)
    with (
        owner.register_forward_hook(see_output),
        parameter.register_hook(
            lambda gradient: see("gradient of the weight", "backward", gradient)
        ),
    ):
        with mp:
            loss = loss_of()
        see("loss", "loss function", loss)
        if mp.scaler:
            see("scaled loss", f"times {mp.scaler.get_scale():,g}", mp.scale(loss))
        mp.backward(loss)
    refuse(
        (
            updated.grad is None,
            f"The loss does not depend on {weight}: choose a weight that the forward uses.",
        )
    )
    mp.unscale_(optimizer)
    if mp.scaler or updated is not parameter:
        see(
            "true gradient",
            ", ".join(["to float32"] * (updated is not parameter) + ["divided"] * bool(mp.scaler)),
            updated.grad,
        )
    mp.step(optimizer)
    mp.update()
    optimizer.zero_grad()
    for name, value in optimizer.state[updated].items():
        if isinstance(value, Tensor) and value.shape == updated.shape:
            see(f"optimizer's {name}", "optimizer", value)
            break
    return tuple(stations)
