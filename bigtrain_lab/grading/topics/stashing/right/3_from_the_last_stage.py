from bigtrain_lab.order.schedules.pipedream import PipeDream


class answer(PipeDream):
    def version(self, action):
        if action.kind == "U":
            return action.micro_batch
        return max(0, action.micro_batch + action.stage + 1 - self.ranks)

    def versions_held(self, stage, updates):
        wait = self.ranks - 1 - stage
        return (v for v in range(updates, -1, -1) if updates - v <= wait)
