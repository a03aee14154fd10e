"""What a memory refuses, in words that help, leaving itself as it was."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from memory_models import make, rows
from ogd.memory import BudgetExceeded, ExampleMemory, GradientMemory, load
from ogd.memory.loading import KINDS


def poisoned(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[2, 3] = float("nan")
    return x


REFUSED = {
    "empty loader": (lambda x, y: DataLoader(TensorDataset(x[:0], y[:0])), {}, "data is empty"),
    "empty tensors": (lambda x, y: (x[:0], y[:0]), {}, "data is empty"),
    "NaN": (lambda x, y: (poisoned(x), y), {}, r"gradient of 0\.weight and 0\.bias is not finite"),
    "label too large": (lambda x, y: (x, y + 4), {}, "4 logits: a label or class of"),
    "label negative": (lambda x, y: (x, y - 9), {}, "labels must not be negative"),
    "label not of the task": (lambda x, y: (x, y), {"classes": [0]}, "are not among classes"),
    "class too large": (lambda x, y: (x, 0 * y), {"classes": [0, 7]}, "4 logits: a label or class of 7"),
    "classes twice": (lambda x, y: (x, y), {"classes": [1, 1]}, "classes must be different"),
    "no labels": (lambda x, y: (x, None), {}, "needs a label for each example"),
    "labels are floats": (lambda x, y: (x, y.double()), {}, 'for a regression, .* outputs="all"'),
    "labels of another number": (lambda x, y: (x, y[:-1]), {}, "share their first axis.* loss=…"),
    "one logit": (
        lambda x, y: (x, torch.arange(len(x)) % 2),
        {"logits": lambda m, x: m(x)[:, :1]},
        r'for one logit use GradientMemory\(model, outputs="all"\)',
    ),
    "logits of another shape": (
        lambda x, y: (x, y),
        {"logits": lambda m, x: m(x).unsqueeze(2)},
        "not .batch, classes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_remembered_leaves_the_memory_as_it_was(case: str) -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model)
    memory.remember((x, y))
    before, modes = rows(memory), [m.training for m in model.modules()]
    data, options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        memory.remember(data(x, y), **options)
    assert torch.equal(rows(memory), before)
    assert memory.task_sizes == (6,)
    assert modes == [m.training for m in model.modules()]


def test_wrong_types_are_named() -> None:
    model, x, y = make("mlp")
    wrong = [
        (lambda: GradientMemory("model"), TypeError, "model must be an nn.Module"),
        (lambda: GradientMemory(model, 0), ValueError, "per_task must be"),
        (lambda: GradientMemory(model, chunk_size=2.5), ValueError, "chunk_size must be"),
        (lambda: GradientMemory(model, chunk_size=torch.tensor(2.5)), ValueError, "chunk_size must be"),
        (
            lambda: GradientMemory(model, per_task=True),
            ValueError,
            "per_task must be a whole number, 1 or more, or None",
        ),
        (lambda: GradientMemory(model, budget=True), ValueError, "budget must be"),
        (lambda: GradientMemory(model, outputs="gtl"), ValueError, 'outputs must be "true", "mean", "all"'),
        (lambda: GradientMemory(model, logits=3), TypeError, "logits must be a function"),
        (lambda: GradientMemory(model, params="0"), TypeError, "params must be a list"),
        (lambda: GradientMemory(model, params=[]), ValueError, "params is empty"),
        (lambda: GradientMemory(model, params=["nope"]), ValueError, "no parameter or module 'nope'"),
        (lambda: GradientMemory(model, params=[torch.zeros(3)]), ValueError, "not a parameter of the model"),
        (lambda: GradientMemory(model, budget="much"), ValueError, "budget must be"),
        (lambda: GradientMemory(model).remember(3), TypeError, r"data must be a DataLoader.*, not int"),
        (lambda: GradientMemory(model).remember((x, y), per_task=0), ValueError, "per_task must be a whole number"),
        (
            lambda: GradientMemory(model).remember((x, y), choose=1),
            ValueError,
            "choose: must be one of uniform, balanced",
        ),
        (lambda: ExampleMemory(model).remember((x, y), choose="balancd"), ValueError, "did you mean 'balanced'"),
        (
            lambda: ExampleMemory(model).remember((x, y), choose="uncertain"),
            ValueError,
            "there is no 'uncertain'; it is one of uniform, balanced",
        ),
        (
            lambda: ExampleMemory(model, None).remember((x, y), choose="balanced"),
            ValueError,
            "draws per_task examples",
        ),
        (
            lambda: GradientMemory(model, None).remember((x, y), choose="balanced"),
            ValueError,
            'choose="balanced" .* give per_task=',
        ),
        (
            lambda: GradientMemory(model).remember((x, y.double()), per_task=2, choose="balanced"),
            ValueError,
            'choose="balanced" needs',
        ),
        (lambda: GradientMemory(model, budget=9, shrink="yes"), ValueError, "shrink must be True or False, not 'yes'"),
        (lambda: GradientMemory(model, freeze_buffers=None), ValueError, "freeze_buffers must be True or False"),
        (lambda: GradientMemory(model, sharded=1), ValueError, "sharded must be True or False"),
        (lambda: ExampleMemory(model, distributed=0), ValueError, "distributed must be True or False"),
        (lambda: GradientMemory(model, shrink=True), ValueError, "needs a budget= to shrink to"),
        (lambda: GradientMemory(model).forget(0), IndexError, "no task 0: 0 tasks are remembered"),
        (lambda: GradientMemory(model).forget("a"), TypeError, "task must be the place of a task"),
        (lambda: GradientMemory(model).remember((x, y), logits=3), TypeError, "logits must be a function"),
        (lambda: GradientMemory(model, params=[""]), ValueError, "no parameter or module ''"),
        (lambda: GradientMemory(model, params=5), TypeError, "params must be a list of names"),
        (lambda: GradientMemory(nn.ReLU()).remember((x, y)), ValueError, "nothing to protect"),
        (lambda: GradientMemory(nn.LSTM(12, 3).double()).remember((x, y)), TypeError, "give logits="),
    ]
    for call, kind, message in wrong:
        with pytest.raises(kind, match=message):
            call()


def test_wrong_arguments_of_remember_are_named() -> None:
    model, x, y = make("mlp")
    examples = list(zip(x, y.tolist(), strict=True))
    wrong = [
        *((x, y, {"classes": c}, TypeError, "classes must be a list") for c in (y, [0.0, 1.5], 3, [True, False], "01")),
        (x, y, {"generator": 3}, TypeError, r"generator must be a torch.Generator.*manual_seed"),
        (
            x.numpy(),
            y.numpy(),
            {},
            TypeError,
            r"data holds NumPy arrays \(a tuple of 2: ndarray, ndarray\).*from_numpy",
        ),
        ({"a": x.numpy()}, y, {}, TypeError, "data holds NumPy arrays"),
        (None, None, {}, ValueError, "data holds no tensor"),
        (["a", "b"], y[:2], {}, ValueError, r"data holds no tensor as input, but a tuple of 2: list, int64 \(2,\)"),
        (x, y[0], {}, ValueError, r"first axis; found shapes \[\(\), \(6, 12\)\]"),
    ]
    for a, b, options, kind, message in wrong:
        with pytest.raises(kind, match=message):
            GradientMemory(model, outputs="all").remember((a, b), **options)
    for data, kind, message in [
        ({"x": x, "y": y}, TypeError, r"data must be .* with the key 'labels', not dict with the keys x, y"),
        ("digits", TypeError, "data must be a DataLoader"),
    ]:
        with pytest.raises(kind, match=message):
            GradientMemory(model).remember(data)
    memory = GradientMemory(model)
    memory.remember(examples[:3])
    assert len(memory) == 3
    for value in (3, [x]):
        with pytest.raises(TypeError, match="outputs returned"):
            GradientMemory(model, outputs=lambda f, y, value=value: value).remember((x, y))
    for update in (3, {"0.weight": 3}):
        with pytest.raises(TypeError, match="update must be a dictionary"):
            memory.project(update)
    with pytest.raises(TypeError, match="a state must be"):
        memory.load_state_dict(5)


def test_updates_without_real_numbers_are_refused() -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model)
    memory.remember((x, y))
    zero = torch.zeros_like(model[0].weight)
    wrong = {
        "torch.int64": zero.long(),
        "torch.bool": zero.bool(),
        "torch.complex128": zero.to(torch.complex128),
        "torch.sparse_coo": zero.to_sparse(),
        "on meta": zero.to("meta"),
    }
    for said, update in wrong.items():
        with pytest.raises(TypeError, match=f"update of '0.weight' must be a dense tensor of floating-point .*{said}"):
            memory.project({"0.weight": update, "2.weight": zero})
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert memory.project({"0.weight": zero.to(dtype)})["0.weight"].dtype == dtype


@pytest.mark.parametrize("keep", ["gradients", "examples"])
def test_a_model_without_values_is_refused(keep: str, tmp_path: Path) -> None:
    model, x, y = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = KINDS[keep](model)
    memory.remember((x, y))
    memory.save(tmp_path / "memory.safetensors")
    stored = memory.state_dict()
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(12, 9), nn.BatchNorm1d(9), nn.Linear(9, 4))
    bare = KINDS[keep](empty)
    calls = [
        lambda: bare.remember((x, y)),
        lambda: bare.explain((x, y)),
        lambda: bare.protect(torch.optim.SGD(empty.parameters(), lr=0.1)),
        lambda: bare.load_state_dict(stored),
        bare.stats,
        lambda: load(tmp_path / "memory.safetensors", empty),
    ]
    calls.append((lambda: bare.observe(x, y)) if keep == "examples" else lambda: bare.project({}))
    for call in calls:
        with pytest.raises(ValueError, match=r"model: 0\.weight is on the meta device, without values"):
            call()
    assert len(bare) == 0
    assert not any(module._forward_hooks for module in empty.modules())
    model.to("meta")  # after it was remembered
    for call in (lambda: memory.remember((x, y)), lambda: memory.protect(optimizer, every=1), memory.stats):
        with pytest.raises(ValueError, match="is on the meta device, without values"):
            call()
    assert len(memory) == 6


@pytest.mark.parametrize("budget", [8, "5 KB"])
def test_a_budget_is_never_passed_in_silence(budget: int | str) -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model, budget=budget)
    memory.remember((x, y))
    assert memory.nbytes == 6 * 8 * (12 + 10 + 9 + 10 + 9 + 4)
    with pytest.raises(BudgetExceeded, match=r"would hold 12 directions|would hold 5,184 bytes"):
        memory.remember((x, y))
    assert memory.task_sizes == (6,)


def test_loading_with_the_model_first_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"expected load\(path, model\)"):
        load(nn.Linear(2, 2), tmp_path / "memory.safetensors")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_task", [0, -1, 2.5, True, "9"])
def test_a_task_of_no_whole_number_of_examples_is_refused(kind: str, per_task: object) -> None:
    model, x, y = make("mlp")
    memory = KINDS[kind](model)
    with pytest.raises(ValueError, match="per_task must be a whole number, 1 or more"):
        memory.remember((x, y), per_task=per_task)
    assert len(memory) == 0


@pytest.mark.parametrize("rows", [3, 12])
def test_logits_of_other_examples_are_refused(rows: int) -> None:
    model, x, y = make("mlp")
    for outputs in ("true", "mean", "all"):
        memory = GradientMemory(model, outputs=outputs, logits=lambda m, x: torch.cat([m(-x), m(x)])[:rows])
        with pytest.raises(ValueError, match=r"rows of logits for 1 examples|outputs must have shape"):
            memory.remember((x, y))


def test_loading_with_params_of_which_nothing_is_stored_is_refused(tmp_path: Path) -> None:
    model, x, y = make("mlp")
    memory = GradientMemory(model, params=["2"])
    memory.remember((x, y))
    memory.save(tmp_path / "m")
    with pytest.raises(ValueError, match="protects none of the parameters with stored gradients"):
        load(tmp_path / "m", model, params=["0"])


def test_a_subclass_says_its_own_name() -> None:
    for kind in KINDS.values():
        assert repr(type("Mine", (kind,), {})(nn.Linear(2, 2))).startswith("Mine(0 ")
