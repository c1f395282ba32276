def answer(operators, sizes, outputs):
    best = [None, float("inf")]

    def moved(home):
        read, written = set(), set(outputs)
        for name, reads, _ in operators:
            for value in reads:
                if home.get(value) != home[name]:
                    read.add((home[name], value))
                    written.add(value)
        return sum(sizes[v] for _, v in read) + sum(sizes[v] for v in written if v in home)

    def runs(home):
        needs = {group: set() for group in home.values()}
        for name, reads, _ in operators:
            if name in home:
                needs[home[name]] |= {home[v] for v in reads if v in home} - {home[name]}
        while ready := [group for group in needs if not needs[group] & needs.keys()]:
            del needs[ready[0]]
        return not needs

    def place(left, home, pointwise_groups):
        if not runs(home):
            return
        if not left:
            if moved(home) < best[1]:
                best[:] = home, moved(home)
            return
        (name, _, pointwise), *left = left
        for group, kind in enumerate(pointwise_groups):
            if pointwise and kind:
                place(left, {**home, name: group}, pointwise_groups)
        new = len(pointwise_groups)
        place(left, {**home, name: new}, [*pointwise_groups, pointwise])

    place(operators, {}, [])
    home, total = best
    return [[name for name in home if home[name] == group] for group in set(home.values())], total
