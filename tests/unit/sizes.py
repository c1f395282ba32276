"""The small models of these tests; small enough to be checked number by number."""

from dataclasses import replace

from bigtrain_lab.models import GPTConfig, Noise

SMALL = GPTConfig(layers=3, width=12, heads=3, sequence=7, vocabulary=11)
DROPPED = replace(SMALL, dropout=0.3)
NOISE = Noise(seed=5, step=2, micro_batch=1)
