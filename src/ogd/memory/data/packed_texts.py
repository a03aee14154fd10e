"""Rows that hold several texts one after another, as collators for flattened texts make them (TRL's `packing=True`).

Only `position_ids`, which begin again at 0, show where a text begins. Hugging Face's flash attention tells texts apart
in a batch of one row only, so several rows go through the model as one.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

# where the texts of a row end, for flash attention, which finds them in position_ids too: not one entry per row
ENDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def without_ends(x: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs without what their `position_ids` show too."""
    return {key: value for key, value in x.items() if key not in ENDS or "position_ids" not in x}


def has_packed_texts(x: Any) -> bool:
    """Return whether rows of a batch hold several texts.

    Examples:
        >>> has_packed_texts({"position_ids": torch.tensor([[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]])})
        True
    """
    places = x.get("position_ids") if isinstance(x, Mapping) and "attention_mask" not in x else None
    if not isinstance(places, Tensor) or places.ndim != 2:
        return False
    return bool((places[:, 1:] <= places[:, :-1]).any())


def without_cache(model: nn.Module, x: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return packed texts with use_cache=False: Hugging Face's models let texts attend to one another with a cache."""
    caches = getattr(getattr(model, "config", None), "use_cache", False) is True
    return {"use_cache": False, **x} if caches and has_packed_texts(x) else x


def as_one_row(x: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of packed rows as a batch of one row.

    Examples:
        >>> as_one_row({"position_ids": torch.tensor([[0, 0, 1], [0, 1, 2]]), "seq_idx": torch.tensor([[0, 1, 1]] * 2)})
        {'position_ids': tensor([[0, 0, 1, 0, 1, 2]]), 'seq_idx': tensor([[0, 1, 1, 3, 4, 4]])}
    """
    B, T = x["position_ids"].shape
    row = {key: t.reshape(1, B * T) if isinstance(t, Tensor) and t.shape == (B, T) else t for key, t in x.items()}
    if "seq_idx" in row:  # the number of each token's text in its row: other numbers in each row
        row["seq_idx"] = row["seq_idx"] + T * (torch.arange(B * T).to(row["seq_idx"]) // T)
    return row
