"""How far OGD is above SGD on task 1 of Permuted MNIST after task 5, sample by sample; from the records alone.

python docs/figures/gap.py --show      prints it as Markdown
"""

from pathlib import Path

import numpy as np

from ogd import records
from ogd.data import load
from ogd.experiments import resolve

RESULTS = Path(__file__).parents[2] / "results"
SAMPLES = ((0, 5), (0, 10), (1, 5), (2, 10))  # seed and runs


def show() -> None:
    """Print a line a sample: means, their difference, and the runs' own differences."""
    dataset = load()
    print(
        "| sample | OGD | SGD | difference | standard error | run by run |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    )
    for seed, runs in SAMPLES:
        found = [records.find(RESULTS, resolve("permuted", m, dataset, seed=seed)) for m in ("ogd", "sgd")]
        ogd, sgd = (np.array([100 * one[r].accuracy[-1][0] for r in range(runs)]) for one in found)
        apart = ogd - sgd
        error = apart.std(ddof=1) / runs**0.5
        cells = [f"{ogd.mean():.1f}", f"{sgd.mean():.1f}", f"{apart.mean():.1f}", f"{error:.1f}"]
        print(f"| seed {seed}, {runs} runs | {' | '.join(cells)} | {apart.min():.1f} … {apart.max():.1f} |")


if __name__ == "__main__":
    show()
