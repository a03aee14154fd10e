"""The recipes of docs/any-loss.md with the real libraries: a detector of torchvision, a graph network of PyG, YOLO."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader, Dataset

import ogd

SMALL = {"min_size": 32, "max_size": 48, "box_detections_per_img": 5}


def pairs(batch: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*batch, strict=True))


class Squares(Dataset[Any]):
    """Images with a bright square; the second task has them in another corner."""

    def __init__(self, task: int, n: int = 8) -> None:
        self.items = []
        draws = torch.Generator().manual_seed(task)
        for _ in range(n):
            image = torch.rand(3, 32, 40, generator=draws) / 4
            x, y = (int(torch.randint(2, 8, (), generator=draws)) + 14 * task for _ in range(2))
            image[:, y : y + 9, x : x + 9] += 0.7
            box = torch.tensor([[x, y, x + 9.0, y + 9.0]])
            self.items.append((image, {"boxes": box, "labels": torch.ones(1, dtype=torch.long)}))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


def detector() -> nn.Module:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.rpn import AnchorGenerator

    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
    )
    body.out_channels = 16
    anchors = AnchorGenerator(sizes=((8, 16),), aspect_ratios=((1.0,),))
    return FasterRCNN(body, num_classes=2, rpn_anchor_generator=anchors, **SMALL)


def recipe(package: str, **scope: Any) -> dict[str, Any]:
    """Run the code of a recipe, and return its names."""
    path = Path(__file__).parents[2] / "docs" / "any-loss.md"
    blocks = re.findall(rf"^```{{\.python \.{package}}}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        exec(compile(block, str(path), "exec"), scope)
    return scope


def test_faster_rcnn(tmp_path: Path) -> None:
    import detection_operators

    model = detector()
    detection_operators.use_python()
    drift = []
    for protected in (False, True):
        model = detector()
        optimizer = optim.SGD(model.parameters(), lr=0.02)
        scope = recipe("torchvision", ogd=ogd, model=model, optimizer=optimizer)
        memory, loss = scope["memory"], scope["loss"]
        if not protected:
            memory.unprotect()
        for task in range(2):
            loader = DataLoader(Squares(task), batch_size=4, shuffle=True, collate_fn=pairs)
            model.train()
            for images, targets in loader:
                optimizer.zero_grad()
                loss(model, (images, targets)).backward()
                optimizer.step()
            model.eval()
            if task == 0:
                memory.remember(loader)
        assert not model.training
        assert memory.task_sizes == (8,)
        drift.append(memory.stats().drift[0])
    assert drift[1] < drift[0]
    memory.save(tmp_path / "m.safetensors")
    again = ogd.load(tmp_path / "m.safetensors", model, loss=loss, collate=pairs)
    assert again.stats().drift == pytest.approx(memory.stats().drift)


def test_graph_network(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
    from torch_geometric.data import Batch, Data
    from torch_geometric.loader import DataLoader as GraphLoader
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = GCNConv(4, 8), nn.Linear(8, 3)

        def forward(self, data: Any) -> Tensor:
            h = self.conv(data.x, data.edge_index).relu()
            return self.head(global_mean_pool(h, data.batch))

    def graph(i: int, task: int) -> Any:
        n = 3 + i % 4
        x = torch.randn(n, 4) + task
        return Data(x=x, edge_index=torch.randint(n, (2, 2 * n)), y=torch.tensor([(i + task) % 3]))

    drift = list[float]()
    for protected in (False, True):
        torch.manual_seed(0)
        model = Net()
        graphs = [[graph(i, task) for i in range(12)] for task in range(2)]
        optimizer = optim.Adam(model.parameters(), lr=0.02)
        scope = recipe("torch_geometric", ogd=ogd, torch=torch, model=model, optimizer=optimizer)
        memory, loss = scope["memory"], scope["loss"]
        if not protected:
            memory.unprotect()
        for task in range(2):
            loader = GraphLoader(graphs[task], batch_size=4, shuffle=True)
            for _ in range(8):
                for batch in loader:
                    optimizer.zero_grad()
                    loss(model, batch).backward()
                    optimizer.step()
            if task == 0:
                memory.remember([data.to_dict() for data in graphs[0]])
        drift.append(memory.stats().drift[0])
    assert drift[1] < drift[0]
    memory.save(tmp_path / "m.safetensors")
    again = ogd.load(tmp_path / "m.safetensors", model, loss=loss, collate=scope["collate"])
    torch.testing.assert_close(again.remembered_loss(12), loss(model, Batch.from_data_list(graphs[0])))
    for data in (GraphLoader(graphs[0], batch_size=4), graphs[0][0]):  # without a loss= they are refused
        for kind in (ogd.ExampleMemory, ogd.GradientMemory):
            with pytest.raises((ValueError, TypeError), match=r"loss=…|must be a DataLoader, .* not Data"):
                kind(model).remember(data)
    objects = ogd.ExampleMemory(model, per_task=8, loss=loss)  # the graphs themselves, and PyG's own collate function
    objects.remember(GraphLoader(graphs[0], batch_size=4, shuffle=True))
    sizes = [t.nbytes for item in objects.examples.items for t in item.structure.to_dict().values()]
    assert sum(sizes) <= objects.nbytes < 3 * sum(sizes)  # and the names and numbers that PyG keeps
    assert objects.remembered_loss(8).isfinite()
    with pytest.raises(ValueError, match="an input holds Data"):
        objects.save(tmp_path / "m.safetensors")


def test_yolo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("YOLO_AUTOINSTALL", "false")
    pytest.importorskip("ultralytics", reason="ultralytics is not installed")
    import detection_operators
    from PIL import Image
    from ultralytics import YOLO

    detection_operators.use_python()
    for name in ("first", "second"):
        for part in ("images", "labels"):
            (tmp_path / name / part).mkdir(parents=True)
        for i, (image, target) in enumerate(Squares(int(name == "second"), 6).items):
            array = (image.clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()
            Image.fromarray(array).save(tmp_path / name / "images" / f"{i}.png")
            x, y, right, bottom = (target["boxes"][0] / torch.tensor([40, 32, 40, 32])).tolist()
            line = f"0 {(x + right) / 2} {(y + bottom) / 2} {right - x} {bottom - y}\n"
            (tmp_path / name / "labels" / f"{i}.txt").write_text(line)
        (tmp_path / f"{name}.yaml").write_text(
            f"path: {tmp_path / name}\ntrain: images\nval: images\nnames: {{0: square}}\n"
        )

    model, memories = YOLO("yolov8n.yaml", task="detect"), list[Any]()
    recipe("ultralytics", ogd=ogd, model=model, path=tmp_path / "memory.safetensors")
    model.add_callback("on_train_end", lambda trainer: memories.append(trainer.memory))
    for name in ("first", "second"):
        model.train(
            data=tmp_path / f"{name}.yaml", epochs=1, imgsz=32, batch=2, workers=0, device="cpu", plots=False,
            val=False, project=tmp_path / "runs", verbose=False, amp=False, close_mosaic=0, optimizer="SGD", lr0=0.001,
        )  # fmt: skip
    assert [memory.task_sizes for memory in memories] == [(6,), (6, 6)]
    assert memories[1]._protections[0].rehearsals > 0
    assert len(memories[1].stats().drift) == 2
