"""Forgetting over the overlap of two tasks' gradients; `--show` prints the last measurement.

    python measurements/projection/overlap.py          measures on one thread: results/overlap.json
    python measurements/projection/overlap.py --show   prints that record as Markdown, with accuracies of `angles`

The tasks and networks are those of `ogd reproduce angles`, whose records say what is forgotten, in points. At the end
of task 1, G₁ and G₂ are the gradients of the true logits of 200 examples of task 1 and of task 2, and g is the gradient
of the mean loss of those of task 2. Shares are of squared lengths. A step −η g changes the logits of task 1 by −η G₁ g;
the table has the root mean square.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ogd import json_files
from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS
from ogd.lab.experiments.runs import requests_of
from ogd.lab.progress import Display
from ogd.lab.records.folder import find
from ogd.lab.reporting.tables import mean_std

if TYPE_CHECKING:
    from torch import Tensor

RESULTS = Path(__file__).parents[2] / "results"
RECORD = RESULTS / "overlap.json"
EXPERIMENT, STORED = EXPERIMENTS["angles"], 200


def overlap(K: "Tensor", n: int) -> "Tensor":
    """Return |G₂ Q|² / |G₂|² of each run, Q the projection onto the rows of G₁, the first n rows of K = G Gᵀ (R, N, N).

    Q = G₁ᵀ K₁₁⁺ G₁ and K₁₁⁺ = Wᵀ W, so that |G₂ Q|² = |W K₁₂|².
    """
    from ogd.memory.projection.pseudo_inverse import cutoff, whitener

    W = whitener(K[:, :n, :n], cutoff(n, K.dtype))
    whole = K[:, n:, n:].diagonal(dim1=-2, dim2=-1).sum(-1)
    return (W @ K[:, :n, n:]).square().sum((1, 2)) / whole


def measure() -> None:
    """Train task 1, and compare its gradients with those of a second task at each angle."""
    import torch
    from torch.nn.functional import cross_entropy

    from ogd.files import write_text
    from ogd.lab.benchmarks.task import make_benchmark
    from ogd.lab.methods import FinishedTask
    from ogd.lab.models.build import stack_of
    from ogd.lab.records.record import environment
    from ogd.lab.training import first_task
    from ogd.memory.projection.projector import projector_of
    from ogd.memory.projection.store import Store

    torch.set_num_threads(1)
    requests = requests_of(_row("ogd"), load("mnist"))
    benchmarks = (make_benchmark(request, load("mnist")) for request in requests)
    model: Any = stack_of(requests[0], make_benchmark(requests[0], load("mnist")), range(EXPERIMENT.runs))
    rows = []
    for request, benchmark in zip(requests, benchmarks, strict=True):
        if not rows:
            with Display("task 1") as display:
                first_task(benchmark, model, request.schedule, display)
        kept, new = (
            FinishedTask(task, model, t, 0, benchmark.outputs, request.seed).draw(STORED)
            for t, task in enumerate(benchmark.tasks, 1)
        )
        shapes = {name: w.shape for name, w in model.params.items()}
        store = Store().with_task(*model.output_gradients(kept, "true", None), shapes)
        projector = projector_of(store, {name: w.detach() for name, w in model.params.items()})
        assert projector is not None
        g = model.gradient(new).tensors()
        s = projector.G.overlap(g)
        pieces, n = model.output_gradients(new, "true", None)
        K = store.with_task([replace(piece, start=STORED) for piece in pieces], n, shapes).gram(shapes)
        z = model.passing(new.x)[1]
        loss = cross_entropy(z.flatten(0, 1), new.target.argmax(-1).flatten(), reduction="none").view(len(z), -1)
        rows.append(
            {
                "angle": request.angles[-1],
                "overlap": overlap(K, STORED).tolist(),
                "loss": loss.mean(1).tolist(),
                "change": s.square().mean(1).sqrt().tolist(),
                "removed": ((s * projector.solve(s)).sum(1) / sum(p.square().flatten(1).sum(1) for p in g)).tolist(),
            }
        )
    write_text(RECORD, json.dumps({"schema": 1, "rows": rows, "environment": environment()}, indent=1) + "\n")


def _row(method: str) -> Any:
    return next(row for row in EXPERIMENT.rows if row.method == method)


def show() -> None:
    """Print the record as Markdown."""
    print(
        "| angle of task 2 | G₂ in the span of G₁, % | g in it, % | loss of task 2 | change of task 1's logits | "
        "SGD forgets | OGD forgets |\n|" + " ---: |" * 7
    )
    dataset = load("mnist")
    forgets = [[_forgotten(request) for request in requests_of(_row(method), dataset)] for method in ("sgd", "ogd")]
    for row, sgd, ogd in zip(json_files.load(RECORD)["rows"], *forgets, strict=True):
        cells = [mean_std([100 * share for share in row[what]]) for what in ("overlap", "removed")]
        cells.append(f"{fmean(row['loss']):.2f}")
        cells += [f"{fmean(row['change']):.1f} η", *map(mean_std, (sgd, ogd))]
        print(f"| {row['angle']:g}° | {' | '.join(cells)} |")


def _forgotten(request: Any) -> list[float]:
    """Return the points of task 1 that each run has lost after task 2."""
    runs = list(find(RESULTS, request).values())[: EXPERIMENT.runs]
    return [100 * (run.accuracy[1][0] - run.accuracy[2][0]) for run in runs]


if __name__ == "__main__":
    if "--show" in sys.argv[1:]:
        show()
    else:
        measure()
