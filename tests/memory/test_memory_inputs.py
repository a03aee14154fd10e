"""Batches as they come: pairs, triples, dictionaries, several inputs, outputs with .logits, other precisions."""

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ogd
from memory_models import make, rows, train
from ogd.memory import ExampleMemory, GradientMemory
from ogd.memory.loading import KINDS
from reference import logit_gradients


class Encoding(UserDict):
    """Like transformers.BatchEncoding, a mapping that is no dict."""


@dataclass
class Output:
    """Like transformers' SequenceClassifierOutput."""

    logits: Tensor
    loss: Tensor | None = None


class Tokens(nn.Module):
    """Called as Hugging Face's models are: by keywords, with labels for a loss, and an object returned."""

    def __init__(self, kind: str = "object"):
        super().__init__()
        self.embed, self.head, self.kind = nn.Embedding(7, 5), nn.Linear(5, 4), kind

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool = True,
        **others: Any,
    ) -> Any:
        h = self.embed(input_ids)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        f = self.head((h * mask.unsqueeze(-1)).sum(1).tanh())
        return {"object": Output(f), "dict": {"logits": f}, "tensor": f}[self.kind]


def tokens(kind: str = "object") -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    ids, mask, y = torch.randint(7, (6, 5)), torch.randint(2, (6, 5)), torch.randint(4, (6,))
    return Tokens(kind).double(), ids, mask, y


def expected(model: nn.Module, ids: Tensor, mask: Tensor | None, y: Tensor) -> Tensor:
    """Each example alone, with its row number as x."""
    model.kind = "tensor"
    return logit_gradients(
        model, torch.arange(len(ids)), y, logits=lambda m, i: m(ids[i], None if mask is None else mask[i])
    )


class Columns(torch.utils.data.Dataset):
    """Rows as dictionaries, as in the datasets library."""

    def __init__(self, **columns: Tensor):
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {key: column[i] for key, column in self.columns.items()}


def _encoded(batch: list[dict[str, Tensor]]) -> Encoding:
    return Encoding({key: torch.stack([row[key] for row in batch]) for key in batch[0]})


def _columns(ids: Tensor, mask: Tensor, y: Tensor, key: str = "labels") -> Columns:
    return Columns(input_ids=ids, attention_mask=mask, **{key: y})


BATCHES = {
    "dictionaries": lambda i, m, y: DataLoader(_columns(i, m, y), 4),
    "dictionaries with label": lambda i, m, y: DataLoader(_columns(i, m, y, "label"), 4),
    "no dict but a mapping": lambda i, m, y: DataLoader(_columns(i, m, y), 4, collate_fn=_encoded),
    "a data set of dictionaries": _columns,
    "a dictionary": lambda i, m, y: {"input_ids": i, "attention_mask": m, "labels": y},
    "a mapping": lambda i, m, y: Encoding(input_ids=i, attention_mask=m, labels=y),
    "a mapping in a pair": lambda i, m, y: (Encoding(input_ids=i, attention_mask=m), y),
    "several inputs in a pair": lambda i, m, y: ((i, m), y),
    "several inputs before the labels": lambda i, m, y: DataLoader(TensorDataset(i, m, y), 4),
    "tensors, labels last": lambda i, m, y: (i, m, y),
    "by keywords of another order": lambda i, m, y: ({"attention_mask": m, "input_ids": i}, y),
}


@pytest.mark.parametrize("kind", ["object", "dict", "tensor"])
@pytest.mark.parametrize("batches", BATCHES)
def test_several_inputs_reach_the_model(batches: str, kind: str) -> None:
    model, ids, mask, y = tokens(kind)
    data = BATCHES[batches](ids, mask, y)
    memory, examples = GradientMemory(model), ExampleMemory(model)
    memory.remember(data)
    examples.remember(data)
    scores = {measure: ogd.forgetting(model, {"old": data}, measure=measure) for measure in (None, "accuracy", "loss")}
    torch.testing.assert_close(rows(memory), expected(model, ids, mask, y))
    z = model(ids, mask).detach()  # by now a tensor
    torch.testing.assert_close(next(iter(examples.examples.batches(torch.arange(6)))).z, z)
    assert scores[None] == scores["accuracy"]
    assert scores["accuracy"]["old"] == pytest.approx(float((z.argmax(1) == y).double().mean()))
    assert scores["loss"]["old"] == pytest.approx(float(nn.functional.cross_entropy(z, y)))
    assert {s.sizes["old"] for s in scores.values()} == {6}


def test_drawn_examples_keep_their_inputs_together() -> None:
    model, ids, mask, y = tokens()
    for data in (DataLoader(_columns(ids, mask, y), 4, shuffle=True), BATCHES["a dictionary"](ids, mask, y)):
        memory = GradientMemory(model, per_task=3)
        memory.remember(data)
        model.kind = "object"
        nearest = torch.cdist(rows(memory), expected(model, ids, mask, y)).min(1).values
        assert len(memory) == 3
        assert nearest.max() < 1e-9


@pytest.mark.parametrize("loader", [True, False])
def test_a_third_part_of_whole_numbers_is_the_task(loader: bool) -> None:
    model, x, y = make("mlp")
    triple = (x, y, torch.zeros(6, dtype=torch.long))
    memory = GradientMemory(model)
    memory.remember(DataLoader(TensorDataset(*triple), 4) if loader else triple)
    torch.testing.assert_close(rows(memory), logit_gradients(model, x, y))


def test_inputs_without_labels() -> None:
    model, ids, *_ = tokens()
    for data in (DataLoader(TensorDataset(ids), 4), DataLoader(Columns(input_ids=ids), 4), ids):
        model.kind = "object"
        memory = GradientMemory(model, outputs="all")
        memory.remember(data)
        model.kind = "tensor"
        torch.testing.assert_close(rows(memory), logit_gradients(model, ids, ids[:, 0], outputs="all"))


class Reader(nn.Module):
    """Takes its inputs by name, as a model of Hugging Face does."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 6), nn.Linear(6, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.words(input_ids) * attention_mask.unsqueeze(-1)
        return self.head(states.sum(1) / attention_mask.sum(1, keepdim=True))


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_the_dict_of_a_tokenizer_is_a_batch_without_labels(kind: Any) -> None:
    torch.manual_seed(0)
    model, mask = Reader(), torch.ones(30, 7, dtype=torch.long)
    mask[::2, 4:] = 0
    batch = {"input_ids": torch.randint(20, (30, 7)), "attention_mask": mask}
    one, pair, loader = (ExampleMemory(model, per_task=12) for _ in range(3))
    one.remember(kind(batch))
    pair.remember((batch, None))
    loader.remember(DataLoader(Columns(**batch), 5))
    for memory in (one, pair, loader):
        assert len(memory) == 12
        (kept,) = memory.examples.batches(torch.arange(12))
        assert kept.y is None
        torch.testing.assert_close(kept.z, model(**kept.x).detach())
        assert memory.explain(kind(batch)).nbytes == one.explain((batch, None)).nbytes
    torch.testing.assert_close(one.remembered_loss(12), pair.remembered_loss(12))
    gradients = GradientMemory(model, outputs="all")
    gradients.remember(kind(batch))
    assert gradients.task_sizes == (120,)
    assert gradients.explain(kind(batch)).nbytes == gradients.explain((batch, None)).nbytes


def test_a_dict_that_the_model_does_not_take_is_an_error() -> None:
    x = torch.zeros(9, 7, dtype=torch.long)
    for data in ({"x": x, "y": x[:, 0]}, {"input_ids": x, "attention_mask": x, "target": x[:, 0]}, {}):
        with pytest.raises(TypeError, match="with the key 'labels', not dict"):
            ExampleMemory(Reader()).remember(data)


def test_embeddings_of_length_one_are_told_of() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 300), torch.randn(40, 8)

    def unit(model: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.normalize(model(x), dim=1)

    memory = ExampleMemory(model, logits=unit)
    with pytest.warns(UserWarning, match="300 numbers of length 1 together, .* 17 times as large"):
        memory.remember(x)
    assert len(memory) == 40
    ExampleMemory(model, logits=lambda model, x: 300**0.5 * unit(model, x)).remember(x)  # warnings are errors here
    ExampleMemory(model, logits=unit).remember((x, torch.arange(40)))  # the labels count
    ExampleMemory(nn.Linear(8, 300)).remember(x / 20)  # small, but of no common length


class One(nn.Module):
    """Takes its inputs as one argument, a pair or a dictionary; the second argument is no input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, inputs: Any, scale: float = 2.0) -> Tensor:
        a, b = inputs.values() if isinstance(inputs, dict) else inputs
        return self.layer(a * b) * scale


@pytest.mark.parametrize("x", [lambda a, b: (a, b), lambda a, b: [a, b], lambda a, b: {"a": a, "b": b}])
def test_a_model_that_takes_one_argument_gets_one(x: Any) -> None:
    model, (_, a, y) = One().double(), make("mlp")
    memory = GradientMemory(model)
    memory.remember((x(a, a + 1), y))
    torch.testing.assert_close(rows(memory), logit_gradients(model, a, y, logits=lambda m, a: m((a, a + 1))))
    for measure in ("accuracy", "loss"):
        found = ogd.forgetting(model, {"old": (x(a, a + 1), y)}, measure=measure)
        same = ogd.forgetting(model, {"old": (a, y)}, measure=measure, logits=lambda m, a: m((a, a + 1)))
        assert found == same


@pytest.mark.parametrize(("model_dtype", "dtype"), [("bfloat16", "float32"), ("float32", "float64")])
def test_inputs_are_cast_to_the_model_s_precision(model_dtype: str, dtype: str) -> None:
    to, of = getattr(torch, model_dtype), getattr(torch, dtype)
    model, x, y = make("mlp", dtype=to)
    memory, same = GradientMemory(model), GradientMemory(model)
    memory.remember((x.to(of), y))
    same.remember((x, y))
    assert torch.equal(rows(memory), rows(same))
    for measure in ("accuracy", "loss"):
        found = [ogd.forgetting(model, {"old": (inputs, y)}, measure=measure)["old"] for inputs in (x, x.to(of))]
        assert found[0] == found[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    train(model, optimizer, x, y, 1)


class InPlace(nn.Module):
    """Changes its input, each time again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(12, 4), nn.Parameter(torch.ones(12))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.add_(1) * self.scale * self.scale)


@pytest.mark.parametrize("keep", ["gradients", "examples"])
def test_a_model_that_changes_its_inputs_leaves_the_data_alone(keep: str) -> None:
    model, (_, x, y) = InPlace().double(), make("mlp")
    given = x.clone()
    memory = KINDS[keep](model, 6)
    memory.remember((x, y))
    memory.explain((x, y))
    assert torch.equal(x, given)
    if keep == "gradients":
        expected = logit_gradients(model, given, y, logits=lambda m, x: m(x.clone()))
        torch.testing.assert_close(rows(memory), expected)
    else:
        assert max(memory.stats().drift) < 1e-9


def test_what_cannot_be_understood_is_described() -> None:
    model, ids, mask, y = tokens()
    mlp, x, _ = make("mlp")
    weights = torch.rand(6)
    cases = [
        (
            mlp,
            DataLoader(TensorDataset(x, y, weights)),
            ValueError,
            r"a list of 3: float64 \(6, 12\), int64 \(6,\), float32",
        ),
        (
            mlp,
            DataLoader(TensorDataset(x)),
            ValueError,
            r'outputs="true" needs a label.* batches are float64 \(6, 12\)',
        ),
        (mlp, x, ValueError, "needs a label for each example, but the batches are float64"),
        (
            model,
            DataLoader(Columns(input_ids=ids, mask=mask)),
            ValueError,
            "a dict with the keys input_ids, mask: give",
        ),
        (model, DataLoader(Columns(labels=y)), ValueError, "no tensor as input, but a dict with the keys labels"),
        (model, DataLoader(Columns(input_ids=ids, label=y, labels=y)), ValueError, "leave one of labels and label out"),
        (model, DataLoader(["a", "b"]), ValueError, "no tensor as input, but a list of 2: str, str"),
        (mlp, {"train": [1, 2], "test": [3]}, TypeError, "not dict with the keys train, test"),
        (Unkind(), ({"ids": ids, "idx": ids}, y), TypeError, "keys ids, idx, but .* forward takes ids: leave idx out"),
        (nn.LSTM(12, 4).double(), (x, y), TypeError, r"the model returned a tuple of 2: float64 \(1, 4\), tuple,"),
    ]
    for m, data, kind, message in cases:
        memory = GradientMemory(m)
        with pytest.raises(kind, match=message):
            memory.remember(data)
        assert len(memory) == 0


class Unkind(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids).sum(1)


def test_a_token_id_per_example_is_an_input() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4)).double()
    ids, y = torch.randint(7, (6,)), torch.randint(4, (6,))
    memory = GradientMemory(model)
    memory.remember(DataLoader(TensorDataset(ids, y, 0 * y)))
    torch.testing.assert_close(rows(memory), logit_gradients(model, ids, y))
