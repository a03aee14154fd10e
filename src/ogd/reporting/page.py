"""Comparisons and figures → one HTML page that needs nothing but itself."""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ogd.experiments.paper import LABELS
from ogd.progress import clock
from ogd.reporting import captions, cost, formats
from ogd.reporting.choices import CHOICES
from ogd.reporting.compare import Comparison, Entry
from ogd.reporting.judge import DEFINITION, MARKS
from ogd.reporting.style import LOOKS
from ogd.version import __version__


@dataclass(frozen=True)
class Score:
    """A line of the summary: how many published cells of a table came out how, and OGD's average."""

    comparison: Comparison
    counts: Mapping[str, int]
    missing: int
    average: Entry | None

    @property
    def split(self) -> bool:
        """Whether its cells hang on a partition that the paper does not tell."""
        return captions.table(self.comparison) == captions.SPLIT


def page(comparisons: Sequence[Comparison], drawn: Mapping[str, str], folder: Path) -> str:
    """Return the page; `drawn` has the inline SVG of every figure and heat map by name."""
    loader = PackageLoader("ogd", "reporting")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(code=_code, minus=_minus, clock=clock)
    there = [comparison for comparison in comparisons if comparison.found.share]
    records = [record for comparison in there for record in comparison.found.records()]
    quickly = all(comparison.experiment.profile.startswith("quick") for comparison in there)
    return environment.get_template("page.html").render(
        tables=[c for c in there if c.experiment.kind == "table"],
        figures=[c for c in there if c.experiment.kind == "figure"],
        heatmaps=[c for c in there if f"{c.experiment.name}-heatmap" in drawn],
        absent=[c for c in comparisons if not c.found.share],
        there=there,
        drawn={name: Markup(svg) for name, svg in drawn.items()},
        scores=scores(comparisons),
        marks=MARKS,
        definition=DEFINITION,
        choices=CHOICES,
        looks=LOOKS,
        labels=LABELS,
        lines=formats.lines,
        ours=formats.ours,
        difference=formats.difference,
        captions=captions,
        command=lambda comparison: command(comparison, folder, quickly),
        folder=shown(folder),
        costs={c.experiment.name: cost.seconds(c.found.records()) for c in there},
        total=cost.seconds(records),
        records=len({(record.request.key, record.run) for record in records}),
        environments=cost.environments(records),
        version=__version__,
    )


def scores(comparisons: Sequence[Comparison]) -> list[Score]:
    """Count the marks of every table that was published."""
    found = []
    for comparison in comparisons:
        entries = [
            entry for line in comparison.lines for entry in line.entries[: len(comparison.experiment.columns)]
            if entry.published
        ]  # fmt: skip
        if not entries:
            continue
        counts = Counter(entry.mark.name for entry in entries if entry.mark)
        averages = [line.entries[-1] for line in comparison.lines if line.label == "OGD"]
        found.append(Score(comparison, counts, len(entries) - counts.total(), averages[0] if averages else None))
    return found


def command(comparison: Comparison, folder: Path, quickly: bool) -> str:
    """Return what runs an experiment in the profile that is shown, or, where it was not run, in that of all others."""
    fast = comparison.experiment.profile.startswith("quick") or (quickly and not comparison.found.share)
    return f"ogd reproduce {comparison.experiment.name}{' --quick' if fast else ''} --out {shown(folder)}"


def shown(folder: Path) -> str:
    """Return a folder as a command names it; of an absolute path only the last part, for a page is shown around."""
    return shlex.quote(folder.name if folder.is_absolute() else str(folder))


def _code(text: str) -> Markup:
    """Turn `code` between backticks into an element."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _minus(text: str) -> str:
    return re.sub(r"^-", "−", text)
