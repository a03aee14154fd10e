"""A service that learns month by month which flights will be late, and is started anew for each month.

    ogd data flights --out data/flights            # needs: pip install 'ogd[lab]'; 5 MB of flights, once
    python examples/flights.py data/flights service

Each of twelve monthly jobs loads the weights and the memory that the last one saved, trains on its own month, remembers
200 of its flights, and saves. Of earlier months it needs only the flights in the memory. A job that was killed can be
run again. It prints what the memory holds, and a table: the log-loss on January's and December's flights (lower is
better) after January and after December, without protection and with it.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_model, save_model
from torch import nn
from torch.nn.functional import cross_entropy

import ogd
from ogd.lab.data import flights

CODES = ("carrier", "origin", "dest", "weekday")


class Punctuality(nn.Module):
    """Embeddings and numbers → two logits: in time, late."""

    def __init__(self, sizes):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 8) for n in sizes)
        self.layers = nn.Sequential(nn.Linear(8 * len(sizes) + 4, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, codes, numbers):
        looked_up = [table(codes[:, i]) for i, table in enumerate(self.tables)]
        return self.layers(torch.cat([*looked_up, numbers], 1))


def of_month(data, month):
    """What is known before departure, and whether the flight was late: ((codes, numbers), late)."""
    mine = data.month == month
    columns = {name: torch.from_numpy(getattr(data, name)[mine]).long() for name in flights.ARRAYS}
    day = columns["departure"] * (2 * torch.pi / 1440)
    numbers = [day.sin(), day.cos(), columns["distance"] / 1000, torch.full_like(day, month / 12)]
    return (torch.stack([columns[name] for name in CODES], 1), torch.stack(numbers, 1)), (columns["delay"] > 15).long()


def monthly_job(data, month, folder, protected=True):
    """Go on from what the month before has left, learn one month, and save."""
    torch.manual_seed(month)
    last, own = folder / f"month-{month - 1}", folder / f"month-{month}"
    model = Punctuality([*(len(data.names[name]) for name in CODES[:3]), 7])
    memory = ogd.ExampleMemory(model, per_task=200)
    if last.exists():
        load_model(model, last / "model.safetensors")
        memory = ogd.load(last / "memory.safetensors", model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if protected:
        memory.protect(optimizer, labels=False)  # the old outputs; whether a flight was late is mostly chance
    (codes, numbers), late = of_month(data, month)
    for rows in torch.randperm(len(late)).split(128):
        optimizer.zero_grad()
        cross_entropy(model(codes[rows], numbers[rows]), late[rows]).backward()
        optimizer.step()
    memory.remember(((codes, numbers), late))
    own.mkdir(parents=True, exist_ok=True)
    save_model(model, str(own / "model.safetensors"))
    memory.save(own / "memory.safetensors")
    return model, memory


def main(source="data/flights", folder="service"):
    data = flights.load(source)
    tests = {name: of_month(data, month) for name, month in {"January": 1, "December": 12}.items()}
    scores = {}
    for name in ("plain", "protected"):
        for month in range(1, 13):
            model, memory = monthly_job(data, month, Path(folder) / name, protected=name == "protected")
            scores[name, month] = ogd.forgetting(model, tests, measure="loss")
    print(f"after month {month} the memory holds {len(memory):,} flights")
    print(ogd.compare(scores["plain", 1], scores["plain", 12], protected=scores["protected", 12]))


if __name__ == "__main__":
    main(*sys.argv[1:])
