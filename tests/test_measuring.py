"""Forgetting measured: scores per set as counted by hand, in any shape that batches have."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import ogd
from ogd.measuring import Scores

torch.manual_seed(0)
X, Y = torch.randn(10, 4), torch.arange(10) % 3
SET = TensorDataset(X, Y)


class Named(nn.Module):
    """A model as Hugging Face's: inputs by name, logits and a loss as attributes."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, inputs, labels=None):
        z = self.net(inputs)
        loss = None if labels is None else F.cross_entropy(z.flatten(0, -2), labels.flatten())
        return type("Output", (), {"logits": z, "loss": loss})()


class Own(nn.Module):
    """Takes labels, or anything, by name and returns its own loss, in an object or a dictionary."""

    def __init__(self, as_dict):
        super().__init__()
        self.net, self.as_dict = Named(), as_dict

    def forward(self, **inputs):
        found = self.net(**inputs)
        return {"logits": found.logits, "loss": found.loss} if self.as_dict else found


def named(batch):
    x, y = zip(*batch, strict=True)
    return {"inputs": torch.stack(x), "labels": torch.stack(y)}


def triples(batch):
    x, y = zip(*batch, strict=True)
    return torch.stack(x), torch.stack(y), torch.zeros(len(y), dtype=torch.long)


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (lambda: nn.Linear(4, 3), (X, Y)),
        (lambda: nn.Linear(4, 3), SET),
        (lambda: nn.Linear(4, 3), DataLoader(SET, 4)),
        (lambda: nn.Linear(4, 3), DataLoader(SET, 4, collate_fn=triples)),
        (Named, DataLoader(SET, 4, collate_fn=named)),
        (Named, {"inputs": X, "labels": Y}),
        (Named, {"inputs": X.double(), "label": Y.tolist()}),
        (Named, ({"inputs": X}, Y[:, None])),
        (lambda: Own(False), DataLoader(SET, 4, collate_fn=named)),
        (lambda: Own(True), DataLoader(SET, 4, collate_fn=named)),
        (lambda: nn.Linear(4, 3), list(DataLoader(SET, 4))),
        (lambda: nn.Linear(4, 3), [X.double(), Y]),
        (lambda: nn.Linear(4, 3), DataLoader(SET, 300, collate_fn=triples)),
    ],
)
def test_scores_are_what_counting_gives(make, data):
    model = make()
    z = next(module for module in model.modules() if isinstance(module, nn.Linear))(X).detach()
    assert ogd.forgetting(model, {"old": data})["old"] == pytest.approx(float((z.argmax(1) == Y).double().mean()))
    loss = ogd.forgetting(model, {"old": data}, measure="loss")
    assert loss["old"] == pytest.approx(float(F.cross_entropy(z, Y)), rel=1e-5)
    assert (loss.measure, loss.sizes) == ("loss", {"old": 10})


def test_other_measures():
    model, y = nn.Linear(4, 2), torch.randn(10, 2)
    square = ogd.forgetting(model, {"old": (X, y)})
    assert square.measure == "loss"
    assert square["old"] == pytest.approx(float(F.mse_loss(model(X).detach(), y)), rel=1e-5)

    def worst(z, y):
        return (z - y).abs().amax(1)

    scores = ogd.forgetting(model, {"old": (X, y)}, measure=worst)
    assert (scores.measure, scores["old"]) == ("worst", pytest.approx(float(worst(model(X).detach(), y).mean())))
    one = ogd.forgetting(model, {"a": (X, Y % 2), "b": (X, Y % 2)}, logits={"b": lambda m, x: -m(x)})
    assert one["a"] + one["b"] == pytest.approx(1)


def test_tokens_that_do_not_count_are_left_out():
    y = torch.randint(3, (10, 5))
    y[0], y[3, 2:] = -100, -100
    model, x = Named(), torch.randn(10, 5, 4)
    loader = DataLoader(TensorDataset(x, y), 1, collate_fn=named)
    expected = float(F.cross_entropy(model.net(x).detach().flatten(0, 1), y.flatten()))
    assert ogd.forgetting(model, {"old": loader})["old"] == pytest.approx(expected, rel=1e-5)


def test_tokens_without_a_loss_of_the_model_s_own():
    """Labels that repeat the inputs may be those of the next tokens or not, so they are refused, as by `remember`."""
    torch.manual_seed(0)
    tokens, y = torch.randint(3, (10, 5)), torch.randint(3, (10, 5))
    repeated = tokens.clone()
    for labels in (y, repeated):
        labels[0, 1:], labels[3] = -100, -100
    model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3))
    z = model(tokens).detach()
    counted = y != -100
    for measure, expected in (
        ("loss", F.cross_entropy(z[counted], y[counted])),
        ("accuracy", (z.argmax(-1) == y)[counted].double().mean()),
    ):
        found = ogd.forgetting(model, {"old": DataLoader(TensorDataset(tokens, y), 10)}, measure=measure)["old"]
        assert found == pytest.approx(float(expected), rel=1e-5)
        with pytest.raises(ValueError, match=r"labels mostly repeat the tokens .* measure=, a function"):
            ogd.forgetting(model, {"old": (tokens, repeated)}, measure=measure)

    def next_tokens(z, y):
        return F.cross_entropy(z[:, :-1].mT, y[:, 1:], reduction="none").mean(1)

    found = ogd.forgetting(model, {"old": (tokens, repeated)}, measure=next_tokens)["old"]
    assert found == pytest.approx(float(next_tokens(z, repeated).mean()), rel=1e-5)


def test_the_model_is_as_before():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).train()
    model[1].eval()
    state, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    first = ogd.forgetting(model, {"old": (X, Y)}, measure="loss")
    assert ogd.forgetting(model, {"old": (X, Y)}, measure="loss") == first
    assert [m.training for m in model] == [True, False, True]
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert model[0].weight.grad is None


def test_data_are_as_before():
    """Also if the model changes its inputs in place."""
    x = X.clone()
    for data in ((x, Y), [(x[:5], Y[:5]), (x[5:], Y[5:])], DataLoader([(x, Y)], batch_size=None)):
        ogd.forgetting(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)), {"old": data})
        assert torch.equal(x, X)


def test_comparison():
    def made(**scores):
        return Scores(scores, dict.fromkeys(scores, 10), "loss")

    compared = ogd.compare(made(a=0.5, b=2.0), made(a=1.25, b=2.0, new=0.1), protected=made(a=0.5, b=1.0))
    assert compared.changes == {"after": {"a": 0.75, "b": 0.0}, "protected": {"a": 0.0, "b": -1.0}}
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in str(compared).splitlines()]
    assert table[0] == ["set", "before, loss", "after", "change", "protected", "change"]
    assert table[2] == ["a", "0.5", "1.25", "+0.75", "0.5", "+0"]
    assert table[3] == ["b", "2", "2", "+0", "1", "−1"]
    assert table[4] == ["new", "–", "0.1", "–", "–", "–"]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ([[(X, Y)]], {}, TypeError, "sets must be a dictionary"),
        ([{}], {}, TypeError, "sets must be a dictionary"),
        ([{"a": (X, Y)}], {"measure": "f1"}, ValueError, 'measure must be "accuracy", "loss"'),
        ([{"a": (X, None)}], {}, ValueError, "'a' has no labels, but NoneType"),
        ([{"a": (X, Y.bool())}], {}, ValueError, "labels torch.bool of shape"),
        ([{"a": (X[:0], Y[:0])}], {}, ValueError, "'a' is empty"),
        ([{"a": (X, Y)}], {"measure": lambda z, _: z}, ValueError, r"measure must return a tensor of shape \(10,\)"),
        ([{"a": (X, Y)}], {"logits": lambda *_: None}, TypeError, "returned NoneType"),
    ],
)
def test_errors(arguments, options, error, message):
    with pytest.raises(error, match=message):
        ogd.forgetting(nn.Linear(4, 3), *arguments, **options)


def test_what_cannot_be_compared():
    one, other = Scores({"a": 1.0}, {"a": 1}, "loss"), Scores({"a": 1.0}, {"a": 1}, "accuracy")
    with pytest.raises(ValueError, match="after is measured by accuracy, before by loss"):
        ogd.compare(one, other)
    with pytest.raises(ValueError, match=r"after lacks the sets \['a'\]"):
        ogd.compare(one, Scores({}, {}, "loss"))
    with pytest.raises(TypeError, match="later must be a result"):
        ogd.compare(one, one, later=0.5)


def test_outputs_and_names_that_cannot_be_measured_are_named() -> None:
    model, x, y = nn.Linear(4, 3), torch.randn(6, 4), torch.arange(6) % 3
    for labels in (y + 1, y - 1):
        for measure in ("accuracy", "loss"):
            with pytest.raises(ValueError, match=r"'a' has labels from -?[01] to [123], and the model 3 outputs"):
                ogd.forgetting(model, {"a": (x, labels)}, measure=measure)
    with pytest.raises(TypeError, match="sets must have names as keys"):
        ogd.forgetting(model, {1: (x, y)})
    with pytest.raises(ValueError, match=r"logits names 'b', which is none of the sets \['a'\]"):
        ogd.forgetting(model, {"a": (x, y)}, logits={"b": lambda m, x: m(x)})
    model.weight.data.fill_(float("nan"))
    assert math.isnan(ogd.forgetting(model, {"a": (x, y)})["a"])
