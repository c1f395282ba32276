class answer:
    def __init__(self, init_scale, growth_factor, backoff_factor, growth_interval):
        self.value, self.interval = init_scale, growth_interval
        self.up, self.down = growth_factor, backoff_factor
        self.streak, self.found = 0, {}

    def scale(self, loss):
        return loss * self.value

    def unscale_(self, optimizer):
        bad = False
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad /= self.value
                    bad = bad or not p.grad.isfinite().all()
        self.found[optimizer] = bad

    def step(self, optimizer):
        if optimizer not in self.found:
            self.unscale_(optimizer)
        if not self.found[optimizer]:
            optimizer.step()

    def update(self):
        if any(self.found.values()):
            self.value, self.streak = self.value * self.down, 0
        else:
            self.streak += 1
            if self.streak >= self.interval:
                self.value, self.streak = self.value * self.up, 0
        self.found = {}

    def get_scale(self):
        return self.value

    def state_dict(self):
        return {"value": self.value, "streak": self.streak}

    def load_state_dict(self, state):
        self.value, self.streak = state["value"], state["streak"]
