"""What each protection keeps over what a step costs.

    python measurements/choosing/price.py          draws docs/images/price.svg
    python measurements/choosing/price.py --show   prints its points as Markdown

Accuracies are those of `ogd reproduce which --out results`, times those of results/speed.json (`ogd bench`), both over
SGD in lockstep; a row whose ratio was measured with another setting is left out. The flights are in
results/flights.json (measurements/real_data/flights.py), times over plain training.
"""

import statistics
import sys
from pathlib import Path

from ogd import json_files
from ogd.lab.bench import RATIOS
from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS
from ogd.lab.experiments.memories import REHEARSAL
from ogd.lab.experiments.runs import requests_of
from ogd.lab.records import average_accuracy, find, speed

RESULTS = Path(__file__).parents[2] / "results"
# a label, the row of the table, and the ratio that times it
ROWS = {
    "no protection": ("SGD", None),
    "rehearsal": (REHEARSAL, "rehearsal_over_sgd"),
    "DER++": ("DER++", "der_over_sgd"),
    "ER": ("ER", "er_over_sgd"),
    "A-GEM": ("A-GEM", "agem_over_sgd"),
    "EWC, tuned λ": ("EWC, tuned λ", "ewc_over_sgd"),
    "projection": ("OGD", "ogd_over_sgd"),
}
FLIGHTS = {
    "plain": "no protection",
    "default": "rehearsal",
    "gradient": "projection",
    "er": "ER",
    "der": "DER++",
    "all": "all data kept",
}
Points = dict[str, tuple[float, float]]  # time per step over plain training's, and what is kept


def digits() -> dict[str, Points]:
    """The points of each benchmark of `which`."""
    dataset = load("mnist")
    meanings = {key: meaning for key, *_, meaning in RATIOS}
    times = {one.key: one.median for one in speed.read(RESULTS / "speed.json") if one.meaning == meanings.get(one.key)}
    panels: dict[str, Points] = {column: {} for column in EXPERIMENTS["which"].columns}
    rows = {row.label: row for row in EXPERIMENTS["which"].rows}
    for label, (name, ratio) in ROWS.items():
        row, time = rows[name], times.get(ratio) if ratio else 1.0
        if time is None:  # what was timed is another setting
            continue
        for points, request in zip(panels.values(), requests_of(row, dataset, 0), strict=True):
            runs = find(RESULTS, request).values()
            points[label] = (time, 100 * statistics.mean(float(average_accuracy(run.accuracy)) for run in runs))
    return panels


def flights() -> Points:
    found = json_files.load(RESULTS / "flights.json")["runs"]["flights"]
    plain = statistics.median(run["seconds"] for run in found["plain"].values())
    return {
        label: (
            statistics.median(run["seconds"] for run in found[way].values()) / plain,
            statistics.mean(statistics.mean(run["auc"][-1]) for run in found[way].values()),
        )
        for way, label in FLIGHTS.items()
        if way in found
    }


def draw() -> None:
    """Draw a panel per benchmark."""
    sys.path.append(str(Path(__file__).parents[1]))
    from style import WIDTH, figure, looks, save

    drawn = dict(
        zip(ROWS, (looks.SGD, looks.REHEARSAL, looks.DER, looks.ER, looks.AGEM, looks.EWC, looks.OGD), strict=True)
    )
    panels = {**digits(), "flights (AUC)": flights()}
    made = figure(WIDTH, 6.6)
    for axes, (title, points) in zip(made.subplots(3, 2).flat, panels.items(), strict=False):
        for label, (time, kept) in points.items():
            look = drawn.get(label, looks.MTL)
            axes.scatter(time, kept, 55, color=look.colour, marker=look.marker, label=label, zorder=3)
        axes.set_xscale("log")
        axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.minorticks_off()
        axes.grid()
        axes.set(title=title, xlabel="time per step (plain = 1)")
        if "AUC" not in title:
            axes.set_ylabel("average accuracy (%)")
    empty = made.axes[-1]
    empty.axis("off")
    handles = {label: h for axes in made.axes for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    empty.legend(handles.values(), handles.keys(), loc="center")
    save(made, "price")


def show() -> None:
    """Print the points of all panels."""
    panels = digits()
    print(f"| | time per step | {' | '.join(panels)} |\n| --- | ---: |{' ---: |' * len(panels)}")
    for label, (time, _) in next(iter(panels.values())).items():
        print(f"| {label} | {time:.1f} × | {' | '.join(f'{points[label][1]:.1f}' for points in panels.values())} |")


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else draw()
