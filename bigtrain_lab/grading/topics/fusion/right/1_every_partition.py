def answer(operators, sizes, outputs):
    reads = {name: set(read) for name, read, _ in operators}
    free = [name for name, _, pointwise in operators if pointwise]
    alone = [[name] for name, _, pointwise in operators if not pointwise]

    def partitions(items):
        if not items:
            yield []
            return
        first, rest = items[0], items[1:]
        for groups in partitions(rest):
            yield [[first], *groups]
            for i, group in enumerate(groups):
                yield [*groups[:i], [first, *group], *groups[i + 1 :]]

    def runs(groups):
        home = {name: i for i, group in enumerate(groups) for name in group}
        needs = [
            {home[r] for n in group for r in reads[n] if r in home} - {i}
            for i, group in enumerate(groups)
        ]
        done = set()
        while len(done) < len(groups):
            ready = [i for i in range(len(groups)) if i not in done and needs[i] <= done]
            if not ready:
                return False
            done.update(ready)
        return True

    def moved(groups):
        total = 0
        for group in groups:
            inside = set(group)
            total += sum(sizes[r] for r in set().union(*(reads[n] for n in group)) - inside)
            outside = set().union(*(reads[n] for n in reads if n not in inside))
            total += sum(sizes[n] for n in group if n in outside or n in outputs)
        return total

    best = min((groups + alone for groups in partitions(free) if runs(groups + alone)), key=moved)
    return best, moved(best)
