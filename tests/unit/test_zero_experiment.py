"""The lab of ZeRO: bytes of the paper, of the dry run and of the ledger; runs as predicted and as one process."""

import pytest

from bigtrain_lab import figures
from bigtrain_lab.checks import run_differs
from bigtrain_lab.core import Memory, Span, Transfer
from bigtrain_lab.core.peak import peak
from bigtrain_lab.experiments.zero import Zero
from bigtrain_lab.models.theory import FLOAT32, zero_bytes, zero_sent_bytes
from bigtrain_lab.runtime import RankFailed
from bigtrain_lab.techniques.reducers import buckets_of
from bigtrain_lab.techniques.shards import Flat

SMALL = dict(layers=2, width=16, vocabulary=256, sequence=8, heads=2, steps=2)


def told(experiment, trace=None) -> dict:
    trace = trace or experiment.predict()
    return {quantity.name: quantity.of(trace) for quantity in experiment.quantities}


def test_the_numbers_of_the_paper():
    assert [round(zero_bytes(7.5e9, 64, stage) / 1e9, 1) for stage in range(4)] == [120, 31.4, 16.6, 1.9]
    assert [zero_bytes(1, 4, stage) for stage in range(4)] == [16, 7, 5.5, 4]
    assert [zero_bytes(1, 4, stage, FLOAT32) for stage in range(4)] == [16, 10, 7, 4]
