"""Lists of batches, lists of examples, labels of every kind: the same for both memories, `explain` and `forgetting`."""

from collections import UserDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ogd
from memory_models import make, rows
from ogd.memory import ExampleMemory, GradientMemory

N = 23


class Keyed(nn.Module):
    """Takes its input by name, or as one argument."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, image: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.inner(image)}


def task() -> tuple[nn.Module, Tensor, Tensor]:
    model, x, y = make("mlp", n=N)
    return Keyed(model), x.half().double(), y


def read(model: nn.Module, data: Any, per_task: int | None = None) -> dict[str, Any]:
    """What each part of the library makes of the data."""
    gradients, examples = GradientMemory(model, per_task), ExampleMemory(model, per_task)
    gradients.remember(data)
    examples.remember(data)
    assert isinstance(examples, ExampleMemory)
    (batch,) = examples.examples.batches(torch.arange(len(examples)))
    scores = ogd.forgetting(model, {"old": data})
    return {
        "G": rows(gradients),
        "inputs": batch.x["image"] if isinstance(batch.x, dict) else batch.x,
        "labels": batch.y,
        "bytes": [memory.explain(data).nbytes for memory in (gradients, examples)],
        "accuracy": (scores["old"], scores.sizes["old"], scores.measure == "accuracy"),
        "loss": ogd.forgetting(model, {"old": data}, measure="loss")["old"],
    }


def cut(x: Tensor, y: Any, size: int = 5) -> list[tuple[Tensor, Any]]:
    return [(x[i : i + size], y[i : i + size]) for i in range(0, N, size)]


def rows_of(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x, y, strict=True))


SAME: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "list(loader)": lambda x, y: list(DataLoader(TensorDataset(x, y), 5)),
    "batches": cut,
    "batches, the first of one example": lambda x, y: [(x[:1], y[:1]), (x[1:], y[1:])],
    "one batch": lambda x, y: [(x, y)],
    "two batches": lambda x, y: cut(x, y, 12),
    "a tuple of batches": lambda x, y: tuple(cut(x, y)),
    "a deque of batches": lambda x, y: deque(cut(x, y)),
    "batches with a task": lambda x, y: [(a, b, 0 * b) for a, b in cut(x, y)],
    "batches with labels as lists": lambda x, y: cut(x, y.tolist()),
    "batches with labels as arrays": lambda x, y: cut(x, y.numpy()),
    "batches as dictionaries": lambda x, y: [{"image": a, "labels": b} for a, b in cut(x, y)],
    "batches as mappings": lambda x, y: [UserDict(image=a, label=b) for a, b in cut(x, y)],
    "two batches as dictionaries": lambda x, y: [{"image": a, "labels": b} for a, b in cut(x, y, 12)],
    "mappings in batches": lambda x, y: [(UserDict(image=a), b) for a, b in cut(x, y)],
    "examples": rows_of,
    "list(dataset)": lambda x, y: list(TensorDataset(x, y)),
    "examples with numbers": lambda x, y: list(zip(x, y.tolist(), strict=True)),
    "examples with NumPy's numbers": lambda x, y: list(zip(x, y.numpy(), strict=True)),
    "examples with a task": lambda x, y: [(a, b, 0) for a, b in rows_of(x, y)],
    "examples with labels of shape (1,)": lambda x, y: rows_of(x, y[:, None]),
    "examples as dictionaries": lambda x, y: [{"image": a, "labels": int(b)} for a, b in rows_of(x, y)],
    "a list of x and y": lambda x, y: [x, y],
    "a list of x, y and task": lambda x, y: [x, y, 0 * y],
    "labels as a list": lambda x, y: (x, y.tolist()),
    "labels as a tuple": lambda x, y: (x, tuple(y.tolist())),
    "labels as single tensors": lambda x, y: (x, list(y)),
    "labels as an array": lambda x, y: (x, y.numpy()),
    "labels as bytes": lambda x, y: (x, y.to(torch.uint8).numpy()),
    "labels as a column": lambda x, y: (x, y[:, None]),
    "labels as a column in a list": lambda x, y: (x, y[:, None].tolist()),
    "a list in a triple": lambda x, y: (x, y.tolist(), [0] * N),
    "a list in a dictionary": lambda x, y: {"image": x, "labels": y.tolist()},
    "an array in a dictionary": lambda x, y: {"image": x, "label": y.numpy()},
    "a loader of lists": lambda x, y: DataLoader(rows_of(x, y), 5, collate_fn=_with_lists),
    "a loader of batches": lambda x, y: DataLoader(cut(x, y), batch_size=None),  # type: ignore[arg-type]
}


def _with_lists(batch: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, list[int]]:
    return torch.stack([x for x, _ in batch]), [int(y) for _, y in batch]


@pytest.mark.parametrize("name", SAME)
def test_data_in_any_form_is_the_same_data(name: str) -> None:
    model, x, y = task()
    expected, found = read(model, (x, y)), read(model, SAME[name](x, y))
    torch.testing.assert_close(found, {**expected, "labels": expected["labels"].to(found["labels"].dtype)})
    some = ExampleMemory(model, 7)
    some.remember(SAME[name](x, y))
    assert some.task_sizes == (7,)
    GradientMemory(model, 7).remember(SAME[name](x, y), choose="balanced")


@pytest.mark.parametrize("n", [2, 3])
def test_a_few_examples_are_examples(n: int) -> None:
    model, x, y = task()
    data = list(zip(x[:n], y[:n].tolist(), strict=True))
    torch.testing.assert_close(read(model, data), read(model, (x[:n], y[:n])))
    data = [{"image": a, "label": b} for a, b in data]
    torch.testing.assert_close(read(model, data)["G"], read(model, (x[:n], y[:n]))["G"])


UNCLEAR: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "batches of a regression": lambda x, y: cut(x, y.double()),
    "batches with targets": lambda x, y: cut(x, x[:, :4]),
    "batches without labels": lambda x, y: [a for a, _ in cut(x, y)],
    "batches in tuples": lambda x, y: [(a,) for a, _ in cut(x, y)],
    "batches with None": lambda x, y: [(a, None) for a, _ in cut(x, y)],
    "batches with tokens": lambda x, y: cut(x, torch.stack([y] * 12, 1)),
    "dictionaries without labels": lambda x, y: [{"image": a} for a, _ in cut(x, y)],
    "batches of one example": lambda x, y: cut(x, y, 1),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_what_may_be_batches_or_examples_is_refused(name: str) -> None:
    model, x, y = task()
    data = UNCLEAR[name](x, y)
    gradients, examples = GradientMemory(model, outputs="all"), ExampleMemory(model)
    for call in (
        gradients.remember,
        gradients.explain,
        examples.remember,
        examples.explain,
        lambda data: ogd.forgetting(model, {"old": data}),
    ):
        with pytest.raises(ValueError, match=r"may be examples or batches.*DataLoader\(data, batch_size=None\)"):
            call(data)
    assert len(gradients) == len(examples) == 0


EXAMPLES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "targets": lambda x, y: rows_of(x, x[:, :4]),
    "as many targets as inputs": lambda x, y: rows_of(x, x),
    "several labels": lambda x, y: rows_of(x.view(N, 3, 4), torch.stack([y, y], 1)),
    "no labels": lambda x, y: list(x),
    "no labels, in tuples": lambda x, y: [(a,) for a in x],
    "dictionaries": lambda x, y: [{"image": a} for a in x],
    "words": lambda x, y: [(a, "word") for a in x],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_single_examples_are_not_taken_for_batches(name: str) -> None:
    model, x, y = task()
    memory = GradientMemory(
        model, outputs="all", logits=lambda m, x: m.inner((x["image"] if isinstance(x, dict) else x).flatten(1))
    )
    memory.remember(EXAMPLES[name](x, y))
    assert memory.task_sizes == (4 * N,)


DROPPED: dict[str, Callable[[Tensor], Any]] = {
    "one-hot": lambda y: nn.functional.one_hot(y, 4),
    "one-hot, floats": lambda y: nn.functional.one_hot(y, 4).double(),
    "one-hot, float32": lambda y: nn.functional.one_hot(y, 4).float(),
    "one-hot, lists": lambda y: nn.functional.one_hot(y, 4).float().tolist(),
    "one-hot, array": lambda y: nn.functional.one_hot(y, 4).float().numpy(),
    "smoothed": lambda y: 0.9 * nn.functional.one_hot(y, 4) + 0.1 / 4,
    "shares": lambda y: torch.rand(N, 4).softmax(1),
    "several at a time": lambda y: (torch.rand(N, 4) > 0.5).float(),
    "floats": lambda y: y.float(),
    "floats in an array": lambda y: y.double().numpy(),
    "floats in a list": lambda y: y.double().tolist(),
    "floats in a column": lambda y: y.double()[:, None],
    "bools": lambda y: y > 1,
    "several heads": lambda y: (y, y),
    "a dictionary": lambda y: {"a": y},
    "words": lambda y: ["word"] * N,
    "a number": lambda y: 3,
}


@pytest.mark.parametrize("name", DROPPED)
def test_labels_that_are_no_classes_are_never_dropped_in_silence(name: str) -> None:
    torch.manual_seed(0)
    model, x, y = task()
    labels = DROPPED[name](y)
    memory = ExampleMemory(model)
    with pytest.warns(UserWarning, match=r"labels are .* so only the outputs are rehearsed: give each example's class"):
        memory.remember((x, labels))
    assert memory.task_sizes == (N,)
    with pytest.warns(UserWarning, match="only the outputs are rehearsed"):
        ExampleMemory(model, 5).observe(x, labels)
    with pytest.raises(
        ValueError, match=r"needs a label for each example, .*: pass one-hot labels as y\.argmax\(-1\)"
    ) as error:
        GradientMemory(model).remember((x, labels))
    assert name != "several at a time" or "several classes per example" in str(error.value)


@pytest.mark.parametrize(
    "y",
    [
        None,
        torch.randn(N, 4),
        torch.rand(N, 4),
        torch.zeros(N, 4),
        torch.randn(N),
        torch.arange(N) + 0.5,
        torch.randn(N, 2),
        np.linspace(0, 1, 4 * N).reshape(N, 4),
        torch.full((N,), 1900.0),
    ],
)
def test_targets_of_a_regression_are_nothing_to_warn_of(y: Any) -> None:
    model, x, _ = task()
    memory = ExampleMemory(model)
    memory.remember((x, y))
    assert memory.task_sizes == (N,)
    GradientMemory(model, outputs="all").remember((x, y))


def test_labels_in_lists_are_rehearsed() -> None:
    model, x, y = task()
    losses = []
    for labels in (y, y.tolist(), y.numpy(), None):
        memory = ExampleMemory(model)
        memory.remember((x, labels), generator=torch.Generator().manual_seed(0))
        loss = memory.remembered_loss(N)
        assert loss is not None
        losses.append(float(loss.detach()))
    assert losses[0] == losses[1] == losses[2] > losses[3] + 0.1


def test_other_labels_are_named() -> None:
    model, x, y = task()
    for labels, kind, message in (
        (y.numpy().astype(str), TypeError, "data holds NumPy arrays"),
        (y[:-1].tolist(), ValueError, "must share their first axis"),
        ([*y.tolist(), 0], ValueError, "must share their first axis"),
        (np.zeros(()), ValueError, "must share their first axis"),
    ):
        for memory in (GradientMemory(model, outputs="all"), ExampleMemory(model)):
            with pytest.raises(kind, match=message):
                memory.remember((x, labels))
            assert len(memory) == 0


def test_floats_as_labels_mean_classes_only_where_there_are_two_or_more() -> None:
    x, y = torch.randn(4, 3), torch.tensor([0.0, 1.0, 1.0, 0.0])
    ExampleMemory(nn.Linear(3, 1)).remember((x, y))  # no warning
    with pytest.warns(UserWarning, match="only the outputs are rehearsed"):
        ExampleMemory(nn.Linear(3, 2)).remember((x, y))
