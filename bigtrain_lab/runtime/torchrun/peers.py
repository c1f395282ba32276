"""The way to another machine: its name, the interface that reaches it, and whether its port
answers.

Each question is asked within a time limit: a name server or a firewall that says nothing must not
keep anybody waiting.
"""

import re
import socket
import threading
from concurrent.futures import Future
from typing import NamedTuple

from ...core import refuse

ANSWER_S = 5.0
# an address of documentation (RFC 5737): its route is the default one, and nothing is sent there
OUTSIDE = "192.0.2.1"


class Peer(NamedTuple):
    """A port of a machine, by name or number."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def of(cls, text: str) -> "Peer":
        """From "host:port" or "[address]:port"; Impossible where it is neither."""
        found = re.fullmatch(r"(?:\[([^][]+)\]|([^][:]+)):([0-9]{1,5})", text)
        refuse(
            (
                not found or not 1 <= int(found[3]) <= 65535,
                f"{text!r} is no peer: write host:port, such as node1:29400 (an IPv6 address in"
                " brackets).",
            )
        )
        return cls(found[1] or found[2], int(found[3]))


class Unreachable(Exception):
    """Why a name or a port does not answer, in words."""


def resolve(peer: Peer, limit_s: float = ANSWER_S) -> str:
    """The address that the peer's name stands for, as a connection would take it; Unreachable where
    there is none in time."""
    found: Future[str] = Future()

    def ask():
        try:
            known = socket.getaddrinfo(peer.host, peer.port, type=socket.SOCK_STREAM)
            found.set_result(known[0][4][0])
        except (OSError, UnicodeError) as error:
            found.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()  # the resolver knows no limit of ours
    try:
        return found.result(limit_s)
    except TimeoutError as error:
        raise Unreachable(f"no answer within {limit_s:g} s") from error
    except (OSError, UnicodeError) as error:
        raise Unreachable(getattr(error, "strerror", None) or str(error)) from error


def own_address(address: str) -> str:
    """This machine's own address on the route to another; Unreachable where there is no route.
    Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return probe.getsockname()[0]
    except OSError as error:
        raise Unreachable(error.strerror or str(error)) from error


def interface_of(address: str) -> str | None:
    """The network interface that has this address."""
    import psutil

    return next(
        (
            name
            for name, has in psutil.net_if_addrs().items()
            for each in has
            if each.address.partition("%")[0] == address
        ),
        None,
    )


def loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def connect(address: str, port: int, limit_s: float = ANSWER_S) -> None:
    """Return when the port has taken a connection; Unreachable, with why not, otherwise."""
    try:
        socket.create_connection((address, port), timeout=limit_s).close()
    except TimeoutError as error:
        raise Unreachable(f"no answer within {limit_s:g} s") from error
    except OSError as error:
        raise Unreachable((error.strerror or str(error)).lower()) from error


def between(mine: str, others: list[str]) -> str | None:
    """The interface through which ranks of several networks talk. `mine`: this machine's address on
    the way to rank 0, the loopback where that is here; `others`: the addresses of ranks elsewhere.
    None where it cannot be told.
    """
    if loopback(mine):
        mine = own_address(next((a for a in others if not loopback(a)), OUTSIDE))
    return interface_of(mine)
