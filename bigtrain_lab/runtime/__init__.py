"""The runtime: the only files that know processes. Programs get a Rank, techniques a Group, notebooks a Run."""

from .calibrate import this_machine
from .group import Group
from .launch import launch, warm
from .ledger import Ledger
from .rank import Rank
from .run import RankFailed, Run

__all__ = ["Group", "Ledger", "Rank", "RankFailed", "Run", "launch", "this_machine", "warm"]
