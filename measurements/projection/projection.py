"""The projection as a picture, and what is projected under Adam: the gradient, or the update.

    python measurements/projection/projection.py          writes results/projection.json, docs/images/projection.svg
    python measurements/projection/projection.py --show   prints that record as Markdown

The paper's network learns MNIST, 200 true logits are remembered, and Adam learns the images turned by 40°.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

from ogd import json_files

RECORD = Path(__file__).parents[2] / "results" / "projection.json"
STEPS, LR = 1000, 1e-4
WAYS = {"free": "not protected", "gradient": "gradient projected", "update": "update projected"}


def measure() -> dict[str, Any]:
    """Return how far remembered logits moved after each number of steps, for each way."""
    import torch
    from torch.nn.functional import cross_entropy

    from ogd.lab import benchmarks
    from ogd.lab.models import mlp
    from ogd.lab.records.record import environment
    from ogd.memory import GradientMemory

    old, new = benchmarks.rotated(angles=[0, 40]).tasks
    torch.manual_seed(0)
    first = mlp()
    order = torch.randperm(len(old.train))

    def train(network: Any, optimizer: Any, task: Any, batch: Any) -> None:
        optimizer.zero_grad()
        cross_entropy(network(task.train.x[batch]), task.train.y[batch]).backward()

    optimizer = torch.optim.SGD(first.parameters(), lr=5e-3)
    for batch in order.split(10):
        train(first, optimizer, old, batch)
        optimizer.step()
    x, y = old.train.x[order[:200]], old.train.y[order[:200]]

    def logits(network: Any) -> Any:
        with torch.no_grad():
            return network(x).gather(1, y[:, None])

    steps, drift, learned = [0], {}, {}
    for way in WAYS:
        network = copy.deepcopy(first)
        memory = GradientMemory(network, per_task=None)
        memory.remember((x, y))
        optimizer = torch.optim.Adam(network.parameters(), lr=LR)
        if way == "update":
            memory.protect(optimizer, every=1)
        before, steps, moved = logits(network), [], []
        for step, batch in enumerate(order[: 10 * STEPS].split(10), 1):
            train(network, optimizer, new, batch)
            if way == "gradient":
                projected = memory.project({name: p.grad for name, p in network.named_parameters()})
                for name, p in network.named_parameters():
                    p.grad = projected[name]
            optimizer.step()
            if step in (1, 2, 5) or step % 10 == 0:
                steps.append(step)
                moved.append((logits(network) - before).abs().mean().item())
        drift[way] = moved
        with torch.no_grad():
            right = network(new.test.x).argmax(1) == new.test.y
        learned[way] = right.double().mean().item()
    return {"schema": 1, "lr": LR, "steps": steps, "drift": drift, "learned": learned, "environment": environment()}


def draw(record: dict[str, Any]) -> None:
    """Above, the geometry; below, the measurement."""
    sys.path.append(str(Path(__file__).parents[1]))
    from style import WIDTH, figure, looks, save

    made = figure(WIDTH, 6)
    above, below = made.subplots(2, 1)
    _geometry(above)
    colours = {"free": looks.VERMILION, "gradient": looks.OGD_RENEWED.colour, "update": looks.BLUE}
    places = {"free": (1.1, 0.3), "gradient": (1.1, 0.026), "update": (9, 4e-4)}
    dashes = {"free": "-", "gradient": "--", "update": "-"}
    for way, label in WAYS.items():
        moved = record["drift"][way]
        below.loglog(record["steps"], moved, color=colours[way], ls=dashes[way], lw=2)
        below.text(*places[way], label, color=colours[way])
    below.set(xlabel="steps of Adam on the new task", ylabel="mean change of an old logit")
    below.set_title("b   Under Adam, project the update")
    below.set(xlim=(0.9, 1000), ylim=(4e-5, 4))
    below.grid()
    save(made, "projection")


def _geometry(ax: Any) -> None:
    """Lines of equal f around w*, a step Δw of the optimizer, and P Δw along the line."""
    import numpy as np
    from matplotlib.patheffects import withStroke

    from style import GROUND, looks

    u, v = np.meshgrid(np.linspace(-1.65, 3.65, 200), np.linspace(-0.95, 2.1, 200))
    f = v + 0.055 * u**2
    ax.contour(
        u, v, f, levels=np.arange(-1.5, 3.6, 0.5), colors=looks.MUTED, linewidths=0.9, linestyles="-", alpha=0.55
    )
    ax.contour(u, v, f, levels=[0], colors=looks.MUTED, linewidths=2.4)

    def arrow(start: tuple[float, float], end: tuple[float, float], colour: str, width: float = 2.2) -> None:
        style = {"arrowstyle": "-|>", "color": colour, "lw": width, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 15}
        ax.annotate("", end, start, arrowprops=style)

    arrow((0, 0), (0, 1.7), looks.INK)
    arrow((0, 0), (2.2, 1.25), looks.VERMILION)
    arrow((0, 0), (2.2, 0), looks.BLUE)
    ax.plot([2.2, 2.2], [0, 1.25], color=looks.MUTED, lw=1.2, ls=":")
    ax.plot(0, 0, "o", color=looks.INK, ms=6)
    words = {
        "ha": "left",
        "va": "center",
        "fontsize": 11,
        "path_effects": [withStroke(linewidth=3, foreground=GROUND)],
    }
    ax.text(0.08, -0.2, "$w^*$", **words)
    ax.text(-0.12, 1.6, r"$g=\nabla f(x;w^*)$" + "\nstored", **(words | {"ha": "right"}))
    ax.text(1.15, 1.0, r"$\Delta w$", color=looks.VERMILION, **words)
    ax.text(1.05, 0.22, r"$P\,\Delta w$", color=looks.BLUE, **words)
    ax.text(2.26, 0.62, r"$G^\top K^+ G\,\Delta w$" + "\ntaken out", color=looks.MUTED, **(words | {"fontsize": 9.5}))
    ax.text(-1.6, -0.42, "$f(x;w)=f(x;w^*)$", color=looks.MUTED, **(words | {"fontsize": 9.5}))
    ax.set(xlim=(-1.65, 3.65), ylim=(-0.95, 2.1), xticks=[], yticks=[], aspect="equal")
    ax.spines[:].set_visible(False)
    ax.set_title("a   Move only where the old output stays")


def show() -> None:
    """Print the record as Markdown."""
    record = json_files.load(RECORD)
    steps = [1, 10, 100, 1000]
    heads = [
        "Adam, 40°",
        *(f"after {step:,} step{'' if step == 1 else 's'}" for step in steps),
        "accuracy on the new task",
    ]
    print(f"| {' | '.join(heads)} |\n| --- |{' ---: |' * (len(heads) - 1)}")
    for way, label in WAYS.items():
        moved = [f"{record['drift'][way][record['steps'].index(step)]:.4f}" for step in steps]
        print(f"| {' | '.join([label, *moved])} | {100 * record['learned'][way]:.1f} % |")


def main() -> None:
    import torch

    from ogd.files import write_text

    torch.set_num_threads(1)
    record = measure()
    write_text(RECORD, json.dumps(record, indent=1) + "\n")
    draw(record)
    show()


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else main()
