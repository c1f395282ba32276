import numpy as np


def answer(function, x, wait, clock):
    function(x), wait()
    stamps = [clock()]
    for _ in range(25):
        function(x)
        wait()
        stamps.append(clock())
    return np.median(np.diff(stamps))
