"""Split CIFAR-10 with the laboratory's CNN; `--show` prints the records.

    ogd data cifar10 --out data/cifar10
    python measurements/real_data/cifar10.py          trains, on one thread; records under results/
    python measurements/real_data/cifar10.py --show   prints them as Markdown

One pass over all 50,000 images, SGD at 0.01, batches of 10, 200 examples per task kept; no method is tuned here.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS, DATA = ROOT / "results", ROOT / "data" / "cifar10"
METHODS = ("sgd", "agem", "ogd", "er", "der", "rehearsal", "mtl")
SETTING = "--benchmark split --model cnn --epochs 1 --lr 0.01 --runs 3 --jobs 1"


def measure() -> None:
    from ogd.lab import cli

    cli.main(["run", *SETTING.split(), "--data", str(DATA), "--out", str(RESULTS), "--method", *METHODS])


def show() -> None:
    """Print the records as Markdown."""
    from ogd.lab.records.folder import find, places, requests_at
    from ogd.lab.reporting import overview

    asked = [request for place in places(RESULTS) for request in requests_at(place) if request.data == DATA.name]
    found = {request.method: list(find(RESULTS, request).values()) for request in asked}
    overview([found[method] for method in METHODS]).show(True)


if __name__ == "__main__":
    if sys.argv[1:] != ["--show"]:
        measure()
    show()
