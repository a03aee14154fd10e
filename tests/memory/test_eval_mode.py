"""Evaluation mode: every module gets the mode back that it had."""

import itertools

from torch import nn

from ogd.memory.model.eval_mode import eval_mode


def test_a_shared_module_with_a_train_of_its_own_is_put_back() -> None:
    class Noting(nn.Module):
        side = False

        def train(self, mode: bool = True) -> "Noting":
            super().train(mode)
            self.side = mode
            return self

    inner = Noting()
    box = nn.Sequential(inner)
    root = nn.Sequential(nn.Sequential(box), inner)
    root.train()
    box.eval()
    inner.train()
    with eval_mode(root):
        assert not inner.training
    assert (inner.training, inner.side, box.training) == (True, True, False)


def test_a_mode_that_train_does_not_set_is_put_back() -> None:
    class Frozen(nn.BatchNorm1d):
        def train(self, mode: bool = True) -> "Frozen":
            return super().train(False)

    model = nn.Sequential(nn.Linear(2, 3), Frozen(3), nn.Dropout())
    for modes in itertools.product((True, False), repeat=len(list(model.modules()))):
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode
        with eval_mode(model):
            assert not any(module.training for module in model.modules())
        assert tuple(module.training for module in model.modules()) == modes
