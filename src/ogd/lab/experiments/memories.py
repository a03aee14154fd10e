"""Which memory keeps what: experiments of ours on what a method stores and how it uses it."""

from collections.abc import Iterable

from ogd.lab.catalogue import looks
from ogd.lab.experiments.experiment import Drawing, Experiment, Row, Setting
from ogd.lab.experiments.paper import EPOCHS, INIT, TASKS

REHEARSAL = "rehearsal: ExampleMemory(model)"  # its label: the laboratory's takes the same steps by the same defaults
SPARING: Setting = {"replay_batch": 20, "replay_every": 10, "alpha": 0.5, "merge": 5}
BENCHMARKS: dict[str, Setting] = {
    "Rotated": {"benchmark": "rotated", "tasks": 5},
    "Permuted": {"benchmark": "permuted", "tasks": 5},
    "Split": {"benchmark": "split", "tasks": 5},
    "Split, one softmax": {"benchmark": "split", "tasks": 5, "heads": "single"},
}
ROTATED = BENCHMARKS["Rotated"]
CHOICES: dict[str, Setting] = {
    "uniform": {"choose": "uniform"},
    "balanced": {"choose": "balanced"},
    "uncertain": {"choose": "uncertain"},
    "hardest": {"choose": "hardest"},
    "herding": {"choose": "herding"},
    "uniform, merge 5": {"choose": "uniform", "merge": 5},
    "uncertain, merge 5": {"choose": "uncertain", "merge": 5},
}
KEPT = (10, 20, 50, 200)
ANGLES = (30, 60, 90, 120, 180)
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
LONG = EPOCHS  # per task, as in Figure 5
COMPARED: dict[str, tuple[str, Setting]] = {
    "MTL": ("mtl", {}),
    REHEARSAL: ("rehearsal", {}),
    "DER++": ("der", {}),
    "ER": ("er", {}),
    "A-GEM": ("agem", {}),
    "EWC, tuned λ": ("ewc", {}),
    "OGD": ("ogd", {}),
    "SGD": ("sgd", {}),
}
MERGED: dict[str, tuple[str, Setting]] = {
    "DER++, uncertain, merge 5, 20 every 10": ("der", {**SPARING, "choose": "uncertain"})
}
BESIDE_MERGED = {label: COMPARED[label] for label in ("MTL", REHEARSAL)} | MERGED | COMPARED
LOOKS = {
    next(iter(MERGED)): looks.DER_MERGED,
    "OGD, renewed": looks.OGD_RENEWED,
}


def _rows(columns: Iterable[Setting], compared: dict[str, tuple[str, Setting]] = COMPARED) -> tuple[Row, ...]:
    columns, found = tuple(columns), []
    for label, (method, options) in compared.items():
        settings = tuple({**column, **options, **_tamed(method, column), "init": INIT} for column in columns)
        found.append(Row(label, method, settings, look=LOOKS.get(label), subject=method == "ogd"))
    return tuple(found)


def _tamed(method: str, column: Setting) -> Setting:
    """Return a smaller λ where EWC diverges with the one that was tuned on MNIST."""
    turned_clothes = (column.get("data"), column["benchmark"]) == ("fashion", "rotated")
    return {"ewc_lambda": 30.0} if method == "ewc" and turned_clothes else {}


def _only(*labels: str) -> dict[str, tuple[str, Setting]]:
    return {label: COMPARED[label] for label in labels}


WHICH = Experiment(
    "which",
    "Which protection: the average over 5 tasks, after the last",
    "average",
    tuple(BENCHMARKS),
    _rows(BENCHMARKS.values(), BESIDE_MERGED),
    runs=5,
    note="200 examples or gradients of each task are stored. Split has one head per task, or one softmax over all ten "
    "classes. DER++ has a tuned α, or replays 20 means of five uncertain examples every 10 steps. EWC has a tuned λ.",
    named=True,
)
CHOOSING = Experiment(
    "kept",
    "Rotated MNIST, 5 tasks: which examples DER++ keeps, and how many",
    "average",
    tuple(f"{n} per task" for n in KEPT),
    tuple(
        Row(
            label,
            "der",
            tuple({**ROTATED, "epochs": 1, "lr": 5e-3, "init": INIT, "per_task": n, **choice} for n in KEPT),
        )
        for label, choice in CHOICES.items()
    ),
    runs=3,
    note="One epoch per task at a learning rate of 0.005; 10 examples replayed per step, α = 0.5. Merge 5: five times "
    "as many are drawn, and the means of groups that are alike are kept.",
    profile="one epoch per task",
    named=True,
)
DISSIMILAR = Experiment(
    "dissimilar",
    "Rotated MNIST, 2 tasks: task 1 after task 2, over the angle of task 2",
    "first",
    tuple(f"{angle}°" for angle in ANGLES),
    _rows(
        ({"benchmark": "rotated", "angles": (0, angle)} for angle in ANGLES),
        _only("MTL", REHEARSAL, "ER", "A-GEM") | {"OGD, renewed": ("ogd", {"refresh": 500})} | _only("OGD", "SGD"),
    ),
    runs=3,
    drawing=Drawing("lines", "angle of task 2 (degrees)", over="angles"),
    note="As Figure 3, with more ways to use 200 stored examples. Renewed: gradients of kept examples taken anew "
    "every 500 steps.",
    named=True,
)
HIGH_RATES = Experiment(
    "rates",
    "Rotated MNIST, 5 tasks, one pass: the average after the last, over the learning rate",
    "average",
    tuple(f"{lr:g}" for lr in RATES),
    _rows(
        ({**ROTATED, "epochs": 1, "lr": lr} for lr in RATES),
        _only("MTL", REHEARSAL, "ER", "OGD", "SGD"),
    ),
    runs=3,
    drawing=Drawing("lines", "learning rate", over="lr", log=True),
    note="One epoch per task.",
    profile="one epoch per task",
    named=True,
)
LONGER = Experiment(
    "longer",
    "Permuted MNIST, 2 tasks: task 1 after task 2, over the epochs per task",
    "first",
    tuple(f"{epochs} epochs" for epochs in LONG),
    _rows(
        ({"benchmark": "permuted", "tasks": 2, "epochs": epochs} for epochs in LONG),
        _only("MTL") | MERGED | _only("EWC, tuned λ", "ER", "A-GEM", "OGD", "SGD"),
    ),
    runs=3,
    note="As Figure 5, with the ways to replay 200 stored examples.",
    named=True,
)
# Written-out directions are dear to make and to project by: fewer images, and a projection every 100 steps for all.
SHORT: Setting = {"epochs": 1, "lr": 1e-2, "init": INIT, "left_out": 50_000}
SELDOM: Setting = {**SHORT, "every": 100}
ROTATED_20: Setting = {"benchmark": "rotated", "angles": tuple(range(0, 100, 5))}
IN_TOTAL = (200, 1000)
DIRECTIONS = Experiment(
    "directions",
    "Rotated MNIST, 5 tasks: which directions OGD keeps, and how many",
    "average",
    tuple(f"{n} per task" for n in KEPT),
    tuple(
        Row(label, "ogd", tuple({**ROTATED, **SELDOM, **options, "per_task": n} for n in KEPT))
        for label, options in (
            ("drawn", {}),
            *((name, {"directions": name, "candidates": 500}) for name in ("leverage", "pca", "sketch")),
        )
    ),
    runs=3,
    note="10,000 images and one epoch per task at a learning rate of 0.01, projected every 100 steps. All but the "
    "drawn directions come from the gradients of 500 examples of each task. The sketch is of all tasks, with as many "
    "rows as the others have together.",
    profile="one epoch of 10,000 images per task",
    named=True,
)
BUDGETS = Experiment(
    "budgets",
    "Rotated MNIST, 20 tasks: a memory of a fixed size",
    "average",
    tuple(f"{n} in total" for n in IN_TOTAL),
    tuple(
        Row(label, method, tuple({**ROTATED_20, **options, "in_total": n} for n in IN_TOTAL))
        for label, method, options in (
            ("DER++", "der", {**SHORT, "alpha": 0.5}),
            ("ER", "er", SHORT),
            ("OGD, drawn", "ogd", SELDOM),
            ("OGD, sketch", "ogd", {**SELDOM, "directions": "sketch", "candidates": 250}),
        )
    ),
    runs=3,
    note="Angles of 0°, 5°, … 95°, trained as in `directions`. So many examples, gradients or rows of the sketch, "
    "which comes from the gradients of 250 examples of each task. Tasks share examples and gradients equally.",
    profile="one epoch of 10,000 images per task",
    named=True,
)
# An untuned test of what was chosen on MNIST: the same benchmarks of other images, in the quick profile.
QUICK: Setting = {"epochs": 1, "lr": 5e-3}
WORLDS = Experiment(
    "worlds",
    "MNIST and Fashion-MNIST: the average over 5 tasks, after the last",
    "average",
    tuple(f"{name}{benchmark}" for name in ("", "Fashion: ") for benchmark in BENCHMARKS),
    _rows(
        ({**benchmark, **QUICK, **data} for data in ({}, {"data": "fashion"}) for benchmark in BENCHMARKS.values()),
        BESIDE_MERGED,
    ),
    runs=5,
    note="One epoch per task at a learning rate of 0.005; 200 examples or gradients of each task are stored. The α of "
    "DER++ and the λ of EWC were tuned on MNIST, and Fashion-MNIST has the same values; on its Rotated the λ of 100 "
    "diverges, and 30 stands in.",
    profile="one epoch per task",
    named=True,
)
MANY_RUNS = Experiment(
    "many-runs",
    "Split Fashion-MNIST, 5 tasks: does every run end well?",
    "final",
    TASKS,
    tuple(
        Row(label, method, ({**BENCHMARKS["Split"], **QUICK, "data": "fashion", "init": INIT, **options},))
        for label, (method, options) in {
            REHEARSAL: ("rehearsal", {}),
            "DER++, merge 5, 20 every 10": ("der", SPARING),
            "DER++": ("der", {}),
            "SGD": ("sgd", {}),
        }.items()
    ),
    runs=20,
    note="A dead network answers every task with one class, 50.0 %, and shows in the standard deviation.",
    profile="one epoch per task",
    named=True,
)
MEMORIES = (WHICH, CHOOSING, DISSIMILAR, HIGH_RATES, LONGER, DIRECTIONS, BUDGETS, WORLDS, MANY_RUNS)
