"""A model under `torch.compile`, DDP or DataParallel: parameters keep their plain names, also in saved files."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, distributed, nn, optim
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from memory_models import make, rows, train
from ogd.memory import GradientMemory, load
from ogd.memory import saving as state
from reference import logit_gradients


@pytest.fixture
def _gloo() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def _parts_compiled(model: nn.Sequential) -> nn.Module:
    model[2] = torch.compile(model[2], backend="eager")
    return model


WRAPPERS: dict[str, Callable[[nn.Sequential], nn.Module]] = {
    "torch.compile": lambda m: torch.compile(m, backend="eager"),
    "a compiled part": _parts_compiled,
    "DDP": DistributedDataParallel,
    "DDP of a compiled model": lambda m: DistributedDataParallel(torch.compile(m, backend="eager")),
    "DataParallel": nn.DataParallel,
}


@pytest.mark.usefixtures("_gloo")
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # torch.compile's own
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_names_of_wrappers_are_plain(wrapper: str, tmp_path: Path) -> None:
    plain, x, y = make("mlp", n=8)
    model = WRAPPERS[wrapper](copy.deepcopy(plain))
    memory = GradientMemory(model, params=["0.weight", "2", next(reversed(dict(model.named_parameters())))])
    memory.remember((x[:4], y[:4]))
    names = {"0.weight", "2.weight", "2.bias", "4.bias"}
    assert set(memory.store.shapes) == names
    assert ("2.weight", "2.bias") in [piece.names for piece in memory.store.pieces]  # factored, also where compiled
    memory.save(path := tmp_path / "m.safetensors")
    with safe_open(path, "pt") as file:
        assert "module" not in file.metadata()[state.FORMAT].replace(state.FORMAT, "")
        assert "_orig_mod" not in file.metadata()[state.FORMAT]
    for other in (plain, model):
        again = load(path, other)
        assert set(again.store.shapes) == names
    raw = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    projected = memory.project(raw)
    expected = load(path, plain).project(dict(zip(dict(plain.named_parameters()), raw.values(), strict=True)))
    for ours, theirs in zip(projected.values(), expected.values(), strict=True):
        torch.testing.assert_close(ours, theirs)
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    memory.protect(optimizer, every=1)
    before = {name: p.detach().clone() for name, p in memory._parameters.named().items()}
    train(model, optimizer, x[4:], y[4:], 3)
    moved = [memory._parameters.named()[name] - before[name] for name in before if name in names]
    G = logit_gradients(plain, x[:4], y[:4], params=[p for n, p in plain.named_parameters() if n in names])
    assert (G @ torch.cat([m.detach().flatten() for m in moved])).abs().max() < 1e-12


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_remembering_compiles_nothing() -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        compiled.append(graph)
        return graph.forward

    model, x, y = make("mlp", n=8)
    model[2] = torch.compile(model[2], backend=backend)
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    train(model, optimizer, x, y, 1)
    count = len(compiled)
    memory = GradientMemory(model)
    memory.remember((x[:4], y[:4]))
    assert len(compiled) == count > 0
    torch.testing.assert_close(rows(memory), logit_gradients(model, x[:4], y[:4]))


def test_a_module_of_that_name_is_no_wrapper() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.other = nn.Linear(12, 4), nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x) + functional.relu(self.other(x))

    _, x, y = make("mlp")
    memory = GradientMemory(Net().double())
    memory.remember((x, y))
    assert set(memory.store.shapes) == {"module.weight", "module.bias", "other.weight", "other.bias"}
    loaded = GradientMemory(memory.model)
    loaded.load_state_dict(memory.state_dict())
    assert torch.equal(rows(loaded), rows(memory))
