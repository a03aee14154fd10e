"""Record examples with the outputs that the model gives for them."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ogd.long_work import warn_if_long
from ogd.memory.data.batches import (
    CHUNK_BYTES,
    Chunk,
    concatenate,
    describe,
    length,
    take,
    to_device,
    with_tensors,
    without_tensors,
)
from ogd.memory.data.calling import ScoredModel
from ogd.memory.data.labels import (
    binary_labels,
    check_labels_fit,
    class_axis,
    flat_labels,
    look_like_classes,
    without_class_axis,
)
from ogd.memory.data.language_models import predicts_tokens, shifted, shifts_labels, with_decoder_inputs
from ogd.memory.examples.kept_examples import Group
from ogd.memory.examples.packing import pack
from ogd.memory.examples.top_probabilities import MANY, Outputs, concatenate_outputs, top_probabilities
from ogd.memory.gradients.autograd_graph import depends_on

SMALL = 16  # from so many outputs on, those of length 1 together are small
SCORES_BYTES = 2**25  # of the scores of which only a distribution is kept: fewer than a training batch's
REMEDY = "give ExampleMemory(model, shift_labels=True) for the next token, or shift_labels=False"


def record_examples(
    model: ScoredModel,
    params: Mapping[str, Tensor],
    chunks: Iterable[Chunk],
    device: torch.device,
    *,
    expected: int | None = None,
    rows: Tensor | None = None,
    shift_labels: bool | None = None,
) -> Iterator[Group]:
    """Yield a group for each form of example, with the model's outputs for the packed inputs.

    All examples of a form are packed together, whatever the sizes of the chunks.

    Args:
        model: the model.
        params: the protected parameters that are trainable. If there are any, the outputs must depend on one of them.
        chunks: the examples. No more examples go through the model at a time than are in the largest chunk.
        device: the device that keeps the examples.
        expected: about how many examples there are.
        rows: the rows of each form to keep; None for all. The packing is chosen for all rows.
        shift_labels: whether the model predicts, at each position, the label of the next; None: ask the model.
    """
    forms: dict[Any, list[Chunk]] = {}
    most, dropped = 0, False  # largest number of examples at a time; whether labels were dropped
    for inputs, labels in chunks:
        n = length((inputs, labels))
        if not n:
            continue
        x, y = with_decoder_inputs(model.model, inputs, labels), flat_labels(labels)
        if not forms:
            most = _chunk_size(model, params, x, y, device, expected or n)
        if shift_labels is None and isinstance(y, Tensor) and y.ndim > 1:
            shift_labels = shifts_labels(model, to_device(x, device), y.to(device), REMEDY)
        chunk = x, y if isinstance(y, Tensor) else None
        if chunk[1] is not y and not dropped:
            dropped = True
            _warn(f"labels are {describe(y)}")
        tensors, structure = without_tensors(chunk)
        form = repr(structure), tuple((t.shape[1:], t.dtype) for t in tensors)
        forms.setdefault(form, []).append(chunk)
    for form in list(forms):
        some = forms.pop(form)
        group = _group(model, concatenate(some), min(most, max(map(length, some))), device, rows, bool(shift_labels))
        if group.y is not None and look_like_classes(group.y[:], group.z):
            _warn(f"labels are {describe(group.y[:])} for outputs {tuple(group.z.shape)}")
        if group.y is None and isinstance(group.z, Tensor):
            _warn_if_small(group.z)
        yield group


def _group(
    model: ScoredModel, chunk: Chunk, size: int, device: torch.device, rows: Tensor | None, shift_labels: bool
) -> Group:
    tensors, structure = without_tensors(chunk[0])
    y = shifted(chunk[1]) if shift_labels and chunk[1] is not None and chunk[1].ndim == 2 else chunk[1]
    leaves = [pack(t) for t in tensors]
    if rows is not None:
        leaves, y = [leaf.select(rows) for leaf in leaves], None if y is None else y[rows]
    leaves = [leaf.to(device) for leaf in leaves]
    n = len(leaves[0])
    parts = (
        (with_tensors(structure, [leaf[i : i + size] for leaf in leaves]), min(size, n - i)) for i in range(0, n, size)
    )
    z = concatenate_outputs([_kept(model, _scores(model, x, of), y) for x, of in parts])
    y = None if y is None else y.to(device)
    if y is not None and isinstance(z, Tensor):
        y = binary_labels(z, without_class_axis(z, y))
    labels = None if y is None else pack(y)
    check_labels_fit(z, None if labels is None else labels[:], model.classes)
    return Group(tuple(leaves), structure, labels, z, torch.zeros(n, dtype=torch.long, device=device), None)


def _kept(model: ScoredModel, z: Tensor, y: Tensor | None) -> Outputs:
    """Return outputs as they are kept: as a distribution if they are scores of many classes, which share a softmax."""
    if z.ndim < 2 or z.shape[-1] <= MANY or model.classes is not None:
        return z
    known = class_axis(z, y[: len(z)]) == -1 if y is not None else predicts_tokens(model.model, z)
    return top_probabilities(z) if known else z


def _scores(model: ScoredModel, x: Any, n: int) -> Tensor:
    z = model.scores(x)
    if not z.ndim or len(z) != n or not z.is_floating_point():
        raise ValueError(f"nothing was stored: the model gives {describe(z)} for {n} examples; give logits=")
    if z.numel() and not torch.stack(z.aminmax()).isfinite().all():  # without a copy of z
        raise ValueError("nothing was stored: the model gives outputs that are not finite (NaN or infinite)")
    return z


def _chunk_size(
    model: ScoredModel, params: Mapping[str, Tensor], x: Any, y: Any, device: torch.device, expected: int
) -> int:
    """Return how many examples fit CHUNK_BYTES; warn if all of them would take a gigabyte.

    Raise if rehearsal would have no gradient. One example shows that, unless it takes another way through the model
    than others; then all examples in x are tried.
    """
    one = take(x, slice(0, 1))
    z = _scores_with_graph(model, one, device)
    if params and not (depends_on(z, params) or depends_on(_scores_with_graph(model, x, device), params)):
        raise ValueError(
            "nothing was stored: the outputs do not depend on any protected parameter that is trainable, so rehearsal "
            "could not protect them: look at logits= and params=, and for .detach() or no_grad in the model"
        )
    inputs = sum(t.nbytes for t in without_tensors(one)[0])
    kept = _kept(model, z, y if isinstance(y, Tensor) else None)
    warn_if_long(f"keeping up to {expected:,} examples with their outputs", 0, expected * (inputs + kept.nbytes))
    room = CHUNK_BYTES if isinstance(kept, Tensor) else SCORES_BYTES
    return max(room // max(inputs + z.nbytes, 1), 1)


def _scores_with_graph(model: ScoredModel, x: Any, device: torch.device) -> Tensor:
    with torch.enable_grad():
        return _scores(model, to_device(x, device), length(x))


def _warn_if_small(z: Tensor) -> None:
    """Warn of embeddings of length 1: the mean square of their change hardly counts in the remembered loss."""
    if z.ndim == 2 and z.shape[1] >= SMALL and bool(((z.float().norm(dim=1) - 1).abs() < 1e-2).all()):
        warnings.warn(
            f"the outputs are {z.shape[1]} numbers of length 1 together, without labels, so their change hardly counts "
            "in the remembered loss: give logits=, a function (model, x) → tensor, that returns them "
            f"{z.shape[1] ** 0.5:.0f} times as large",
            stacklevel=6,
        )


def _warn(what: str) -> None:
    warnings.warn(
        f"{what}, so only the outputs are rehearsed: give each example's class, one whole number, to rehearse labels "
        "too (y.argmax(-1) of one-hot labels, y.long() of numbers such as 2.0), or a loss= of your own, for "
        "example if an example has several classes (docs/any-loss.md)",
        stacklevel=7,
    )
