"""Why gradients are stored factored: one example's gradient of the first layer, and the two vectors it is made of.

python measurements/projection/factored.py   draws docs/images/factored.svg
"""

import sys
from pathlib import Path


def draw() -> None:
    """δ and a as strips, their outer product as a map, all of one MNIST digit in the paper's network."""
    import torch

    sys.path.append(str(Path(__file__).parents[1]))
    from ogd.lab import data
    from ogd.lab.benchmarks.task import labels, pixels
    from ogd.lab.models import mlp
    from ogd.memory import Factored, GradientMemory
    from style import WIDTH, figure, save

    torch.set_num_threads(1)
    torch.manual_seed(0)
    mnist = data.load("mnist")
    memory = GradientMemory(mlp())
    memory.remember((pixels(mnist.train_images[:1]).flatten(1), labels(mnist.train_labels[:1])))
    block = memory.store.pieces[0].block
    assert isinstance(block, Factored)
    a, delta = block.A[0], block.D[0]
    G = delta[:, None] * a

    made = figure(WIDTH, 4)
    places = made.subplot_mosaic([["digit", "left", "."], ["whole"] * 3], width_ratios=[2, 0.6, 3])
    digit, left, whole = places["digit"], places["left"], places["whole"]
    most = G.abs().max().item() * 0.7
    digit.imshow(a.view(28, 28).numpy(), cmap="gray_r", interpolation="nearest")
    digit.set_title("$a$: 784, the input")
    spread = delta.abs().max().item()
    left.imshow(delta[:, None].numpy(), cmap="PuOr", vmin=-spread, vmax=spread, aspect="auto", interpolation="nearest")
    left.set_title("$\\delta$: 100")
    whole.imshow(G.numpy(), cmap="PuOr", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    whole.set_title(r"the gradient $\delta\,a^\top$: 78,400 numbers, each row the same digit, scaled")
    whole.set_xlabel("input (28 rows of the image, one after the other)")
    whole.set_ylabel("unit")
    for ax in (digit, left, whole):
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set(visible=True, color="#bbbbbb")
    save(made, "factored")


if __name__ == "__main__":
    draw()
