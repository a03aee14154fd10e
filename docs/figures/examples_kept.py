"""How examples are drawn, and the weight α of their outputs: DER++ on validation data; from the records of `ogd tune`.

python docs/figures/examples_kept.py --show      prints it as Markdown
"""

from pathlib import Path
from statistics import fmean

from ogd.records import tuning
from ogd.records.tuning import Tuning

TUNINGS = Path(__file__).parents[2] / "results" / "tuning"
PROTOCOLS = {
    "choice": "Rotated, 5 tasks, one epoch of SGD at 0.005, Glorot's weights, 2 runs",
    "board-a": "Permuted, 10 tasks, ten epochs of Adam at 0.001 (Leaderboard A), 1 run",
    "recommended": "{}, 5 tasks, the paper's scale, Glorot's weights, {} runs",
}
ALPHAS = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)


def show() -> None:
    """Print a line per protocol, choice and replay batch: the average at every α that was tried."""
    print(f"| validation accuracy (%) by α | examples | replayed | {' | '.join(f'{a:g}' for a in ALPHAS)} |")
    print("| --- | --- | --- |" + " ---: |" * len(ALPHAS))
    for folder, label in PROTOCOLS.items():
        found = [tuning.read(path) for path in (TUNINGS / folder).glob("der-*.json")]
        found = [one for one in found if not one.request.keep_optimizer]  # about the optimizer, not about the examples
        for one in sorted(found, key=_order):
            means = {
                alpha: fmean(100 * score for score in column if score is not None)
                for alpha, column in zip(one.grid, zip(*one.scores, strict=True), strict=True)
            }
            digits = 2 if folder == "recommended" else 1
            cells = [f"{means[a]:.{digits}f}" if a in means else "" for a in ALPHAS]
            _, choose, batch, every = _order(one)
            replayed = f"{batch} every {every} steps" if every > 1 else f"{batch}"
            print(f"| {label.format(_name(one), len(one.scores))} | {choose} | {replayed} | {' | '.join(cells)} |")


def _order(one: Tuning) -> tuple[str, str, int, int]:
    options = one.request.options
    return _name(one), options["choose"], options["replay_batch"], options["replay_every"]


def _name(one: Tuning) -> str:
    softmax = ", one softmax" if one.request.heads == "single" else ""
    return one.request.benchmark.capitalize() + softmax


if __name__ == "__main__":
    show()
