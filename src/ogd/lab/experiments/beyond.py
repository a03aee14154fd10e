"""What the paper leaves open, as data: experiments of ours, without published numbers."""

from dataclasses import replace
from typing import Any

from ogd.lab.catalogue import INITS, METHODS, looks
from ogd.lab.experiments.experiment import YARDSTICK, Drawing, Experiment, Row, varied
from ogd.lab.experiments.paper import INIT, PAPER, TASKS

LAMBDAS = (1, 10, 30, 100, 300)  # at 1000 a run on Rotated diverges
EVERY = (10, 50, 500)
ROTATED = {"benchmark": "rotated", "tasks": 5}
WIDTHS = {50: 0.013, 100: 0.01, 300: 0.0075, 1000: 0.0035, 3000: 0.0015}  # and learning rates; see their note
ONE_RATE = (50, 100, 300, 1000)
LOOKS = {
    benchmark: replace(looks.EWC, marker=marker, dashes=dashes)
    for benchmark, marker, dashes in [
        ("permuted", "o", "-"),
        ("rotated", "D", (0, (5, 1))),
        ("split", "s", (0, (1, 1))),
    ]
}

SWEEPS = (
    Experiment(
        "lambda",
        "EWC over its λ: the average over 5 tasks, after the last",
        "average",
        tuple(f"λ = {lam}" for lam in LAMBDAS),
        tuple(
            Row(
                f"{benchmark.capitalize()} MNIST",
                "ewc",
                tuple({"benchmark": benchmark, "tasks": 5, "ewc_lambda": float(lam)} for lam in LAMBDAS),
                look=look,
            )
            for benchmark, look in LOOKS.items()
        ),
        runs=5,
        drawing=Drawing("lines", "λ", over="ewc_lambda", log=True),
        note="The ringed λ was chosen on validation data, never on the test data shown here.",
    ),
    Experiment(
        "every",
        "Rotated MNIST, 5 tasks: OGD that projects every k steps",
        "final",
        TASKS,
        (
            Row("OGD, every step", "ogd", (ROTATED,), speed="ogd_over_sgd"),
            *(
                Row(f"OGD, every {k}", "ogd", ({**ROTATED, "every": k},), speed=f"ogd_every_{k}_over_sgd")
                for k in EVERY
            ),
            Row("SGD", "sgd", (ROTATED,), speed=YARDSTICK),
        ),
        runs=5,
        note="`ogd bench` times OGD with 800 directions stored, as many as after task 4.",
    ),
)


def _published(experiment: Experiment) -> Experiment:
    return replace(experiment, rows=tuple(row for row in experiment.rows if row.published))


TABLES = tuple(table for table in map(_published, PAPER) if table.rows)
WEIGHTS = Experiment(
    "init",
    "The published tables with other initial weights: how many cells agree",
    "agreement",
    tuple(INITS),
    (),
    runs=max(table.runs for table in TABLES),
    note=f"Rows without published numbers do not count. The tables take `{INIT}`.",
    parts=tuple(tuple(varied(table, init=init) for init in INITS) for table in TABLES),
)
# Wide networks cost much to train: fewer images.
WIDE = {"benchmark": "rotated", "angles": (0, 30), "epochs": 1, "left_out": 50_000, "init": "he"}


def _over_widths(name: str, title: str, rates: dict[int, float], dashes: Any, note: str) -> Experiment:
    settings = tuple({**WIDE, "hidden": (width, width), "lr": lr} for width, lr in rates.items())
    looks_of = {method: replace(METHODS[method].look, dashes=dashes) for method in ("ogd", "sgd")}
    return Experiment(
        name,
        f"Rotated MNIST, 0° and 30°: task 1 after task 2, over the width of both hidden layers, {title}",
        "first",
        tuple(f"{width:,}" for width in rates),
        tuple(
            Row(f"{METHODS[method].label}, {title}", method, settings, look=look, subject=method == "ogd")
            for method, look in looks_of.items()
        ),
        runs=3,
        drawing=Drawing("lines", "width", over="hidden", log=True),
        note=f"One epoch of 10,000 images per task; weights drawn with variance 2 / fan-in. {note}".strip(),
        profile="one epoch of 10,000 images per task",
        named=True,
    )


NEAR = (
    _over_widths(
        "widths",
        "lr scaled",
        WIDTHS,
        "-",
        "The learning rate is 0.01 at width 100 and inversely proportional to the mean squared length of a logit's "
        "gradient at the initial weights, so that first steps change the outputs equally.",
    ),
    _over_widths("widths-one-rate", "lr 0.01", dict.fromkeys(ONE_RATE, 0.01), (0, (2, 1.5)), ""),
)

BEYOND = (*(varied(sweep, init=INIT) for sweep in SWEEPS), WEIGHTS, *NEAR)
