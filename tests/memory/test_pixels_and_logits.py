"""Labels of pixels, outputs (B, C, H, W), and labels 0 and 1 of one logit are rehearsed as a slow loop would."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ogd
from ogd.memory import ExampleMemory, load
from ogd.memory.data.labels import class_axis
from reference import pseudo_huber


def pixels(n: int = 5, C: int = 4, ignored: float = 0.3) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    x, y = torch.randn(n, 1, 4, 4).half().double(), torch.randint(C, (n, 4, 4))
    y[torch.rand(n, 4, 4) < ignored] = -100
    y[0] = -100  # nothing to say of this one
    return nn.Conv2d(1, C, 3, padding=1).double(), x, y


def slow_pixel_loss(z: Tensor, y: Tensor, before: Tensor, alpha: float) -> Tensor:
    """ℓ of one image: z (C, H, W), y (H, W)."""
    C, H, W = before.shape
    shown = [(i, j) for i in range(H) for j in range(W) if y[i, j] != -100]
    if not shown:
        return 0 * z.sum()
    squares = torch.stack([(z[:C, i, j] - before[:, i, j]).square().mean() for i, j in shown])
    moved = alpha * pseudo_huber(squares).mean()
    return moved + torch.stack([-z[:, i, j].log_softmax(0)[y[i, j]] for i, j in shown]).mean()


def move(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)


def test_labels_of_pixels_are_rehearsed() -> None:
    model, x, y = pixels()
    memory = ExampleMemory(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.remember((x, y))
    before = model(x).detach()
    move(model)
    slow = torch.stack([slow_pixel_loss(model(x)[i], y[i], before[i], 0.7) for i in range(len(x))]).mean()
    found = memory.remembered_loss(len(x), alpha=0.7)
    assert found is not None
    torch.testing.assert_close(found, slow)
    for fast, wanted in zip(*(torch.autograd.grad(t, list(model.parameters())) for t in (found, slow)), strict=True):
        torch.testing.assert_close(fast, wanted)


def test_labels_with_an_axis_of_their_own_are_the_same_labels() -> None:
    """MONAI's masks have the shape (B, 1, H, W)."""
    model, x, y = pixels()
    one, other = ExampleMemory(model), ExampleMemory(model)
    one.remember((x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.remember((x, y[:, None]))
    move(model)
    torch.testing.assert_close(one.remembered_loss(5), other.remembered_loss(5))
    for measure in ("accuracy", "loss"):
        scores = [dict(ogd.forgetting(model, {"a": (x, labels)}, measure=measure)) for labels in (y, y[:, None])]
        assert scores[0] == scores[1]
    for floats in (y.double(), y[:, None].float()):
        with pytest.warns(UserWarning, match="only the outputs are rehearsed"):
            ExampleMemory(model).remember((x, floats))


def test_a_constant_model_gives_every_pixel_the_mean_outputs_of_its_class() -> None:
    model, x, y = pixels()
    memory = ExampleMemory(model)
    memory.remember((x, y))
    z = model(x).detach()
    mean = z.mean((0, 2, 3))[None, :, None, None].expand_as(z)
    slow = sum(float(slow_pixel_loss(mean[i], y[i], z[i], 0.5)) for i in range(len(x))) / len(x)
    assert memory._reference_losses(0.5, True)[1] == pytest.approx(slow, rel=1e-6)


def test_classes_of_pixels_may_grow_and_be_saved(tmp_path: Path) -> None:
    model, x, y = pixels()
    memory = ExampleMemory(model)
    memory.remember((x, y))
    memory.save(tmp_path / "m.safetensors")
    before = model(x).detach()
    larger = nn.Conv2d(1, 6, 3, padding=1).double()
    with torch.no_grad():
        larger.weight[:4], larger.bias[:4] = model.weight, model.bias
    again = load(tmp_path / "m.safetensors", larger)
    assert again.stats().drift == pytest.approx((0,), abs=1e-12)
    slow = torch.stack([slow_pixel_loss(larger(x)[i], y[i], before[i], 0.5) for i in range(len(x))]).mean()
    torch.testing.assert_close(again.remembered_loss(len(x)), slow)


def test_a_label_255_of_pixels_that_do_not_count_is_refused_with_the_remedy() -> None:
    model, x, y = pixels()
    with pytest.raises(
        ValueError, match=r"has 4 outputs, and labels are from 0 to 255: .* -100 where a label does not"
    ):
        ExampleMemory(model).remember((x, y.where(y != -100, 255)))


@pytest.mark.parametrize(
    ("z", "y", "axis"),
    [
        ((2, 3), (2,), -1),
        ((2, 5, 3), (2, 5), -1),
        ((2, 3, 5), (2, 5), 1),
        ((2, 5, 5), (2, 5), -1),  # a sequence of five tokens
        ((2, 3, 5, 6), (2, 5, 6), 1),
        ((2, 5, 6, 3), (2, 5, 6), -1),
        ((2, 5, 5, 5), (2, 5, 5), 1),  # torch's own layout
        ((2, 1), (2,), None),
        ((2, 3), (3,), None),
        ((2, 3, 5, 6), (2, 6, 5), None),
    ],
)
def test_the_axis_of_the_classes(z: tuple[int, ...], y: tuple[int, ...], axis: int | None) -> None:
    assert class_axis(torch.zeros(z), torch.zeros(y).long()) == axis


def test_the_accuracy_of_pixels_is_measured() -> None:
    model, x, y = pixels()
    shown = y != -100
    wanted = float((model(x).argmax(1) == y)[shown].double().mean())
    assert ogd.forgetting(model, {"old": (x, y)}, measure="accuracy")["old"] == pytest.approx(wanted)


LABELS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda y: y.long(),
    "bool": lambda y: y,
    "float": lambda y: y.double(),
    "column": lambda y: y.double()[:, None],
}


def one_logit(flat: bool = False) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 1), *[nn.Flatten(0)] * flat).double()
    with torch.no_grad():
        model[0].weight.mul_(9)
    x = torch.randn(12, 4).half().double()
    return model, x, model(x).flatten() > 0


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("labels", LABELS)
def test_one_logit_is_rehearsed_with_the_binary_cross_entropy(labels: str, flat: bool, tmp_path: Path) -> None:
    model, x, y = one_logit(flat)
    given = LABELS[labels](y)
    if flat and labels == "column":
        given = given[:, 0]
    memory = ExampleMemory(model)
    memory.remember((x, given))
    memory.save(tmp_path / "m.safetensors")
    before = model(x).detach().flatten()
    move(model)
    z, slow = model(x).flatten(), torch.zeros(()).double()
    for i in range(len(x)):
        p = 1 / (1 + (-z[i]).exp())
        slow = slow + 0.5 * (z[i] - before[i]) ** 2 - (p.log() if y[i] else (1 - p).log())
    torch.testing.assert_close(memory.remembered_loss(len(x)), slow / len(x))
    torch.testing.assert_close(load(tmp_path / "m.safetensors", model).remembered_loss(len(x)), slow / len(x))
    assert memory.remembered_loss(len(x), alpha=0) is not None  # labels alone


@pytest.mark.parametrize("labels", ["whole", "bool", "float"])
def test_outputs_near_0_and_1_are_no_logits(labels: str) -> None:
    model, x, y = one_logit()
    for last in (nn.Sigmoid(), nn.Hardtanh(0, 1)):
        whole = nn.Sequential(model, last)
        memory = ExampleMemory(whole)
        memory.remember((x, LABELS[labels](y)))
        assert float(memory.remembered_loss(len(x)).detach()) == 0  # the outputs alone
        with pytest.raises(ValueError, match="no labels are kept"):
            memory.remembered_loss(len(x), alpha=0)


def test_labels_of_one_logit_that_are_not_all_0_or_1_are_numbers() -> None:
    model, x, y = one_logit()
    for labels in (y.long() + 1, y.double() * 2, torch.full_like(y, math.nan, dtype=torch.double)):
        memory = ExampleMemory(model)
        memory.remember((x, labels))
        assert float(memory.remembered_loss(len(x)).detach()) == 0


def test_a_mask_of_one_channel_is_one_logit_per_pixel() -> None:
    model, x, _ = pixels(C=1)
    with torch.no_grad():
        model.weight.mul_(9)
    for y in (model(x) > 0, (model(x) > 0)[:, 0].long()):
        memory = ExampleMemory(model)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            memory.remember((x, y))
        z = model(x)
        slow = nn.functional.binary_cross_entropy(z.sigmoid(), (z > 0).double())
        torch.testing.assert_close(memory.remembered_loss(len(x)), slow)
