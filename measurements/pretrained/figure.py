"""What a pretrained model learns and what it keeps, in one picture: `python measurements/pretrained/figure.py`.

Reads results/pretrained-sentences.json and results/pretrained-images.json, and draws docs/images/pretrained.svg.
"""

import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from fine_tuning import found
from style import BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, figure, save

MARKS = {
    "plain": ("no protection", VERMILION, "o"),
    "still": ("no protection, BatchNorm frozen", VERMILION, "v"),
    "lower": ("a tenth of the learning rate", ORANGE, "o"),
    "frozen": ("frozen backbone", GREY, "s"),
    "lora": ("LoRA", BLUE, "D"),
    "noise": ("ExampleMemory: noise", SKY, "o"),
    "new": ("ExampleMemory: new kind", GREEN, "^"),
    "old": ("ExampleMemory: old kind", GREEN, "o"),
    "often": ("ExampleMemory: old kind, every step", GREEN, "P"),
    "both": ("LoRA and ExampleMemory: old kind", BLUE, "P"),
}


def draw() -> None:
    made = figure(9, 3.8)
    left, right = made.subplots(1, 2)
    for axes, name, kept in ((left, "sentences", "nearest"), (right, "images", "old")):
        for way, (label, colour, marker) in MARKS.items():
            new, old = ([100 * value for value in found(name, way, what)] for what in ("new", kept))
            if new:
                point = statistics.mean(new), statistics.mean(old)
                axes.plot(*point, marker, color=colour, ms=8, label=label, linestyle="none")
        axes.grid(alpha=0.25, lw=0.6)
    left.set(title="A sentence encoder learns code", xlabel="accuracy on code (%)")
    left.set_ylabel("the same nearest sentence (%)")
    right.set(title="An ImageNet network learns clothes", xlabel="accuracy on clothes (%)")
    right.set_ylabel("the same answers (%)")
    handles, labels = right.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    save(made, "pretrained")


if __name__ == "__main__":
    draw()
