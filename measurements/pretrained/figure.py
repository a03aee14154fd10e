"""What a pretrained model learns and what it keeps, in one picture: `python measurements/pretrained/figure.py`.

Reads results/pretrained-sentences.json and results/pretrained-images.json, and draws docs/images/pretrained.svg.
"""

import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from fine_tuning import found
from style import WIDTH, figure, looks, save

PLAIN, REHEARSAL, LORA = looks.SGD.colour, looks.REHEARSAL.colour, looks.PALETTE[3].colour
MARKS = {
    "plain": ("no protection", PLAIN, "o"),
    "still": ("no protection, BatchNorm frozen", PLAIN, "v"),
    "lower": ("a tenth of the learning rate", PLAIN, "s"),
    "frozen": ("frozen backbone", looks.MUTED, "s"),
    "lora": ("LoRA", LORA, "D"),
    "noise": ("ExampleMemory: noise", REHEARSAL, "v"),
    "new": ("ExampleMemory: new kind", REHEARSAL, "^"),
    "old": ("ExampleMemory: old kind", REHEARSAL, "o"),
    "often": ("ExampleMemory: old, every step", REHEARSAL, "P"),
    "both": ("LoRA and ExampleMemory: old kind", LORA, "P"),
}


def draw() -> None:
    made = figure(WIDTH, 6.8)
    above, below = made.subplots(2, 1)
    for axes, name, kept in ((above, "images", "old"), (below, "sentences", "nearest")):
        for way, (label, colour, marker) in MARKS.items():
            new, old = ([100 * value for value in found(name, way, what)] for what in ("new", kept))
            if new:
                point = statistics.mean(new), statistics.mean(old)
                axes.plot(*point, marker, color=colour, ms=8, label=label, linestyle="none")
        axes.grid()
    above.set(title="An ImageNet network learns clothes", xlabel="accuracy on clothes (%)")
    above.set_ylabel("the same answers (%)")
    below.set(title="A sentence encoder learns code", xlabel="accuracy on code (%)")
    below.set_ylabel("the same nearest sentence (%)")
    made.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    save(made, "pretrained")


if __name__ == "__main__":
    draw()
