"""Comparisons and figures → one HTML page that needs nothing but itself."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ogd.catalogue import METHODS, Method
from ogd.progress import clock
from ogd.reporting import captions, cost, formats
from ogd.reporting.cells import Entry, Line, Tally
from ogd.reporting.choices import CHOICES
from ogd.reporting.compare import Comparison
from ogd.reporting.judge import EXCEPTIONS, MARKS, RULE
from ogd.reporting.style import INK
from ogd.terminal import visible
from ogd.version import __version__


@dataclass(frozen=True)
class Score:
    """A line of the summary: how the published cells of a table came out, and the average of its subject."""

    comparison: Comparison
    tally: Tally
    subject: Line | None

    @property
    def average(self) -> Entry | None:
        return self.subject.entries[-1] if self.subject else None


def page(comparisons: Sequence[Comparison], drawn: Mapping[str, str], folder: Path) -> str:
    """Return the page; `drawn` has the inline SVG of every figure and heat map by name."""
    loader = PackageLoader("ogd", "reporting")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(code=_code, colour=_colour, minus=_minus, clock=clock)
    there = [comparison for comparison in comparisons if comparison.found.share]
    records = [record for comparison in there for record in comparison.found.records()]
    counted = scores(comparisons)
    quickly = all(comparison.experiment.profile.startswith("quick") for comparison in there)
    return environment.get_template("page.html").render(
        tables=[c for c in there if c.experiment.kind == "table"],
        figures=[c for c in there if c.experiment.kind == "figure"],
        heatmaps=[c for c in there if f"{c.experiment.name}-heatmap" in drawn],
        absent=[c for c in comparisons if not c.found.share],
        there=there,
        drawn={name: Markup(svg) for name, svg in drawn.items()},
        scores=counted,
        total=Tally(tuple(cell for score in counted for cell in score.tally.cells)),
        subjects=_unique(score.subject.label for score in counted if score.subject),
        notes=_unique(score.comparison.experiment.note for score in counted),
        marks=MARKS,
        rule=f"{RULE} {EXCEPTIONS}",
        choices=CHOICES,
        methods=_methods(there),
        lines=formats.lines,
        ours=formats.ours,
        difference=formats.difference,
        captions=captions,
        command=lambda comparison: command(comparison, folder, quickly),
        folder=shown(folder),
        costs={c.experiment.name: cost.seconds(c.found.records()) for c in there},
        seconds=cost.seconds(records),
        records=len({(record.request.key, record.run) for record in records}),
        environments=cost.environments(records),
        version=__version__,
    )


def scores(comparisons: Sequence[Comparison]) -> list[Score]:
    """Count the cells of every table that was published."""
    found = []
    for comparison in (one for one in comparisons if one.published):
        averaged = comparison.lines if comparison.experiment.value == "final" else ()
        subject = next((line for line in averaged if line.subject), None)
        found.append(Score(comparison, comparison.tally, subject))
    return found


def command(comparison: Comparison, folder: Path, quickly: bool) -> str:
    """Return what runs an experiment in the profile that is shown, or, where it was not run, in that of all others."""
    fast = comparison.experiment.profile.startswith("quick") or (quickly and not comparison.found.share)
    return f"ogd reproduce {comparison.experiment.name}{' --quick' if fast else ''} --out {shown(folder)}"


def shown(folder: Path) -> str:
    """Return a folder as a command names it; of an absolute path only the last part, for a page is shown around."""
    return shlex.quote(visible(folder.name if folder.is_absolute() else folder))


def _methods(comparisons: Sequence[Comparison]) -> dict[str, Method]:
    """Return the methods that are shown, in the catalogue's order."""
    there = {line.method for comparison in comparisons for line in comparison.lines if line.there}
    return {name: method for name, method in METHODS.items() if name in there}


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, texts)))


def _colour(colour: str) -> str:
    """Let what is drawn in ink follow the reader's scheme."""
    return "var(--ink)" if colour == INK else colour


def _code(text: str) -> Markup:
    """Turn `code` between backticks into an element."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _minus(text: str) -> str:
    return re.sub(r"^-", "−", text)
