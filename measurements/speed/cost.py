"""What a run-step of the laboratory costs as more directions are stored; `--show` prints the last measurement.

    python measurements/speed/cost.py          measures on one thread, writes results/cost.json and docs/images/cost.svg
    python measurements/speed/cost.py --show   prints that record as Markdown

The paper's network, batch 10, 4 runs in lockstep. Dense is one run of a plain PyTorch loop that projects the gradient
on an orthonormal basis written out, as other implementations do. Everybody's turn comes in every round; each figure is
the median over rounds of the ratio to SGD in lockstep.
"""

import copy
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from ogd import json_files

RECORD = Path(__file__).parents[2] / "results" / "cost.json"
DIRECTIONS = (50, 100, 200, 400, 800, 1600, 3200)
FINISHED = (1, 4, 16)  # tasks, for the methods whose cost must not grow with them
RUNS, ROUNDS = 4, 5
WAYS = {"dense": "dense, one run", "explicit": "explicit, every step", "implicit": "implicit, every step"}
WAYS["every 50"] = "explicit, every 50 steps"


def measure_directions(n: int) -> dict[str, Any]:
    """Measure OGD with n stored directions, each way, over SGD."""
    from ogd.lab.bench import laboratory
    from ogd.lab.bench.stopwatch import side_by_side
    from ogd.lab.methods import OGD, SGD, FinishedTask
    from ogd.lab.models import PAPER, StackedMLP

    task, model = laboratory.random_task(), StackedMLP(runs=RUNS)
    stored = OGD(n)
    stored.begin(model, 0)
    stored.end_task(FinishedTask(task, model, 1, 0, PAPER[-1], 0))

    def way(projection: str, every: int, steps: int) -> Any:
        method = copy.copy(stored)
        method.projection, method.every = projection, every
        return laboratory.stepping(copy.deepcopy(model), method, task, steps)

    steps = max(3200 // n, 2)
    times = side_by_side(
        {
            "sgd": laboratory.stepping(StackedMLP(runs=RUNS), SGD(), task, 160),
            "dense": laboratory.plain_loop(min(steps, 16), lambda m, _: laboratory.dense_projection(m, n)),
            "explicit": way("explicit", 1, min(steps, 16)),
            "implicit": way("implicit", 1, 32),
            "every 50": way("explicit", 50, 100),
        },
        ROUNDS,
    )
    return {"directions": n, **{key: _ratio(times, key) for key in WAYS}}


def measure_tasks(finished: int) -> dict[str, Any]:
    """Measure EWC and A-GEM after so many tasks, over SGD."""
    from ogd.lab.bench import laboratory
    from ogd.lab.bench.stopwatch import side_by_side
    from ogd.lab.methods import AGEM, EWC, SGD, FinishedTask
    from ogd.lab.models import PAPER, StackedMLP

    task = laboratory.random_task()
    contestants = {}
    for method in (SGD(), EWC(), AGEM()):
        model = StackedMLP(runs=RUNS)
        method.begin(model, 0)
        for number in range(1, finished + 1):
            method.end_task(FinishedTask(task, model, number, 0, PAPER[-1], 0))
        contestants[method.name] = laboratory.stepping(model, method, task, 160)
    times = side_by_side(contestants, 2 * ROUNDS)
    return {"finished": finished, **{key: _ratio(times, key) for key in ("ewc", "agem")}}


def show() -> None:
    """Print the record as Markdown."""
    record = json_files.load(RECORD)
    heads = ["directions n", *WAYS.values()]
    print(f"| {' | '.join(heads)} |\n|{' ---: |' * len(heads)}")
    for row in record["directions"]:
        print(f"| {row['directions']:,} | {' | '.join(f'{row[way]:.1f} ×' for way in WAYS)} |")
    print("\n| finished tasks | EWC | A-GEM |\n| ---: | ---: | ---: |")
    for row in record["tasks"]:
        print(f"| {row['finished']} | {row['ewc']:.1f} × | {row['agem']:.1f} × |")


def draw() -> None:
    """Draw the record: cost over the stored directions."""
    sys.path.append(str(Path(__file__).parents[1]))
    import style

    rows = json_files.load(RECORD)["directions"]
    made = style.figure(style.WIDTH, 3.6)
    axes = made.subplots()
    for (way, label), dashes in zip(WAYS.items(), (":", "-.", "-", "--"), strict=True):
        axes.loglog([row["directions"] for row in rows], [row[way] for row in rows], color=style.looks.BLUE, ls=dashes,
                    marker="o")  # fmt: skip
        axes.annotate(
            label, (rows[-1]["directions"], rows[-1][way]), (6, 0), textcoords="offset points", va="center",
            color=style.looks.BLUE,
        )  # fmt: skip
    axes.axhline(1, color=style.looks.MUTED, lw=0.8, ls=":")
    axes.set(xlabel="stored directions", ylabel="time of a run-step, SGD in lockstep = 1", xlim=(45, 14_000))
    axes.set_xticks(DIRECTIONS, [f"{n:,}" for n in DIRECTIONS])
    axes.minorticks_off()
    axes.grid()
    style.save(made, "cost")


def _ratio(times: Any, key: str) -> float:
    pairs = zip(times.rounds[key], times.rounds["sgd"], strict=True)
    return statistics.median(a / b for a, b in pairs)


def main() -> None:
    import torch

    from ogd.files import write_text
    from ogd.lab.records.record import environment

    torch.set_num_threads(1)
    record: dict[str, Any] = {"schema": 1, "runs": RUNS, "rounds": ROUNDS, "directions": [], "tasks": []}
    for n in DIRECTIONS:
        record["directions"].append(measure_directions(n))
        print(record["directions"][-1], file=sys.stderr)
    record["tasks"] = [measure_tasks(finished) for finished in FINISHED]
    write_text(RECORD, json.dumps({**record, "environment": environment()}, indent=1) + "\n")
    draw()
    show()


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else main()
