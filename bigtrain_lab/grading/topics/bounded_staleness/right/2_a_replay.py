class answer:
    def __init__(self, weights, workers, rate, bound=None, average=False):
        self.first, self.rate = weights, rate
        self.workers, self.round = range(workers), workers if average else 1
        self.bound = 0 if average else bound
        self.pushes, self.told, self.applied = [], set(), []

    def push(self, worker, gradient, time, last=False):
        self.pushes.append((time, worker, last, gradient))
        self.pushes.sort()
        new = {key: version for key, version in self.replayed().items() if key not in self.told}
        self.told |= new.keys()
        return {worker: (version, self.weights(version)) for (worker, _), version in new.items()}

    def weights(self, version):
        # after this many updates: of all pushes, in the order of their times, the first ones
        done = [gradient for *_, gradient in self.pushes[: version * self.round]]
        return [
            layer - self.rate * sum(gradient[at] for gradient in done) / self.round
            for at, layer in enumerate(self.first)
        ]

    def replayed(self):
        # {(worker, number): version} of all answers that the pushes so far make due
        answers, made, gone, self.applied = {}, [0 for _ in self.workers], set(), []
        for at, (time, worker, last, _) in enumerate(self.pushes):
            coming = {other for _, other, *_ in self.pushes[at:]}
            held = {w for w in self.workers if made[w] and (w, made[w]) not in answers}
            if set(self.workers) - gone - held - coming:
                break
            read = answers.get((worker, made[worker]), 0)
            self.applied.append((time, worker, at // self.round - read))
            made[worker] += 1
            if last:
                gone.add(worker)
            there = [made[w] for w in self.workers if w not in gone]
            for w in self.workers:
                free = self.bound is None or not there or made[w] <= min(there) + self.bound
                if made[w] and free:
                    answers.setdefault((w, made[w]), (at + 1) // self.round)
        return answers
