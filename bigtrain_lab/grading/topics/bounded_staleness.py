"""A parameter server with bounded staleness: who waits for whom, and which weights each gets.

    order     by (time, worker), as soon as no earlier push can come: arrival decides nothing
    answer    when clock - (least clock of those still there) <= bound; the weights of that moment
    stale by  updates between a worker's read and the one that applies its gradient

A gradient is 1 at its own place in each layer, so weights show which pushes they contain, and how
often. The truth is the library's own rule, plan.Turns, and a replay of the pushes in order.
Source: Ho et al. 2013, More effective distributed ML via a stale synchronous parallel parameter
server (NIPS), section 3.
"""

import random
from functools import cache

import torch

from ..fence import Refused
from ..likeness import Scene, Topic, Wrong

RIGHT = """
from math import inf

class answer:
    def __init__(self, weights, workers, rate, bound=None, average=False):
        self.weights = [layer.clone() for layer in weights]
        self.rate, self.need = rate, workers if average else 1
        self.bound = 0 if average else inf if bound is None else bound
        self.version, self.read, self.applied = 0, [0] * workers, []
        self.clock, self.live, self.held = [0] * workers, set(range(workers)), set()
        self.inbox, self.batch = {}, []

    def push(self, worker, gradient, time, last=False):
        self.inbox[time, worker] = gradient, last
        answers = {}
        while self.inbox and self.live - self.held <= {w for _, w in self.inbox}:
            time, worker = min(self.inbox)
            gradient, last = self.inbox.pop((time, worker))
            self.apply(time, worker, gradient)
            self.clock[worker] += 1
            self.held.add(worker)
            if last:
                self.live.remove(worker)
            answers |= self.due()
        return answers

    def apply(self, time, worker, gradient):
        self.batch.append((time, worker, gradient))
        if len(self.batch) == self.need:
            for time, worker, gradient in self.batch:
                self.applied.append((time, worker, self.version - self.read[worker]))
                for layer, part in zip(self.weights, gradient):
                    layer -= self.rate * part / self.need
            self.version += 1
            self.batch = []

    def due(self):
        least = min((self.clock[w] for w in self.live), default=inf)
        free = [w for w in self.held if self.clock[w] - least <= self.bound]
        for worker in free:
            self.held.remove(worker)
            self.read[worker] = self.version
        return {w: (self.version, [layer.clone() for layer in self.weights]) for w in free}
"""
LIBRARYS = """
import torch
from bigtrain_lab.plan import Serve, Turns

class answer:
    def __init__(self, weights, workers, rate, bound=None, average=False):
        self.left, self.share = [10**9] * workers, rate / workers if average else rate
        self.turns = Turns(Serve(tuple(range(workers)), self.left, bound=0 if average else bound))
        self.shapes = [layer.shape for layer in weights]
        self.flat = torch.cat([layer.flatten() for layer in weights])
        self.sum, self.each = torch.zeros_like(self.flat), workers if average else 1
        self.seen, self.got, self.applied = [0] * workers, {}, []

    def push(self, worker, gradient, time, last=False):
        if last:
            self.left[worker] = self.turns.made[worker] + 1
        self.got[worker] = time, torch.cat([part.flatten() for part in gradient])
        self.turns.has(worker, time)
        answers = {}
        while not self.turns.over and self.turns.wanted() is None:
            place, _ = self.turns.take()
            time, gradient = self.got.pop(place)
            stale = len(self.applied) // self.each - self.seen[place]
            self.applied.append((time, place, stale))
            self.sum += gradient
            version, rest = divmod(len(self.applied), self.each)
            if not rest:
                self.flat = self.flat - self.share * self.sum
                self.sum.zero_()
            for place, _ in self.turns.due():
                parts = self.flat.split([shape.numel() for shape in self.shapes])
                answers[place] = version, [p.view(s) for p, s in zip(parts, self.shapes)]
                self.turns.answered(place, 0)
                self.seen[place] = version
        return answers
"""
REPLAY = """
class answer:
    def __init__(self, weights, workers, rate, bound=None, average=False):
        self.first, self.rate, self.bound, self.average = weights, rate, bound, average
        self.workers, self.pushes, self.told, self.applied = range(workers), [], set(), []

    def push(self, worker, gradient, time, last=False):
        self.pushes.append((time, worker, last, gradient))
        known = self.replayed()
        new = {key: version for key, version in known.items() if key not in self.told}
        self.told |= new.keys()
        return {w: (version, self.weights(version)) for (w, _), version in new.items()}

    def weights(self, version):
        '''Of all pushes in the order of their times, the first ones.'''
        each = len(self.workers) if self.average else 1
        done = sorted(self.pushes, key=lambda push: push[:2])[:version * each]
        return [w - self.rate * sum(push[3][at] for push in done) / each if done else w.clone()
                for at, w in enumerate(self.first)]

    def replayed(self):
        '''{(worker, number): version} of all answers that the pushes so far make due.'''
        order = sorted(self.pushes, key=lambda push: push[:2])
        answers, made, gone = {}, [0 for _ in self.workers], set()
        self.applied = []
        for at, (time, worker, last, _) in enumerate(order):
            coming = {other for _, other, *_ in order[at:]}
            waits = {w for w in self.workers if made[w] and (w, made[w] - 1) not in answers}
            if set(self.workers) - gone - waits - coming:
                break
            each = len(self.workers) if self.average else 1
            read = answers.get((worker, made[worker] - 1), 0)
            self.applied.append((time, worker, at // each - read))
            made[worker] += 1
            gone |= {worker} if last else set()
            there = [made[w] for w in self.workers if w not in gone]
            for w in self.workers:
                key, bound = (w, made[w] - 1), 0 if self.average else self.bound
                if made[w] and key not in answers:
                    if bound is None or not there or made[w] <= min(there) + bound:
                        answers[key] = (at + 1) // each
        return answers
"""
HEAP = """
import heapq
from types import SimpleNamespace

def answer(weights, workers, rate, bound=None, average=False):
    server = SimpleNamespace(applied=[])
    heap, clocks, reads, since = [], {w: 0 for w in range(workers)}, {}, {}
    state = {"weights": weights, "version": 0}
    computing, waiting, round_ = dict.fromkeys(range(workers), -1), {}, []

    def step(gradients):
        mean = [sum(parts) / len(gradients) for parts in zip(*gradients)]
        state["weights"] = [w - rate * g for w, g in zip(state["weights"], mean)]
        state["version"] += 1

    def is_next():
        '''Nobody who computes can still push before the first of the heap.'''
        time = heap[0][0] if heap else None
        return heap and all(answered >= time for answered in computing.values())

    def push(worker, gradient, time, last=False):
        del computing[worker]
        heapq.heappush(heap, (time, worker, last, gradient))
        answers = {}
        while is_next():
            time, worker, last, gradient = heapq.heappop(heap)
            server.applied.append((time, worker, state["version"] - reads.get(worker, 0)))
            round_.append(gradient)
            if not average or len(round_) == workers:
                step(round_)
                round_.clear()
            waiting[worker] = clocks[worker] = clocks[worker] + 1
            if last:
                del clocks[worker]
            if average:
                go = [] if round_ else list(waiting)
            elif bound is None or not clocks:
                go = list(waiting)
            else:
                go = [w for w, clock in waiting.items() if clock <= min(clocks.values()) + bound]
            for w in go:
                del waiting[w]
                reads[w] = state["version"]
                answers[w] = state["version"], state["weights"]
                if w in clocks:
                    computing[w] = time
        return answers

    server.push = push
    return server
"""
FREES = "self.clock[w] - least <= self.bound"
SERVES = "self.inbox and self.live - self.held <= {w for _, w in self.inbox}"
FIRST, STALE = "min(self.inbox)\n", "self.version - self.read[worker]"
STEP, NEED = "layer -= self.rate * part / self.need", "workers if average else 1"
LOOP = f"for layer, part in zip(self.weights, gradient):\n                    {STEP}"
BOUND = "0 if average else inf if bound is None else bound"
LEAST = "min((self.clock[w] for w in self.live), default=inf)"
COPY = "[layer.clone() for layer in self.weights]"
ANSWER = f"{{w: (self.version, {COPY}) for w in free}}"
APPLY, CLOCK = "self.apply(time, worker, gradient)\n", "            self.clock[worker] += 1\n"
LAST = "            if last:\n                self.live.remove(worker)\n"
ARRIVES = "        self.inbox[time, worker] = gradient, last\n"
WAKES = "        for worker in free:\n"
READ, COUNT = "self.read[worker] = self.version\n", "            self.version += 1\n"
NOBODY = "Nobody waits in yours: hold whoever is ahead of the least clock by more than the bound."
STALENESS = "Your staleness is another number: "


def but(*changes: str) -> str:
    """The first right answer with old, new, old, new, ... replaced."""
    text = RIGHT
    for old, new in zip(changes[::2], changes[1::2]):
        assert old in text, old
        text = text.replace(old, new)
    return text


class BoundedStaleness(Topic):
    name = "bounded-staleness"
    forbids = ("bigtrain_lab.plan.Turns",)
    hints = (
        "Who may still push before the push that you have? Who cannot: held, or gone?",
        "Keep arrived pushes. While each worker that computes has one, apply the first by "
        "(time, worker). After each, ask of all that wait whether they may go on.",
        "A worker computes from its answer to its push. Its clock counts its applied pushes. "
        "It goes on when clock - min(clocks of those that stay) <= bound; copy the weights "
        "then.",
    )
    right = {
        "a class": RIGHT,
        "the library's turns": LIBRARYS,
        "a replay": REPLAY,
        "a heap, looking ahead": HEAP,
        "no copies": but(
            LOOP,
            "self.weights = [layer - self.rate * part / self.need for "
            "layer, part in zip(self.weights, gradient)]",
            COPY,
            "self.weights",
        ),
    }
    wrong = {
        name: Wrong(sentence, text)
        for name, sentence, text in (
            ("adds", "The weights go up the gradient: subtract it.", but("layer -=", "layer +=")),
            (
                "no_rate",
                "A gradient is applied without the rate: multiply by it.",
                but("self.rate * part", "part"),
            ),
            (
                "one_layer",
                "Only the first layer moves: apply the gradient to all.",
                but("zip(self.weights, ", "zip(self.weights[:1], "),
            ),
            (
                "reads_torn",
                "An answer has layers of two versions: copy all of them between two updates.",
                but(
                    "        self.batch.append(",
                    f"        self.old = {COPY}\n        self.batch.append(",
                    f"version, {COPY}",
                    "version, [self.weights[0].clone(), *self.old[1:]]",
                ),
            ),
            (
                "aliases",
                "An answer changed after it was given: give a copy of the weights.",
                but(COPY, "self.weights"),
            ),
            (
                "drops_last",
                "A worker's last gradient is missing: apply it before the worker leaves.",
                but(APPLY, "last or " + APPLY),
            ),
            (
                "overwrites_weights",
                "A push replaced what others had updated: apply the gradient to "
                "the server's weights, not to those that the worker read.",
                but(
                    LOOP,
                    "self.weights = [layer.clone() for layer in self.got[worker]]\n"
                    f"                {LOOP}",
                    "self.inbox, self.batch = ",
                    "self.got = [weights] * workers\n        self.inbox, self.batch = ",
                    WAKES,
                    WAKES + f"            self.got[worker] = {COPY}\n",
                ),
            ),
            (
                "wall_clock_order",
                "Two runs differ: serve by virtual time, and wait where an earlier "
                "push can still come.",
                but(SERVES, "self.inbox"),
            ),
            (
                "one_a_call",
                "A push that could be served stays: after each one, ask for the next.",
                but("        while ", "        if "),
            ),
            (
                "ties",
                "Two pushes of one time were served as they arrived: take the smaller worker "
                "first.",
                but(FIRST, "min(self.inbox, key=lambda each: each[0])\n"),
            ),
            (
                "ties_backwards",
                "Of two pushes of one time you took the larger worker: the smaller is first.",
                but(FIRST, "min(self.inbox, key=lambda each: (each[0], -each[1]))\n"),
            ),
            (
                "by_worker",
                "Pushes are served by worker, then by time: time is first.",
                but(FIRST, "min(self.inbox, key=lambda each: each[::-1])\n"),
            ),
            (
                "none_is_zero",
                "Without a bound a worker waits in yours: None is no bound, and 0 is one.",
                but(BOUND, "bound or 0"),
            ),
            (
                "zero_is_none",
                "Bound 0 holds nobody in yours: with it nobody is ahead of the others.",
                but(BOUND, "0 if average else bound or inf"),
            ),
            ("never_holds", NOBODY, but(FREES, "True")),
            ("asynchronous", NOBODY, but(SERVES, "self.inbox", FREES, "True")),
            (
                "bound_on_wrong_worker",
                "You stopped the slowest: hold those that are ahead of the "
                "least clock by more than the bound.",
                but(FREES, "max(self.clock) - self.clock[w] <= self.bound"),
            ),
            (
                "no_wake_up",
                "A worker waits although the least clock has moved on: after each push ask "
                "again of all that are held.",
                but(
                    CLOCK,
                    CLOCK + "            self.now = worker\n",
                    FREES,
                    FREES + " and w == self.now",
                ),
            ),
            (
                "one_early",
                "A worker waits that is ahead by the bound itself: hold only beyond it.",
                but(FREES, "self.clock[w] - least < self.bound"),
            ),
            (
                "one_late",
                "A worker goes on that is ahead by one more than the bound: count the push "
                "that was just applied.",
                but(FREES, "self.clock[w] - 1 - least <= self.bound"),
            ),
            (
                "ahead_of_mean",
                "You compare with the mean clock: the bound is from the least one.",
                but(LEAST, "sum(self.clock) / len(self.clock) if self.live else inf"),
            ),
            (
                "bounds_versions",
                "You bound versions: count each worker's own pushes.",
                but(
                    LEAST,
                    "min((self.read[v] for v in self.live), default=inf)",
                    FREES,
                    "self.version - least <= self.bound",
                ),
            ),
            (
                "clock_on_arrival",
                "A clock moved when a push arrived: count a push when it is applied.",
                but(CLOCK, "", ARRIVES, ARRIVES + CLOCK[4:]),
            ),
            (
                "waits_for_held",
                "You wait for a push of a worker that is held, which cannot come: wait "
                "for those that compute.",
                but("self.live - self.held <=", "self.live <="),
            ),
            (
                "applies_late",
                "The gradient of a held worker waits too: apply each at its turn, and "
                "hold only the answer.",
                but(
                    APPLY,
                    "self.kept = {**getattr(self, 'kept', {}), worker: (time, gradient)}\n",
                    WAKES,
                    "        for w in free:\n            time, gradient = self.kept[w]\n"
                    "            self.apply(time, w, gradient)\n" + WAKES,
                ),
            ),
            (
                "weights_of_push",
                "A held worker got the weights of its own push: give those of the "
                "moment at which it goes on.",
                but(
                    APPLY,
                    APPLY + "            self.then = {**getattr(self, 'then', {}), worker: "
                    f"(self.version, {COPY})}}\n",
                    ANSWER,
                    "{w: self.then[w] for w in free}",
                    READ,
                    "self.read[worker] = self.then[worker][0]\n",
                ),
            ),
            (
                "drops_stale",
                "A stale gradient was dropped: apply all of them.",
                but(LOOP, f"if {STALE} > self.bound: continue\n                {LOOP}"),
            ),
            (
                "damps_stale",
                "A stale gradient counts less than a fresh one: apply each in full.",
                but(STEP, f"layer -= self.rate * part / self.need / (1 + {STALE})"),
            ),
            (
                "staleness_from_send",
                STALENESS + "you count versions from the read to the send, so go "
                "on until the gradient is applied.",
                but(
                    ARRIVES,
                    ARRIVES + "        self.sent = {**getattr(self, 'sent', {}), worker: "
                    f"{STALE}}}\n",
                    f"worker, {STALE}",
                    "worker, self.sent[worker]",
                ),
            ),
            (
                "staleness_counts_itself",
                STALENESS + "leave out the update that applies the gradient.",
                but(STALE + "))", STALE + " + 1))"),
            ),
            (
                "staleness_of_clocks",
                STALENESS + "you count how far a worker is ahead, so count updates.",
                but(STALE + "))", "self.clock[worker] - min(self.clock)))"),
            ),
            (
                "staleness_from_push",
                STALENESS + "a held worker reads when it is answered, not when it pushes.",
                but(
                    READ,
                    "pass\n",
                    COUNT,
                    COUNT + "            for _, worker, _ in self.batch:\n"
                    "                self.read[worker] = self.version\n",
                ),
            ),
            (
                "version_of_clocks",
                "Your version is the least clock: count the updates that the "
                "weights have behind them.",
                but("w: (self.version", "w: (min(self.clock)"),
            ),
            (
                "bound_of_left",
                "A worker has left, and others wait for it: take the least clock of "
                "those that are still there.",
                but(LEAST, "min(self.clock)"),
            ),
            (
                "waits_for_left",
                "You wait for a push of a worker that has left: its last push said so.",
                but("self.live - self.held <=", "set(range(len(self.read))) - self.held <="),
            ),
            (
                "leaves_on_arrival",
                "A worker left when its last push arrived: it is there until that one is applied.",
                but(
                    LAST,
                    "",
                    ARRIVES,
                    ARRIVES + "        if last:\n            self.live.remove(worker)\n",
                ),
            ),
            (
                "sync_without_average",
                "In average mode the step is as many times too large as there "
                "are workers: apply the mean of a round.",
                but("part / self.need", "part"),
            ),
            (
                "one_by_one",
                "In average mode you made an update of each gradient: make one of a round, "
                "by its mean.",
                but(NEED, "1"),
            ),
            (
                "averages_always",
                "Without average mode a gradient counts in full: divide only a round's sum.",
                but("part / self.need", "part / len(self.read)"),
            ),
            (
                "mean_without_hold",
                "In average mode a worker went on before the round was whole: hold it until then.",
                but(BOUND, "inf if bound is None else bound"),
            ),
        )
    }

    @staticmethod
    def probe(answer, draw):
        def plays(who, paces, bound=None, average=False, arrival=min):
            of = answer, paces, bound, average, draw.choice((0.125, 0.25, 0.5))
            seed = draw.randrange(2**31)
            run = cache(lambda: Played(*of, arrival or random.Random(seed).choice))
            if arrival is max:
                yield Scene(
                    f"{who}, heard in two orders",
                    lambda: {"one trace in two runs": run().trace() == Played(*of, min).trace()},
                )
            for shown in (
                Played.ends,
                Played.trace,
                Played.versions,
                Played.weights,
                Played.staleness,
            ):
                yield Scene(who, lambda shown=shown: shown(run()))

        few, s, first, slow = (draw.randint(*ends) for ends in ((3, 4), (1, 2), (2, 5), (19, 23)))
        each = [[draw.randint(2, 4) + worker for _ in range(6)] for worker in range(few)]
        straggler = [*each[1:], [slow] * 5]
        hiccup = [[*own[:worker], slow, *own[worker + 1 :]] for worker, own in enumerate(each)]
        leaver = [own[: 6 - 2 * (worker == 0)] for worker, own in enumerate(each)]
        yield from plays("one worker", [[draw.randint(2, 5)] * 3])
        yield from plays("3 workers, bound 1", [[3] * 6, [draw.choice((5, 7))] * 5, [11] * 4], 1)
        yield from plays(
            "3 workers that begin alike, no bound",
            [[first, 3, 3, 3, 3], [first, 5, 5, 5], [first, 11, 11]],
        )
        yield from plays(f"{few} workers, no bound", each, arrival=max)
        yield from plays(f"{few} workers, bound 0", each, 0)
        yield from plays(f"{few} workers, bound {s}, one slow", straggler, s)
        yield from plays(f"{few} workers, bound {s}, hiccups", hiccup, s, arrival=max)
        yield from plays(f"{few} workers of one pace, bound {s}", [[3] * 4] * few, s, arrival=max)
        yield from plays(f"{few} workers, no bound, one leaves", leaver, arrival=max)
        yield from plays(f"{few} workers, bound {s}, one leaves", leaver, s, arrival=max)
        yield from plays(f"{few} workers, average", each, 0, True)
        yield from plays(f"{few} workers, average", hiccup, None, True, arrival=max)
        for bound in (None, 0, draw.randint(1, 3)):
            paces = [[draw.randint(1, 9) for _ in range(draw.randint(3, 7))] for _ in range(5)]
            yield from plays(
                f"5 workers, {'no bound' if bound is None else f'bound {bound}'}",
                paces,
                bound,
                arrival=None,
            )


class Played:
    """A run of workers: each computes for one of its paces, pushes, and goes on when answered.

    arrival    which of the pushes under way reaches the server next, of (time, worker)
    given      (worker, number) -> (version, weights) of each answer
    """

    def __init__(self, answer, paces, bound, average, rate, arrival):
        self.paces, self.rate, self.most = paces, rate, max(map(len, paces))
        size = len(paces) * self.most
        self.shapes = (size,), (len(paces), self.most), (1, size)
        self.server = answer([self.start(at) for at in range(3)], len(paces), rate, bound, average)
        self.given, self.kept, self.made, self.owed = {}, {}, [0] * len(paces), set()
        way = {(own[0], worker) for worker, own in enumerate(paces)}
        while way:
            time, worker = arrival(sorted(way))
            way.remove((time, worker))
            number, self.made[worker] = self.made[worker], self.made[worker] + 1
            self.owed.add(worker)
            last = self.made[worker] == len(paces[worker])
            answers = self.server.push(worker, self.gradient(worker, number), time, last)
            for other in self.answered(answers):
                if self.made[other] < len(paces[other]):
                    way.add((self.applied()[-1][0] + paces[other][self.made[other]], other))

    def start(self, layer: int) -> torch.Tensor:
        size = len(self.paces) * self.most
        return (torch.arange(size) % 7 - layer).double().view(self.shapes[layer])

    def gradient(self, worker: int, number: int) -> list[torch.Tensor]:
        """In layer i the number i + 1 at this push's own place."""
        own = torch.zeros(len(self.paces), self.most, dtype=torch.float64)
        own[worker, number] = 1
        return [(own * (at + 1)).view(shape) for at, shape in enumerate(self.shapes)]

    def answered(self, answers) -> list[int]:
        """Who goes on; note what each was given."""
        try:
            answers = {
                int(worker): (int(version), [*weights])
                for worker, (version, weights) in answers.items()
            }
            whole = all(
                [layer.shape for layer in weights] == [*map(torch.Size, self.shapes)]
                for _, weights in answers.values()
            )
        except (AttributeError, TypeError, ValueError):
            whole = False
        if not whole:
            raise Refused(
                "What push returned is no dict of answers: return {worker: (version, "
                "weights)} with all layers, and {} where no answer is due."
            )
        if answers and not self.applied():
            raise Refused(
                "A worker is answered, but no gradient was applied: keep in `applied` a "
                "(time, worker, staleness) of each, and hold those that must wait."
            )
        for worker, (version, weights) in answers.items():
            if worker not in self.owed:
                raise Refused(
                    f"Worker {worker} is answered, but has no push that waits for it: "
                    "answer each push once."
                )
            self.owed.remove(worker)
            push = worker, self.made[worker] - 1
            self.given[push] = version, [layer.detach().clone() for layer in weights]
            self.kept[push] = weights
        return [*answers]

    def applied(self) -> list[tuple]:
        """The server's own notes."""
        try:
            return [
                (float(time), int(worker), stale) for time, worker, stale in self.server.applied
            ]
        except (AttributeError, TypeError, ValueError):
            raise Refused(
                "The server's notes cannot be read: keep in `applied` a list of (time, "
                "worker, staleness), one for each gradient, in the order in which you "
                "apply them."
            ) from None

    def ends(self) -> dict:
        changed = [
            push
            for push, (_, then) in sorted(self.given.items())
            if not all(map(torch.equal, then, self.kept[push]))
        ]
        return {
            "workers that wait for ever": sorted(self.owed),
            "answers (to worker.number) that changed after they were given": [
                name(*push) for push in changed
            ],
        }

    def trace(self) -> dict:
        return {
            "worker and time of what is applied": [
                f"{worker} at {time:g}" for time, worker, _ in self.applied()
            ]
        }

    def versions(self) -> dict:
        return {
            f"versions that worker {worker} reads": [
                version for push, (version, _) in sorted(self.given.items()) if push[0] == worker
            ]
            for worker in range(len(self.paces))
        }

    def weights(self) -> dict:
        """Which pushes each answer's layers contain, and how often where that is not once."""
        return {
            f"pushes (worker.number) in layer {at} of the answer to {name(*push)}": self.within(
                at, layer
            )
            for push, (_, weights) in sorted(self.given.items())
            for at, layer in enumerate(weights)
        }

    def within(self, at: int, layer: torch.Tensor) -> list[str]:
        counts = ((self.start(at) - layer) / self.rate / (at + 1)).view(-1).tolist()
        return [
            f"{f'{count:.4g} x ' * (abs(count - 1) > 1e-6)}{name(*divmod(place, self.most))}"
            for place, count in enumerate(counts)
            if abs(count) > 1e-6
        ]

    def staleness(self) -> dict:
        return {"staleness of each gradient": [stale for *_, stale in self.applied()]}


def name(worker: int, number: int) -> str:
    """A push: "1.0" is the first of worker 1."""
    return f"{worker}.{number}"
