"""The architecture as a picture, drawn from the import graph: which package imports which.

    python measurements/package/architecture.py   draws docs/images/architecture.svg

The library (bold) stands above the laboratory, and packages stand in the order of the layers in pyproject.toml, which
import-linter enforces. So all dots lie below the diagonal: a package imports only what stands to its left.
"""

import sys
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
LIBRARY = ("integrations", "measuring", "memory", "seeds", "base")
LABORATORY = (
    "cli", "plot", "bench", "reporting", "experiments", "training", "methods", "optimizers", "models", "benchmarks",
    "records", "data", "catalogue",
)  # fmt: skip
PACKAGES = (*LIBRARY, *LABORATORY)


def packages() -> list[str]:
    """The packages from the lowest layer to the highest; single modules below all others count as `base`."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    outer = [one for one in contracts if one["type"] == "layers" and one.get("containers") != ["ogd.memory"]]
    layers = [layer for one in outer for layer in reversed(one["layers"])]
    names = [name.strip().removeprefix("ogd.") for layer in layers for name in layer.split("|")]
    return ["base", *(name for name in names if name in PACKAGES)]


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
    return name if name in PACKAGES else "base"


def draw() -> None:
    """Draw names on the diagonal, and a dot where the row's package imports the column's."""
    sys.path.append(str(Path(__file__).parents[1]))
    from style import WIDTH, figure, looks, save

    order, count = packages(), imports()
    made = figure(WIDTH, 5.4)
    axes = made.subplots()
    for row, name in enumerate(order):
        look = {"color": looks.INK, "weight": "bold"} if name in LIBRARY else {"color": looks.INK}
        axes.text(row - 0.3, row, name, va="center", **look)
        rule = {"color": looks.MUTED, "lw": 0.5, "alpha": 0.5, "zorder": 0}  # it ends before a name, and crosses none
        axes.plot([row, row], [row + 0.5, len(order) - 0.6], **rule)
        axes.plot([-0.4, row - 0.5], [row, row], **rule)
        for column, other in enumerate(order):
            if (name, other) in count:
                axes.scatter(column, row, s=14 + 7 * count[name, other], color=looks.BLUE)
    axes.set(xlim=(-0.6, len(order) + 2.5), ylim=(len(order) - 0.4, -0.7), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_title("A dot: the package on its row imports the one\non its column. Larger: more modules do.")
    save(made, "architecture")


if __name__ == "__main__":
    draw()
