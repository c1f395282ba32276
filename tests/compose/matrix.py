"""All pairs in one launch, and what is wrong with their results."""

from functools import partial

import numpy as np

from bigtrain_lab.checks.parity import relative_errors
from bigtrain_lab.runtime import launch

from .ingredients import pairs, refusal, tolerance, training
from .training import RANKS, all_piped, alone


def trained(directory) -> dict[tuple[str, str], dict[str, np.ndarray]]:
    """pair -> what its training on ranks gave."""
    program = partial(all_piped, trainings=list(map(training, pairs())))
    run = launch(program, RANKS, directory=directory)
    run.wait()
    results = {pair: {} for pair in pairs()}
    for key, array in run.result.items():
        number, _, name = key.partition(" ")
        results[pairs()[int(number)]][name] = array
    return results


def differences(results) -> list[str]:
    """A sentence for each pair that is not what it must be."""
    wrong, references = [], {}
    for pair, result in results.items():
        what, chosen = " with ".join(pair), training(pair)
        if sentence := refusal(pair):
            if any(str(found) != sentence for found in result.values()) or len(result) != RANKS:
                wrong.append(f"{what}: must be refused by {sentence!r}, and gave {result}")
            continue
        matters = {kind: name for kind, name in chosen.items()
                   if kind != "recompute" and (kind != "pipeline" or name == "pipedream"
                                               or "frozen" in chosen)}  # its first stage is
        key = tuple(sorted(matters.items()))
        if key not in references:
            references[key] = alone(chosen)
        expected = references[key]
        if result.keys() != expected.keys():
            sentences = [str(value) for name, value in result.items() if "refused" in name]
            wrong.append(f"{what}: {sorted(result.keys() ^ expected.keys())[:3]} {sentences}")
            continue
        off = max(relative_errors(result, expected).values())
        if not off <= tolerance(pair):
            wrong.append(f"{what}: off by {off:.3g}, more than {tolerance(pair):.3g}")
    return wrong
