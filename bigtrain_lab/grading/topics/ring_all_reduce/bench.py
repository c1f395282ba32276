"""A ring: an answer's calls on one rank, on numbers of which every rank has multiples."""

import torch


def numbers(seed: int, most: int, lengths: list[int], dtype: str) -> list[torch.Tensor]:
    """Whole numbers from 1 to most - 1, of each call."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(1, most, (n,), generator=draw).to(getattr(torch, dtype)) for n in lengths]


def play(answer, group, multiple, **drawn) -> dict:
    sums, kept = [], True
    for tensor in numbers(**drawn):
        given = tensor * multiple
        back = answer(given, group)
        kept &= torch.is_tensor(back) and (
            (back.data_ptr(), back.shape) == (given.data_ptr(), given.shape)
        )
        sums.append(given.tolist())
    return {"sums": sums, "kept": kept}
