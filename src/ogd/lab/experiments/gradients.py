"""OGD at its best: thousands of gradients per task, projected more or less softly. Experiments of ours."""

from ogd.lab.catalogue import METHODS, Look
from ogd.lab.experiments.experiment import Drawing, Experiment, Row, Setting
from ogd.lab.experiments.paper import INIT

BENCHMARKS: dict[str, tuple[str, Setting]] = {
    "rotated": ("Rotated MNIST, 5 tasks", {"benchmark": "rotated", "tasks": 5}),
    "permuted": ("Permuted MNIST, 5 tasks", {"benchmark": "permuted", "tasks": 5}),
    "split": ("Split MNIST, 5 tasks", {"benchmark": "split", "tasks": 5}),
    "turned": ("Rotated MNIST, 0° and 90°", {"benchmark": "rotated", "angles": (0, 90)}),
    "fashion": ("Rotated Fashion-MNIST, 5 tasks", {"benchmark": "rotated", "tasks": 5, "data": "fashion"}),
}
NUMBERS = (200, 500, 1000, 2000, 5000)  # gradients per task
OF_ONE_TASK = (*NUMBERS, 20_000)  # where those of the first of two tasks are all that is stored
SOFTNESS = (0.0, 0.01, 0.05, 0.2)
LOOKS = (("o", "-"), ("v", (0, (6, 1))), ("d", (0, (3, 1))), ("h", (0, (1, 1))))
SELDOM: Setting = {"every": 100, "init": INIT}
OTHERS = {"DER++, 200 examples": "der", "SGD": "sgd"}
COMPARED: dict[str, tuple[str, Setting]] = {
    "OGD, 200": ("ogd", {**SELDOM, "per_task": 200, "softness": 0.0}),
    "OGD, 1,000, μ = 0.01": ("ogd", {**SELDOM, "per_task": 1000, "softness": 0.01}),
    "OGD, 2,000, μ = 0.05": ("ogd", {**SELDOM, "per_task": 2000, "softness": 0.05}),
    **{label: (method, {"init": INIT}) for label, method in OTHERS.items()},
}


def _rows(benchmark: Setting, numbers: tuple[int, ...]) -> tuple[Row, ...]:
    """A line per softness over the number of gradients, and level lines of methods that store none."""
    found = []
    for mu, (marker, dashes) in zip(SOFTNESS, LOOKS, strict=True):
        settings = tuple({**benchmark, **SELDOM, "per_task": n, "softness": mu} for n in numbers)
        look = Look(METHODS["ogd"].look.colour, marker, dashes)
        found.append(Row(f"OGD, μ = {mu:g}", "ogd", settings, look=look, subject=True))
    level = ({**benchmark, "init": INIT},) * len(numbers)
    return (*found, *(Row(label, method, level, yardstick=True) for label, method in OTHERS.items()))


def _over_numbers(name: str) -> Experiment:
    title, benchmark = BENCHMARKS[name]
    numbers = OF_ONE_TASK if name == "turned" else NUMBERS
    return Experiment(
        f"gradients-{name}",
        f"{title}: the average after the last, over the gradients per task",
        "average",
        tuple(f"{n:,}" for n in numbers),
        _rows(benchmark, numbers),
        runs=3,
        drawing=Drawing("lines", "gradients per task"),
        note="OGD projects every 100 steps, and μ is its softness. A gradient takes 4.8 KB. DER++ stores 200 examples "
        "per task.",
        named=True,
    )


NEWEST = Experiment(
    "gradients-newest",
    "What protection costs the newest task: its accuracy when it has just been learned",
    "last",
    tuple(title for title, _ in BENCHMARKS.values()),
    tuple(
        Row(
            label,
            method,
            tuple({**benchmark, **options} for _, benchmark in BENCHMARKS.values()),
            subject=method == "ogd",
            yardstick=method != "ogd",
        )
        for label, (method, options) in COMPARED.items()
    ),
    runs=3,
    note="Gradients per task, and the softness μ, of the figures over the number of gradients.",
    named=True,
)
GRADIENTS = (*map(_over_numbers, BENCHMARKS), NEWEST)
