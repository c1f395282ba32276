"""What a parameter server cannot serve: refused in a sentence, on every rank, before any waits."""

from collections.abc import Mapping, Sequence

from torch import nn

from ...runtime.talk.group import Group
from ..prepared_model import precisions
from . import refuse, whole
from .replicas import refuse_differing, refuse_module
from .server_plan import refuse_order


def requests_of(
    module: nn.Module,
    named: Mapping[str, nn.Parameter],
    requests,
    servers,
    bound,
    synchronous: bool,
    group: Group,
) -> list[int]:
    """The batches of each worker. Also refuses where the ranks' modules or settings differ."""
    refuse(
        (
            not whole(servers, 1),
            (
                f"servers is {servers!r}: give a whole number of ranks that keep the weights, "
                "at least 1."
            ),
        )
    )
    workers = group.size - servers
    formats = sorted({f"{p.dtype} on {p.device}".removeprefix("torch.") for p in named.values()})
    given = [requests] * workers if isinstance(requests, int) else list(requests)
    refuse_module(
        module,
        group,
        "serve",
        f"{given}, {servers} servers, bound {bound}, synchronous {synchronous}",
        (
            workers < 1,
            (
                f"{servers} of {group.size} ranks are servers and none is a worker: "
                "take fewer servers, or more ranks."
            ),
        ),
        (
            servers > len(named),
            (
                f"{servers} servers share {len(named)} parameters, and each keeps "
                f"whole ones: take at most {len(named)} servers."
            ),
        ),
        (
            len(formats) > 1,
            (
                f"The parameters are {' and '.join(formats)}: a message holds one "
                "format, so give the module one dtype on one device."
            ),
        ),
        (
            any(each.scaler or each.masters for each in precisions([module])),
            "The module's precision has a loss scale or masters, of which servers know nothing: "
            "prepare it at a level without, such as bf16-no-masters.",
        ),
        (
            len(given) != workers,
            f"requests names {len(given)} workers and there are {workers}: give a number for each.",
        ),
    )
    refuse_order(given, range(servers), bound, synchronous)
    return given


def refuse_no_loss(loss, service) -> None:
    """All ranks ask each other: servers would wait for a worker that has none."""
    lacking = service.server is None and not callable(loss)
    refuse_differing(
        service.group,
        ["none" if lacking else ""],
        "Every worker needs a loss ({}): give run() a function, number of a batch -> loss.",
    )


def refuse_no_gradient(parameters: Sequence[nn.Parameter], message) -> None:
    """Before it is sent."""
    lacking = sum(p.grad is None for p in parameters)
    refuse(
        (
            lacking,
            (
                f"{lacking} of {len(parameters)} parameters got no gradient before "
                f"{message.name}: let the loss depend on each of them, or freeze it."
            ),
        )
    )
