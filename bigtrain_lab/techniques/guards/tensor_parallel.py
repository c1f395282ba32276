"""What cannot be sliced, or would be sliced wrongly: refused in a sentence that says what to
change."""

from torch import Tensor

from ...core import Impossible
from . import refuse


def refuse_uneven(what: str, size: int, ranks: int) -> None:
    below, above = size // ranks * ranks, -(-size // ranks) * ranks
    refuse(
        (
            size % ranks,
            f"{what} is {size}, which {ranks} ranks cannot share equally: take "
            f"{f'{below} or {above}' if below else above}, or other ranks.",
        )
    )


def refuse_whole(module, of_tokens) -> None:
    """Gradients that are whole already would be added up to several times themselves."""
    refuse(
        *(
            (
                parameter not in of_tokens,
                f"{name} was not sliced with sequence=True, so its gradient is whole, or is not"
                " known here: call sum_duplicates for a model of sliced(..., sequence=True) alone.",
            )
            for name, parameter in module.named_parameters()
        )
    )


def refuse_outside(what: str, ids: Tensor, size: int, ignored: int | None = None) -> None:
    """An id that no rank has would count as zeros. A dry run looks too: it takes up memory."""
    outside = (ids < 0) | (ids >= size)
    if ignored is not None:
        outside &= ids != ignored
    if outside.any():
        raise Impossible(
            f"{what}: id {int(ids[outside][0])} is outside the vocabulary of {size}: "
            f"take ids from 0 to {size - 1}."
        )


def refuse_assign(module, state_dict, prefix: str, local_metadata: dict, *_) -> None:
    """Refuse that parameters are replaced by those of a state, as a hook."""
    refuse(
        (
            local_metadata.get("assign_to_params_buffers"),
            "load_state_dict(assign=True) would replace slices by parameters of which nobody knows "
            "how they are cut: load without assign, into a model that has values.",
        )
    )
