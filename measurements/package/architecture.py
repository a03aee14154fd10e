"""The architecture as a picture, drawn from the import graph: which package imports which.

    python measurements/package/architecture.py   draws docs/images/architecture.svg

The library stands above the laboratory, and packages stand in the order of the layers in pyproject.toml, which
import-linter enforces. So all dots lie below the diagonal: a package imports only what stands to its left.
"""

import sys
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
LIBRARY = {
    "integrations": "Lightning, Hugging Face, Avalanche",
    "measuring": "forgetting, measured",
    "memory": "what is remembered, and protection",
    "seeds": "every random draw",
    "base": "files, checks, terminal; the laboratory's progress, plugins",
}
LABORATORY = {
    "cli": "the command line",
    "plot": "runs → axes, for notebooks",
    "bench": "this machine's speed",
    "reporting": "records → tables, figures, the page",
    "experiments": "what is run, and where",
    "training": "the one loop",
    "methods": "how each differs from SGD",
    "optimizers": "how a stack of runs moves",
    "models": "networks as stacks of runs",
    "benchmarks": "arrays → tasks",
    "records": "what was asked, what came out",
    "data": "files → arrays",
    "catalogue": "methods, benchmarks, options by name",
}
WHAT = {**LIBRARY, **LABORATORY}


def packages() -> list[str]:
    """The packages from the lowest layer to the highest; single modules below all others count as `base`."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [layer for one in contracts if one["type"] == "layers" for layer in reversed(one["layers"])]
    names = [name.strip().removeprefix("ogd.") for layer in layers for name in layer.split("|")]
    return ["base", *(name for name in names if name in WHAT)]


def imports() -> dict[tuple[str, str], int]:
    """How many modules of one package import from another."""
    graph = grimp.build_graph("ogd", cache_dir=None)
    found: dict[tuple[str, str], int] = {}
    for module in graph.modules:
        mine = _package(module)
        for package in {_package(other) for other in graph.find_modules_directly_imported_by(module)} - {mine}:
            found[mine, package] = found.get((mine, package), 0) + 1
    return {pair: count for pair, count in found.items() if "ogd" not in pair}


def _package(module: str) -> str:
    name = [*module.removeprefix("ogd").removeprefix(".lab").split("."), ""][1]
    if name in ("", "__main__"):
        return "ogd"  # doors, which import what they open
    return name if name in WHAT else "base"


def draw() -> None:
    """Draw names on the diagonal, and a dot where the row's package imports the column's."""
    sys.path.append(str(Path(__file__).parents[1]))
    from style import BLUE, GREEN, GREY, figure, save

    order, count = packages(), imports()
    made = figure(9, 7)
    axes = made.subplots()
    for row, name in enumerate(order):
        colour = GREEN if name in LIBRARY else BLUE
        axes.scatter(row, row, s=110, marker="s", color=colour)
        bold = axes.text(row + 0.45, row, name, color=colour, va="center", weight="bold")
        beside = {"xycoords": bold, "textcoords": "offset points", "va": "center", "fontsize": 9}
        axes.annotate(WHAT[name], (1, 0.5), (6, 0), color=GREY, **beside)
        for column, other in enumerate(order):
            if (name, other) in count:
                axes.plot([column, row - 0.3], [row, row], color=GREY, lw=0.4, alpha=0.35, zorder=1)
                axes.plot([column, column], [column + 0.3, row], color=GREY, lw=0.4, alpha=0.35, zorder=1)
                axes.scatter(column, row, s=18 + 9 * count[name, other], color=BLUE, zorder=2)
    axes.set(xlim=(-0.6, len(order) + 6.5), ylim=(len(order) - 0.4, -0.7), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_title("A dot: the package on its row imports the one on its column. Larger: more modules do.")
    save(made, "architecture")


if __name__ == "__main__":
    draw()
