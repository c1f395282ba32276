"""What every experiment does whose ranks hold the whole model, and share each batch."""

from typing import ClassVar

from ..core import Mesh
from .pipelined import Pipelined


class Replicated(Pipelined):
    """Needs the field `replicas`. What is held is told at the ends of actions alone."""

    ledger: ClassVar[bool] = False
    schedule: ClassVar[str] = "1f1b"

    @property
    def ranks(self) -> int:
        return self.replicas

    @property
    def mesh(self) -> Mesh:
        return Mesh(dp=self.replicas, pp=1, tp=1)
