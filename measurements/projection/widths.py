"""Whether wide networks stay near: how the gradients at a task's examples change while another task is learned.

    python measurements/projection/widths.py          trains what the records lack, on one thread
    python measurements/projection/widths.py --show   prints the records as Markdown
    python measurements/projection/widths.py --draw   draws docs/images/widths.svg

The runs are those of `ogd reproduce widths widths-one-rate`, whose records it writes too; the changes are in
results/widths.json. G holds the gradients of the true logits of the 200 stored examples of task 1, and K = G Gᵀ. At the
end of the axis is the network of width 1,000 linearised around its initial weights. In the limit, the width is 300, a
task has 100 examples, and OGD stores the gradients of all ten logits of each.
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ogd import json_files
from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS
from ogd.lab.experiments.beyond import WIDTHS
from ogd.lab.experiments.runs import requests_of
from ogd.lab.progress import Display
from ogd.lab.reporting.tables import mean_std

if TYPE_CHECKING:
    from torch import Tensor

    from ogd.lab.models import StackedMLP

RESULTS = Path(__file__).parents[2] / "results"
RECORD = RESULTS / "widths.json"
ROWS = [row for name in ("widths", "widths-one-rate") for row in EXPERIMENTS[name].rows]
STORED, EVERY, LINEAR, END = 200, 100, 1000, 10_000  # END: where the linearised network is drawn
LIMIT = {"hidden": (300, 300), "lr": 0.0075, "epochs": 100, "settings": {"left_out": 59_900}}
METHODS = ("sgd", "ogd")


def changes(K: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return |G' − G| / |G| and |K' − K| / |K| of each run, from the inner products (R, 2n, 2n) of the rows [G; G']."""
    n = K.shape[-1] // 2
    before, across, after = K[:, :n, :n], K[:, :n, n:], K[:, n:, n:]
    moved = (before - across - across.mT + after).diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=0)  # |G' − G|²
    whole = before.diagonal(dim1=-2, dim2=-1).sum(-1)
    return (moved / whole).sqrt(), (after - before).flatten(1).norm(dim=1) / before.flatten(1).norm(dim=1)


def linearised(start: "StackedMLP") -> "StackedMLP":
    """Return f(x; w₀) + ∇f(x; w₀) (w − w₀) with weights w for a stack of perceptrons f with weights w₀.

    With the inputs a of a layer of f, the change U, b of its weights changes its outputs by a Uᵀ + b. The layers of f
    carry this to the logits, except for what their ReLUs have set to zero.
    """
    import torch

    from ogd.lab.models import StackedMLP

    class Linearised(StackedMLP):
        def __init__(self) -> None:
            super().__init__(start.sizes, runs=start.runs, dtype=start.dtype)
            self.load_state_dict(start.state_dict())

        @torch.no_grad()
        def passing(self, x: Any, shift: Any = None) -> Any:
            tape, z = start.passing(x)
            moved: Any = 0.0
            for i, ((W, b), (W0, b0)) in enumerate(zip(self.layers, start.layers, strict=True)):
                carried = moved * (tape[i] > 0) @ W0.mT if i else 0.0
                moved = carried + tape[i] @ (W - W0).mT + (b - b0).unsqueeze(1)
            return tape, z + moved

        def backward(self, tape: Any, delta: Any, unshift: Any = None) -> Any:
            return start.backward(tape, delta)

        def logits(self, x: Any, columns: Any = None) -> Any:
            return self.passing(x.expand(len(self.runs), *x.shape))[1]

        def output_gradients(self, *args: Any) -> Any:
            return start.output_gradients(*args)

    return Linearised()


def trained(requests: dict[str, Any], display: Display, linear: bool, limit: bool) -> dict[str, Any]:
    """Train task 1, then task 2 by SGD and by OGD, and compare what task 1's stored examples had and have.

    `linear` linearises the network. In the `limit` all gradients are stored, and computed in float64.
    """
    from ogd.lab.benchmarks.task import make_benchmark
    from ogd.lab.experiments.dispatch import records_of
    from ogd.lab.methods import OGD, SGD, FinishedTask
    from ogd.lab.models.build import stack_of
    from ogd.lab.records.record import write_all
    from ogd.lab.training import first_task, train
    from ogd.memory.projection.store import Store

    request = requests["ogd"]
    benchmark, schedule = make_benchmark(request, load("mnist")), request.schedule
    outputs = "all" if limit else "true"

    class Report:
        def start(self, total: int) -> None: ...

        def advance(self, done: int, note: str) -> None:
            display.advance(done * _cost(request), f"width {request.hidden[0]:,}, lr {request.lr:g}, {note}")

    def made() -> Any:
        stack: Any = stack_of(request, benchmark, range(EXPERIMENTS["widths"].runs))
        stack = stack.double() if limit else stack
        return linearised(stack) if linear else stack

    model = made()
    first = first_task(benchmark, model, schedule, Report())
    task = FinishedTask(benchmark.tasks[0], model, 1, 0, benchmark.outputs, schedule.seed)
    kept = task.draw(len(benchmark.tasks[0].train) if limit else STORED)
    shapes = {name: w.shape for name, w in model.params.items()}
    before, n = model.output_gradients(kept, outputs, None)
    z = model.passing(kept.x)[1]
    truth = kept.target.argmax(-1)
    found: dict[str, Any] = {"kept": (z.argmax(-1) == truth).double().mean(1).tolist()}
    written = {"projection": "explicit", "every": EVERY} if linear or limit else {}
    for name, method in (("sgd", SGD()), ("ogd", OGD(n, outputs, **written))):
        after = made()
        result = train(benchmark, after, method, first=first, progress=Report(), **asdict(schedule))
        rows = after.output_gradients(kept, outputs, None)[0]
        both = Store().with_task(before, n, shapes).with_task([replace(row, start=n) for row in rows], n, shapes)
        of_G, of_K = changes(both.gram(shapes))
        moved = after.passing(kept.x)[1]
        found[name] = {
            "gradients": of_G.tolist(),
            "K": of_K.tolist(),
            "accuracy": result.accuracy[:, 1:].tolist(),
            "drift": (moved - z).square().mean((1, 2)).sqrt().tolist(),
            "kept": (moved.argmax(-1) == truth).double().mean(1).tolist(),
        }
        if not (linear or limit):
            write_all(list(records_of(requests[name], result)), RESULTS)
    return found


def names_of(row: Any) -> dict[int, str]:
    """Return the name of a row's training at each width: the width and the learning rate."""
    return {setting["hidden"][0]: f"{setting['hidden'][0]} {setting['lr']:g}" for setting in row.settings}


def entries() -> dict[str, dict[str, Any]]:
    """Return the requests of each training by its name in the record: those of one task 1 together."""
    dataset = load("mnist")
    found: dict[str, dict[str, Any]] = {}
    for row in ROWS:
        for name, request in zip(names_of(row).values(), requests_of(row, dataset), strict=True):
            found.setdefault(name, {})[row.method] = request
    wide = found[f"{LINEAR} {WIDTHS[LINEAR]:g}"]
    few = {method: replace(request, **LIMIT) for method, request in wide.items()}
    found |= {"linear": wide, "limit linear": few, "limit network": few}
    return dict(sorted(found.items(), key=lambda item: _cost(item[1]["ogd"])))


def _cost(request: Any) -> int:
    """About how much a step takes."""
    width: int = request.hidden[0]
    return width * (794 + width)


def measure() -> None:
    """Train what the record lacks."""
    import torch

    from ogd.files import write_text
    from ogd.lab.records.record import environment

    torch.set_num_threads(1)
    record = json_files.load(RECORD) if RECORD.exists() else {"schema": 1, "measured": {}}
    missing = {name: requests for name, requests in entries().items() if name not in record["measured"]}
    steps = {name: 3 * one["ogd"].epochs * (10 if name.startswith("limit") else 1000) for name, one in missing.items()}
    with Display("widths") as display:
        display.start(sum(steps[name] * _cost(one["ogd"]) for name, one in missing.items()))
        for name, requests in missing.items():
            record["measured"][name] = trained(requests, display, "linear" in name, "limit" in name)
            write_text(RECORD, json.dumps({**record, "environment": environment()}, indent=1) + "\n")


def show() -> None:
    """Print the record, with the accuracies of its runs, as Markdown."""
    measured = json_files.load(RECORD)["measured"]
    print(
        "| width | learning rate | change of G, %: SGD | OGD | change of K, %: SGD / OGD | "
        "task 1 before task 2 | after it: SGD | OGD |\n| --- | ---: |" + " ---: |" * 6
    )
    rows = [(name, name) for name in dict.fromkeys(name for row in ROWS for name in names_of(row).values())]
    for name, label in [*rows, ("linear", f"{LINEAR} {WIDTHS[LINEAR]:g}, linearised")]:
        if name in measured:
            one = measured[name]
            width, lr = label.split(maxsplit=1)
            cells = [mean_std([100 * run for run in one[method]["gradients"]]) for method in METHODS]
            cells.append(" / ".join(f"{100 * fmean(one[method]['K']):.0f}" for method in METHODS))
            cells += [mean_std(task_1(one, "ogd", 0)), *(mean_std(task_1(one, method, 1)) for method in METHODS)]
            print(f"| {int(width):,} | {lr} | {' | '.join(cells)} |")
    print("\n| width 300, 100 examples per task | right before task 2 | after it: SGD | OGD | drift: SGD | OGD |")
    print("| --- |" + " ---: |" * 5)
    for name, label in (("limit network", "the network"), ("limit linear", "linearised")):
        one = measured[name]
        kept = [mean_std([100 * run for run in runs]) for runs in (one["kept"], *(one[m]["kept"] for m in METHODS))]
        drifts = [f"{fmean(one[method]['drift']):#.2g}" for method in METHODS]
        print(f"| {label} | {' | '.join(kept + drifts)} |")


def task_1(one: dict[str, Any], method: str, after: int) -> list[float]:
    """Return the accuracy on task 1 of each run, in percent, before task 2 or after it."""
    return [100 * run[after][0] for run in one[method]["accuracy"]]


def draw() -> None:
    """Draw the change of G and what is forgotten over the width."""
    sys.path.append(str(Path(__file__).parents[1]))
    import style

    measured = json_files.load(RECORD)["measured"]
    made = style.figure(style.WIDTH, 3.4)
    left, right = made.subplots(1, 2)
    for row in ROWS:
        assert row.look is not None
        found = [(width, measured[name]) for width, name in names_of(row).items() if name in measured]
        drawn = {"color": row.look.colour, "ls": row.look.dashes, "marker": row.look.marker}
        x = [width for width, _ in found]
        left.plot(x, [_changed(one, row.method) for _, one in found], label=row.label, **drawn)
        right.plot(x, [_forgotten(one, row.method) for _, one in found], **drawn)
        drawn["ls"] = "none"
        left.plot([END], [_changed(measured["linear"], row.method)], clip_on=False, **drawn)
        right.plot([END], [_forgotten(measured["linear"], row.method)], **drawn)
    left.set_title("change of the gradients, %")
    right.set_title("task 1 forgotten, points")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks([50, 300, 3000, END], ["50", "300", "3,000", "linear"])
        axes.minorticks_off()
        axes.set(xlabel="width", ylim=(0, None))
        axes.grid(axis="y")
    made.legend(loc="outside upper center", ncols=2, handlelength=2.6)
    style.save(made, "widths")


def _changed(one: dict[str, Any], method: str) -> float:
    return 100 * fmean(one[method]["gradients"])


def _forgotten(one: dict[str, Any], method: str) -> float:
    return fmean(task_1(one, method, 0)) - fmean(task_1(one, method, 1))


if __name__ == "__main__":
    if "--show" in sys.argv[1:]:
        show()
    elif "--draw" in sys.argv[1:]:
        draw()
    else:
        measure()
