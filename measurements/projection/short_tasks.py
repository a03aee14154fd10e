"""How many gradients, how softly and how seldom, where tasks are short and Adam trains: validation accuracy.

    python measurements/projection/short_tasks.py          trains what is lacking into results/short_tasks.json
    python measurements/projection/short_tasks.py --show   prints that record as Markdown

The loops, models and tasks of measurements/rehearsal/rehearsal.py, with another seed. Images are validated on 4,000
training images that no task learns. Each CNN task has 564 steps, each task of the transformer 375.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.lab.reporting.tables import mean_std

sys.path.append(str(Path(__file__).parents[1] / "rehearsal"))
import rehearsal

RECORD = Path(__file__).parents[2] / "results" / "short_tasks.json"
SEEDS, HELD_OUT = (3,), 4_000
SETTINGS = (  # gradients per task, softness, steps that share a projection (None: "growing")
    (200, 0.0, 1),
    (200, 0.0, 60),
    (500, 0.0, 150),
    (500, 0.0, None),
    (1000, 0.0, 300),
    (1000, 0.0, None),
)


def trained(name: str, seed: int, setting: tuple[int, float, int | None] | None) -> list[float]:
    """The validation accuracy on each task at the end."""
    import torch

    from ogd.memory import GradientMemory

    loop = rehearsal.Loop(name, "plain", seed, validation=True)
    if setting is not None:
        per_task, softness, every = setting
        loop.memory, loop.options = (
            GradientMemory(loop.model, per_task, softness=softness),
            {"every": every or "growing"},
        )
    for task in range(len(loop.tasks)):
        loop.train_task(task)
    held_out = [(x[:HELD_OUT], y[:HELD_OUT]) for _, (x, y) in loop.tasks]
    with torch.no_grad():
        return [float((loop.model(x).argmax(1) == y).double().mean()) for x, y in held_out]


def measure() -> None:
    from ogd.files import write_text
    from ogd.lab.records.record import environment

    record: dict[str, Any] = json_files.load(RECORD) if RECORD.exists() else {"schema": 1, "models": {}}
    for seed in SEEDS:
        for setting in (None, *SETTINGS):
            for name in rehearsal.MODELS:
                runs = record["models"].setdefault(name, {}).setdefault(json.dumps(setting), {})
                if str(seed) in runs:
                    continue
                runs[str(seed)] = trained(name, seed, setting)
                print(name, setting, seed, runs[str(seed)], file=sys.stderr, flush=True)
                write_text(RECORD, json.dumps({**record, "environment": environment()}, indent=1) + "\n")


def show() -> None:
    """Print the record as Markdown."""
    record = json_files.load(RECORD)
    print("| | per task | μ | every | task 1 | task 2 | task 3 | average |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, title in rehearsal.MODELS.items():
        recorded = [
            (found, runs) for found in (None, *SETTINGS) if (runs := record["models"][name].get(json.dumps(found)))
        ]
        for place, (found, runs) in enumerate(recorded):
            options = ["grows" if v is None else f"{v:,g}" for v in found] if found else ["no protection", "", ""]
            columns = [[100 * a for a in column] for column in zip(*runs.values(), strict=True)]
            columns.append([statistics.mean(column) for column in zip(*columns, strict=True)])
            cells = " | ".join(map(mean_std, columns))
            print(f"| {'' if place else title} | {' | '.join(options)} | {cells} |")


if __name__ == "__main__":
    if sys.argv[1:] != ["--show"]:
        import torch

        torch.set_num_threads(1)
        measure()
    show()
