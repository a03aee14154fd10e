"""Old gradients, corrected ones and new ones: how far remembered outputs drift while another task is learned.

    python measurements/projection/orders.py          trains what the record lacks, on one thread: results/orders.json
    python measurements/projection/orders.py --show   prints that record as Markdown
    python measurements/projection/orders.py --draw   draws docs/images/orders.svg

Upright digits, then digits turned by 30° or 90°: 784-100-100-10 with Glorot's weights, batches of 10 and one epoch per
task, at a learning rate of 0.001 or 0.01. OGD projects every 100 steps with the gradients of the true logits of 200
examples of task 1, which it learned to the weights w*:

    first order    ∇f(x; w*), stored once
    second order   ∇f(x; w*) + ∇²f(x; w*) (w − w*), computed again every k steps
    all orders     ∇f(x; w), computed again every k steps

Drift is the root mean square change of those 200 logits, or of 200 test examples' logits, since w*.
"""

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ogd import json_files
from ogd.lab.progress import Display
from ogd.lab.reporting.tables import mean_std

if TYPE_CHECKING:
    from torch import Tensor, nn

RECORD = Path(__file__).parents[2] / "results" / "orders.json"
ANGLES, RATES, EPOCHS, RUNS, STORED, EVERY, LOOK = (30, 90), (1e-3, 1e-2), 1, 3, 200, 100, 200
ORDERS = {  # and k
    "none": ("none", 0),
    "first": ("first order", 0),
    "second": ("second order, k = 1,000", 1000),
    "all": ("all orders, k = 1,000", 1000),
    "often": ("all orders, k = 100", 100),
}


def corrected(
    network: "nn.Module", start: "dict[str, Tensor]", moved: "dict[str, Tensor]", x: "Tensor", target: "Tensor"
) -> "dict[str, Tensor]":
    """Return ∇f(x; w*) + ∇²f(x; w*) (w − w*) for each example and f = target · logits, (n, p) per parameter.

    `start` is w*, and `moved` is w − w*. The derivative of the gradients along w − w* is one forward-mode pass.
    """
    from torch.func import functional_call, grad, jvp, vmap

    def output(w: Any, x: Any, target: Any) -> Any:
        return (functional_call(network, w, (x.unsqueeze(0),)).squeeze(0) * target).sum()

    gradients = vmap(grad(output), (None, 0, 0))
    first, change = jvp(lambda w: gradients(w, x, target), (start,), (moved,))
    return {name: (first[name] + change[name]).flatten(1) for name in start}


def method(order: str) -> Any:
    """Return the laboratory's method of this order."""
    import torch

    from ogd.lab.methods import OGD, SGD
    from ogd.memory.blocks.dense import Dense
    from ogd.memory.blocks.pieces import Piece
    from ogd.memory.projection.projector import projector_of
    from ogd.memory.projection.store import Store

    class SecondOrder(OGD):
        def end_task(self, finished: Any) -> None:
            super().end_task(finished)
            self.start = {name: w.detach().clone() for name, w in finished.model.params.items()}

        def _renew_projector(self, model: Any) -> Any:
            (batch, _) = self.batches[0]
            rows = []
            for r, run in enumerate(model.runs):
                start = {name: w[r] for name, w in self.start.items()}
                moved = {name: w.detach()[r] - start[name] for name, w in model.params.items()}
                rows.append(corrected(model.module(run), start, moved, batch.x[r].flatten(1), batch.target[r]))
            pieces = [Piece((name,), Dense(torch.stack([row[name] for row in rows]))) for name in self.start]
            weights = {name: w.detach() for name, w in model.params.items()}
            shapes = {name: w.shape for name, w in weights.items()}
            return projector_of(Store().with_task(pieces, STORED, shapes), weights)

    if order == "none":
        return SGD()
    kind = SecondOrder if order == "second" else OGD
    return kind(STORED, projection="explicit", every=EVERY, refresh=ORDERS[order][1])


def measure() -> None:
    """Train what the record lacks."""
    import torch

    from ogd.files import write_text
    from ogd.lab.benchmarks import rotated
    from ogd.lab.methods import FinishedTask
    from ogd.lab.models import StackedMLP
    from ogd.lab.records.record import environment
    from ogd.lab.training import Schedule, first_task, train

    torch.set_num_threads(1)
    record = json_files.load(RECORD) if RECORD.exists() else {"schema": 1, "measured": {}}
    benchmarks = {angle: rotated(angles=(0, angle)) for angle in ANGLES}
    task = benchmarks[ANGLES[0]].tasks[0]
    steps = Schedule(epochs=EPOCHS).steps(len(task.train))

    class Watch:
        """Shows the progress, and notes how far outputs have moved from those of the first task's end."""

        def __init__(self, model: Any, before: Any = None) -> None:
            self.model, self.before, self.done, self.drift = model, before, 0, []

        def start(self, total: int) -> None: ...

        def advance(self, done: int, note: str) -> None:
            self.done += done
            display.advance(done, note)
            if self.before is not None and self.done % LOOK == 0:
                now = outputs(self.model)
                moved = [a - b for a, b in zip(now, self.before, strict=True)]
                self.drift.append([each.square().mean(1).sqrt().tolist() for each in moved])

    def outputs(model: Any) -> Any:
        """The true logits (R, 200) of the stored examples, and of as many test examples."""
        unseen = model.logits(task.test.x[:STORED])
        y = task.test.y[:STORED].expand(RUNS, -1).unsqueeze(2)
        return (model.passing(kept.x)[1] * kept.target).sum(-1), unseen.gather(2, y).squeeze(2)

    wanted = [
        (f"{lr:g} {angle} {order}", lr, angle, order)
        for lr in sorted(RATES, reverse=True)
        for angle in ANGLES
        for order in ORDERS
    ]
    missing = [one for one in wanted if one[0] not in record["measured"]]
    with Display("orders") as display:
        display.start(steps * (len(missing) + len({lr for _, lr, _, _ in missing})))
        firsts: dict[float, Any] = {}
        for name, lr, angle, order in missing:
            if lr not in firsts:
                start = StackedMLP(runs=RUNS, init="glorot")
                firsts[lr] = start, first_task(benchmarks[angle], start, Schedule(lr=lr, epochs=EPOCHS), Watch(start))
            start, history = firsts[lr]
            kept = FinishedTask(task, start, 1, 0, benchmarks[angle].outputs, 0).draw(STORED)
            model = StackedMLP(runs=RUNS, init="glorot")
            watch = Watch(model, outputs(start))
            result = train(benchmarks[angle], model, method(order), first=history, lr=lr, epochs=EPOCHS, progress=watch)
            drift = torch.tensor(watch.drift).permute(1, 2, 0).tolist()  # (stored or unseen, runs, points)
            found = {"accuracy": result.accuracy[:, 1:].tolist(), "stored": drift[0], "unseen": drift[1]}
            record["measured"][name] = found
            write_text(RECORD, json.dumps({**record, "look": LOOK, "environment": environment()}) + "\n")


def show() -> None:
    """Print the record as Markdown."""
    measured = json_files.load(RECORD)["measured"]
    print("| angle, learning rate | gradients | task 1 | task 2 | drift, stored | drift, unseen |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for angle in ANGLES:
        for lr in RATES:
            for order, (label, _) in ORDERS.items():
                one = measured[f"{lr:g} {angle} {order}"]
                tasks = [mean_std([100 * run[-1][t] for run in one["accuracy"]]) for t in (0, 1)]
                drifts = [f"{fmean(run[-1] for run in one[which]):.2f}" for which in ("stored", "unseen")]
                where = f"{angle}°, {lr:g}" if order == "none" else ""
                print(f"| {where} | {label} | {' | '.join(tasks + drifts)} |")


def draw() -> None:
    """Draw the drift of the stored logits over the steps, a panel for each angle and learning rate."""
    sys.path.append(str(Path(__file__).parents[1]))
    import style

    record = json_files.load(RECORD)
    looks = (style.looks.SGD, style.looks.OGD, style.looks.EWC, style.looks.OGD_RENEWED, style.looks.REHEARSAL)
    made = style.figure(style.WIDTH, 4.6)
    panels = made.subplots(2, 2)
    for row, angle in zip(panels, ANGLES, strict=True):
        for axes, lr in zip(row, RATES, strict=True):
            for (order, (label, _)), look in zip(ORDERS.items(), looks, strict=True):
                runs = record["measured"][f"{lr:g} {angle} {order}"]["stored"]
                drift = [0.0, *map(fmean, zip(*runs, strict=True))]
                steps = [record["look"] * i for i in range(len(drift))]
                axes.plot(steps, drift, color=look.colour, ls=look.dashes, label=label)
            axes.set_title(f"{angle}°, learning rate {lr:g}")
            axes.set_ylim(0, None)
            axes.grid(axis="y")
    for axes in panels[1]:
        axes.set_xlabel("steps of task 2")
    made.supylabel("drift of the stored logits", size="medium")
    handles, labels = panels[0][0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=2, handlelength=2.6)
    style.save(made, "orders")


if __name__ == "__main__":
    if "--show" in sys.argv[1:]:
        show()
    elif "--draw" in sys.argv[1:]:
        draw()
    else:
        measure()
