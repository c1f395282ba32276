def answer(operators, sizes, outputs):
    reads = {name: frozenset(read) for name, read, _ in operators}
    pointwise = {name for name, _, kind in operators if kind}

    def runs(groups):
        left, there = set(groups), set(sizes) - set(reads)
        while left:
            ready = {g for g in left if all(reads[name] <= there | g for name in g)}
            if not ready:
                return False
            left -= ready
            there = there.union(*ready)
        return True

    def moved(groups):
        total = 0
        for group in groups:
            others = set(outputs).union(*(reads[name] for name in reads if name not in group))
            used = set().union(*(reads[name] for name in group)) - group
            total += sum(sizes[value] for value in used | group & others)
        return total

    start = frozenset(frozenset([name]) for name in reads)
    seen, found = {start}, [start]
    for groups in found:
        for a in groups:
            for b in groups:
                merged = groups - {a, b} | {a | b}
                if a != b and a | b <= pointwise and merged not in seen and runs(merged):
                    seen.add(merged)
                    found.append(merged)
    best = min(found, key=moved)
    return [list(group) for group in best if len(group) > 1], moved(best)
