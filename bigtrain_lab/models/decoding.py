"""A translation, word by word: each is chosen given those before it, so T words need T forwards.

    greedy    y_t = argmax p(y | y_1 .. y_{t-1}, source), up to the end of the sentence
    beam K    the K best prefixes are kept, by log p / ((5 + length) / 6)^a; a finished one competes
              until all K are

With the keys and values of earlier words kept, a word costs one forward of one word; without, one
of all words so far, T/2 times as much. A beam multiplies time and what is kept by K, and copies the
latter at each word. K = 1 is greedy.
Length penalty: Wu et al. 2016 (arXiv:1609.08144), section 7, without its coverage term.

Shapes: B batch, S source, T words so far, K beam, V vocabulary.
"""

import torch

from .config import require_counts
from .translator import Translator


@torch.no_grad()
def greedy(model: Translator, source_BS, begin: int, end: int, padding: int, longest: int):
    """The likeliest next word each time: ids (B, T), T at most `longest`, with neither `begin` nor
    `end`, filled with `padding`."""
    require_counts(longest=longest)
    kept, keep_BS = model.read(source_BS), model.keep(source_BS)
    word_B, words = source_BS.new_full((len(source_BS),), begin), []
    finished_B = torch.zeros_like(word_B, dtype=torch.bool)
    while len(words) < longest and not finished_B.all():
        word_B = real(model.next(word_B, kept, keep_BS), begin, padding).argmax(-1)
        finished_B |= word_B == end
        words.append(word_B.masked_fill(finished_B, padding))
    return torch.stack(words, -1)


@torch.no_grad()
def beam_search(
    model: Translator,
    source_BS,
    begin: int,
    end: int,
    padding: int,
    longest: int,
    beam: int = 4,
    length_penalty: float = 0.6,
):
    """As `greedy`, the best of `beam` prefixes."""
    require_counts(longest=longest, beam=beam)
    B, kept, keep_BS = len(source_BS), model.read(source_BS), model.keep(source_BS)
    first_B1 = torch.arange(B, device=source_BS.device)[:, None]
    every = first_B1.expand(B, beam).flatten()  # a sentence's prefixes are rows side by side
    kept.memory = [(k[every], v[every]) for k, v in kept.memory]
    keep_BS = keep_BS if keep_BS is None else keep_BS[every]
    words_BKT = source_BS.new_full((B, beam, 1), begin)
    score_BK = torch.full((B, beam), -torch.inf, dtype=torch.float64, device=source_BS.device)
    score_BK[:, 0] = 0  # all prefixes are alike: one begins
    length_BK = torch.zeros_like(score_BK)
    finished_BK = torch.zeros_like(score_BK, dtype=torch.bool)
    for _ in range(longest):
        logits = real(model.next(words_BKT[:, :, -1].flatten(), kept, keep_BS), begin, padding)
        log_BKV = logits.double().log_softmax(-1).view(B, beam, -1)
        log_BKV[finished_BK] = -torch.inf
        log_BKV[..., padding] = torch.where(finished_BK, 0.0, -torch.inf)  # it stays as it is
        grown_BK = length_BK + ~finished_BK
        total_BKV = score_BK[..., None] + log_BKV
        ranked = (total_BKV / ((5 + grown_BK[..., None]) / 6) ** length_penalty).flatten(1)
        best_BK = ranked.topk(beam).indices
        parent_BK, word_BK = best_BK // log_BKV.shape[-1], best_BK % log_BKV.shape[-1]
        score_BK = total_BKV.flatten(1).gather(1, best_BK)
        length_BK = grown_BK.gather(1, parent_BK)
        finished_BK = finished_BK.gather(1, parent_BK) | (word_BK == end)
        words_BKT = torch.cat((words_BKT[first_B1, parent_BK], word_BK[..., None]), -1)
        if finished_BK.all():
            break
        kept.rows((first_B1 * beam + parent_BK).flatten())
    best_BT = words_BKT[:, 0, 1:]  # topk sorts
    return best_BT.masked_fill(best_BT == end, padding)


def decoded(*given, beam: int, **options):
    """By `beam_search`, and of one prefix by `greedy`, which is faster."""
    return greedy(*given) if beam == 1 else beam_search(*given, beam, **options)


def real(logits_BV, begin: int, padding: int):
    """Neither the beginning nor padding is a word that may come next."""
    logits_BV[:, [begin, padding]] = -torch.inf
    return logits_BV
