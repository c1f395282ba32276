from bigtrain_lab.order.schedule import B, F, Schedule


class answer(Schedule):
    def steps(self, rank):
        p, m = self.ranks, self.micro_batches

        warm = p - rank
        keys = {F(rank, i): (max(i, 2 * (i - warm) + warm + 1), 0) for i in range(m)}
        keys |= {B(rank, i): (2 * i + warm, 1) for i in range(m)}
        return sorted(keys, key=keys.get)
