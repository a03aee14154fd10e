"""Two tasks with everyday optimizers, three models and four kinds of protection; `--show` prints the last measurement.

    python measurements/rehearsal/optimizers.py          trains what the record lacks, on one thread, and writes
                                                         results/optimizers.json; needs `pip install -c constraints.txt
                                                         lion-pytorch prodigyopt`
    python measurements/rehearsal/optimizers.py --show   prints that record as Markdown

Blobs: 20 numbers, five classes with a center each, all centers new in the second task; an MLP 20-64-64-5. Digits:
2,000 images of MNIST, upright and turned by 60°; a CNN of LeNet's size. Texts: 1,000 sequences of 16 words, each word
followed by one of four, the first of them seven times in ten; 44 of 64 words per task, 24 of them in both, with other
successors; a causal transformer of 1 × 64. A score is the share of test examples whose class, or whose likeliest next
word, is found.

One optimizer trains both tasks, for 4, 3 and 6 epochs each; clipped SGD for four times as many, because its steps are
at most 0.03 long. 200 examples of the first are kept. By hand, 32 of them join every step's loss, before
gradients are clipped: with their labels (ER), or with their labels and 0.5 × the squared change of outputs (DER++).
"""

import importlib
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ogd import json_files

RECORD = Path(__file__).parents[2] / "results" / "optimizers.json"
SEEDS, KEPT, BATCH, ALPHA = (0, 1, 2), 200, 32, 0.5
MODELS = {"mlp": "MLP, blobs", "cnn": "CNN, digits", "transformer": "transformer, texts"}
WAYS = {"plain": "no protection", "er": "ER by hand", "der": "DER++ by hand", "default": "`ExampleMemory(model)`"}
BELOW_ER, BELOW_PLAIN = 3.0, 5.0  # the most points that ExampleMemory may lose: on average, and on the new task
AGAIN = ("transformer", "sgd-0.3", range(20, 25))  # a row whose scores vary much, with more seeds
Data = tuple[Any, Any]


def sgd(lr: float, **options: Any) -> Callable[[Any], list[Any]]:
    return torch_optimizer("SGD", lr=lr, **options)


def torch_optimizer(name: str, **options: Any) -> Callable[[Any], list[Any]]:
    return package_optimizer("torch.optim", name, **options)


def package_optimizer(package: str, name: str, **options: Any) -> Callable[[Any], list[Any]]:
    def make(model: Any) -> list[Any]:
        return [getattr(importlib.import_module(package), name)(model.parameters(), **options)]

    return make


def muon(model: Any) -> list[Any]:
    """Muon for the matrices between the first and the last layer, AdamW for all else, as Muon's author advises."""
    from torch import optim

    params = list(model.parameters())
    ends = [next(p for p in ps if p.ndim > 1) for ps in (params, reversed(params))]
    hidden = [p for p in params if p.ndim == 2 and all(p is not end for end in ends)]
    rest = [p for p in params if all(p is not one for one in hidden)]
    return [optim.Muon(hidden, lr=0.02), optim.AdamW(rest, lr=3e-3)]


# label, the optimizers of a model, and the norm to which gradients are clipped
OPTIMIZERS: dict[str, tuple[str, Callable[[Any], list[Any]], float | None]] = {
    "sgd-0.05-momentum": ("SGD 0.05, momentum 0.9", sgd(0.05, momentum=0.9), None),
    "sgd-0.1-momentum": ("SGD 0.1, momentum 0.9", sgd(0.1, momentum=0.9), None),
    "sgd-0.05-nesterov": ("SGD 0.05, Nesterov 0.9", sgd(0.05, momentum=0.9, nesterov=True), None),
    "sgd-0.3": ("SGD 0.3", sgd(0.3), None),
    "sgd-0.3-clipped": ("SGD 0.3, clipped at 0.1", sgd(0.3), 0.1),
    "adam-0.001": ("Adam 0.001", torch_optimizer("Adam", lr=1e-3), None),
    "adam-0.01": ("Adam 0.01", torch_optimizer("Adam", lr=1e-2), None),
    "adam-0.01-clipped": ("Adam 0.01, clipped at 0.1", torch_optimizer("Adam", lr=1e-2), 0.1),
    "adamw-0.003": ("AdamW 0.003", torch_optimizer("AdamW", lr=3e-3, weight_decay=0.01), None),
    "rmsprop-0.001": ("RMSprop 0.001", torch_optimizer("RMSprop", lr=1e-3), None),
    "lion-0.001": ("Lion 0.001", package_optimizer("lion_pytorch", "Lion", lr=1e-3), None),
    "prodigy": ("Prodigy", package_optimizer("prodigyopt", "Prodigy"), None),
    "muon-0.02": ("Muon 0.02 and AdamW 0.003", muon, None),
}


def blobs(seed: int) -> list[tuple[Data, Data]]:
    """Two tasks, each its training data and its test data."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def examples(centers: Any, n: int) -> Data:
        y = torch.arange(n) % len(centers)
        return centers[y] + torch.randn(n, 20, generator=generator), y

    tasks = [1.5 * torch.randn(5, 20, generator=generator) for _ in range(2)]
    return [(examples(centers, 2_000), examples(centers, 1_000)) for centers in tasks]


def digits(seed: int) -> list[tuple[Data, Data]]:
    import torch

    from ogd.lab.benchmarks.rotating import rotate
    from ogd.lab.data import load

    found = load()
    rows = torch.randperm(60_000, generator=torch.Generator().manual_seed(seed))[:2_000]
    images, tests = torch.tensor(found.train_images)[rows], torch.tensor(found.test_images)[:2_000]
    labels, answers = torch.tensor(found.train_labels)[rows].long(), torch.tensor(found.test_labels)[:2_000].long()

    def turned(x: Any, angle: float) -> Any:
        return rotate(x.float() / 255, angle).view(-1, 1, 28, 28)

    return [((turned(images, angle), labels), (turned(tests, angle), answers)) for angle in (0, 60)]


def texts(seed: int) -> list[tuple[Data, Data]]:
    """Words 20 t … 20 t + 43 in task t; a test's labels are the likeliest next words."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def examples(task: int, successors: Any, n: int) -> tuple[Any, Any]:
        words = torch.randint(44, (n, 17), generator=generator)
        draws = torch.tensor([0.7, 0.1, 0.1, 0.1]).multinomial(n * 16, True, generator=generator).view(n, 16)
        for place in range(16):
            words[:, place + 1] = successors[words[:, place], draws[:, place]]
        return words + 20 * task, successors[words[:, :-1], 0] + 20 * task

    made = []
    for task in range(2):
        successors = torch.rand(44, 44, generator=generator).argsort(1)[:, :4]
        (train, _), (test, likeliest) = examples(task, successors, 1_000), examples(task, successors, 300)
        made.append(((train[:, :-1], train[:, 1:]), (test[:, :-1], likeliest)))
    return made


def mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def cnn() -> Any:
    from ogd.lab.models import cnn as lenet

    return lenet()


def transformer() -> Any:
    import torch
    from torch import nn

    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(64, 64), nn.Parameter(torch.randn(16, 64) * 0.02)
            layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
            self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 64)
            self.later = nn.Buffer(nn.Transformer.generate_square_subsequent_mask(16))

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.layers(self.words(x) + self.places, self.later, is_causal=True)))

    return Writer()


# its two tasks, the model, epochs per task
SETUPS: dict[str, tuple[Callable[[int], list[tuple[Data, Data]]], Callable[[], Any], int]] = {
    "mlp": (blobs, mlp, 4),
    "cnn": (digits, cnn, 3),
    "transformer": (texts, transformer, 6),
}
LONGER = {"sgd-0.3-clipped": 4}  # times as many epochs


def trained(name: str, optimizer_name: str, way: str, seed: int, **options: Any) -> list[float]:
    """The scores on the old and the new task at the end; `options` are those of `protect`."""
    import torch
    from torch.nn.functional import cross_entropy, mse_loss
    from torch.nn.utils import clip_grad_norm_

    import ogd

    make_tasks, make_model, epochs = SETUPS[name]
    epochs *= LONGER.get(optimizer_name, 1)
    _, make_optimizers, clipped = OPTIMIZERS[optimizer_name]
    old_task, new_task = make_tasks(seed)
    torch.manual_seed(seed)
    model = make_model()
    optimizers = make_optimizers(model)
    memory = ogd.ExampleMemory(model)
    if way == "default":
        memory.protect(optimizers, **options)
    order, drawing = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    kept: tuple[Any, Any, Any] | None = None

    def loss_of(x: Any, y: Any) -> tuple[Any, Any]:
        z = model(x)
        return z, cross_entropy(z.flatten(0, -2), y.flatten())

    for (x, y), _ in (old_task, new_task):
        for _ in range(epochs):
            for rows in torch.randperm(len(x), generator=order).split(BATCH):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                _, loss = loss_of(x[rows], y[rows])
                if kept is not None:
                    some = torch.randperm(KEPT, generator=drawing)[:BATCH]
                    old_x, old_y, old_z = (part[some] for part in kept)
                    z, replayed = loss_of(old_x, old_y)
                    loss = loss + replayed + (ALPHA * mse_loss(z, old_z) if way == "der" else 0.0)
                loss.backward()
                if clipped is not None:
                    clip_grad_norm_(model.parameters(), clipped)
                for optimizer in optimizers:
                    optimizer.step()
        if way == "default":
            memory.remember((x, y))
        elif way != "plain":
            rows = torch.randperm(len(x), generator=drawing)[:KEPT]
            with torch.no_grad():
                kept = x[rows], y[rows], model(x[rows])
    with torch.no_grad():
        return [float((model(x).argmax(-1) == y).double().mean()) for _, (x, y) in (old_task, new_task)]


def measure() -> None:
    import torch

    from ogd.files import write_text
    from ogd.lab.progress import Display
    from ogd.lab.records.record import environment

    for package in ("lion_pytorch", "prodigyopt"):
        try:
            importlib.import_module(package)
        except ImportError:
            sys.exit(f"{package} is missing: pip install -c constraints.txt lion-pytorch prodigyopt")
    torch.set_num_threads(1)
    record: dict[str, Any] = {"schema": 1, "runs": {}}
    if RECORD.exists():
        record = json_files.load(RECORD)
    runs = record["runs"]
    asked = [
        (f"{name} {optimizer} {way} {seed}", (name, optimizer, way, seed))
        for seed in SEEDS
        for name in MODELS
        for optimizer in OPTIMIZERS
        for way in WAYS
    ]
    name, optimizer, seeds = AGAIN
    asked += [(f"{name} {optimizer} {way} {seed}", (name, optimizer, way, seed)) for seed in seeds for way in WAYS]
    missing = [one for one in asked if one[0] not in runs]
    with Display("optimizers") as display:
        display.start(len(missing))
        for key, arguments in missing:
            runs[key] = trained(*arguments)
            write_text(RECORD, json.dumps({**record, "environment": environment()}, indent=1) + "\n")
            display.advance(1, key)


def means(
    runs: dict[str, list[float]], name: str, optimizer: str, way: str, seeds: Sequence[int] = SEEDS
) -> list[float] | None:
    """The mean scores in percent on the old and the new task, over the recorded seeds; None without any."""
    found = [runs[key] for seed in seeds if (key := f"{name} {optimizer} {way} {seed}") in runs]
    return [100 * statistics.mean(column) for column in zip(*found, strict=True)] if found else None


def show() -> None:
    """Print the record as Markdown: a table, and how far ExampleMemory falls short at most."""
    runs = json_files.load(RECORD)["runs"]
    print(f"| | | {' | '.join(WAYS.values())} |")
    print(f"| --- | --- |{' ---: |' * len(WAYS)}")
    short_of_er, short_of_plain = [], []
    for name, title in MODELS.items():
        for place, (optimizer, (label, *_)) in enumerate(OPTIMIZERS.items()):
            found = {way: means(runs, name, optimizer, way) for way in WAYS}
            cells = [f"{scores[0]:.1f} / {scores[1]:.1f}" if scores else "–" for scores in found.values()]
            print(f"| {'' if place else title} | {label} | {' | '.join(cells)} |")
            plain, er, default = (found[way] for way in ("plain", "er", "default"))
            if plain and er and default:
                cell = f"{title}, {label}"
                short_of_er.append((statistics.mean(er) - statistics.mean(default), cell))
                short_of_plain.append((plain[1] - default[1], cell))
    print()
    print(verdict("below ER by hand on the average of both tasks", short_of_er, BELOW_ER))
    print(verdict("below plain training on the new task", short_of_plain, BELOW_PLAIN))
    name, optimizer, seeds = AGAIN
    again = {label: means(runs, name, optimizer, way, seeds) for way, label in WAYS.items()}
    cells = [f"{label} {scores[0]:.1f} / {scores[1]:.1f}" for label, scores in again.items() if scores]
    print(f"- {MODELS[name]}, {OPTIMIZERS[optimizer][0]} with {len(seeds)} other seeds: {', '.join(cells)}.")


def verdict(what: str, short: list[tuple[float, str]], allowed: float) -> str:
    """A sentence on the largest shortfall, and on the cells where it is larger than allowed."""
    worst, cell = max(short, default=(0.0, "nowhere"))
    failed = [f"{cell} ({points:.1f})" for points, cell in sorted(short, reverse=True) if points > allowed]
    return f"- `ExampleMemory` ends at most {worst:.1f} points {what} ({cell}). " + (
        f"More than {allowed:g}: {'; '.join(failed)}." if failed else f"In no row is it more than {allowed:g}."
    )


if __name__ == "__main__":
    if sys.argv[1:] != ["--show"]:
        measure()
    show()
