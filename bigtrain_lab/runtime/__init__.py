"""The runtime: the only files that know processes. Programs get a Rank, techniques a Group,
notebooks a Run.

The server that ranks are forked from begins here, and must be able to end before it has torch.
"""

from .. import offered

__all__, __getattr__, __dir__ = offered(
    __name__,
    {
        "calibrate": ("this_machine",),
        "memory.ledger": ("Ledger",),
        "process.launch": ("launch", "warm"),
        "rank": ("Rank",),
        "record.run": ("RankFailed", "Run"),
        "talk.group": ("Group",),
    },
)
