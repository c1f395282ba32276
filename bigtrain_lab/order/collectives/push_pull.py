"""Push and pull: each rank is the server of one chunk, which all others push to it and pull from
it.

    rounds   2                bytes that each rank sends and receives   2 (N - 1)/N * S
    time     2 alpha + 2 (N - 1)/N * S * beta

As many bytes as on a ring and two rounds only, but each rank talks to all others at once: a network
in which some links are slower than others serves a ring better.
Source: Jiang et al. 2020, BytePS (OSDI), section 4, where no machine is a server alone.
"""

from ..collective import Collective, Move


class PushPull(Collective):
    name = "push-pull"

    def rounds(self):
        n = self.ranks  # at any time each rank sends to another one
        pairs = [(rank, (rank + turn) % n) for turn in range(1, n) for rank in range(n)]
        push = [Move(rank, server, server, reduce=True) for rank, server in pairs]
        return [push, [Move(server, rank, server) for rank, server in pairs]] if pairs else []
