def answer(function, x, wait, clock):
    best = float("inf")
    for k in range(12):
        wait()
        t = clock()
        function(x)
        wait()
        if k:
            best = min(best, clock() - t)
    return best
