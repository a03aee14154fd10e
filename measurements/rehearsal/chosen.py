"""Settings of rehearsal on validation data: what the defaults were chosen by; from the records of `ogd tune` alone.

python measurements/rehearsal/chosen.py --show   prints it as Markdown
"""

from pathlib import Path
from statistics import fmean
from typing import Any

from ogd.lab.catalogue import METHODS
from ogd.lab.records import tuning

TUNINGS = Path(__file__).parents[2] / "results" / "tuning"
COLUMNS = [(data, name) for data in ("mnist", "fashion") for name in ("rotated", "permuted", "split")]
TITLES = {"rotated": "Rotated", "permuted": "Permuted", "split": "Split, one softmax"}
DEFAULTS = {option.name: option.default_on("split") for option in METHODS["rehearsal"].options}
Setting = tuple[tuple[str, Any], ...]  # what is not the default


def label(setting: Setting) -> str:
    """Write a setting in words."""
    options = {**DEFAULTS, **dict(setting)}
    every = "every step" if options["replay_every"] == 1 else f"every {options['replay_every']} steps"
    words = {
        "bound": f"bound {options['bound']:g}",
        "replay_batch": f"{options['replay_batch']} examples {every}",
        "alpha": f"α = {options['alpha']:g}",
        "choose": f"{options['choose']} examples",
        "merge": f"merge {options['merge']}",
    }
    if not setting:
        shown = [words[name] for name in ("replay_batch", "alpha", "bound")]
        return f"**the defaults: {', '.join(shown)}**"
    names = {"replay_batch" if name == "replay_every" else name for name, _ in setting}
    return ", ".join(text for name, text in words.items() if name in names)


def found() -> dict[Setting, dict[tuple[str, str], float]]:
    """Return the mean score in percent of each setting in each column."""
    scores: dict[Setting, dict[tuple[str, str], float]] = {}
    for path in sorted(TUNINGS.glob("*/rehearsal-*.json")):
        one = tuning.read(path)
        for place, bound in enumerate(one.grid):
            options = {**one.request.options, "bound": bound}
            setting = tuple((name, value) for name, value in options.items() if value != DEFAULTS[name])
            runs = [100 * score for run in one.scores if (score := run[place]) is not None]
            scores.setdefault(setting, {})[one.request.data, one.request.benchmark] = fmean(runs)
    return scores


def order(setting: Setting) -> tuple[Any, ...]:
    """Put the defaults first, and settings that differ from them in the same options next to each other."""
    options = {**DEFAULTS, **dict(setting)}
    paced = options["replay_every"], -options["replay_batch"]
    default_pace = DEFAULTS["replay_every"], -DEFAULTS["replay_batch"]
    return bool(setting), paced != default_pace, paced if paced != default_pace else setting


def show() -> None:
    """Print a line per setting."""
    scores = found()
    columns = [column for column in COLUMNS if any(column in row for row in scores.values())]
    titles = [TITLES[name] if data == "mnist" else f"Fashion: {TITLES[name]}" for data, name in columns]
    print(f"| validation accuracy (%) | {' | '.join(titles)} |")
    print(f"| --- |{' ---: |' * len(columns)}")
    for setting in sorted(scores, key=order):
        cells = [f"{scores[setting][column]:.1f}" if column in scores[setting] else "" for column in columns]
        print(f"| {label(setting)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    show()
