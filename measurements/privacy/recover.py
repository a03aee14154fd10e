"""What stored gradients reveal: digits read off them, and what keeping only principal directions changes.

    python measurements/privacy/recover.py          measures, writes results/privacy.json and docs/images/recover.svg
    python measurements/privacy/recover.py --show   prints that record as Markdown

The paper's network learns MNIST for one epoch; the gradients of the true logit of 200 of its examples are the rows
of G. Compressed, what is kept of G is V, its r leading right singular vectors (nothing is centred).
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ogd import json_files

if TYPE_CHECKING:
    from torch import Tensor

RECORD = Path(__file__).parents[2] / "results" / "privacy.json"
STORED, RANKS = 200, (10, 50, 100, 200)
HIDDEN, INPUTS = 100, 784


def input_of(gradient: "Tensor") -> "Tensor":
    """Return the input (784,) of the example whose dense gradient this is, a row of G.

    The first layer's part of the row is δ aᵀ for the weight and δ for the bias, so each row of the former
    divided by the same entry of the latter is a; least squares over all rows weighs them by how sure they are.
    """
    weight, delta = first_layer(gradient)
    return (delta @ weight) / (delta @ delta)


def first_layer(G: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return the weight's part (..., 100, 784) and the bias's part (..., 100) of rows of G."""
    weight = G[..., : HIDDEN * INPUTS].unflatten(-1, (HIDDEN, INPUTS))
    return weight, G[..., HIDDEN * INPUTS : HIDDEN * (INPUTS + 1)]


def principal(G: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return all right singular vectors V of G, leading first, and the share of G's energy in each."""
    import torch

    energy, U = torch.linalg.eigh(G @ G.mT)  # ascending
    energy, U = energy.flip(0), U.flip(1)
    return (U.mT @ G) / energy.sqrt().unsqueeze(1), energy / energy.sum()


def closest(images: "Tensor", rows: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return for each image the largest |cosine| with any of the rows, and which row that is."""
    from torch.nn.functional import normalize

    best = (normalize(images, dim=-1) @ normalize(rows, dim=-1, eps=1e-30).mT).abs().max(-1)
    return best.values, best.indices


def trained() -> "tuple[Any, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]":
    """Return a network after one epoch of MNIST, 200 examples it has learned, and 200 it has not seen."""
    import torch
    from torch.nn.functional import cross_entropy

    from ogd.lab import data
    from ogd.lab.benchmarks.task import labels, pixels
    from ogd.lab.models import mlp

    mnist = data.load("mnist")
    x, y = pixels(mnist.train_images).flatten(1), labels(mnist.train_labels)
    torch.manual_seed(0)
    network = mlp((INPUTS, HIDDEN, HIDDEN, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=5e-3)
    order = torch.randperm(len(y))
    for batch in order.split(10):
        optimizer.zero_grad()
        cross_entropy(network(x[batch]), y[batch]).backward()
        optimizer.step()
    seen = order[:STORED]
    unseen = pixels(mnist.test_images[:STORED]).flatten(1), labels(mnist.test_labels[:STORED])
    return network, (x[seen], y[seen]), unseen


def gradients(network: Any, examples: "tuple[Tensor, Tensor]") -> "Tensor":
    """Return G (n, p), written out in float64."""
    import torch

    from ogd.memory import GradientMemory

    memory = GradientMemory(network, per_task=None)
    memory.remember(examples)
    return torch.cat([piece.block.rows(0, piece.block.n) for piece in memory.store.pieces], 1)


def autograd_row(network: Any, x: "Tensor", y: "Tensor") -> "Tensor":
    """Return the gradient (p,) of an example's true logit as autograd gives it, with nothing of ours between."""
    import torch

    grads = torch.autograd.grad(network(x)[y], list(network.parameters()))
    return torch.cat([g.flatten() for g in grads])


def measure() -> "tuple[dict[str, Any], dict[str, Any]]":
    """Return the record, and what the figure is drawn from."""
    import torch

    from ogd.lab.records.record import environment

    network, stored, unseen = trained()
    G, H = gradients(network, stored), gradients(network, unseen)
    V, energy = principal(G)
    images, strangers = stored[0].double(), unseen[0].double()
    recovered = torch.stack([input_of(autograd_row(network, x, y)) for x, y in zip(*stored, strict=True)]).double()
    p = G.shape[1]
    dense, _ = first_layer(G)
    rows = [_compare("dense", dense.flatten(0, 1), images, strangers) | {"bytes": 4 * STORED * p, "energy": 1.0}]
    guesses = {}
    for r in RANKS:
        kept, _ = first_layer(V[:r])
        kept = kept.flatten(0, 1)  # (100 r, 784)
        ours, theirs = (((g @ V[:r].mT) ** 2).sum(1) / (g**2).sum(1) for g in (G, H))
        rows.append(
            _compare(r, kept, images, strangers)
            | {"bytes": 4 * r * p, "energy": energy[:r].sum().item()}
            | {"inside_stored": ours.mean().item(), "inside_unseen": theirs.mean().item()}
            | {"told_apart": (ours[:, None] > theirs).double().mean().item()}
        )
        cosine, which = closest(images, kept)
        guesses[r] = (cosine, kept[which] * (kept[which] * images).sum(1, keepdim=True).sign())
    record = {
        "schema": 1,
        "examples": STORED,
        "largest_error_dense": (recovered - images).abs().max().item(),
        "factored_bytes": 4 * STORED * 1194,
        "measured": rows,
        "environment": environment(),
    }
    return record, {"images": images, "recovered": recovered, "guesses": guesses}


def _compare(kept: object, rows: "Tensor", images: "Tensor", strangers: "Tensor") -> dict[str, Any]:
    """How close the rows of what is kept come to the stored images, and to images never stored."""
    ours, theirs = closest(images, rows)[0], closest(strangers, rows)[0]
    return {
        "kept": kept,
        "cosine_stored": ours.mean().item(),
        "cosine_unseen": theirs.mean().item(),
        "recovered_stored": int((ours > 0.95).sum()),
        "recovered_unseen": int((theirs > 0.95).sum()),
    }


def draw(digits: dict[str, Any]) -> None:
    """Six digits: stored, read off the dense gradient, and the closest row of r principal directions."""
    sys.path.append(str(Path(__file__).parents[1]))
    from style import WIDTH, figure, save

    best, typical = digits["guesses"][RANKS[0]][0].argsort(descending=True), digits["guesses"][RANKS[-1]][0].argsort()
    chosen = [*best[:2].tolist(), *typical[[20, 70, 100, 130]].tolist()]
    ranks = RANKS[::-1]
    made = figure(WIDTH, 6)
    axes = made.subplots(2 + len(ranks), len(chosen))
    titles = ["stored example", "read off its\ndense gradient", *(f"closest row of\n{r} directions" for r in ranks)]
    for column, i in enumerate(chosen):
        shown = [(digits["images"][i], None), (digits["recovered"][i], 1.0)]
        shown += [(digits["guesses"][r][1][i], digits["guesses"][r][0][i].item()) for r in ranks]
        for row, (image, cosine) in enumerate(shown):
            ax = axes[row, column]
            ax.imshow(image.clamp(min=0).view(28, 28).numpy(), cmap="gray_r", interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set(visible=True, color="#bbbbbb")
            if cosine is not None:
                ax.set_xlabel(f"{cosine:.3f}", fontsize=8, labelpad=2)
            if column == 0:
                ax.set_ylabel(titles[row], rotation=0, ha="right", va="center", fontsize=9)
    save(made, "recover")


def show() -> None:
    """Print the record as Markdown."""
    record = json_files.load(RECORD)
    n = record["examples"]
    _table(["kept", "size", "closest row, stored", "unseen", "recovered, stored", "unseen"])
    for row in record["measured"]:
        cells = [_name(row, n), f"{row['bytes'] / 1e6:.1f} MB"]
        cells += [f"{row[key]:.3f}" for key in ("cosine_stored", "cosine_unseen")]
        cells += [f"{row[key]} of {n}" for key in ("recovered_stored", "recovered_unseen")]
        print(f"| {' | '.join(cells)} |")
    print(
        f"\nThe {n} gradients take {record['factored_bytes'] / 1e6:.2f} MB factored. Read off dense gradients, ", end=""
    )
    print(f"the largest error of a pixel (0 to 1) of the {n} images is {record['largest_error_dense']:.1e}.")
    print()
    _table(["kept", "gradient energy kept", "of a stored example", "of an unseen one", "told apart"])
    for row in record["measured"][1:]:
        keys = ("energy", "inside_stored", "inside_unseen", "told_apart")
        print(f"| {' | '.join([_name(row, n), *(f'{100 * row[key]:.1f} %' for key in keys)])} |")


def _table(heads: list[str]) -> None:
    print(f"| {' | '.join(heads)} |\n| --- |{' ---: |' * (len(heads) - 1)}")


def _name(row: dict[str, Any], n: int) -> str:
    return f"{n} gradients, dense" if row["kept"] == "dense" else f"{row['kept']} principal directions"


def main() -> None:
    import torch

    from ogd.files import write_text

    torch.set_num_threads(1)
    record, digits = measure()
    write_text(RECORD, json.dumps(record, indent=1) + "\n")
    draw(digits)
    show()


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else main()
