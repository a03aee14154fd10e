"""`output_gradients`: compute the rows of G for examples, without a memory."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ogd.memory.arguments import check_classes, check_module, check_optional_count, check_outputs
from ogd.memory.blocks.pieces import Piece
from ogd.memory.gradients.gather import check_dependent, gather
from ogd.memory.gradients.outputs import ChosenOutputs, Outputs
from ogd.memory.model.supported import check_model


def output_gradients(
    model: nn.Module,
    x: Any,
    y: Any,
    *,
    outputs: Outputs = "true",
    classes: Sequence[int] | None = None,
    chunk_size: int | None = None,
) -> tuple[list[Piece], int]:
    """Return the gradients of a model's outputs on examples (x, y): the pieces of G, and its number of rows.

    The rows are in the order of the examples, and of the outputs of each example. The columns are the trainable
    parameters. As in `GradientMemory`, gradients are computed in evaluation mode, and the model is restored.

    Args:
        model: any module.
        x: a batch of inputs.
        y: the labels; None if there are none.
        outputs: which outputs of an example are differentiated; see `GradientMemory`.
        classes: which logits belong to the task, in a model of several heads; None for all.
        chunk_size: how many examples are differentiated at a time; None: the number that fits 256 MiB.

    Returns:
        The pieces of G, each a block with the names of its parameters, and the number of rows.

    Raises:
        ValueError: if the model cannot be remembered, or its outputs do not depend on a trainable parameter.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        >>> pieces, n = output_gradients(model, torch.randn(2, 4), None, outputs="all")
        >>> n, [piece.names for piece in pieces]
        (6, [('0.weight', '0.bias'), ('2.weight', '2.bias')])
    """
    check_module(model)
    check_outputs(outputs)
    check_classes(classes)
    check_optional_count("chunk_size", chunk_size)
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    check_model(model, params)
    pieces, n = gather(ChosenOutputs(model, outputs, None, classes), params, [(x, y)], 0, chunk_size)
    check_dependent(bool(pieces))
    return pieces, n
