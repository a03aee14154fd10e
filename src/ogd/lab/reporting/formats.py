"""A comparison as a table of text, as LaTeX (booktabs) and as CSV; and the lines that they and the page share."""

import csv
import io
import math
import re

from ogd.lab.reporting.cells import FORMULA, FORMULA_LATEX, MARKS, STRICT, STRICT_LATEX, Entry, Line, Mark, Tally
from ogd.lab.reporting.compare import ALONE, Comparison
from ogd.lab.reporting.tables import Table, mean_std, signed

Text = tuple[str, Mark | None]
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "±": r"$\pm$", "λ": r"$\lambda$", "°": r"$^\circ$", "×": r"$\times$", "–": "--", "…": r"\dots{}",
}  # fmt: skip


def lines(line: Line) -> list[tuple[str, list[Text]]]:
    """Return a row as text: ours, and where something was published, the paper's and the difference; or counts."""
    if line.tallies:
        return [
            (" / ".join(mark.name for mark in MARKS), [(counts(tally), None) for tally in line.tallies]),
            ("by the strict count", [(counts(tally, strict=True), None) for tally in line.tallies]),
            ("mean |d|", [(_rounded(tally.distance), None) for tally in line.tallies]),
        ]
    if line.quoted:
        return [("published", [(cell or "–", None) for cell in line.quoted])]
    whose = ALONE if line.alone else "ours"
    texts: list[tuple[str, list[Text]]] = [(whose, [(ours(entry), None) for entry in line.entries])]
    if line.published:
        texts.append(("paper", [(paper(entry), None) for entry in line.entries]))
        texts.append(("difference", [(difference(entry), entry.mark) for entry in line.entries]))
    return texts


def ours(entry: Entry) -> str:
    """Write our cell; one that has dead runs, or fewer runs than asked for, says so."""
    if not entry.runs:
        return "–"
    few = f" ({len(entry.runs)} of {entry.wanted} runs)" if len(entry.runs) < entry.wanted else ""
    return mean_std(entry.runs, entry.digits, entry.dead) + few


def paper(entry: Entry) -> str:
    """Write the published cell; an average of published means has no standard deviation."""
    if entry.published is None:
        return ""
    spread = "" if math.isnan(entry.published.std) else f" ± {entry.published.std:.1f}"
    return f"{entry.published.mean:.1f}{spread}"


def difference(entry: Entry) -> str:
    """Write ours − paper's."""
    return signed(entry.difference) if entry.published else "–"


def counts(tally: Tally, strict: bool = False) -> str:
    """Write how many cells came out how: `100 / 12 / 56` agree, are better, fall short."""
    if tally.missing == len(tally.cells):
        return "–"
    found = tally.strict_counts if strict else tally.counts
    text = " / ".join(str(found[mark.name]) for mark in MARKS)
    return text + (f" ({tally.missing} not run)" if tally.missing else "")


def table(comparison: Comparison) -> Table:
    """Return the comparison as text, with what is missing and what the marks mean in its caption."""
    groups = []
    for line in comparison.lines:
        group = []
        for number, (what, cells) in enumerate(lines(line)):
            first = number == 0
            texts = [f"{text} {mark.sign}" if mark else text for text, mark in cells]
            aside = [line.aside if first else ""] if comparison.aside else []
            group.append((line.label if first else "", what, *texts, *aside))
        groups.append(tuple(group))
    aside = [comparison.aside] if comparison.aside else []
    caption = " ".join([comparison.caption, *_notes(comparison)])
    return Table(comparison.title, caption, ("", "", *comparison.columns, *aside), tuple(groups))


def latex(comparison: Comparison) -> str:
    r"""Return a `table` environment that needs \usepackage{booktabs}."""
    aside = [comparison.aside] if comparison.aside else []
    heads = " & ".join(tex(text) for text in ("", "", *comparison.columns, *aside))
    body = []
    for line in comparison.lines:
        body.append(r"\midrule")
        for number, (what, cells) in enumerate(lines(line)):
            texts = [f"{tex(text)}\\,{mark.latex}" if mark else tex(text) for text, mark in cells]
            last = [tex(line.aside) if number == 0 else ""] if comparison.aside else []
            body.append(" & ".join([tex(line.label) if number == 0 else "", what, *texts, *last]) + r" \\")
    experiment = comparison.experiment
    where = f" ({experiment.where} of the paper)" if comparison.published else ""
    notes = " ".join(tex(note) for note in (f"{experiment.title}{where}.", comparison.caption, *_notes(comparison)))
    formulas = ((tex(FORMULA), FORMULA_LATEX), (tex(STRICT), STRICT_LATEX))
    for sign, symbol in (*formulas, *((mark.sign, mark.latex) for mark in MARKS)):
        notes = notes.replace(sign, symbol)
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}", r"\centering", rf"\caption{{{notes}}}",
            rf"\label{{tab:ogd-{experiment.name}}}",
            rf"\begin{{tabular}}{{ll{'r' * (len(comparison.columns) + len(aside))}}}", r"\toprule", rf"{heads} \\",
            *body, r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
        ]
    )  # fmt: skip


def tidy(comparison: Comparison) -> str:
    """Return CSV, a line per cell, unrounded; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if comparison.experiment.parts:
        names = [mark.name for mark in MARKS]
        strictly = [f"{name}_strict" for name in names]
        writer.writerow(["row", "column", *names, *strictly, "not_run", "mean_absolute_difference"])
        for line in comparison.lines:
            for tally, column in zip(line.tallies, comparison.columns, strict=True):
                counts = [found[name] for found in (tally.counts, tally.strict_counts) for name in names]
                writer.writerow([line.label, column, *counts, tally.missing, _number(tally.distance)])
        return out.getvalue()
    heads = "row method column ours_mean ours_std runs runs_wanted paper_mean paper_std difference mark dead"
    writer.writerow(heads.split())
    for line in comparison.lines:
        for entry, column in zip(line.entries, comparison.columns, strict=not line.quoted):
            published = (entry.published.mean, entry.published.std) if entry.published else (math.nan, math.nan)
            numbers = [*map(_number, (entry.mean, entry.std)), len(entry.runs), entry.wanted, *map(_number, published)]
            mark = entry.mark.name if entry.mark else ""
            writer.writerow([line.label, line.method, column, *numbers, _number(entry.difference), mark, entry.dead])
        for cell, column in zip(line.quoted, comparison.columns, strict=False):
            mean, _, std = cell.partition(" ± ")
            writer.writerow([line.label, "", column, "", "", 0, 0, mean, std, "", "", 0])
    return out.getvalue()


def tex(text: str) -> str:
    """Escape what LaTeX would read as its own.

    Examples:
        >>> print(tex("EWC, λ = 1: 50 % & 1.0 ± 0.5"))
        EWC, $\\lambda$ = 1: 50 \\% \\& 1.0 $\\pm$ 0.5
    """
    text = "".join(LATEX.get(character, character) for character in text)
    return re.sub(r"^-(?=\d)", "$-$", text)


def _notes(comparison: Comparison) -> list[str]:
    missing = [f"Incomplete. {'. '.join(comparison.missing)}."] if comparison.missing else []
    marked = any(entry.mark for line in comparison.lines for entry in line.entries)
    agrees, *others = (f"{mark.sign} {mark.words}" for mark in MARKS)
    legend = ["; ".join([f"{agrees}, that is {FORMULA}", *others]) + "."] if marked else []
    return missing + list(filter(None, [comparison.dead_note])) + legend


def _rounded(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"
