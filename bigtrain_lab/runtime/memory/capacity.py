"""What a device or a machine holds is limited: the one sentence that says who ran out, of what,
where, and what would help."""

from collections.abc import Mapping, Sequence

from ...core import Impossible, available_bytes, by_kind, counted, refuse, size

# What lowers the bytes of a kind; said of the largest kind that something lowers.
REMEDIES = {
    "activations": "take smaller micro-batches, or recompute activations instead of keeping them",
    "recomputed": "keep fewer layers' activations at once: recompute in shorter segments",
    "temporaries": (
        "take smaller micro-batches, or a narrower layer where the largest ones are made"
    ),
    "queued": "let fewer micro-batches wait: a schedule with fewer of them in flight",
    "stashed": "keep fewer weight versions: a schedule with fewer micro-batches in flight",
    "optimizer": "take an optimizer with less state, or share the state among more ranks",
    "master": "train without master weights, or share them among more ranks",
    "gradients": "keep gradients in a half-precision format, or share them among more ranks",
    "weights": "take a smaller model or a half-precision format, or share it among ranks",
    "communication": "take smaller buckets",
}


class OutOfMemory(Impossible):
    """A rank would hold more bytes than its device has."""


def out_of_memory(
    capacity_bytes: int,
    held: Mapping[str, int],
    *,
    rank: int | None = None,
    action: str = "",
    asked_bytes: int = 0,
    name: str = "",
    module: str = "",
    relief: str = "",
) -> OutOfMemory:
    """The error to raise.

    held         kind -> bytes held already, without those asked for
    action       the action in which it happened ("0F3")
    asked_bytes  of the one allocation that did not fit, with the operator's `name` and the `module`
                 it was in; 0 where only levels at action boundaries are known
    relief       the sentence of an experiment that knows its settings; else a remedy for the
                 largest kind that has one
    """
    total = sum(held.values())
    largest = sorted((kind for kind in held if held[kind]), key=lambda kind: -held[kind])
    who = "This process" if rank is None else f"Rank {rank}"
    place = f" at {action}" if action else ""
    if asked_bytes:
        maker = f"{name or 'an operator'}{f' in {module}' if module else ''}"
        what = (
            f"{maker} asks for {size(asked_bytes)} more than the {size(total)} held"
            f" ({by_kind(held)})"
        )
    else:
        what = f"it holds {size(total)} ({by_kind(held)})"
    remedy = next((REMEDIES[kind] for kind in largest if kind in REMEDIES), "take a smaller model")
    return OutOfMemory(
        f"{who} runs out of memory{place}: {what}, and its device has {size(capacity_bytes)},"
        f" {counted(total + asked_bytes - capacity_bytes, 'byte')} too few"
        + (f". {relief}" if relief else f": {remedy}.")
    )


def refuse_beyond_memory(
    needed: Sequence[int],
    hosts: Sequence[Mapping],
    devices: Sequence[str],
    relief: str = "",
    how: str = "",
) -> None:
    """Impossible where the ranks of this machine would hold more bytes of its memory than it has
    available.

    needed    each rank's peak, as predicted
    hosts     the machines of the run, this one first, with their "ranks"; none: all ranks are here.
              The memory of others is not seen from here
    devices   each rank's: what is on a GPU takes none of the machine's memory
    how       "at least " where the peak is higher
    """
    ours = [
        rank
        for rank in (hosts[0]["ranks"] if hosts else range(len(needed)))
        if devices[rank] == "cpu"
    ]
    together, available = sum(needed[rank] for rank in ours), available_bytes()
    who = (
        f"The {len(ours)} ranks{' on this machine' if len(hosts) > 1 else ''} would hold"
        if len(ours) > 1
        else "The rank would hold"
    )
    refuse(
        (
            together > available,
            f"{who} {how}{size(together)} of memory at the peak, and this machine has"
            f" {size(available)} available: take fewer or narrower layers, or less in a"
            f" batch, or close other programs. {relief}".rstrip(),
        )
    )
