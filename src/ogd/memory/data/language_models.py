"""What a model makes of labels that are one per token: does it shift them, and what does its decoder read?

A causal language model predicts token t + 1 at position t, and takes labels that are not shifted yet. A tagger or a
masked language model takes labels in their places. Both look alike, so the model itself is asked: its own loss shows
which labels it compares with its logits.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ogd.memory.data.batches import clone_tensors, length, take, without_tensors
from ogd.memory.data.calling import ScoredModel, accepts_argument, call_model, cast_inputs, logits_of
from ogd.memory.data.labels import IGNORED, classifies

ASKED = 8  # examples, one at a time, until the model's loss tells
EQUAL = 1e-4  # largest relative difference of a model's loss from ours
# Hugging Face's names of losses, for models that add something to it, such as the balance of a mixture's experts
NAMED = {"ForCausalLM": True, "ForMaskedLM": False, "ForTokenClassification": False}
REPEATED = 0.5  # share of labels equal to the input's tokens from which on they may be next tokens


def with_decoder_inputs(model: nn.Module, x: Any, y: Any) -> Any:
    """Return x with the decoder's inputs, which an encoder-decoder of Hugging Face makes of its labels."""
    encodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False) is True
    known = ("decoder_input_ids", "decoder_inputs_embeds")
    if not encodes or not _are_tokens(y) or not isinstance(x, Mapping) or any(key in x for key in known):
        return x
    make = getattr(model, "prepare_decoder_input_ids_from_labels", None) or getattr(model, "_shift_right", None)
    return x if make is None else {**x, "decoder_input_ids": make(y)}


def shifts_labels(model: ScoredModel, x: Any, y: Any, remedy: str) -> bool:
    """Return whether the model predicts, at each position, the label of the next.

    Args:
        model: the model, in evaluation mode.
        x: the inputs of a batch.
        y: its labels, as a model with a loss of its own takes them.
        remedy: what a user can do if this cannot be known, for the error.
    """
    if not _are_tokens(y):
        return False
    if model.logits is None and isinstance(x, Mapping) and accepts_argument(model.model, "labels"):
        for i in range(min(length((x, y)), ASKED)):
            if (found := _ask(model.model, *take((x, y), slice(i, i + 1)))) is not None:
                return found
        if (named := NAMED.get(getattr(model.model, "loss_type", None) or "")) is not None:
            return named
    counted = y != IGNORED
    same = [
        ((t == y) & counted).sum() / counted.sum().clamp(min=1) for t in without_tensors(x)[0] if t.shape == y.shape
    ]
    if any(share > REPEATED for share in same):
        raise ValueError(
            "labels mostly repeat the tokens of the input, and nothing shows whether the model predicts, at each "
            f"position, the token there or the next one: {remedy}"
        )
    return False


def predicts_tokens(model: nn.Module, z: Tensor) -> bool:
    """Return whether outputs are scores of the words of a model of Hugging Face: one per word of its vocabulary."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    embeddings = getattr(model, "get_output_embeddings", lambda: None)()
    words = {getattr(text, "vocab_size", None), getattr(embeddings, "out_features", None)}
    return z.ndim == 3 and embeddings is not None and z.shape[-1] in words


def shifted(y: Tensor) -> Tensor:
    """Return labels as the targets of the positions before them.

    Examples:
        >>> shifted(torch.tensor([[5, 6, 7]]))
        tensor([[   6,    7, -100]])
    """
    return torch.cat([y[:, 1:], torch.full_like(y[:, :1], IGNORED)], 1)


def _are_tokens(y: Any) -> bool:
    return isinstance(y, Tensor) and y.ndim == 2 and y.shape[1] > 1 and not y.is_floating_point()


@torch.no_grad()
def _ask(model: nn.Module, x: Any, y: Tensor) -> bool | None:
    """Return whether the model's own loss of an example is that of shifted labels; None if it does not show it."""
    try:
        result = call_model(model, clone_tensors(cast_inputs({**x, "labels": y}, model)))
    except Exception:  # its loss takes other labels than its user's
        return None
    loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        return None
    z = logits_of(result)
    if not classifies(z, y):
        return None
    losses = (functional.cross_entropy(z[0].float(), target[0].long()) for target in (y, shifted(y)))
    in_place, after = (abs(float(loss) - float(ours)) / max(abs(float(loss)), 1e-9) < EQUAL for ours in losses)
    return None if in_place == after else after
