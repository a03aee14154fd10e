"""What the paper leaves open, as data: experiments of ours, without published numbers."""

from ogd.experiments.experiment import Experiment, Row
from ogd.experiments.paper import TASKS

LAMBDAS = (1, 10, 30, 100, 300)  # at 1000 a run on Rotated diverges
EVERY = (10, 50, 500)

BEYOND = (
    Experiment(
        "lambda",
        "figure",
        "Ours",
        "EWC over its λ: the average over 5 tasks, after the last",
        "average",
        tuple(f"λ = {lam}" for lam in LAMBDAS),
        tuple(
            Row(
                f"{benchmark.capitalize()} MNIST",
                "ewc",
                tuple({"benchmark": benchmark, "tasks": 5, "ewc_lambda": float(lam)} for lam in LAMBDAS),
            )
            for benchmark in ("permuted", "rotated", "split")
        ),
        runs=5,
    ),
    Experiment(
        "every",
        "table",
        "Ours",
        "Rotated MNIST, 5 tasks: OGD that projects every k steps",
        "final",
        TASKS,
        (
            Row("OGD, every step", "ogd", ({"benchmark": "rotated", "tasks": 5},)),
            *(Row(f"OGD, every {k}", "ogd", ({"benchmark": "rotated", "tasks": 5, "every": k},)) for k in EVERY),
            Row("SGD", "sgd", ({"benchmark": "rotated", "tasks": 5},)),
        ),
        runs=5,
    ),
)
