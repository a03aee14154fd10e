"""Which memory keeps what: experiments of ours on what a method stores and how it uses it."""

from ogd.catalogue import METHODS
from ogd.experiments.experiment import Drawing, Experiment, Row, Setting
from ogd.experiments.paper import INIT

# What the documents recommend: one setting for all benchmarks, chosen on validation data (docs/which-protection.md).
RECOMMENDED: Setting = {"choose": "uncertain", "replay_batch": 30, "replay_every": 10, "alpha": 0.5}
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
CHOICES = ("uniform", "balanced", "uncertain", "hardest", "herding")
KEPT = (10, 20, 50, 200)
ANGLES = (30, 60, 90, 120, 180)
RATES = (1e-3, 1e-2, 1e-1)
SHORT: Setting = {"epochs": 1, "lr": 5e-3}


def _rows(columns: list[Setting], methods: tuple[str, ...] = tuple(COMPARED)) -> tuple[Row, ...]:
    found = []
    for label in methods:
        method, options = COMPARED[label]
        settings = tuple({**column, **options, "init": INIT} for column in columns)
        look = None if options is not RECOMMENDED else METHODS["er"].look
        found.append(Row(label, method, settings, look=look, subject=method == "ogd"))
    return tuple(found)


WHICH = Experiment(
    "which",
    "Which protection: the average over 5 tasks, after the last",
    "average",
    tuple(BENCHMARKS),
    _rows(list(BENCHMARKS.values())),
    runs=5,
    note="200 examples or gradients of each task are stored. Split has one head per task, or one softmax over all ten "
    "classes. The recommended rehearsal draws its examples by uncertainty and takes 30 of them every 10 steps, with "
    "α = 0.5 on every benchmark.",
    named=True,
)
CHOOSING = Experiment(
    "choices",
    "Rotated MNIST, 5 tasks: which examples DER++ keeps, and how many",
    "average",
    tuple(f"{n} per task" for n in KEPT),
    tuple(
        Row(
            choose,
            "der",
            tuple(
                {**BENCHMARKS["Rotated"], **SHORT, "init": INIT, "per_task": n, "choose": choose, "alpha": 0.3}
                for n in KEPT
            ),
        )
        for choose in CHOICES
    ),
    runs=3,
    note="One epoch per task at a learning rate of 0.005; 10 examples replayed per step, α = 0.3.",
    profile="one epoch per task",
    named=True,
)
DISSIMILAR = Experiment(
    "dissimilar",
    "Rotated MNIST, 2 tasks: task 1 after task 2, over the angle of task 2",
    "first",
    tuple(f"{angle}°" for angle in ANGLES),
    _rows([{"benchmark": "rotated", "angles": (0, angle)} for angle in ANGLES]),
    runs=3,
    drawing=Drawing("lines", "degrees between the tasks", over="angles"),
    named=True,
)
HIGH_RATES = Experiment(
    "rates",
    "Rotated MNIST, 5 tasks: the average after the last, over the learning rate",
    "average",
    tuple(f"{lr:g}" for lr in RATES),
    _rows(
        [{**BENCHMARKS["Rotated"], "epochs": 1, "lr": lr} for lr in RATES],
        ("MTL", "rehearsal, recommended", "ER", "OGD", "SGD"),
    ),
    runs=3,
    drawing=Drawing("lines", "learning rate", over="lr", log=True),
    note="One epoch per task.",
    profile="one epoch per task",
    named=True,
)
MEMORIES = (WHICH, CHOOSING, DISSIMILAR, HIGH_RATES)
