def answer(function, x, wait, clock):
    function(x)
    wait()
    times = []
    for _ in range(15):
        start = clock()
        function(x)
        wait()
        times.append(clock() - start)
    times.sort()
    return times[len(times) // 2]
