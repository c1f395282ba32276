"""Virtual time: a lane is one program order of one rank, and these four rules are its whole clock.

Time is an integer of ticks, so that after a cost was rounded up once only max, + and comparison
remain, and the simulator and the real ranks, which both use this class, agree exactly. A lone
message of n bytes takes alpha + gap(n); messages that leave one rank, or arrive at one rank, queue
for its port.

    compute(d)     start = now;  now += d
    send  issue = now;  stamp = max(now, out);  out = stamp + gap         (eager: now does not move)
    receive        head = max(stamp + alpha, in);  in = done = head + gap;  now = max(now, done)
    wait(t)        now = max(now, t)                             (t: when another lane's work ended)

Source: Jefferson 1985, Virtual Time; ports as in Culler et al. 1993, LogP, with the gap per byte of
LogGP.
"""

from typing import NamedTuple


class Link(NamedTuple):
    """A one-way link: latency in ticks, and ticks per byte as an exact fraction."""

    alpha: int = 0
    ticks: int = 0
    bytes: int = 1

    def gap(self, size_bytes: int) -> int:
        """Ticks for which a message of this size occupies a port, rounded up."""
        return -(-size_bytes * self.ticks // self.bytes)


FREE = Link()


class Lane:
    __slots__ = ("now", "outgoing", "incoming")

    def __init__(self):
        self.now = self.outgoing = self.incoming = 0

    def compute(self, duration: int) -> tuple[int, int]:
        """Occupy the lane; returns (start, end)."""
        start = self.now
        self.now = start + duration
        return start, self.now

    def send(self, link: Link, size_bytes: int) -> tuple[int, int]:
        """Hand a message to the outgoing port; returns (issue, stamp), which travel with it."""
        stamp = max(self.now, self.outgoing)
        self.outgoing = stamp + link.gap(size_bytes)
        return self.now, stamp

    def receive(self, stamp: int, link: Link, size_bytes: int) -> int:
        """Take a message that left at `stamp`; returns when it has wholly arrived."""
        self.incoming = max(stamp + link.alpha, self.incoming) + link.gap(size_bytes)
        self.now = max(self.now, self.incoming)
        return self.incoming

    def wait(self, until: int) -> None:
        """Do not go on before `until`, a time that another lane has posted."""
        self.now = max(self.now, until)
