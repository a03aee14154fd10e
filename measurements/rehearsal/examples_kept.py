"""Examples drawn uniformly or by uncertainty: DER++ on validation data; from the records of `ogd tune` alone.

python measurements/rehearsal/examples_kept.py --show   prints it as Markdown
"""

from pathlib import Path
from statistics import fmean

from ogd.lab.records import tuning

TUNINGS = Path(__file__).parents[2] / "results" / "tuning"
PROTOCOLS = {
    "choice": "Rotated, 5 tasks, one epoch of SGD at 0.005, Glorot's weights, 2 runs",
    "board-a": "Permuted, 10 tasks, ten epochs of Adam at 0.001 (Leaderboard A), 1 run",
}


def show() -> None:
    """Print a line per protocol, choice and replay batch: the average at every α that was tried."""
    print("| validation accuracy (%) by α | examples | replay batch | 0.1 | 0.3 | 0.5 | 1 | 2 | 5 | 10 |")
    print("| --- | --- | ---: |" + " ---: |" * 7)
    for folder, label in PROTOCOLS.items():
        found = [tuning.read(path) for path in (TUNINGS / folder).glob("der-*.json")]
        found = [one for one in found if not one.request.keep_optimizer]  # about the optimizer, not about the examples
        for one in sorted(found, key=lambda one: (one.request.options["choose"], one.request.options["replay_batch"])):
            means = {
                alpha: fmean(100 * score for score in column if score is not None)
                for alpha, column in zip(one.grid, zip(*one.scores, strict=True), strict=True)
            }
            cells = [f"{means[a]:.1f}" if a in means else "" for a in (0.1, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)]
            options = one.request.options
            print(f"| {label} | {options['choose']} | {options['replay_batch']} | {' | '.join(cells)} |")


if __name__ == "__main__":
    show()
