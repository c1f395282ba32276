from bigtrain_lab.order.schedule import B, F, Schedule, U


class answer(Schedule):
    def steps(self, rank):
        order, kept = [], []
        for i in range(self.micro_batches):
            order.append(F(rank, i))
            kept.append(i)
        while kept:
            order.append(B(rank, kept.pop()))
        return [*order, U(rank, self.micro_batches - 1)]
