"""Three tasks in a user's own loop, by several kinds of protection; `--show` prints the last measurement.

    python measurements/rehearsal/rehearsal.py --choose  tries settings on validation data; into results/rehearsal.json
    python measurements/rehearsal/rehearsal.py           trains what the record lacks, on one thread
    python measurements/rehearsal/rehearsal.py --time    measures the time of a step, on one thread
    python measurements/rehearsal/rehearsal.py --show    prints that record as Markdown

Images: 6,000 digits per task, turned by 0°, 40° and 80°, a CNN of LeNet's size. Texts: 4,000 sequences of 16 words per
task, each task with words of its own and some of the last one's; a transformer of 2 × 64. Adam at 0.001, batches of
32, three epochs per task. 200 examples of each task are kept, or 500 gradients (`GradientMemory(model)`). By hand, 32
kept examples join every step's loss: with their labels (ER), or with their labels and 0.5 × the squared change of
outputs (DER++). A-GEM takes its reference gradient from 32 of them, and EWC its Fisher information from 1,000 training
examples of each task. All data are those of the tasks so far, in as many steps. Runs of other defaults of the library
are trained again.

Validation data are training images, or texts, of another draw; what is chosen there is EWC's λ, and how many examples
`ExampleMemory` rehearses how often is tried.

Time: each way trains the second task in windows of whole rehearsals, all ways take turns, and each figure is the median
over rounds of the ratio to plain training.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.lab.reporting.tables import mean_std

RECORD = Path(__file__).parents[2] / "results" / "rehearsal.json"
SEEDS, CHOOSING_SEED, KEPT, BATCH, ALPHA, EPOCHS, LR, FISHER = range(5), 100, 200, 32, 0.5, 3, 1e-3, 1_000
ROUNDS, WINDOW = 21, 24  # rounds of the time, and the steps of a window
MODELS = {"cnn": "CNN, turned digits", "transformer": "transformer, texts"}
WAYS = {
    "plain": "no protection",
    "gradient": "`GradientMemory(model)`",
    "paper": "`GradientMemory(model, per_task=200)`, `every=1`",
    "er": "ER by hand, 32 every step",
    "der": "DER++ by hand, 32 every step",
    "default": "`ExampleMemory(model)`",
    "every": "`ExampleMemory(model)`, `every=1, batch_size=32`",
    "eight": "`ExampleMemory(model)`, `every=1, batch_size=8`",
    "means": "`ExampleMemory(model)`, `merge=5`",
    "ewc": "EWC, λ tuned on validation data",
    "agem": "A-GEM, 32 every step",
    "all": "all data kept",
}
TIMED = ("plain", "gradient", "paper", "er", "der", "default", "eight")
PROTECT: dict[str, dict[str, int]] = {  # options that are not the defaults
    "every": {"every": 1, "batch_size": 32},
    "eight": {"every": 1, "batch_size": 8},
    "paper": {"every": 1},
}
REMEMBER: dict[str, dict[str, int]] = {"means": {"merge": 5}}
MEMORIES = {
    **dict.fromkeys(("default", *PROTECT, *REMEMBER), "ExampleMemory"),
    **dict.fromkeys(("gradient", "paper"), "GradientMemory"),
}
LAMBDAS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5)
PACES = ((32, 1), (32, 2), (16, 1), (16, 2), (16, 4), (8, 1), (20, 10))  # examples, every so many steps
Data = tuple[Any, Any]


def images(seed: int, validation: bool = False) -> list[tuple[Data, Data]]:
    """Three tasks, each its training data and its test or validation data."""
    import torch

    from ogd.lab import benchmarks

    drawn = torch.randperm(60_000, generator=torch.Generator().manual_seed(seed))
    rows, others = drawn[:6_000], drawn[6_000:12_000]
    found = []
    for task in benchmarks.rotated(angles=[0, 40, 80]).tasks:
        x, y = task.train.x.view(-1, 1, 28, 28), task.train.y
        held_out = (x[others], y[others]) if validation else (task.test.x.view(-1, 1, 28, 28), task.test.y)
        found.append(((x[rows], y[rows]), held_out))
    return found


def texts(seed: int, validation: bool = False) -> list[tuple[Data, Data]]:
    """Words 60 t … 60 t + 119 in task t. Each word is of one of five topics, the label is the main one.

    A seed has topics of its own, so other seeds' texts are validation data.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    topic = torch.randint(5, (240,), generator=generator)

    def examples(task: int, n: int) -> Data:
        x = torch.randint(120, (n, 16), generator=generator) + 60 * task
        votes = torch.nn.functional.one_hot(topic[x], 5).sum(1).double()
        return x, (votes + torch.rand(n, 5, generator=generator, dtype=torch.float64) / 2).argmax(1)

    return [(examples(t, 4_000), examples(t, 2_000)) for t in range(3)]


def cnn() -> Any:
    from ogd.lab.models import cnn as lenet

    return lenet()


def transformer() -> Any:
    import torch
    from torch import nn

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(240, 64), nn.Parameter(torch.randn(16, 64) * 0.02)
            layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
            self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(self.words(x) + self.places).mean(1))

    return Reader()


class Loop:
    """A user's loop on one model, with one kind of protection; `options` are those of EWC or of `protect`."""

    def __init__(self, name: str, way: str, seed: int, validation: bool = False, **options: Any) -> None:
        import torch

        import ogd

        sys.path.append(str(Path(__file__).parents[1]))
        import by_hand

        torch.manual_seed(seed)
        self.tasks: list[tuple[Data, Data]] = {"cnn": images, "transformer": texts}[name](seed, validation)
        self.model: Any = {"cnn": cnn, "transformer": transformer}[name]()
        self.params = list(self.model.parameters())
        self.way, self.agem = way, by_hand.agem
        self.kept: tuple[Any, ...] = ()  # inputs, labels and outputs, for the ways by hand
        named = {"per_task": KEPT} if way == "paper" else {}
        self.memory: Any = getattr(ogd, MEMORIES[way])(self.model, **named) if way in MEMORIES else None
        self.consolidation = by_hand.Consolidation(options.pop("ewc_lambda")) if way == "ewc" else None
        self.options = {**PROTECT.get(way, {}), **options}
        self.order, self.drawing = (torch.Generator().manual_seed(seed) for _ in range(2))

    def begin_task(self) -> None:
        import torch

        self.optimizer = torch.optim.Adam(self.params, lr=LR)
        if self.memory is not None:
            self.memory.protect(self.optimizer, **self.options)
        self.model.train()

    def step(self, x: Any, y: Any) -> None:
        import torch
        from torch.nn.functional import cross_entropy, mse_loss

        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(x), y)
        reference: Any = None
        if self.kept:
            rows = torch.randperm(len(self.kept[0]), generator=self.drawing)[:BATCH]
            old_x, old_y, old_z = (part[rows] for part in self.kept)
            z = self.model(old_x)
            replayed = cross_entropy(z, old_y)
            if self.way == "agem":
                reference = torch.autograd.grad(replayed, self.params)
            else:
                loss = loss + replayed + (ALPHA * mse_loss(z, old_z) if self.way == "der" else 0.0)
        loss.backward()
        if reference is not None:
            self.agem(self.params, reference)
        if self.consolidation is not None:
            self.consolidation.add_gradient(self.params)
        self.optimizer.step()

    def end_task(self, x: Any, y: Any) -> None:
        import torch
        from torch.nn.functional import cross_entropy

        self.model.eval()
        if self.memory is not None:
            self.memory.unprotect()
            self.memory.remember((x, y), **REMEMBER.get(self.way, {}))
        elif self.way in ("er", "der", "agem"):
            rows = torch.randperm(len(x), generator=self.drawing)[:KEPT]
            with torch.no_grad():
                new = x[rows], y[rows], self.model(x[rows])
            self.kept = tuple(map(torch.cat, zip(self.kept, new, strict=True))) if self.kept else new
        elif self.consolidation is not None:
            rows = torch.randperm(len(x), generator=self.drawing)[:FISHER]
            losses = (cross_entropy(self.model(x[row]), y[row]) for row in rows.split(1))
            self.consolidation.remember(self.params, losses)

    def train_task(self, task: int) -> None:
        import torch

        (x, y), _ = self.tasks[task]
        steps = EPOCHS * -(-len(x) // BATCH)
        seen_x, seen_y = x, y
        if self.way == "all":
            seen_x, seen_y = (
                torch.cat(part) for part in zip(*(train for train, _ in self.tasks[: task + 1]), strict=True)
            )
        self.begin_task()
        batches: list[Any] = []
        for _ in range(steps):
            batches = batches or list(torch.randperm(len(seen_x), generator=self.order).split(BATCH))
            rows = batches.pop(0)
            self.step(seen_x[rows], seen_y[rows])
        self.end_task(x, y)


def trained(name: str, way: str, seed: int, validation: bool = False, **options: Any) -> list[float]:
    """The accuracy on each task at the end."""
    import torch

    loop = Loop(name, way, seed, validation, **options)
    for task in range(len(loop.tasks)):
        loop.train_task(task)
    with torch.no_grad():
        return [float((loop.model(x).argmax(1) == y).double().mean()) for _, (x, y) in loop.tasks]


def choose() -> None:
    """Try EWC's λ, and how many examples `ExampleMemory` rehearses how often, except what the record has."""
    record = recorded()
    tried = record.setdefault("tried", [])
    wanted = [("ewc", {"ewc_lambda": weight}) for weight in LAMBDAS]
    wanted += [("default", {"batch_size": size, "every": every}) for size, every in PACES]
    for name in MODELS:
        for way, setting in wanted:
            if not any((one["model"], one["way"], one["setting"]) == (name, way, setting) for one in tried):
                score = round(statistics.mean(trained(name, way, CHOOSING_SEED, True, **setting)), 5)
                tried.append({"model": name, "way": way, "setting": setting, "score": score})
                print(tried[-1], file=sys.stderr, flush=True)
                write(record)


def chosen(record: dict[str, Any], name: str, way: str) -> dict[str, Any]:
    """Return the setting of EWC with the highest validation score; nothing for the other ways."""
    found = [one for one in record["tried"] if (one["model"], one["way"]) == (name, way)] if way == "ewc" else []
    return max(found, key=lambda one: one["score"])["setting"] if found else {}


def measure() -> None:
    """Train what is not recorded with the library's present defaults."""
    import ogd

    sys.path.append(str(Path(__file__).parents[1]))
    import defaults

    record = recorded()
    for seed in SEEDS:
        for name in MODELS:
            for way in (way for way in WAYS if (name, way) != ("transformer", "means")):  # words have no mean
                runs = record["models"].setdefault(name, {}).setdefault(way, {})
                today = defaults.of(getattr(ogd, MEMORIES[way]), way) if way in MEMORIES else {}
                if runs.get(str(seed), {}).get("defaults") != today:
                    accuracies = trained(name, way, seed, **chosen(record, name, way))
                    runs[str(seed)] = {"accuracies": accuracies, "defaults": today}
                    print(name, way, seed, accuracies, file=sys.stderr, flush=True)
                    write(record)


def measure_time() -> None:
    from ogd.lab.bench.stopwatch import side_by_side

    record = recorded()
    for name in MODELS:
        times = side_by_side({way: stepping(name, way) for way in TIMED}, ROUNDS)
        pairs = {way: zip(times.rounds[way], times.rounds["plain"], strict=True) for way in TIMED}
        record.setdefault("times", {})[name] = {way: statistics.median(a / b for a, b in pairs[way]) for way in TIMED}
        print(name, record["times"][name], file=sys.stderr, flush=True)
        write(record)


def stepping(name: str, way: str) -> Callable[[], float]:
    """A function that takes a window of steps in the second task and returns the seconds of one step."""
    loop = Loop(name, way, 0)
    (x, y), _ = loop.tasks[0]
    loop.begin_task()
    loop.step(x[:BATCH], y[:BATCH])
    loop.end_task(x, y)
    (x, y), _ = loop.tasks[1]
    batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))[:WINDOW]
    loop.begin_task()

    def window() -> float:
        began = time.perf_counter()
        for batch in batches:
            loop.step(*batch)
        return (time.perf_counter() - began) / len(batches)

    return window


def recorded() -> dict[str, Any]:
    """The record so far."""
    return json_files.load(RECORD) if RECORD.exists() else {"schema": 3, "tried": [], "models": {}}


def write(record: dict[str, Any]) -> None:
    from ogd.files import write_text
    from ogd.lab.records.record import environment

    write_text(RECORD, json.dumps({**record, "environment": environment()}, indent=1) + "\n")


def show() -> None:
    """Print the record as Markdown; what was not measured is left out."""
    record = json_files.load(RECORD)
    print("| | | task 1 | task 2 | task 3 | average | a step, without protection = 1 |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, title in MODELS.items():
        found = record["models"].get(name, {})
        times = record.get("times", {}).get(name, {})
        for place, way in enumerate(way for way in WAYS if found.get(way)):
            runs = [run["accuracies"] for run in found[way].values()]
            columns = [[100 * a for a in column] for column in zip(*runs, strict=True)]
            columns.append([statistics.mean(column) for column in zip(*columns, strict=True)])
            cells = [mean_std(column) for column in columns]
            ratio = f"{times[way]:.2f} ×" if way in times else ""
            print(f"| {'' if place else title} | {WAYS[way]} | {' | '.join(cells)} | {ratio} |")


if __name__ == "__main__":
    if sys.argv[1:] != ["--show"]:
        import torch

        torch.set_num_threads(1)
        {"--choose": choose, "--time": measure_time}.get("".join(sys.argv[1:]), measure)()
    show()
