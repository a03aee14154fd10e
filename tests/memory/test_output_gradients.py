"""The gradients that a memory reads, as a function for others: the same, with the same errors."""

import copy

import pytest
import torch

from memory_models import make
from ogd.memory import GradientMemory, Piece, output_gradients, stacked
from reference import logit_gradients


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize(("outputs", "classes"), [("true", None), ("mean", [1, 2]), ("all", [0, 3])])
@pytest.mark.parametrize("name", ["mlp", "lenet", "transformer", "odd"])
def test_output_gradients_are_what_a_memory_reads(
    name: str, outputs: str, classes: list[int] | None, chunk_size: int | None
) -> None:
    model, x, y = make(name)
    memory = GradientMemory(model, outputs=outputs, chunk_size=chunk_size)
    memory.remember((x, y), classes=classes)
    pieces, n = output_gradients(model, x, y, outputs=outputs, classes=classes, chunk_size=chunk_size)
    assert n == len(memory)
    assert model.training
    for one, other in zip(pieces, memory.store.pieces, strict=True):
        assert (one.names, one.start, type(one.block)) == (other.names, other.start, type(other.block))
        for key, t in one.block.tensors().items():
            assert torch.equal(t, other.block.tensors()[key])


def test_output_gradients_of_several_models_can_be_stacked() -> None:
    runs = [make("lenet", seed=seed) for seed in range(3)]
    pieces = stacked([output_gradients(*run)[0] for run in runs])
    for r, (model, x, y) in enumerate(runs):
        G = torch.cat([_rows(pieces, name)[r] for name, _ in model.named_parameters()], -1)
        torch.testing.assert_close(G, logit_gradients(model, x, y), rtol=1e-10, atol=1e-12)


def _rows(pieces: list[Piece], name: str) -> torch.Tensor:
    (part,) = (part for piece in pieces for part in piece.only({name}))
    return part.block.rows(0, part.block.n)


def test_output_gradients_refuses_what_a_memory_refuses() -> None:
    model, x, y = make("mlp")
    x[2, 3] = float("nan")
    frozen = copy.deepcopy(model).requires_grad_(False)
    for args, options, kind, message in [
        ((model, x, y), {}, ValueError, "not finite"),
        ((model, x[:0], y[:0]), {}, ValueError, "data is empty"),
        ((model, x, y), {"outputs": "gtl"}, ValueError, "outputs must be"),
        ((model, x, y), {"classes": 3}, TypeError, "classes must be a list"),
        ((frozen, x, y), {}, ValueError, "nothing to protect"),
        ((3, x, y), {}, TypeError, "model must be an nn.Module"),
    ]:
        with pytest.raises(kind, match=message):
            output_gradients(*args, **options)
