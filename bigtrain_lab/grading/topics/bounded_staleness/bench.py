"""A parameter server and its workers: each computes for one of its paces, pushes, and goes on when
answered. A gradient is the layer's number at its own place in each layer, so weights show which
pushes they contain, and how often."""

import random

import torch

from ...trainings import Refused, refuse


def play(answer, paces, bound, average, rate, arrivals) -> list[dict]:
    """A run for each of `arrivals`: whether the first or the last of the pushes under way reaches
    the server next, or one that a seed draws."""
    return [served(answer, paces, bound, average, rate, arrival) for arrival in arrivals]


def layers(workers: int, most: int) -> list[torch.Tensor]:
    """What the weights begin with: a number for each push."""
    numbers = torch.arange(workers * most, dtype=torch.float64) % 7
    return [numbers - 1, (numbers - 2).view(workers, most)]


def served(answer, paces, bound, average, rate, arrival) -> dict:
    """answers: "worker.number" -> (version, layers) of the answer to a push."""
    choose = {"first": min, "last": max}.get(arrival) or random.Random(arrival).choice
    most = max(map(len, paces))
    first = layers(len(paces), most)
    server = answer([layer.clone() for layer in first], len(paces), rate, bound, average)
    answers, given, made, owed = {}, {}, [0] * len(paces), set()
    under_way = {(own[0], worker) for worker, own in enumerate(paces)}
    while under_way:
        time, worker = choose(sorted(under_way))
        under_way.remove((time, worker))
        place = torch.zeros(len(paces), most, dtype=torch.float64)
        place[worker, made[worker]] = 1
        made[worker] += 1
        owed.add(worker)
        gradient = [at * place.view_as(layer) for at, layer in enumerate(first, 1)]
        new = read(server.push(worker, gradient, time, made[worker] == len(paces[worker])), first)
        applied = notes(server)
        refuse(
            (
                new and not applied,
                "A worker is answered, but no gradient was applied: keep in `applied` a (time,"
                " worker, staleness) of each, and hold those that must wait.",
            )
        )
        for worker, (version, weights) in new.items():
            refuse(
                (
                    worker not in owed,
                    f"Worker {worker} is answered, but has no push that waits for it: answer each"
                    " push once.",
                )
            )
            owed.remove(worker)
            push = f"{worker}.{made[worker] - 1}"
            answers[push] = version, plain(weights)
            with torch.no_grad():  # the worker trains on its copy
                for layer in weights:
                    layer += 1
            given[push] = weights, plain(weights)
            if made[worker] < len(paces[worker]):
                under_way.add((applied[-1][0] + paces[worker][made[worker]], worker))
    return {
        "waiting": sorted(owed),
        "changed": sorted(push for push, (own, then) in given.items() if plain(own) != then),
        "applied": applied,
        "answers": answers,
    }


def plain(weights) -> list[list[float]]:
    return [layer.flatten().tolist() for layer in weights]


def read(answers, first) -> dict:
    try:
        answers = {
            int(worker): (int(version), list(weights))
            for worker, (version, weights) in answers.items()
        }
        for _, weights in answers.values():
            if [layer.shape for layer in weights] != [layer.shape for layer in first]:
                raise ValueError
    except (AttributeError, TypeError, ValueError):
        raise Refused(
            "What push returned is no dict of answers: return {worker: (version, weights)} with"
            " all layers, and {} where no answer is due."
        ) from None
    return answers


def notes(server) -> list[tuple]:
    """What the server says that it applied."""
    try:
        return [(float(time), int(worker), float(stale)) for time, worker, stale in server.applied]
    except (AttributeError, TypeError, ValueError):
        raise Refused(
            "The server's notes cannot be read: keep in `applied` a list of (time, worker,"
            " staleness), one for each gradient, in the order in which you apply them."
        ) from None
