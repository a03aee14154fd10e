"""Comparisons and figures → one HTML page that needs nothing but itself."""

import re
import shlex
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ogd.lab.catalogue import METHODS, Method
from ogd.lab.progress import clock
from ogd.lab.records import RunRecord
from ogd.lab.reporting import captions, formats
from ogd.lab.reporting.cells import EXCEPTIONS, MARKS, RULE, Entry, Line, Tally
from ogd.lab.reporting.choices import CHOICES
from ogd.lab.reporting.compare import Comparison
from ogd.lab.reporting.findings import finding
from ogd.lab.reporting.html_figures import css_colour, swatches
from ogd.lab.reporting.other_runs import Others
from ogd.lab.reporting.page_opening import facts, opening
from ogd.lab.reporting.slider import after_name
from ogd.lab.reporting.tables import DEAD
from ogd.version import __version__
from ogd.visible_text import visible

OPENING = "opening"  # its picture, among those of figures and heat maps


@dataclass(frozen=True)
class Score:
    """A line of the summary: how the published cells of a table came out, and the average of its subject."""

    comparison: Comparison
    tally: Tally
    subject: Line | None

    @property
    def average(self) -> Entry | None:
        return self.subject.entries[-1] if self.subject and self.comparison.shown else None


def page(
    comparisons: Sequence[Comparison],
    drawn: Mapping[str, str],
    folder: Path,
    others: Others | None = None,
    moves: Mapping[str, str] | None = None,
) -> str:
    """Return the page; `drawn` has each figure as inline SVG, and `moves` the places of a slider's lines, by name."""
    loader = PackageLoader("ogd.lab", "reporting")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(code=_code, colour=css_colour, minus=_minus, clock=clock)
    comparisons, others = in_order(comparisons), others or Others()
    there = [comparison for comparison in comparisons if comparison.shown]
    records = [record for comparison in there for record in comparison.found.records()]
    records += [record for own in others.settings for record in own.records]
    counted = scores(comparisons)
    total = Tally(tuple(cell for score in counted for cell in score.tally.cells))
    begins = opening(there, others.settings)
    quickly = bool(there) and all(comparison.experiment.profile.startswith("quick") for comparison in there)
    script = files("ogd.lab.reporting").joinpath("page.js").read_text(encoding="utf-8")
    return environment.get_template("page.html").render(
        script=Markup(script),
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        opening=begins,
        facts=facts(total, begins),
        picture=OPENING,
        others=others,
        dead=DEAD if any(own.dead for own in others.settings) else "",
        tables=[c for c in there if c.experiment.kind == "table"],
        figures=[c for c in there if c.experiment.kind == "figure"],
        absent=[c for c in comparisons if not c.shown],
        there=there,
        drawn={name: Markup(svg) for name, svg in drawn.items()},
        scores=counted,
        total=total,
        subjects=_unique(score.subject.label for score in counted if score.subject),
        notes=_unique(score.comparison.experiment.note for score in counted),
        marks=MARKS,
        rule=f"{RULE} {EXCEPTIONS}",
        choices=CHOICES,
        methods=_methods(there, others),
        lines=formats.lines,
        counts=formats.counts,
        said=said,
        swatches=swatches,
        ours=formats.ours,
        difference=formats.difference,
        captions=captions,
        finding=finding,
        after=after_name,
        moves=moves or {},
        command=lambda comparison: command(comparison, folder, quickly),
        folder=shown(folder),
        costs={c.experiment.name: seconds(c.found.records()) for c in there},
        seconds=seconds(records),
        records=len({(record.request.key, record.run) for record in records}),
        environments=environments(records),
        version=__version__,
    )


def in_order(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return those that have a number in the paper by it, then the others."""

    def place(comparison: Comparison) -> tuple[bool, int]:
        number = re.fullmatch(r"(?:Table|Figure) (\d+)", comparison.experiment.where)
        return number is None, int(number[1]) if number else 0

    return sorted(comparisons, key=place)


def scores(comparisons: Sequence[Comparison]) -> list[Score]:
    """Count the cells of every table that was published and of which anything is there."""
    found = []
    for comparison in (one for one in comparisons if one.published):
        averaged = comparison.lines if comparison.experiment.value == "final" else ()
        subject = next((line for line in averaged if line.subject), None)
        found.append(Score(comparison, comparison.tally if comparison.shown else comparison.tally.none_run, subject))
    return found if any(score.comparison.shown for score in found) else []


def said(comparison: Comparison, line: Line, column: int) -> str:
    """Say in words what a published cell came to."""
    entry = line.entries[column]
    heading = f"{line.label}, {comparison.columns[column]} ({comparison.experiment.where})"
    texts = [heading, f"ours: {formats.ours(entry)}", f"paper: {formats.paper(entry)}"]
    if entry.mark:
        texts.append(f"difference: {_minus(formats.difference(entry))}, {entry.mark.words}")
    return "\n".join(texts)


def command(comparison: Comparison, folder: Path, quickly: bool) -> str:
    """Return what runs an experiment in the profile that is shown, or, where it was not run, in that of all others."""
    fast = comparison.experiment.profile.startswith("quick") or (quickly and not comparison.shown)
    return f"ogd reproduce {comparison.experiment.name}{' --quick' if fast else ''} --out {shown(folder)}"


def shown(folder: Path) -> str:
    """Return a folder as a command names it; of an absolute path only the last part, for a page is shown around."""
    return shlex.quote(visible(folder.name if folder.is_absolute() else folder))


def seconds(records: Iterable[RunRecord]) -> float:
    """Return the wall time of all groups; each record has the time of its whole group, which counts once."""
    return sum(time for _, time, _ in {(record.request.key, record.seconds, record.lockstep) for record in records})


def environments(records: Iterable[RunRecord]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return for every fact of the environment the values found, and in how many records, most first."""
    unique = {(record.request.key, record.run): record.environment for record in records}
    facts: dict[str, Counter[str]] = {}
    for environment in unique.values():
        for name, value in environment.items():
            facts.setdefault(name, Counter())[_short(value) if name == "commit" else value or "not known"] += 1
    return [
        (name, sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))) for name, counts in sorted(facts.items())
    ]


def _short(commit: str | None) -> str:
    """Return a commit as Git abbreviates it, with the `+` of a changed checkout."""
    return commit[:10] + "+" * commit.endswith("+") if commit else "not known"


def _methods(comparisons: Sequence[Comparison], others: Others) -> dict[str, Method]:
    """Return the methods that are shown, in the catalogue's order."""
    there = {line.method for comparison in comparisons for line in comparison.lines if line.there}
    there |= {own.request.method for own in others.settings}
    return {name: method for name, method in METHODS.items() if name in there}


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, texts)))


def _code(text: str) -> Markup:
    """Turn `code` between backticks into an element."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _minus(text: str) -> str:
    return re.sub(r"^-", "−", text)
