def warm_up(stage, stages, count):
    """What a stage does in a step, under 1F1B."""
    first = min(count, stages - stage)
    done = ["F"] * first
    for _ in range(count - first):
        done += ["B", "F"]
    return done + ["B"] * first


def most_alive(done):
    alive = most = 0
    for kind in done:
        alive += 1 if kind == "F" else -1
        most = max(most, alive)
    return most


def answer(layers, devices, batch, memory, layer):
    best, chosen = float("inf"), None
    stages = 1
    while stages <= min(devices, layers):
        copies = devices // stages
        if copies * stages == devices and layers // stages * stages == layers:
            for rows in range(1, batch + 1):
                count = batch // copies // rows
                if count * rows * copies != batch:
                    continue
                alive = most_alive(warm_up(0, stages, count))
                for again in (False, True):
                    forward = layers // stages * (rows * layer["forward"] + layer["launch"])
                    backward = 2 * forward + again * forward
                    last = stages * (forward + backward)
                    time = last + (count - 1) * (forward + backward)
                    time += (copies > 1) * layers // stages * layer["average"]
                    each = rows * (layer["input"] if again else layer["kept"])
                    room = memory - layers // stages * (layer["state"] + alive * each)
                    room -= rows * layer["kept"] if again else 0
                    if room >= 0 and time < best:
                        best, chosen = time, (copies, stages, rows, again)
        stages += 1
    return chosen
