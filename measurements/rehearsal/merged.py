"""How many examples to merge into one: DER++ on validation data; from the records of `ogd tune` alone.

python measurements/rehearsal/merged.py --show   prints it as Markdown
"""

from pathlib import Path
from statistics import fmean

from ogd.lab.records import tuning
from ogd.lab.records.tuning import Tuning

TUNINGS = Path(__file__).parents[2] / "results" / "tuning"
FOUR = {"Rotated": "rotated", "Permuted": "permuted", "Split": "split", "Split, one softmax": "split single"}
BOARD = "Leaderboard A"


def column(one: Tuning) -> str:
    """The column that a tuning belongs to."""
    single = one.request.heads == "single"
    named = {name: label for label, name in FOUR.items()}
    return named[one.request.benchmark + (" single" if single else "")] if one.request.tasks == 5 else BOARD


def show() -> None:
    """Print a line per number of merged examples: the average at each benchmark's α."""
    found: dict[int, dict[str, float]] = {}
    for path in [*(TUNINGS / "merged").glob("der-*.json"), *(TUNINGS / "board-a").glob("der-*.json")]:
        one = tuning.read(path)
        options, board = one.request.options, column(one) == BOARD
        if board and not (one.request.keep_optimizer and options["replay_batch"] == 32 and one.grid.count(3.0)):
            continue
        if board and int(options["merge"]) > 1 and options["choose"] != "uncertain":
            continue
        alpha = one.grid.index(3.0 if board else 0.5)
        scores = [row[alpha] for row in one.scores]
        found.setdefault(int(options["merge"]), {})[column(one)] = 100 * fmean(s for s in scores if s is not None)
    print(f"| validation accuracy (%) | {' | '.join([*FOUR, BOARD])} |")
    print("| --- |" + " ---: |" * (len(FOUR) + 1))
    for merge, means in sorted(found.items()):
        cells = [f"{means[label]:.2f}" if label in means else "" for label in [*FOUR, BOARD]]
        print(f"| merge {merge} | {' | '.join(cells)} |")


if __name__ == "__main__":
    show()
