"""Where to cut a model so that no stage waits for another: in a full pipeline the slowest place
sets the pace of all.

    profile   piece l: t_l time of its forward and backward, a_l bytes that it passes on, w_l bytes
              of weights
    stage     T(i..j, k) = 1/k max( t_i + ... + t_j,  2 (k-1)/k (w_i + ... + w_j) / B )
                           pieces i..j on k devices
    cut       A(j, m) = min over s, k of  max( A(s, m-k),  2 a_s / B,  T(s+1..j, k) )    A(0, 0) = 0

A(j, m) is the time between two micro-batches at the slowest place of the best pipeline of pieces
1..j on m devices: its last stage is s+1..j on k of them, and what lies before is again a best
pipeline. Messages (a_s forward, as much gradient back) travel while ranks compute, so the slower of
the two counts, not the sum. Replicas take the micro-batches in turn, and sum their gradients by a
ring while they compute. A straight pipeline has k = 1.

Cost: O(N^2 M K) for N pieces, M devices, at most K replicas; the cuts are (N-1 over M-1) already
for K = 1. One bandwidth B stands for all links (one level of the paper's hierarchy), and no limit
of memory is kept. Source: Narayanan et al. 2019, PipeDream (SOSP 2019), section 3.1. The authors'
program charges 4 (k-1)/k w / B for the gradients, the bytes of a parameter server, and adds them to
the time.
"""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

from ..core import Trace, refuse
from ..core.cost import exact
from ..core.trace import ACTION


class Piece(NamedTuple):
    """One row of a profile: what cannot be cut. `time` is of one micro-batch, forward and backward,
    on one device."""

    name: str
    time: float
    output_bytes: int = 0
    weight_bytes: int = 0


class Stage(NamedTuple):
    """Pieces first .. last-1 of the profile, on `replicas` devices."""

    first: int
    last: int
    replicas: int = 1


def balanced(
    pieces: Sequence[Piece], devices: int, bytes_per_s=None, most_replicas: int = 1
) -> list[Stage]:
    """The pipeline on all the devices whose slowest place is fastest; of several such, the one
    whose next slowest is, and so on; of several such still, the one with shorter later stages.

    `bytes_per_s` None: free links. Impossible where the devices are more than the pieces and their
    replicas.
    """
    require_room(pieces, devices, most_replicas)
    N, K = len(pieces), most_replicas
    work = [0, *accumulate(exact(piece.time) for piece in pieces)]
    weights = [0, *accumulate(piece.weight_bytes for piece in pieces)]
    T = {
        (s, j, k): replicated(work[j] - work[s], weights[j] - weights[s], k, bytes_per_s)
        for j in range(1, N + 1)
        for s in range(j)
        for k in range(1, K + 1)
    }
    link = [0, *(passing(piece, bytes_per_s) for piece in pieces)]  # link[s]: after s pieces
    A: dict[tuple[int, int], tuple[tuple, list[Stage]]] = {
        (0, 0): ((), [])
    }  # (j, m) -> all times, slowest first; the stages
    for m in range(1, devices + 1):
        for j in range(1, N + 1):
            for k in range(1, min(m, K) + 1):
                for s in reversed(range(j)):
                    if (j, m) in A and T[s, j, k] > A[j, m][0][0]:
                        break  # a longer stage is slower still
                    if (s, m - k) in A:
                        before, stages = A[s, m - k]
                        times = tuple(sorted((*before, link[s], T[s, j, k]), reverse=True))
                        if (j, m) not in A or times < A[j, m][0]:
                            A[j, m] = times, [*stages, Stage(s, j, k)]
    return A[N, devices][1]


def worst(pieces: Sequence[Piece], devices: int) -> list[Stage]:
    """The straight pipeline whose slowest stage is slowest: one stage has all but a piece for each
    of the others."""
    require_room(pieces, devices)
    length = len(pieces) - devices + 1
    return max(
        (by_sizes([1] * at + [length] + [1] * (devices - 1 - at)) for at in range(devices)),
        key=lambda stages: slowest(pieces, stages),
    )


def by_sizes(sizes: Sequence[int]) -> list[Stage]:
    """Consecutive stages of so many pieces each."""
    ends = [0, *accumulate(sizes)]
    return [Stage(first, last) for first, last in zip(ends, ends[1:])]


def require_sizes(text: str, pieces: int, stages: int) -> list[int]:
    """The sizes of stages as they were typed; Impossible where they are not so many stages, of all
    pieces. Its example is a bad cut, since to find a good one is an exercise."""
    words = text.replace(",", " ").split()
    sizes = [int(word) for word in words if word.isdecimal() and int(word)]
    told = " ".join(map(str, [pieces - stages + 1] + [1] * (stages - 1)))
    refuse(
        (
            len(sizes) != len(words) or len(sizes) != stages or sum(sizes) != pieces,
            f"The cut {text!r} does not make {stages} stages of {pieces} pieces: give {stages}"
            f" whole numbers of at least 1 with the sum {pieces}, as in {told}.",
        )
    )
    return sizes


def slowest(pieces: Sequence[Piece], stages: Sequence[Stage], bytes_per_s=None) -> Fraction:
    """The time between two micro-batches at the slowest stage or link of a full pipeline: 1 /
    throughput."""
    links = [passing(pieces[stage.first - 1], bytes_per_s) for stage in stages if stage.first]
    return max([stage_time(pieces, stage, bytes_per_s) for stage in stages] + links)


def stage_time(pieces: Sequence[Piece], stage: Stage, bytes_per_s=None) -> Fraction:
    """T(i..j, k)."""
    own = pieces[stage.first : stage.last]
    return replicated(
        sum(exact(p.time) for p in own),
        sum(p.weight_bytes for p in own),
        stage.replicas,
        bytes_per_s,
    )


def replicated(work, weight_bytes: int, replicas: int, bytes_per_s) -> Fraction:
    """The time between two micro-batches of a stage with this work and these weights, on its
    replicas."""
    ring = (
        Fraction(2 * (replicas - 1) * weight_bytes, replicas) / exact(bytes_per_s)
        if bytes_per_s
        else 0
    )
    return Fraction(max(work, ring)) / replicas


def passing(piece: Piece, bytes_per_s) -> Fraction:
    """The time that a link needs for a micro-batch: the piece's output, and the gradient that comes
    back."""
    return Fraction(2 * piece.output_bytes) / exact(bytes_per_s) if bytes_per_s else Fraction(0)


def require_room(pieces: Sequence[Piece], devices: int, most_replicas: int = 1) -> None:
    """Impossible where some device would have nothing to hold."""
    room = len(pieces) * most_replicas
    refuse(
        (
            devices not in range(1, room + 1),
            f"{devices} devices cannot share a model of {len(pieces)} pieces with at most"
            f" {most_replicas} replica{'s' * (most_replicas > 1)} of a stage: take 1 to {room}.",
        )
    )


def stage_shares(trace: Trace, stages: int) -> list[tuple[float, float]]:
    """(time for a micro-batch, share of what all took) of each of so many stages; zeros where the
    trace does not reach it. A perfect share is 1 / stages."""
    took = (stage_times(trace) + [0.0] * stages)[:stages]
    return [(time, time / (sum(took) or 1)) for time in took]


def stage_times(trace: Trace) -> list[float]:
    """What each stage took for one micro-batch, all but its updates: the mean over the trace, in
    its unit."""
    took: dict[int, int] = defaultdict(int)
    micro_batches: dict[int, set] = defaultdict(set)
    for span in trace.spans():
        for stage, kind, micro_batch in ACTION.findall(span.name):
            if kind in "FBIW":
                took[int(stage)] += (span.end - span.start) // (1 + span.name.count("+"))
                micro_batches[int(stage)].add(micro_batch)
    return [trace.units(took[stage]) / len(micro_batches[stage]) for stage in sorted(took)]
