"""What a table or figure found, as the sentence of its heading. Its title stands below."""

from collections import Counter

from ogd.lab.catalogue import METHODS
from ogd.lab.reporting.cells import Entry, Line
from ogd.lab.reporting.compare import Comparison


def finding(comparison: Comparison) -> str:
    """Return the finding in a sentence, or nothing where there are not two rows to compare."""
    if comparison.experiment.parts:
        return _agreement(comparison)
    lines = [line for line in comparison.lines if line.there and not METHODS[line.method].bound]
    if len(lines) < 2:
        return ""
    drawing = comparison.experiment.drawing
    if drawing and drawing.over and len({line.method for line in lines}) == 1:
        return _best_columns(comparison, lines)
    if comparison.experiment.value == "final":
        return _ranking(lines, "on average")
    if drawing and drawing.over:
        return _ranking(lines, f"at {comparison.columns[-1]}")
    return _wins(comparison, lines)


def _agreement(comparison: Comparison) -> str:
    """Name the version of the tables that comes closest to the paper."""
    met = [tally.counts["agrees"] + tally.counts["better"] for tally in comparison.lines[-1].tallies]
    best = met.index(max(met))
    cells = len(comparison.lines[-1].tallies[best].cells)
    return f"With {comparison.columns[best]} most published cells are matched or beaten: {met[best]} of {cells}"


def _best_columns(comparison: Comparison, lines: list[Line]) -> str:
    """Say where each line is highest: they are one method over an option."""
    found = [(line.label, comparison.columns[line.entries.index(_highest(line.entries))]) for line in lines]
    return "; ".join(f"{label} {'is best ' * (number == 0)}at {column}" for number, (label, column) in enumerate(found))


def _ranking(lines: list[Line], where: str) -> str:
    """Name the best and the worst line in the last column, and the method in question if it is neither."""
    ranked = sorted((line for line in lines if _lives(line.entries[-1])), key=lambda line: -line.entries[-1].mean)
    if len(ranked) < 2:
        return ""
    first, *others = ranked
    named = [line for line in others if line.subject or line is ranked[-1]]
    rest = ", ".join(f"{line.label} {'has ' * (line is named[0])}{line.entries[-1].mean:.1f}" for line in named)
    return f"{first.label} is best {where} with {first.entries[-1].mean:.1f}\u00a0%; {rest}"


def _wins(comparison: Comparison, lines: list[Line]) -> str:
    """Name the line that is highest in most columns."""
    best: Counter[str] = Counter()
    for column in range(len(comparison.columns)):
        there = [line for line in lines if _lives(line.entries[column])]
        if there:
            best[max(there, key=lambda line: line.entries[column].mean).label] += 1
    ((label, count),) = best.most_common(1)
    whole = best.total()
    if 2 * count <= whole:
        return "No row is best in most columns"
    return f"{label} is best {'throughout' if count == whole else f'in {count} of {whole} columns'}"


def _highest(entries: tuple[Entry, ...]) -> Entry:
    return max(filter(_lives, entries), key=lambda entry: entry.mean)


def _lives(entry: Entry) -> bool:
    return bool(entry.runs) and not entry.all_dead
