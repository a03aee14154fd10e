"""Lightning: the callback protects what one `fit` after the other learns. Needs pip install 'ogd[lightning]'.

    python examples/lightning_module.py

A task is one `fit`. The memory is saved in every checkpoint, and `fit(ckpt_path=…)` restores it.
"""

import torch
from digits import digits
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ogd
from ogd.integrations.lightning import OGD


class Net(LightningModule):
    """A perceptron; nothing in it knows of the protection."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def learned_in_turn(tasks, tests, epochs, protected):
    torch.manual_seed(0)
    model, callbacks = Net(), [OGD(ogd.GradientMemory, per_task=200)] if protected else []
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    scores = []
    for task in tasks:
        trainer = Trainer(max_epochs=epochs, callbacks=callbacks, accelerator="cpu", **quiet)
        trainer.fit(model, DataLoader(task, batch_size=10, shuffle=True))
        scores.append(ogd.forgetting(model, tests))
    return scores[0], scores[-1]


def main(examples=1000, epochs=5):
    tasks = [TensorDataset(*digits(angle, examples)) for angle in (0, 60)]
    tests = {name: digits(angle, 1000, "test") for name, angle in {"upright": 0, "turned": 60}.items()}
    before, plain = learned_in_turn(tasks, tests, epochs, protected=False)
    _, protected = learned_in_turn(tasks, tests, epochs, protected=True)
    print("before: the first task is learned; after: both are, without protection; protected: both are, with it")
    print(ogd.compare(before, plain, protected=protected))


if __name__ == "__main__":
    main()
