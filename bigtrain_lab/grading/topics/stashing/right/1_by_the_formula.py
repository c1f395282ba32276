from bigtrain_lab.order.schedules.pipedream import PipeDream


class answer(PipeDream):
    def version(self, action):
        wait = self.ranks - 1 - action.stage
        if action.kind == "U":
            return action.micro_batch
        return max(0, action.micro_batch - wait)

    def versions_held(self, stage, updates):
        wait = self.ranks - 1 - stage
        return range(max(0, updates - wait), updates + 1)
