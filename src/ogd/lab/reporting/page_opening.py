"""What the page opens with: one figure, and the three numbers that say most."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from ogd.lab.catalogue import METHODS
from ogd.lab.reporting.accuracy_plots import Trace, draw_traces
from ogd.lab.reporting.cells import Tally
from ogd.lab.reporting.compare import Comparison
from ogd.lab.reporting.html_figures import Spot, strips
from ogd.lab.reporting.other_runs import Own
from ogd.lab.reporting.style import WIDTH, canvas, settle, styled
from ogd.lab.reporting.tables import Array, count_dead, matrices, mean_std, with_dead


@dataclass(frozen=True)
class Opening:
    """How well the first task is known while the others are learned: of which runs, and a trace per method."""

    title: str
    anchor: str  # where the page has more of it
    traces: tuple[Trace, ...]

    @property
    def tasks(self) -> int:
        return len(self.traces[0].mean)


@dataclass(frozen=True)
class Fact:
    """A number and what it is."""

    number: str
    words: str


def opening(comparisons: Sequence[Comparison], settings: Sequence[Own]) -> Opening | None:
    """Return the first table whose columns are tasks, or the benchmark on which most other methods were run."""
    for one in comparisons:
        found = [
            Trace(with_dead(line.label, runs), _first(matrices(runs)), line.look, line.subject, line.method)
            for line, answer in zip(one.lines, one.found.answers, strict=False)
            if one.experiment.value == "final" and count_dead(runs := answer.runs[0]) < len(runs)
        ]
        if one.shown and len(found) > 1 and len(one.experiment.columns) > 1:
            return Opening(one.title, one.experiment.name, tuple(found))
    groups: dict[tuple[str, str], dict[str, Own]] = {}
    for own in settings:
        if own.request.tasks > 1 and own.dead < len(own.records):
            group = groups.setdefault((own.benchmark, own.request.data), {})
            group.setdefault(own.request.method, own)  # the best of its settings comes first
    if not groups:
        return None
    (name, _), chosen = max(groups.items(), key=lambda group: len(group[1]))
    traces = [
        Trace(with_dead(o.method.label, o.records), _first(matrices(o.records)), o.method.look, False, key)
        for key, o in chosen.items()
    ]
    return Opening(name, "own", tuple(traces))


def picture(opening: Opening) -> tuple[Figure, list[Spot]]:
    """Draw it, and return what its places say."""
    with styled():
        figure = canvas(WIDTH, 3.6)
        axes = figure.subplots()
        draw_traces(axes, opening.traces)
        axes.set_ylabel("accuracy on task 1 (%)")
        settle(figure)
    ranked = sorted(opening.traces, key=lambda trace: -trace.mean[-1])
    said = [
        (f"task 1 after {i + 1} task{'s' * (i > 0)}", [(t.label, mean_std(t.values[:, i]), t.method) for t in ranked])
        for i in range(opening.tasks)
    ]
    return figure, list(strips(axes, np.arange(1, opening.tasks + 1), said))


def facts(total: Tally, opening: Opening | None) -> list[Fact]:
    """Return three: what was published and is met, how far apart the two are, and what is left of the first task."""
    found = []
    run = len(total.cells) - total.missing
    if run:
        met, strictly = (c["agrees"] + c["better"] for c in (total.counts, total.strict_counts))
        words = f"published accuracies that our runs match or beat; {strictly} by the strict count"
        found.append(Fact(f"{met} of {run}", words))
        found.append(Fact(f"{total.distance:.1f} points", "between our accuracy and the published one, on average"))
    if opening:
        found += _facts_of_task_1(opening)
    return found[:3]


def _facts_of_task_1(opening: Opening) -> list[Fact]:
    """Say what is known of task 1 at the end, of the subject or else of the best, and what it and the worst lost."""
    rivals = [trace for trace in opening.traces if not METHODS[trace.method].bound] or list(opening.traces)
    rivals.sort(key=lambda trace: -trace.mean[-1])
    chosen = next((trace for trace in rivals if trace.subject), rivals[0])
    others = [trace for trace in rivals if trace is not chosen]
    words = f"on task 1 after {opening.tasks} tasks with {chosen.label}"
    if others:
        ends = [f"{trace.mean[-1]:.0f}\u00a0% ({trace.label})" for trace in dict.fromkeys((others[-1], others[0]))]
        words += f"; the others keep {' to '.join(ends)}"
    lost = [(trace, trace.mean[0] - trace.mean[-1]) for trace in dict.fromkeys((chosen, rivals[-1]))]
    return [
        Fact(f"{chosen.mean[-1]:.0f}\u00a0%", words),
        *(Fact(f"{points:.1f} points", f"of task 1 lost since it was learned, with {t.label}") for t, points in lost),
    ]


def _first(accuracy: Array) -> Array:
    """Return the percentages on the first task after each, (runs, tasks)."""
    return 100 * accuracy[:, 1:, 0]
