"""How a process ended that is not a child of this one: seen in the moment of its end, before its parent asks.

Linux keeps a process that has ended until its parent asks for the exit code, and shows the code to others of the same user
meanwhile (proc_pid_stat(5), field 52). A descriptor of the process (pidfd_open(2)) is readable from its end on, so
whoever waits for that comes before torchrun, which asks ten times a second: nearly always. Elsewhere nobody knows.
"""

import os
from contextlib import suppress

CODE = 52 - 3  # the field's place behind the process's name, which may hold anything


class Beside:
    """The process of a rank, [host, pid, start]. `fd` is readable once it has ended; None where the system has no such thing."""

    def __init__(self, rank: int, process: list):
        self.rank, self._pid, self.fd = rank, process[1], None
        with suppress(OSError, AttributeError):
            self.fd = os.pidfd_open(self._pid)

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def exit_code(self) -> int | None:
        """Of a process that has ended: its code, negative for a signal; None where that cannot be known any more."""
        try:
            with open(f"/proc/{self._pid}/stat", encoding="utf-8", errors="replace") as file:
                state, *fields = file.read().rpartition(")")[2].split()
            return os.waitstatus_to_exitcode(int(fields[CODE - 1])) if state == "Z" else None
        except (OSError, ValueError, IndexError):
            return None
