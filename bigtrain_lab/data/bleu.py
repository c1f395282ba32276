"""BLEU of translations that several ranks made: n-gram counts add up over ranks, scores do not.

    BLEU = 100 min(1, e^(1 - r/c)) (p_1 p_2 p_3 p_4)^(1/4)        c said and r right length,
                                                                  p_n = matches / n-grams said
A rank counts its own sentences: 10 whole numbers. Their sum over ranks is the count of the whole
corpus, so the score is that of one rank to the last digit. The mean of the ranks' scores is another
number, since p_n and the length penalty are ratios of sums.
Source: Papineni et al. 2002 (ACL), sections 2.1 and 2.3; counts, smoothing and tokens are
sacrebleu's (Post 2018, arXiv:1804.08771).
"""

from collections.abc import Sequence

from sacrebleu.metrics import BLEU

from bigtrain_lab.core import refuse

ORDERS = 4
COUNTS = 2 * ORDERS + 2


def counted(said: Sequence[str], right: Sequence[str], chinese: bool = False) -> list[int]:
    """n-gram matches for n = 1 .. 4, n-grams said, the length said and the right one: counts that
    add up."""
    refuse(
        (
            len(said) != len(right),
            f"{len(said)} translations and {len(right)} references: give one of each "
            "for each sentence.",
        )
    )
    if not said:
        return [0] * COUNTS
    score = BLEU(tokenize="zh" if chinese else "13a").corpus_score([*said], [[*right]])
    return [*score.counts, *score.totals, score.sys_len, score.ref_len]


def bleu(counts: Sequence[int]) -> float:
    """The score of these counts, 0 to 100, smoothed as sacrebleu's corpus_bleu is."""
    counts = [int(count) for count in counts]
    matches, said, lengths = counts[:ORDERS], counts[ORDERS : 2 * ORDERS], counts[2 * ORDERS :]
    return BLEU.compute_bleu(matches, said, *lengths, smooth_method="exp").score
