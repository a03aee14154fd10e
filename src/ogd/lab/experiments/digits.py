"""Which digits? Tables 3 and 5 to 7 name none: other partitions of Split MNIST, next to the published rows."""

from ogd.lab.benchmarks.partition import name, parse
from ogd.lab.catalogue import METHODS
from ogd.lab.experiments.experiment import Experiment, Reference, Row, Setting
from ogd.lab.experiments.paper import INIT, PAPER, RUNS_OF_5, TASKS

SEEDS = tuple(f"random:{seed}" for seed in range(101, 121))
COMPARED = ("mtl", "ogd")
SELDOM: dict[str, Setting] = {"ogd": {"every": 50}}  # the same accuracy, far sooner
QUICK: Setting = {"epochs": 1, "lr": 5e-3}
FITTED = {  # chosen by the published rows, after the fact
    "Table 3": "67/03/48/29/15",
    "Table 5": "19/24/56/37/08",
    "Table 6": "36/48/29/07/15",
    "Table 7": "68/07/29/15/34",
}
PUBLISHED = {one.where: one for one in PAPER if one.where in FITTED}


def _row(method: str, partition: str, more: Setting) -> Row:
    digits = name(parse(partition, range(10), len(TASKS)))
    setting = {"benchmark": "split", "partition": partition, "init": INIT, **SELDOM.get(method, {}), **more}
    return Row(f"{METHODS[method].label}, {digits}", method, (setting,))


def _rows(where: str) -> tuple[Row, ...]:
    """Return all published methods for Table 3, and two for the others."""
    methods = [row.method for row in PUBLISHED[where].rows if row.published]
    chosen = methods if where == "Table 3" else COMPARED
    return tuple(_row(m, FITTED[where], {"ewc_lambda": 1.0} if m == "ewc" else {}) for m in chosen)


def _quoted(where: str) -> tuple[Reference, ...]:
    """Return the published lines of the rows above. They judge nothing, because they chose the partition."""
    chosen = {row.method for row in _rows(where)}
    return tuple(
        Reference(
            f"{METHODS[row.method].label}, {where}",
            tuple(f"{cell.mean:.1f} ± {cell.std:.1f}" for cell in row.published),
            f"the paper's {where}",
        )
        for row in PUBLISHED[where].rows
        if row.published and row.method in chosen
    )


DRAWN = Experiment(
    "digits",
    "Split MNIST, 5 tasks: twenty partitions drawn by named seeds, random:101 to random:120",
    "final",
    TASKS,
    tuple(_row(method, seed, QUICK) for method in COMPARED for seed in SEEDS),
    runs=3,
    note="One epoch per task at a learning rate of 0.005. OGD projects every 50 steps.",
    profile="one epoch per task",
    named=True,
)
AFTER_THE_FACT = Experiment(
    "digits-fitted",
    "Split MNIST, 5 tasks: the partitions that fit Tables 3 and 5 to 7 best, chosen post hoc by these tables",
    "final",
    TASKS,
    tuple(row for where in FITTED for row in _rows(where)),
    runs=RUNS_OF_5,
    note="Of all ordered partitions, those that come closest to the published rows: that they come close is no "
    "evidence. OGD projects every 50 steps, and EWC's λ is 1.",
    references=tuple(line for where in FITTED for line in _quoted(where)),
    named=True,
)
DIGITS = (DRAWN, AFTER_THE_FACT)
