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
