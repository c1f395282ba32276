"""All pairs, and what is wrong with their results."""

from functools import partial

import numpy as np

from bigtrain_lab.checks.parity import relative_errors
from bigtrain_lab.runtime import launch

from .ingredients import refusal, shown, tolerance, training
from .training import all_trained, alone, mesh_of


def trained(directory) -> dict[tuple[str, ...], dict[str, np.ndarray]]:
    """pair -> what its training on ranks gave. A launch trains a few pairs: each has groups of its
    own, and each group its threads."""
    results = {pair: {} for pair in shown()}
    launches = {pair: (mesh_of(training(pair)).size, n // 32) for n, pair in enumerate(results)}
    for each in sorted(set(launches.values())):
        own = [pair for pair in results if launches[pair] == each]
        run = launch(
            partial(all_trained, trainings=list(map(training, own))),
            each[0],
            directory=directory / "launch {} {}".format(*each),
        )
        for key, array in run.result.items():
            number, _, name = key.partition(" ")
            results[own[int(number)]][name] = array
        for told in run.replicas:
            results[own[int(told.split()[0])]][told] = np.array(told)
    return results


def differences(results) -> list[str]:
    """A sentence for each pair that is not what it must be."""
    wrong, references = [], {}
    for pair, result in results.items():
        what, chosen = " with ".join(pair), training(pair)
        if sentence := refusal(pair):
            if (
                any(str(found) != sentence for found in result.values())
                or len(result) != mesh_of(chosen).size
            ):
                wrong.append(f"{what}: must be refused by {sentence!r}, and gave {result}")
            continue
        matters = {
            kind: name
            for kind, name in chosen.items()
            if kind not in ("recompute", "replicas", "slices")
            and (kind != "pipeline" or name == "pipedream" or "frozen" in chosen)
        }  # its first stage is
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
