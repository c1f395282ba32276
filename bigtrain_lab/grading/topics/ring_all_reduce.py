"""Ring all-reduce from isend and recv: the sum on every rank, a chunk a round to the next rank.

    rounds 2 (N - 1)        bytes sent by each rank 2 (N - 1) / N S        in place

Rank q's numbers are w 16^q: the digits of a result say how often each rank's numbers stand in it.
Source: Patarasuk and Yuan 2009, Journal of Parallel and Distributed Computing 69(2).
"""

from functools import cache

import torch

from ..likeness import Scene, Topic, Wrong
from ..ranks import Ranks

RIGHT = """
def answer(tensor, group):
    rank, size = group.rank, group.size
    after, before = (rank + 1) % size, (rank - 1) % size
    chunks = tensor.tensor_split(size)
    for i in range(size - 1):
        group.isend(chunks[(rank - i) % size], after)
        chunks[(rank - i - 1) % size].add_(group.recv(before))
    for i in range(size - 1):
        group.isend(chunks[(rank - i + 1) % size], after)
        chunks[(rank - i) % size].copy_(group.recv(before))
    return tensor
"""
HEAD = RIGHT[: RIGHT.index("    chunks")]
PADDED = (
    HEAD
    + """
    room, at = -len(tensor) % size, rank
    rows = tensor.new_zeros(size, (len(tensor) + room) // size)
    rows.view(-1)[:len(tensor)] = tensor
    for number in range(2 * (size - 1)):
        group.isend(rows[at], after)
        at, got = at - 1 if at else size - 1, group.recv(before)
        rows[at] = rows[at] + got if number < size - 1 else got
    tensor[:] = rows.flatten()[:len(tensor)]
    return tensor
"""
)
IN_FLIGHT = (
    "import numpy as np, torch"
    + HEAD
    + """
    parts = [np.array_split(part, 3) for part in np.array_split(tensor.numpy(), size)]
    for i in range(1, 2 * size - 1):
        for part in parts[(rank - i + 1) % size]:
            group.isend(torch.from_numpy(part), after, site=str(i))
        for part in parts[(rank - i) % size]:
            part[:] = group.recv(before, site=str(i)).numpy() + part * (i < size)
        group.finish()
    return tensor
"""
)
STAR = (
    HEAD
    + """
    for other in range(1, size) if rank == 0 else ():
        tensor += group.recv(other)
    for other in range(1, size) if rank == 0 else (0,):
        group.isend(tensor.clone(), other)
    return tensor if rank == 0 else tensor.copy_(group.recv(0))
"""
)
WHOLE = (
    HEAD
    + """
    carry = tensor.clone()
    for i in range(size - 1):
        group.isend(carry, after)
        tensor += (carry := group.recv(before))
    return tensor
"""
)
ACROSS = (
    HEAD
    + """
    chunks, others = tensor.tensor_split(size), [q for q in range(size) if q != rank]
    for adds in True, False:
        [group.isend(chunks[q if adds else rank].clone(), q) for q in others]
        [chunks[rank if adds else q].mul_(adds).add_(group.recv(q)) for q in others]
    return tensor
"""
)
CUT, RETURN, ROUNDS = "tensor.tensor_split(size)", "return tensor", "range(size - 1):\n        "
SEND, PASS = (f"group.isend(chunks[(rank - i{more}) % size], after)" for more in ("", " + 1"))
ADD, COPY = ".add_(group.recv(before))", ".copy_(group.recv(before))"


def but(old: str, new: str, text: str = "") -> str:
    return (text or RIGHT).replace(old, new)


class RingAllReduce(Topic):
    name = "ring-all-reduce"
    hints = (
        "N ranks, N chunks: which may rank r send first, so that no two send the same?",
        "Add what comes to your own chunk, send that on: which is whole after N - 1 rounds?",
        "Round i: send chunk (r - i) % N, add to the one before; from r + 1 on, overwrite.",
    )
    right = {
        "two loops": RIGHT,
        "padded": PADDED,
        "pieces in flight": IN_FLIGHT,
        "torch.chunk": but(CUT, "[*tensor.chunk(size), *[tensor[:0]] * size]"),
        "to the left": but("size + 1", "size - 1", RIGHT.translate(str.maketrans("+-", "-+"))),
    }
    wrong = {
        name: Wrong(sentence, text)
        for name, sentence, text in (
            (
                "gather_then_broadcast",
                "Right sum, but rank 0 moved 2 (N - 1) S bytes, the star in "
                "disguise: let each rank pass chunks to its neighbour.",
                STAR,
            ),
            (
                "whole_tensor_ring",
                "(N - 1) S bytes a rank, not 2 (N - 1) / N S: send chunks.",
                WHOLE,
            ),
            (
                "across",
                "Right sum and bytes, but all talk to all: send to a neighbour only.",
                ACROSS,
            ),
            (
                "halves",
                "Two rings, one after the other, in twice the rounds: run both at once.",
                but("def answer", "def ring") + "def answer(tensor, group):\n    "
                "[ring(half, group) for half in tensor.tensor_split(2)]\n    return tensor",
            ),
            (
                "truncates_remainder",
                "The last numbers were never reduced, as N does not divide: let "
                "chunks differ by one.",
                but("tensor.", "tensor[:len(tensor) // size * size]."),
            ),
            (
                "off_by_one_chunk",
                "After reduce-scatter rank r owns chunk (r + 1) mod N, and you pass "
                "on a partial sum: begin with the whole one.",
                but(PASS, SEND, but(f" i) % size]{COPY}", f" i - 1) % size]{COPY}")),
            ),
            (
                "adds_in_gather",
                "Chunks count twice in phase 2: overwrite, do not add.",
                but(COPY, ADD),
            ),
            (
                "blocking_send_first",
                "Every rank waits for the next to receive, in a cycle: receive first, then finish.",
                but(SEND, f"{SEND}; group.finish()"),
            ),
            (
                "receives first",
                "Every rank waits for one that has not sent, in a cycle: send first.",
                but(SEND, f"got = group.recv(before)\n        {SEND}", but(ADD, ".add_(got)")),
            ),
            (
                "buffer_reused",
                "You changed a buffer whose send had not finished: call finish first.",
                but(
                    SEND,
                    "part = chunks[(rank - i) % size]\n        "
                    "group.isend(buffer[:len(part)].copy_(part), after)",
                    but(CUT, f"{CUT}\n    buffer = chunks[0].clone()"),
                ),
            ),
            (
                "integer_mean",
                "Whole numbers have no mean, 10 over 4 is 2.5: promise the sum.",
                but(RETURN, "return tensor.copy_(tensor / size)"),
            ),
            (
                "float64",
                "Numbers pass through another dtype, and lose digits: keep the tensor's own.",
                but(
                    CUT,
                    "tensor.double().tensor_split(size)",
                    but(RETURN, "import torch\n    return tensor.copy_(torch.cat(chunks))"),
                ),
            ),
            (
                "no gather",
                "Each rank holds one whole chunk and partial sums: pass the whole ones on.",
                but(ROUNDS + PASS, f"():\n        {PASS}"),
            ),
            (
                "a round more",
                "There is a round too many: N - 1 rounds a phase are enough.",
                but(ROUNDS + SEND, f"range(size):\n        {SEND}"),
            ),
            *(
                (
                    f"a round short, {which}",
                    "There is a round too few: each phase needs N - 1 rounds.",
                    but(rounds, rounds.replace("size - 1", "size - 2")),
                )
                for which, rounds in (
                    ("first", ROUNDS + SEND),
                    ("second", ROUNDS + PASS),
                    ("both", ROUNDS),
                )
            ),
            (
                "to itself",
                "A rank alone has nobody to talk to: with N = 1 send nothing.",
                but(ROUNDS + SEND, f"range(max(1, size - 1)):\n        {SEND}"),
            ),
            (
                "of four",
                "Your ring has another size than the group: take group.size.",
                but("group.rank, group.size", "group.rank, 4"),
            ),
            (
                "sends twice",
                "You send a chunk more often than needed: one chunk a round is enough.",
                but(
                    SEND, f"{SEND}; group.isend(1 * chunks[0], after, 'x'); group.recv(before, 'x')"
                ),
            ),
            (
                "returns another",
                "You return another tensor: return the one given, with the sum in it.",
                but(RETURN, "return tensor.clone()"),
            ),
            (
                "few chunks",
                "tensor.chunk(N) can make fewer than N chunks: take tensor_split, "
                "of which some are empty.",
                but(CUT, "tensor.chunk(size)"),
            ),
            (
                "odd ranks receive first",
                "Ranks take turns, so there are more rounds: isend does not "
                "wait, so let all send, then receive.",
                but(
                    SEND,
                    f"got = rank % 2 and group.recv(before)\n        {SEND}",
                    but(ADD, ".add_(got if rank % 2 else group.recv(before))"),
                ),
            ),
            (
                "keeps",
                "A later call gets another sum: keep nothing from one call to the next.",
                but(
                    CUT,
                    f"{CUT}\n    tensor *= len(tensor) not in vars(answer).setdefault('seen', [])\n"
                    "    answer.seen.append(len(tensor))",
                ),
            ),
            (
                "sends one more",
                "A message was sent that nobody receives: send as often as you receive.",
                but(RETURN, "if size > 1: group.isend(tensor.clone(), after)\n    return tensor"),
            ),
        )
    }

    @staticmethod
    def probe(answer, draw):
        k, odd, p = draw.randint(150, 250), draw.choice((3, 5, 6, 7)), draw.randint(3, 8)
        for size, n in (
            (4, 4 * k),
            (4, 4 * k + 3),
            (odd, odd * k + draw.randint(1, odd - 1)),
            (8, 8 * k + 5),
            (2, 2 * k + 1),
            (1, k),
            (p, 0),
            (p, 1),
            (p, p - 1),
            (p, p + 1),
            (3, 10**6 + 3),
        ):
            played = cache(lambda of=(size, n, draw.random()): Played(answer, *of))
            for shown in Played.returns, Played.sums, Played.ends, *[Played.traffic] * (n > 100):
                yield Scene(
                    f"N = {size}, {n:,} numbers",
                    lambda shown=shown, played=played: shown(played()),
                    near=0.02,
                )
        for dtype, near in ((torch.int64, 0), (torch.float32, 1e-6)):
            of = p, draw.randint(9, 30), dtype, draw.random()
            yield Scene(f"N = {p}, {dtype}", lambda of=of: values(answer, *of), near)
        of = p, p * k, draw.random()
        yield Scene(
            f"N = {p}, a number that changes on its way",
            lambda: {
                "numbers that follow it": [
                    int((a != b).sum())
                    for a, b in zip(*(Played(answer, *of, add).given for add in (0, 1)))
                ]
            },
        )


class Played(Ranks):
    """A run on numbers w 16^rank, and what it shows."""

    def __init__(self, answer, size: int, n: int, seed: float, altered: int = 0):
        super().__init__(size, seed, altered)
        draw = torch.Generator().manual_seed(int(seed * 2**32))
        self.weights = torch.randint(1, 4096, (n,), generator=draw).double()
        self.given = [self.weights * 16**rank for rank in range(size)]
        self.returned = self.run(lambda own, group: own(self.given[group.rank], group), answer)

    def returns(self) -> dict:
        return {
            "returns the tensor that was given": [
                torch.is_tensor(back)
                and (back.data_ptr(), back.shape) == (own.data_ptr(), own.shape)
                for own, back in zip(self.given, self.returned)
            ]
        }

    def sums(self) -> dict:
        counts = [given / self.weights for given in self.given]
        often = [
            torch.stack([count.long() >> 4 * q & 15 for q in range(self.size)]) for count in counts
        ]
        return {
            "numbers that are no sum": [int((count % 1 != 0).sum()) for count in counts],
            "numbers that lack a rank's": [int((each == 0).any(0).sum()) for each in often],
            "numbers that count one twice": [int((each > 1).any(0).sum()) for each in often],
        }

    def ends(self) -> dict:
        return {
            "a tensor changed before its send had finished": self.changed,
            "messages that nobody received": self.left,
        }

    def traffic(self) -> dict:
        return {
            "bytes sent by each rank": self.sent,
            "bytes received": self.received,
            "messages to ranks that are no neighbours": self.far,
            "rounds beyond 2 (N - 1)": max(0, self.rounds - 2 * (self.size - 1)),
        }


def values(answer, size: int, n: int, dtype, seed: float) -> dict:
    """The sums of three calls in a run, the third of as many numbers as the first."""
    draw = torch.Generator().manual_seed(int(seed * 2**32))
    given = [
        [
            torch.randint(-(2**59), 2**59, (numbers,), generator=draw).to(dtype)
            for numbers in (n, n // 2, n)
        ]
        for rank in range(size)
    ]
    Ranks(size, seed).run(
        lambda own, group: [own(tensor, group) for tensor in given[group.rank]], answer
    )
    return {f"sums on rank {rank}": own for rank, own in enumerate(given)} | {
        "same bits on all ranks": all(map(torch.equal, sum(given, []), given[0] * size))
    }
