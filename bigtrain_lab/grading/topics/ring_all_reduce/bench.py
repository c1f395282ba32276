"""A ring: an answer's calls on one rank, whose numbers are digits of its own place in the sums."""

import torch

from ...trainings import packed


def digits(seed: int, bits: int, lengths: list[int]) -> list[torch.Tensor]:
    """Odd numbers of each call, of which four add up to no more than these bits."""
    draw, most = torch.Generator().manual_seed(seed), 2 ** (bits - 2)
    return [torch.randint(most // 2, most, (n,), generator=draw) | 1 for n in lengths]


def play(answer, group, seed, bits, lengths, dtype) -> dict:
    sums, kept = [], True
    for own in digits(seed, bits, lengths):
        given = (own << bits * group.rank).to(getattr(torch, dtype))
        back = answer(given, group)
        kept &= torch.is_tensor(back) and (
            (back.data_ptr(), back.shape) == (given.data_ptr(), given.shape)
        )
        sums.append((given if dtype == "int64" else given.double()).clone())
        given.zero_()  # the caller goes on
    return {"sums": packed(torch.cat(sums)) if sum(lengths) else "", "kept": kept}
