"""What each protection keeps over what a step costs.

    python measurements/choosing/price.py          draws docs/images/price.svg
    python measurements/choosing/price.py --show   prints its points as Markdown

Accuracies are those of `ogd reproduce which --out results`, times those of results/speed.json (`ogd bench`), both over
SGD in lockstep. A time that was measured of something else than `ogd bench` measures today is left out.
"""

import statistics
import sys
from pathlib import Path

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
Points = dict[str, tuple[float, float]]  # time per step over plain training's, and what is kept


def digits() -> dict[str, Points]:
    """The points of each benchmark of `which`."""
    dataset = load("mnist")
    meanings = {key: meaning for key, _, _, meaning in RATIOS}
    ratios = speed.read(RESULTS / "speed.json")
    times = {ratio.key: ratio.median for ratio in ratios if meanings.get(ratio.key) == ratio.meaning}
    panels: dict[str, Points] = {column: {} for column in EXPERIMENTS["which"].columns}
    rows = {row.label: row for row in EXPERIMENTS["which"].rows}
    for label, (name, ratio) in ROWS.items():
        if ratio is not None and ratio not in times:
            continue
        for points, request in zip(panels.values(), requests_of(rows[name], dataset), strict=True):
            runs = find(RESULTS, request).values()
            kept = 100 * statistics.mean(float(average_accuracy(run.accuracy)) for run in runs)
            points[label] = (times[ratio] if ratio else 1.0, kept)
    return panels


def draw() -> None:
    """Draw a panel per benchmark."""
    sys.path.append(str(Path(__file__).parents[1]))
    from style import WIDTH, figure, looks, save

    drawn = dict(
        zip(ROWS, (looks.SGD, looks.REHEARSAL, looks.DER, looks.ER, looks.AGEM, looks.EWC, looks.OGD), strict=True)
    )
    made = figure(WIDTH, 5.2)
    for axes, (title, points) in zip(made.subplots(2, 2).flat, digits().items(), strict=True):
        for label, (time, kept) in points.items():
            look = drawn[label]
            axes.scatter(time, kept, 55, color=look.colour, marker=look.marker, label=label, zorder=3)
        axes.set_xscale("log")
        axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.minorticks_off()
        axes.grid()
        axes.set(title=title, xlabel="time per step (plain = 1)", ylabel="average accuracy (%)")
    made.legend(*made.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    save(made, "price")


def show() -> None:
    """Print the points of all panels."""
    panels = digits()
    print(f"| | time per step | {' | '.join(panels)} |\n| --- | ---: |{' ---: |' * len(panels)}")
    for label, (time, _) in next(iter(panels.values())).items():
        print(f"| {label} | {time:.1f} × | {' | '.join(f'{points[label][1]:.1f}' for points in panels.values())} |")


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else draw()
