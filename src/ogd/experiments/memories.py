"""Which memory keeps what: experiments of ours on what a method stores and how it uses it."""

from ogd.catalogue import Look
from ogd.experiments.experiment import Experiment, Row, Setting
from ogd.experiments.paper import INIT

# One setting for all benchmarks, with the default α: nothing here is tuned.
RECOMMENDED: Setting = {"choose": "uncertain", "replay_batch": 30, "replay_every": 10, "alpha": 0.5}
LOOK = Look("#117733", "*", (0, (4, 2)))  # of that row
BENCHMARKS: dict[str, Setting] = {
    "Rotated": {"benchmark": "rotated", "tasks": 5},
    "Permuted": {"benchmark": "permuted", "tasks": 5},
    "Split": {"benchmark": "split", "tasks": 5},
    "Split, one softmax": {"benchmark": "split", "tasks": 5, "heads": "single"},
}
COMPARED: dict[str, tuple[str, Setting]] = {
    "MTL": ("mtl", {}),
    "rehearsal, recommended": ("der", RECOMMENDED),
    "DER++": ("der", {}),
    "ER": ("er", {}),
    "A-GEM": ("agem", {}),
    "EWC, tuned λ": ("ewc", {}),
    "OGD": ("ogd", {}),
    "SGD": ("sgd", {}),
}


def _rows() -> tuple[Row, ...]:
    found = []
    for label, (method, options) in COMPARED.items():
        settings = tuple({**benchmark, **options, "init": INIT} for benchmark in BENCHMARKS.values())
        look = LOOK if options is RECOMMENDED else None
        found.append(Row(label, method, settings, look=look, subject=method == "ogd"))
    return tuple(found)


WHICH = Experiment(
    "which",
    "Which protection: the average over 5 tasks, after the last",
    "average",
    tuple(BENCHMARKS),
    _rows(),
    runs=5,
    note="200 examples or gradients of each task are stored. Split has one head per task, or one softmax over all ten "
    "classes. The recommended rehearsal draws its examples by uncertainty and takes 30 of them every 10 steps, with "
    "α = 0.5 on every benchmark.",
    named=True,
)
MEMORIES = (WHICH,)
