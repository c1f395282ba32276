"""Does this machine have what the labs need? One finding a check: ok, warn or fail, with the mend.

A check is a function of the number of ranks that returns a Finding; CHECKS is their order. A check
that itself breaks is a failed check, never a traceback. The way to another machine has three checks
of its own.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from .core import COLLECTIVES, Constant, Hardware, available_bytes
from .core.words import counted, device_size, duration, size

TORCH_BYTES = 600 * 10**6  # a notebook and the ranks' server, each with torch
RANK_BYTES = (
    100 * 10**6
)  # a rank of a small lab: measured 40 MB beyond what it shares with the server
SPARE_BYTES = 10**9
WIDGETS = ("ipywidgets", "anywidget", "jupyterlab", "ipykernel")


class Finding(NamedTuple):
    level: str  # ok, warn, fail
    name: str
    says: str
    mend: str = ""


def findings(ranks: int) -> Iterator[Finding]:
    """Each check's finding as soon as it is known; `ranks` is how many one means to run."""
    for name, check in CHECKS.items():
        try:
            level, *words = check(ranks)
        except Exception as error:  # noqa: B902  (a broken part may raise anything)
            level, words = (
                "fail",
                [
                    f"could not be checked: {type(error).__name__}: {error}".partition("\n")[0],
                    "install the project again (make setup).",
                ],
            )
        yield Finding(level, name, *words)


def peer_findings(peer) -> Iterator[Finding]:
    """The way to a port of another machine (runtime/peers.py): its name, the interface that reaches
    it, the port."""
    from .runtime.process import border
    from .runtime.torchrun import peers

    step, mend = (
        "name",
        "let this machine's name service or /etc/hosts know it, or use its address.",
    )
    try:
        address = peers.resolve(peer)
        yield Finding(
            "ok",
            step,
            f"{peer.host} is {address}" if address != peer.host else f"{address} is an address",
        )
        step, mend = "route", "connect this machine to the peer's network."
        own = peers.own_address(address)
        name, chosen = peers.interface_of(own), border.interface()
        says = f"{name or 'an interface without a name'} with address {own} reaches {address}"
        if peers.loopback(own):
            yield Finding(
                "ok", "route", f"{address} is this machine itself, by its loopback interface {name}"
            )
        elif name and chosen not in (None, name):
            yield Finding(
                "warn",
                "route",
                f"{says}, but GLOO_SOCKET_IFNAME is {chosen}",
                f"export GLOO_SOCKET_IFNAME={name} on this node.",
            )
        else:
            yield Finding(
                "ok",
                "route",
                (
                    f"{says}; to insist on it: export GLOO_SOCKET_IFNAME={name}"
                    f" NCCL_SOCKET_IFNAME={name}"
                    if name
                    else says
                ),
            )
        step, mend = "port", "open the port in the firewalls on the way, or look up the address."
        peers.connect(address, peer.port)
        yield Finding("ok", step, f"{peer} takes connections")
    except peers.Unreachable as error:
        yield Finding(
            "fail",
            step,
            f"{peer if step == 'port' else peer.host}: {error}",
            (
                "start torchrun there first, or look up the port: the machine is there, but nothing"
                " listens."
                if step == "port" and "refused" in str(error)
                else mend
            ),
        )


def constants() -> list[Constant]:
    """Each number that prices a plan: of every profile, and of the collectives."""
    from .runtime import this_machine

    profiles = [*Hardware.all().values(), *filter(None, [this_machine(measure=False)])]
    return [row for each in profiles for row in each.constants()] + [
        Constant(
            "collectives",
            f"{name}: passes, (n - 1) / n, wholes",
            tuple(counts),
            *told.split(": ", 1),
        )
        for name, (*counts, told) in COLLECTIVES.items()
    ]


def worth(name: str, value) -> str:
    """A constant's value in the unit that its name ends in."""
    if isinstance(value, dict):
        return ", ".join(f"{dtype} {rate / 1e12:g} TFLOP/s" for dtype, rate in value.items())
    if name == "collective_bytes_per_s":
        return ", ".join(f"{size(rate)}/s on {counted(nodes, 'node')}" for nodes, rate in value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    units = {
        "memory_bytes": device_size,
        "bytes_per_s": lambda rate: f"{size(rate)}/s",
        "_s": lambda time: duration(time, "s"),
    }
    show = next(
        (show for ending, show in units.items() if name.endswith(ending)),
        lambda number: f"{number:g}",
    )
    return "" if value is None else show(value)


def python(ranks):
    return version_finding(
        "Python",
        "{}.{}.{}".format(*sys.version_info[:3]),
        SpecifierSet(metadata.metadata("bigtrain_lab")["Requires-Python"]),
    )


def torch(ranks):
    import torch

    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU"
    level, says, *mend = version_finding("torch", torch.__version__, needed()["torch"])
    if level == "ok" and not torch.version.cuda and nvidia_driver():
        return (
            "warn",
            f"{says}, {build}, yet this machine has an NVIDIA GPU",
            "make setup TORCH=cuda.",
        )
    return level, f"{says}, {build}", *mend


def gloo(ranks):
    """Two real ranks exchange messages over loopback."""
    from .runtime import RankFailed, calibrate

    try:
        calibrate.loopback()
    except (RankFailed, TimeoutError) as error:
        why = str(error).replace("\n", " ")
        return (
            "fail",
            f"two ranks could not reach each other: {why}",
            "let programs use the loopback interface (firewall, sandbox).",
        )
    return "ok", "two real ranks met over loopback and exchanged messages"


def speed(ranks):
    """Measures this machine anew and keeps it as the hardware profile this-machine."""
    from .runtime.calibrate import NAME, calibrate

    found = calibrate()
    rates = ", ".join(
        f"{rate / 1e9:.3g} GFLOP/s in {dtype}" for dtype, rate in found.flops_per_s.items()
    )
    return (
        "ok",
        (
            f"{rates} and {found.launch_s * 1e6:.3g} us an operator on one thread;"
            f" {found.inside.alpha_s * 1e6:.3g} us and {found.inside.bytes_per_s / 1e9:.3g} GB/s"
            f" between two ranks: measured now, kept as the hardware profile {NAME}"
        ),
    )


def devices(ranks):
    """Visible GPUs, what hides others, and where ranks would compute."""
    from .runtime.devices import Node, choose, visible as count

    visible, variable, driver = (
        count(),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        nvidia_driver(),
    )
    now = "ranks compute on the CPU"
    if visible:
        now += (
            f" unless --device auto asks for more ({choose([Node(ranks, visible)]).why}), which"
            " this release has not been tested with"
        )
    if visible >= ranks:
        return "ok", f"{counted(visible, 'visible GPU')} for {counted(ranks, 'rank')}: {now}"
    hidden = (
        f" (CUDA_VISIBLE_DEVICES={variable!r} hides the others)" if variable is not None else ""
    )
    if visible:
        return (
            "warn",
            f"{counted(visible, 'visible GPU')} for {ranks} ranks{hidden}: {now}; a program of"
            " yours that asks "
            f'for cuda:{visible} fails with "invalid device ordinal", because devices count from 0',
            f"ask for {counted(visible, 'rank')}"
            + (" or unset CUDA_VISIBLE_DEVICES." if hidden else "."),
        )
    if driver and variable is not None:
        return (
            "warn",
            f"no visible GPU: CUDA_VISIBLE_DEVICES={variable!r} hides all; {now}",
            "unset it; devices count from 0.",
        )
    return "ok", f"no visible GPU: {now}"


def cores(ranks):
    from .runtime import machine

    if (count := machine.cores()) >= ranks:
        return "ok", f"{counted(count, 'core')} for {counted(ranks, 'rank')}"
    return (
        "warn",
        (
            f"{ranks} ranks share {counted(count, 'core')}: results and modelled times stay right,"
            " measured times grow"
        ),
        f"ask for {counted(count, 'rank')}, or go by the modelled clock.",
    )


def memory(ranks):
    available = available_bytes()
    needed_bytes = TORCH_BYTES + ranks * RANK_BYTES
    says = (
        f"{available / 1e9:.1f} GB free; a small lab on {counted(ranks, 'rank')} takes about"
        f" {needed_bytes / 1e9:.1f} GB"
    )
    if available < needed_bytes:
        return "fail", says, "close other programs or notebooks, or ask for fewer ranks."
    if available < needed_bytes + SPARE_BYTES:
        return "warn", says + ", which leaves little", "close other programs or notebooks."
    return "ok", says


def widgets(ranks):
    found, wanted = {name: installed(name) for name in WIDGETS}, needed()
    wrong = [
        f"{name} {version or 'is missing'}, needs {wanted[name]}"
        for name, version in found.items()
        if version is None or not wanted[name].contains(version, prereleases=True)
    ]
    if wrong:
        return (
            "fail",
            "; ".join(wrong),
            "install the project again (make setup), and restart JupyterLab.",
        )
    return "ok", ", ".join(f"{name} {version}" for name, version in found.items())


def runs(ranks):
    """Runs are kept under ./runs: it must take files, and the disk must have room."""
    place = Path("runs") if Path("runs").exists() else Path(".")
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as probe:
            (Path(probe) / "log").write_text("x", encoding="utf-8")
    except OSError as error:
        return (
            "fail",
            f"{place.resolve()} takes no files: {error.strerror or error}",
            "start in a folder of yours, or use --directory.",
        )
    free = shutil.disk_usage(place).free
    if free < SPARE_BYTES:
        return (
            "warn",
            f"{free / 1e9:.1f} GB free on the disk of {Path('runs').resolve()}",
            "free some space, or use --directory.",
        )
    return "ok", f"{Path('runs').resolve()} can be written, {free / 1e9:.0f} GB free"


CHECKS = {
    check.__name__: check
    for check in (
        python,
        torch,
        gloo,
        speed,
        devices,
        cores,
        memory,
        widgets,
        runs,
    )
}


# -- what is here ----------------------------------------------------------------------------------


def version_finding(name: str, version: str, wanted: SpecifierSet):
    if wanted.contains(version, prereleases=True):
        return "ok", version
    return (
        "fail",
        f"{version}, but bigtrain_lab needs {name} {wanted}",
        f"make setup with {name} {wanted}.",
    )


def needed() -> dict[str, SpecifierSet]:
    """Package -> the range of versions that bigtrain_lab asks for."""
    return {
        each.name: each.specifier
        for each in map(Requirement, metadata.requires("bigtrain_lab") or ())
    }


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def nvidia_driver() -> bool:
    """Whether the system knows an NVIDIA GPU, seen by torch or not."""
    known = Path("/proc/driver/nvidia/gpus")
    return known.is_dir() and any(known.iterdir())
