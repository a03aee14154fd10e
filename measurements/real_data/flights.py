"""Real drift: is a flight more than 15 minutes late, learned month by month; `--show` prints the last measurement.

    ogd data flights --out data/flights
    python measurements/real_data/flights.py --choose   tries settings on held-out flights; into results/flights.json
    python measurements/real_data/flights.py            trains what the record lacks, on one thread; draws the figure
    python measurements/real_data/flights.py --show     prints that record as Markdown

Of each month 60 % of the flights are to train on, 20 % to choose settings by and 20 % to test on, drawn flight by
flight or day by day, the same for all seeds. The network has embeddings of carrier, airports and weekday and two
layers of 64; Adam, batches of 128. 200 flights of each month are kept, or 500 gradients (`GradientMemory(model)`). EWC
takes its Fisher information from 1,000 flights of each month. All that the network is given is known before departure.
Settings are chosen for the ways that have none yet, and runs of other defaults of the library are trained again.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ogd import json_files
from ogd.lab.reporting.tables import mean_std

if TYPE_CHECKING:
    from torch import Tensor

    from ogd.lab.data.flights import Flights

ROOT = Path(__file__).parents[2]
RECORD, DATA = ROOT / "results" / "flights.json", ROOT / "data" / "flights"
SEEDS, CHOOSING_SEED = range(5), 100
MONTHS, LATE, KEPT, BATCH, FISHER, PARTS = 12, 15, 200, 128, 1_000, (0.6, 0.2, 0.2)
DRAWN = {"flights": "Flights held out, of days that were learned from", "days": "Whole days held out"}
COMMON = [{"lr": lr, "epochs": epochs} for lr, epochs in ((1e-3, 1), (1e-3, 2), (3e-3, 1))]
OWN: dict[str, list[dict[str, Any]]] = {  # what is tried for each way
    "plain": [{}],
    "gradient": [{}],
    "paper": [{}],
    "er": [{"weight": weight} for weight in (0.03, 0.1, 0.3, 1.0)],
    "der": [{"weight": weight, "alpha": alpha} for weight in (0.1, 1.0) for alpha in (0.1, 0.5, 2.0)],
    "ewc": [{"ewc_lambda": weight} for weight in (1.0, 10.0, 100.0, 1e3, 1e4, 1e5)],
    "agem": [{}],
    "default": [{}],
    "unlabelled": [{}],
    "outputs": [{"alpha": alpha} for alpha in (0.1, 0.5, 2.0)],
    "all": [{}],
}
WAYS = {
    "plain": "plain training, month by month",
    "gradient": "`GradientMemory(model)`",
    "paper": "`GradientMemory(model, per_task=200)`, `every=1`",
    "er": "ER by hand",
    "der": "DER++ by hand",
    "default": "`ExampleMemory(model)`",
    "unlabelled": "`ExampleMemory(model)`, `labels=False`",
    "outputs": "… and `every=1, batch_size=128`, α tuned",
    "ewc": "EWC, λ tuned",
    "agem": "A-GEM",
    "all": "all months so far",
}
MEMORIES = {
    **dict.fromkeys(("gradient", "paper"), "GradientMemory"),
    **dict.fromkeys(("default", "unlabelled", "outputs"), "ExampleMemory"),
}
Part = tuple["Tensor", "Tensor", "Tensor"]  # codes, numbers, late


class Scores(NamedTuple):
    """Row t, column m: after month t, on the held-out flights of month m."""

    auc: list[list[float]]
    log_loss: list[list[float]]


def months(flights: "Flights", drawn: str) -> list[list[Part]]:
    """Return for each month the flights to train on, to choose settings by and to test on."""
    import torch

    def turn(values: Any, period: float) -> "list[Tensor]":
        angle = torch.from_numpy(values.astype("float32")) * (2 * math.pi / period)
        return [angle.sin(), angle.cos()]

    codes = torch.stack(
        [torch.from_numpy(getattr(flights, name)).long() for name in ("carrier", "origin", "dest", "weekday")], 1
    )
    distance = torch.from_numpy(flights.distance.astype("float32") / 1000)
    numbers = [*turn(flights.departure, 24 * 60), *turn(flights.arrival, 24 * 60), *turn(flights.month, 12), distance]
    rows = codes, torch.stack(numbers, 1), torch.from_numpy(flights.delay > LATE).long()
    generator = torch.Generator().manual_seed(0)
    found = []
    for month in range(1, MONTHS + 1):
        mine = torch.from_numpy(flights.month == month).nonzero().squeeze(1)
        unit = torch.from_numpy(flights.day)[mine] if drawn == "days" else torch.arange(len(mine))
        units = unit.unique()[torch.randperm(len(unit.unique()), generator=generator)]
        cut = [round(share * len(units)) for share in (PARTS[0], PARTS[0] + PARTS[1])]
        parts = [mine[torch.isin(unit, some)] for some in units.tensor_split(cut)]
        found.append([tuple(row[part] for row in rows) for part in parts])
    return found


def network(names: dict[str, tuple[str, ...]], numbers: int) -> Any:
    import torch
    from torch import nn

    class Punctuality(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [(len(names["carrier"]), 8), (len(names["origin"]), 4), (len(names["dest"]), 8), (7, 4)]
            self.tables = nn.ModuleList(nn.Embedding(n, d) for n, d in sizes)
            width = sum(d for _, d in sizes) + numbers
            self.layers = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

        def forward(self, codes: "Tensor", numbers: "Tensor") -> "Tensor":
            looked_up = [table(codes[:, i]) for i, table in enumerate(self.tables)]
            return self.layers(torch.cat([*looked_up, numbers], 1))

    return Punctuality()


def auc(scores: "Tensor", late: "Tensor") -> float:
    """The chance that a late flight has a higher score than one in time; equal scores count half."""
    import torch

    positive, negative = scores[late == 1], scores[late == 0].sort().values
    below = torch.searchsorted(negative, positive) + torch.searchsorted(negative, positive, right=True)
    return float(below.double().mean() / (2 * len(negative)))


def trained(
    way: str, seed: int, data: list[list[Part]], part: int, model: Any, setting: dict[str, Any]
) -> dict[str, Any]:
    """After each month, the scores on every month's flights of a part: 1 to choose settings by, 2 to test on."""
    import torch
    from torch.nn.functional import cross_entropy, mse_loss

    import ogd

    sys.path.append(str(Path(__file__).parents[1]))
    import by_hand

    params = list(model.parameters())
    consolidation = by_hand.Consolidation(setting.get("ewc_lambda", 0.0))
    named = {"per_task": KEPT} if way == "paper" else {}
    memory: Any = getattr(ogd, MEMORIES[way])(model, **named) if way in MEMORIES else None
    options: dict[str, dict[str, Any]] = {
        "gradient": {},
        "paper": {"every": 1},
        "default": {},
        "unlabelled": {"labels": False},
        "outputs": {"labels": False, "every": 1, "batch_size": BATCH, "alpha": setting.get("alpha")},
    }
    order, drawing = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    kept: list[Part] = []
    outputs: list[Tensor] = []  # of the kept flights, when their month was over
    scores = Scores([], [])
    for month, (train, *_) in enumerate(data):
        optimizer = torch.optim.Adam(params, lr=setting["lr"])
        protection = memory.protect(optimizer, **options[way]) if way in options else None
        seen = joined([one[0] for one in data[: month + 1]]) if way == "all" else train
        for _ in range(setting["epochs"]):
            for codes, numbers, late in batches(seen, order):
                optimizer.zero_grad()
                cross_entropy(model(codes, numbers), late).backward()
                if way in ("er", "der", "agem") and kept:
                    old = joined(kept)
                    some = torch.randperm(len(old[2]), generator=drawing)[:BATCH]
                    z = model(old[0][some], old[1][some])
                    remembered = setting.get("weight", 1.0) * cross_entropy(z, old[2][some])
                    if way == "der":
                        remembered = remembered + setting["alpha"] * mse_loss(z, torch.cat(outputs)[some])
                    if way == "agem":
                        by_hand.agem(params, torch.autograd.grad(remembered, params))
                    else:
                        remembered.backward()
                consolidation.add_gradient(params)
                optimizer.step()
        if protection is not None:
            protection.unprotect()
        chosen = torch.randperm(len(train[2]), generator=order)[:KEPT]
        kept.append((train[0][chosen], train[1][chosen], train[2][chosen]))
        if protection is not None:
            memory.remember(((train[0], train[1]), train[2]))
        if way == "ewc":
            rows = torch.randperm(len(train[2]), generator=drawing)[:FISHER]
            losses = (cross_entropy(model(train[0][row], train[1][row]), train[2][row]) for row in rows.split(1))
            consolidation.remember(params, losses)
        with torch.no_grad():
            outputs.append(model(*kept[-1][:2]))
            told = [(model(one[part][0], one[part][1]).log_softmax(1), one[part][2]) for one in data]
        scores.auc.append([round(auc(z[:, 1] - z[:, 0], late), 5) for z, late in told])
        scores.log_loss.append([round(float(cross_entropy(z, late)), 5) for z, late in told])
    return scores._asdict()


def joined(parts: list[Part]) -> Part:
    import torch

    codes, numbers, late = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return codes, numbers, late


def batches(data: Part, order: Any) -> Iterator[Part]:
    import torch

    for rows in torch.randperm(len(data[2]), generator=order).split(BATCH):
        yield data[0][rows], data[1][rows], data[2][rows]


@cache
def loaded(drawn: str) -> tuple[list[list[Part]], dict[str, tuple[str, ...]]]:
    """Return the months, and the names of carriers and airports."""
    from ogd.lab.data import flights

    found = flights.load(DATA)
    return months(found, drawn), found.names


def run(way: str, seed: int, drawn: str, part: int, setting: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    data, names = loaded(drawn)
    torch.manual_seed(seed)
    return trained(way, seed, data, part, network(names, data[0][0][1].shape[1]), setting)


def choose() -> None:
    """Choose what all ways share by plain training's AUC on the newest month, the rest by the AUC on all at the end.

    What the record has is not chosen again.
    """
    record: dict[str, Any] = {"schema": 2, "tried": [], "settings": {}, "runs": {drawn: {} for drawn in DRAWN}}
    if RECORD.exists():
        record = json_files.load(RECORD)

    def best(way: str, settings: list[dict[str, Any]], score: Any) -> dict[str, Any]:
        if len(settings) == 1:
            return settings[0]
        found = []
        for setting in settings:
            found.append(score(run(way, CHOOSING_SEED, "flights", 1, setting)["auc"]))
            record["tried"].append({"way": way, "setting": setting, "score": round(found[-1], 5)})
            print(record["tried"][-1], file=sys.stderr)
        return settings[found.index(max(found))]

    if "plain" not in record["settings"]:
        record["settings"]["plain"] = best("plain", COMMON, newest)
    common = record["settings"]["plain"]
    for way in (way for way in WAYS if way not in record["settings"]):
        record["settings"][way] = best(way, [{**common, **own} for own in OWN[way]], at_the_end)
        write(record)


def measure() -> None:
    """Train what is not recorded with the library's present defaults, and draw the figure."""
    import ogd
    from ogd.lab.progress import clock

    sys.path.append(str(Path(__file__).parents[1]))
    import defaults

    record = json_files.load(RECORD)
    today = {way: defaults.of(getattr(ogd, MEMORIES[way]), way) if way in MEMORIES else {} for way in WAYS}
    wanted = [(seed, drawn, way) for seed in SEEDS for drawn in DRAWN for way in WAYS]
    missing = [
        (seed, drawn, way)
        for seed, drawn, way in wanted
        if record["runs"][drawn].get(way, {}).get(str(seed), {}).get("defaults") != today[way]
    ]
    began = time.monotonic()
    for number, (seed, drawn, way) in enumerate(missing, 1):
        found = run(way, seed, drawn, 2, record["settings"][way])
        record["runs"][drawn].setdefault(way, {})[str(seed)] = {**found, "defaults": today[way]}
        write(record)
        left = clock((time.monotonic() - began) * (len(missing) - number) / number)
        print(drawn, way, seed, round(at_the_end(found["auc"]), 4), f"{left} left", file=sys.stderr)
    draw(record)


def found_of(record: dict[str, Any], drawn: str, way: str) -> list[dict[str, Any]]:
    """Return the recorded runs of one way, in the order of their seeds."""
    return [run for _, run in sorted(record["runs"][drawn].get(way, {}).items())]


def write(record: dict[str, Any]) -> None:
    from ogd.files import write_text
    from ogd.lab.records.record import environment

    write_text(RECORD, json.dumps({**record, "environment": environment()}) + "\n")


def january(scores: list[list[float]]) -> float:
    return scores[-1][0]


def at_the_end(scores: list[list[float]]) -> float:
    return statistics.mean(scores[-1])


def newest(scores: list[list[float]]) -> float:
    return statistics.mean(row[t] for t, row in enumerate(scores))


def to_come(scores: list[list[float]]) -> float:
    return statistics.mean(row[t + 1] for t, row in enumerate(scores[:-1]))


COLUMNS = {
    "January": ("auc", january),
    "all months": ("auc", at_the_end),
    "newest month": ("auc", newest),
    "month to come": ("auc", to_come),
    "log-loss, January": ("log_loss", january),
    "log-loss, all": ("log_loss", at_the_end),
    "log-loss, to come": ("log_loss", to_come),
}


def show() -> None:
    """Print the record as Markdown."""
    record = json_files.load(RECORD)
    for drawn, title in DRAWN.items():
        found = {way: runs for way in WAYS if (runs := found_of(record, drawn, way))}
        fresh = [run["auc"][0][0] for run in found["plain"]]
        print(f"**{title}.** Just after January, January's AUC is {mean_std(fresh, 3)}.\n")
        print(f"| | {' | '.join(COLUMNS)} |")
        print(f"| --- |{' ---: |' * len(COLUMNS)}")
        for way, label in WAYS.items():
            if way not in found:  # still to be measured
                continue
            cells = [mean_std([value(run[kind]) for run in found[way]], 3) for kind, value in COLUMNS.values()]
            print(f"| {label} | {' | '.join(cells)} |")
        print()


def draw(record: dict[str, Any]) -> None:
    """Draw the AUC on January's held-out flights after each month."""
    sys.path.append(str(Path(__file__).parents[1]))
    from style import WIDTH, figure, looks, save

    drawn_as = {  # EWC, A-GEM and the paper's projection are in the table only
        "plain": (looks.SGD, "-"),
        "gradient": (looks.OGD, "-."),
        "er": (looks.ER, "--"),
        "der": (looks.DER, "-."),
        "default": (looks.REHEARSAL, "-"),
        "unlabelled": (looks.REHEARSAL, "--"),
        "outputs": (looks.REHEARSAL, ":"),
        "all": (looks.MTL, ":"),
    }
    made = figure(WIDTH, 6.2)
    axes = made.subplots(2, 1, sharey=True)
    for way, (look, line) in drawn_as.items():
        for axis, drawn in zip(axes, DRAWN, strict=True):
            runs = found_of(record, drawn, way)
            if not runs:
                continue
            after = [statistics.mean(run["auc"][t][0] for run in runs) for t in range(MONTHS)]
            axis.plot(range(1, MONTHS + 1), after, line, color=look.colour, label=WAYS[way].replace("`", ""))
    for axis, title in zip(axes, DRAWN.values(), strict=True):
        axis.set(title=title, xlabel="after month", ylabel="AUC on January", xticks=range(1, MONTHS + 1))
    made.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    save(made, "flights")


if __name__ == "__main__":
    if sys.argv[1:] == ["--choose"]:
        choose()
    elif sys.argv[1:] == ["--show"]:
        show()
    else:
        measure()
        show()
