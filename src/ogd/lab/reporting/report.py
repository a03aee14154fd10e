"""A folder of records → the page, and beside it every figure and every table as files."""

from pathlib import Path

from matplotlib.figure import Figure

from ogd.files import write_bytes, write_text
from ogd.lab.records import speed
from ogd.lab.reporting import figures, formats, style
from ogd.lab.reporting.accuracy_plots import heat_maps
from ogd.lab.reporting.collect import collect
from ogd.lab.reporting.compare import Comparison, compare, with_times
from ogd.lab.reporting.html_figures import Spot, inline, spots
from ogd.lab.reporting.other_runs import others
from ogd.lab.reporting.page import OPENING, in_order, page
from ogd.lab.reporting.page_opening import opening, picture
from ogd.lab.reporting.slider import after_name, after_tasks

FORMATS = {
    "md": lambda comparison: formats.table(comparison).markdown() + "\n",
    "tex": formats.latex,
    "csv": formats.tidy,
}


def comparisons(folder: Path) -> list[Comparison]:
    """Return every experiment with what `folder` holds of it, and the speeds that `ogd bench --save` left there."""
    made = [compare(found) for found in collect(folder)]
    measured = folder / "speed.json"
    if not measured.exists():
        return made
    ratios = {ratio.key: ratio.median for ratio in speed.read(measured)}
    return [with_times(one, ratios) for one in made]


def write(found: list[Comparison], folder: Path, out: Path) -> Path:
    """Write the report of what was found in `folder` to `out`, and return the page's path. The same records give
    the same bytes."""
    drawn, moves = {}, {}
    more = others(folder, [comparison.found for comparison in found])
    begins = opening([comparison for comparison in in_order(found) if comparison.shown], more.settings)
    if begins:
        drawn[OPENING] = _figure(*picture(begins), OPENING, f"Accuracy on task 1. {begins.title}", out)
    for comparison in found:
        if not comparison.shown:
            continue
        name = comparison.experiment.name
        for suffix, form in FORMATS.items():
            write_text(out / "tables" / f"{name}.{suffix}", form(comparison))
        if comparison.experiment.kind == "figure":
            figure = figures.draw(comparison)
            drawn[name] = _figure(figure, spots(figure, comparison), name, comparison.title, out)
        elif comparison.experiment.value == "final":
            after = after_name(comparison)
            figure, moves[after] = after_tasks(comparison)
            drawn[after] = inline(figure, after, f"Accuracy on each task learned. {comparison.title}")
            name = f"{name}-heatmap"
            drawn[name] = _figure(heat_maps(comparison.found), [], name, f"Heat maps. {comparison.title}", out)
    path = out / "index.html"
    write_text(path, page(found, drawn, folder, more, moves))
    return path


def _figure(figure: Figure, areas: list[Spot], name: str, label: str, out: Path) -> str:
    """Write a figure's files and return it for the page."""
    write_text(out / "figures" / f"{name}.svg", style.svg(figure))
    write_bytes(out / "figures" / f"{name}.pdf", style.pdf(figure))
    return inline(figure, name, label, areas)
