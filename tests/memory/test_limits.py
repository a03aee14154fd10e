"""Numbers beyond all bounds are refused before they do harm."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from ogd.memory import GradientMemory
from ogd.memory.data.budget import Budget


@pytest.mark.parametrize("budget", [f"{'9' * 400}GB", "99999999999GB", 10**400])
def test_a_budget_beyond_all_disks_is_refused(budget):
    with pytest.raises(ValueError, match="budget must be at most 9,223,372,036,854,775,807, or None"):
        Budget.parse(budget)


def protected(every=1, kind=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    memory = GradientMemory(model)
    memory.remember((torch.randn(4, 4).double(), torch.tensor([0, 1, 2, 0])))
    optimizer = kind(model.parameters(), lr=0.1, **options)
    return model, optimizer, memory, memory.protect(optimizer, every=every)


def step(model, optimizer, spoil=None, value=float("nan")):
    optimizer.zero_grad()
    model(torch.ones(2, 4).double()).square().sum().backward()
    if spoil is not None:
        dict(model.named_parameters())[spoil].grad.view(-1)[1] = value
    optimizer.step()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("every", [1, 3])
def test_a_step_that_is_not_finite_is_refused_by_name(every, value):
    model, optimizer, memory, protection = protected(every)
    step(model, optimizer)
    memory.settle()
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(every - 1):
        step(model, optimizer)
    with pytest.raises(RuntimeError, match=rf"2\.weight is not finite after the last {'3 ' if every > 1 else ''}step"):
        step(model, optimizer, "2.weight", value)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert protection.pending == 0
    for _ in range(every):
        step(model, optimizer)
    assert not any(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    with pytest.raises(ValueError, match=r"update of '0\.bias' is not finite"):
        memory.project({"0.bias": torch.full((5,), float("nan")).double()})


def test_an_update_that_is_too_large_to_measure_is_not_called_a_lack_of_room():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e25)
    memory = GradientMemory(model, per_task=4)
    memory.protect(optimizer, every=1)
    memory.remember((torch.randn(4, 6), torch.tensor([0, 1, 2, 0])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.zeros(8).long()).backward()
        optimizer.step()


@pytest.mark.parametrize("small", [0, 1e-14])
def test_gradients_that_protect_nothing_are_told_once(small):
    model = nn.Linear(2, 2, bias=False).double()
    memory = GradientMemory(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    memory.remember((torch.tensor([[1.0, 0], [0, small]]).double(), torch.zeros(2).long()))
    with pytest.warns(UserWarning, match="1 of 2 stored gradients protect nothing: they are zero, or more than 1e"):
        train(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.forget(-1)
        memory.remember((torch.tensor([[1.0, 0], [0, small]]).double(), torch.zeros(2).long()))
        train(model, optimizer)


def test_gradients_that_are_zero_in_some_parameters_only_are_nothing_to_tell():
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    memory = GradientMemory(model)
    for head in ("a", "b"):
        x = torch.ones(2, 2)  # twice the same: K is singular
        memory.remember((x, torch.zeros(2).long()), logits=lambda m, x, head=head: m[head](x))
    optimizer = torch.optim.SGD(model["a"].parameters(), lr=0.1)
    memory.protect(optimizer, every=1)
    before = model["a"](torch.ones(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (model["a"](torch.tensor([[1.0, -0.5]])) ** 2).sum().backward()
        optimizer.step()
    torch.testing.assert_close(model["a"](torch.ones(1, 2))[0, 0], before[0, 0])


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 2).double()).sum().backward()
    optimizer.step()


FULL = """
import resource, signal, sys
from pathlib import Path
import torch
from ogd.memory import GradientMemory

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
model = torch.nn.Linear(300, 100)
memory = GradientMemory(model)
memory.remember((torch.randn(50, 300), torch.zeros(50).long()))
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    memory.save(Path(sys.argv[1]) / "m.safetensors")
except OSError as error:
    print(error)
"""


def test_a_disk_that_is_full_is_an_error_and_leaves_no_file(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path}/m.safetensors: it could not be written (")
    assert list(tmp_path.iterdir()) == []
