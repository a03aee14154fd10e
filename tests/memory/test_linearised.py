"""A network that is linear in its weights: OGD with all gradients forgets nothing (Bennani, Doan, Sugiyama, 2020)."""

import pytest
import torch
from torch import Tensor, nn, optim
from torch.func import functional_call, jvp
from torch.nn.functional import cross_entropy

from ogd.memory import GradientMemory


class Linearised(nn.Module):
    """f(x; w₀) + ∇f(x; w₀) (w − w₀), for a network f."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = [network]  # in a list: its parameters are no parameters of this module
        self.start = {name: w.detach().clone() for name, w in network.named_parameters()}
        self.weights = nn.ParameterDict({name.replace(".", "_"): w.clone() for name, w in self.start.items()})

    def forward(self, x: Tensor) -> Tensor:
        moved = {name: self.weights[name.replace(".", "_")] - w for name, w in self.start.items()}
        f, change = jvp(lambda w: functional_call(self.network[0], w, (x,)), (self.start,), (moved,))
        return f + change


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 3)).double()


def task(seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(15, 12, generator=draw).double(), torch.randint(3, (15,), generator=draw)


def learn(model: nn.Module, optimizer: optim.Optimizer, x: Tensor, y: Tensor) -> float:
    for _ in range(150):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch uses it for jvp
@pytest.mark.parametrize(("linear", "protect"), [(True, True), (True, False), (False, True)])
def test_all_gradients_keep_all_outputs_of_a_linearised_network(linear: bool, protect: bool) -> None:
    model = Linearised(network()) if linear else network()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    memory = GradientMemory(model, per_task=None, outputs="all")
    if protect:
        memory.protect(optimizer, every=1)
    (x, y), (new_x, new_y) = task(1), task(2)
    learn(model, optimizer, x, y)
    memory.remember((x, y))
    before = model(x).detach()
    began = float(cross_entropy(model(new_x), new_y).detach())
    assert learn(model, optimizer, new_x, new_y) < 0.5 * began  # the new task is learned
    moved = (model(x) - before).abs().max().item()
    assert moved < 1e-9 if linear and protect else moved > 0.01
