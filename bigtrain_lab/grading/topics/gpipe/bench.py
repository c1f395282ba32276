"""GPipe: the order of each rank that the answer's schedule gives."""

from ..one_f_one_b.bench import play as play
