"""The picture on the front page: the same model with and without protection, on what it learned first.

    python measurements/readme/front.py          draws docs/images/front.svg
    python measurements/readme/front.py --show   prints the ends of its lines as Markdown

Above, Rotated MNIST: `ExampleMemory(model)` and `GradientMemory(model)` in a user's own loop, from
results/own_loop.json (measurements/choosing/own_loop.py), beside SGD from the records of
`ogd reproduce worlds --out results`. Below, a year of flights by the same two calls, from results/flights.json
(measurements/real_data/flights.py).
"""

import statistics
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ogd import json_files
from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS
from ogd.lab.experiments.runs import requests_of
from ogd.lab.records import find

RESULTS = Path(__file__).parents[2] / "results"
WAYS = {"default": "rehearsal", "gradient": "projection", "plain": "no protection"}
Lines = dict[str, npt.NDArray[np.float64]]


def digits() -> Lines:
    """Task 1's accuracy (%) after each of the five tasks, for each way of training that was measured."""
    found = json_files.load(RESULTS / "own_loop.json")["runs"]["Rotated"]
    (sgd,) = (row for row in EXPERIMENTS["worlds"].rows if row.method == "sgd")
    request = requests_of(sgd, load("mnist"))[EXPERIMENTS["worlds"].columns.index("Rotated")]
    runs = {way: [run["accuracy"] for run in own.values()] for way, own in found.items()}
    runs["plain"] = [record.accuracy[1:] for record in find(RESULTS, request).values()]
    return {label: 100 * np.array(runs[way])[:, :, 0].mean(0) for way, label in WAYS.items() if way in runs}


def flights() -> Lines:
    """January's AUC after each month."""
    found = json_files.load(RESULTS / "flights.json")["runs"]["flights"]
    return {
        label: np.array([statistics.mean(run["auc"][t][0] for run in found[way].values()) for t in range(12)])
        for way, label in WAYS.items()
        if way in found
    }


def draw() -> None:
    """Draw both panels."""
    sys.path.append(str(Path(__file__).parents[1]))
    from style import WIDTH, figure, looks, save

    drawn = {"rehearsal": looks.REHEARSAL, "projection": looks.OGD, "no protection": looks.SGD}
    made = figure(WIDTH, 4.8)
    above, below = made.subplots(2, 1)
    for axes, lines, form in ((above, digits(), "{:.0f} %"), (below, flights(), "{:.3f}")):
        tasks = range(1, len(lines["no protection"]) + 1)
        for label, line in lines.items():
            axes.plot(tasks, line, "-", color=drawn[label].colour, marker=drawn[label].marker, lw=2)
        low, high = axes.get_ylim()
        place = -np.inf  # of the label below
        for label, line in sorted(lines.items(), key=lambda item: item[1][-1]):
            place = max(line[-1], place + 0.08 * (high - low))
            words = f"  {label}, {form.format(line[-1])}"
            axes.text(tasks[-1], place, words, va="center", color=drawn[label].colour)
        axes.set_xticks(tasks)
        axes.grid()
    above.set(title="Digits, turned by 10° more for each task", xlabel="after task", ylabel="accuracy on task 1 (%)")
    below.set(title="A year of flights: which will be late?", xlabel="after month", ylabel="AUC on January")
    save(made, "front")


def show() -> None:
    """Print the first and the last point of each line."""
    print("| | | first | last |\n| --- | --- | ---: | ---: |")
    for title, lines, form in (("digits, task 1 (%)", digits(), ".1f"), ("flights, January (AUC)", flights(), ".3f")):
        for label, line in lines.items():
            print(f"| {title} | {label} | {line[0]:{form}} | {line[-1]:{form}} |")


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else draw()
