"""The laboratory as one would first write it: one run, ordinary modules, autograd, one example at a time, float64.

Only the random draws are the laboratory's own; everything computed from them is computed anew.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ogd import seeds
from ogd.methods import agem
from ogd.models import StackedMLP
from reference import flat, gram_schmidt, logit_gradients

Example = tuple[Tensor, int, list[int]]  # input, label, the classes of its head


class Naive:
    """SGD, and what the others differ in."""

    def __init__(self, run: int, **options):
        self.run, self.options, self.tasks = run, options, 0

    def sources(self, seen):
        return seen[-1:]

    def gradient(self, module: nn.Module, g: Tensor) -> Tensor:
        return g

    def update(self, u: Tensor) -> Tensor:
        return u

    def end_task(self, module: nn.Module, task) -> None:
        self.tasks += 1

    def kept(self, task, n: int) -> list[Example]:
        index = seeds.draw(0, [self.run], f"memory/{self.tasks}", len(task.train), n)[0].tolist()
        return [example(task, i, self.run) for i in index]


class MTL(Naive):
    def sources(self, seen):
        return seen


class AGEM(Naive):
    memory: list[Example]

    def __init__(self, run, storage=6, reference_batch=4):
        super().__init__(run)
        self.memory, self.step, self.storage, self.batch = [], 0, storage, reference_batch

    def gradient(self, module, g):
        if not self.memory:
            return g
        purpose = f"reference/{self.tasks}/{self.step // agem.BLOCK}"
        draws = seeds.generator(0, self.run, purpose)
        index = torch.randint(len(self.memory), (agem.BLOCK, self.batch), generator=draws)[self.step % agem.BLOCK]
        self.step += 1
        r = gradient(module, [self.memory[i] for i in index.tolist()])
        return g - (g @ r) / (r @ r) * r if g @ r < 0 else g

    def end_task(self, module, task):
        super().end_task(module, task)
        self.memory += self.kept(task, self.storage)


class EWC(Naive):
    def __init__(self, run, ewc_lambda=3.0, fisher_examples=11, fisher_labels="true"):
        super().__init__(run)
        self.lam, self.n, self.labels, self.anchors = ewc_lambda, fisher_examples, fisher_labels, []

    def gradient(self, module, g):
        w = flat(module.parameters())
        return g + self.lam * sum((f * (w - anchor) for f, anchor in self.anchors), torch.zeros_like(w))

    def end_task(self, module, task):
        super().end_task(module, task)
        examples = self.kept(task, self.n)
        if self.labels == "sampled":
            examples = self._relabelled(module, examples)
        squares = [gradient(module, [one]) ** 2 for one in examples]
        self.anchors.append((sum(squares) / len(squares), flat(module.parameters())))

    def _relabelled(self, module, examples):
        p = []
        for x, _, classes in examples:
            z = torch.full((10,), -torch.inf, dtype=torch.float64)
            z[classes] = module(x[None])[0, classes].detach()
            p.append(z.softmax(0))
        draws = seeds.generator(0, self.run, f"fisher/{self.tasks}")
        labels = torch.multinomial(torch.stack(p), 1, generator=draws)[:, 0].tolist()
        return [(x, label, classes) for (x, _, classes), label in zip(examples, labels, strict=True)]


class OGD(Naive):
    """The paper's Algorithm 1; what it projects is the update, which for plain SGD is the same."""

    def __init__(self, run, storage=30, logits="true", **_):
        super().__init__(run)
        self.storage, self.logits, self.S = storage, logits, []

    def update(self, u):
        for v in self.S:
            u = u - (u @ v) / (v @ v) * v
        return u

    def end_task(self, module, task):
        super().end_task(module, task)
        width = len(task.classes or range(10)) if self.logits == "all" else 1
        rows = []
        for x, y, classes in self.kept(task, self.storage // width):
            rows.append(logit_gradients(module, x[None], torch.tensor([y]), outputs=self.logits, classes=classes))
        self.S = gram_schmidt(torch.cat(rows), self.S)


METHODS = {"sgd": Naive, "mtl": MTL, "agem": AGEM, "ewc": EWC, "ogd": OGD}


def example(task, i: int, run: int) -> Example:
    columns = task.columns([run])
    x = task.train.x[i] if columns is None else task.train.x[i][columns[0]]
    return x.double(), int(task.train.y[i]), list(task.classes or range(10))


def gradient(module: nn.Module, examples: list[Example]) -> Tensor:
    """∂L/∂w of the mean loss; each example's softmax runs over its own head."""
    loss = torch.zeros((), dtype=torch.float64)
    for x, y, classes in examples:
        logits = module(x[None])[:, classes]
        loss = loss + F.cross_entropy(logits, torch.tensor([classes.index(y)])) / len(examples)
    return flat(torch.autograd.grad(loss, list(module.parameters())))


def train(benchmark, method: Naive, hidden, *, epochs, batch_size, lr, momentum=0.0):
    """Return the trained module and the accuracy matrix."""
    sizes = (benchmark.inputs, *hidden, benchmark.outputs)
    module = StackedMLP(sizes, runs=[method.run], dtype=torch.float64).module(method.run)
    matrix = [accuracies(module, benchmark, method.run)]
    for t, task in enumerate(benchmark.tasks):
        pool = [(source, i) for source in method.sources(benchmark.tasks[: t + 1]) for i in range(len(source.train))]
        velocity = torch.zeros(sum(w.numel() for w in module.parameters()), dtype=torch.float64)
        for epoch in range(epochs):
            index = seeds.draw(0, [method.run], f"order/{t}/{epoch}", len(pool), len(task.train))[0].tolist()
            for start in range(0, len(index), batch_size):
                batch = [example(*pool[i], method.run) for i in index[start : start + batch_size]]
                g = method.gradient(module, gradient(module, batch))
                velocity = momentum * velocity + g
                move(module, method.update(-lr * velocity))
        method.end_task(module, task)
        matrix.append(accuracies(module, benchmark, method.run))
    return module, np.array(matrix)


def move(module: nn.Module, u: Tensor) -> None:
    with torch.no_grad():
        for w, part in zip(module.parameters(), u.split([w.numel() for w in module.parameters()]), strict=True):
            w.add_(part.view(w.shape))


def accuracies(module, benchmark, run) -> list[float]:
    row = []
    for task in benchmark.tasks:
        columns = task.columns([run])
        x = task.test.x if columns is None else task.test.x[:, columns[0]]
        row.append(accuracy(module, x.double(), task.test.y, list(task.classes or range(10))))
    return row


def accuracy(module: nn.Module, x: Tensor, y: Tensor, classes: list[int]) -> float:
    right = 0
    for one, label in zip(x, y, strict=True):
        logits = module(one[None])[0].detach()
        right += int(max(classes, key=lambda c: float(logits[c])) == int(label))
    return right / len(y)


def metrics(a: np.ndarray) -> dict[str, float]:
    """The definitions of docs/records.md, loop by loop; a is (1 + tasks, tasks)."""
    last = a.shape[1]
    average = sum(a[last][j] for j in range(last)) / last
    lost = [max(a[i][j] for i in range(1, last)) - a[last][j] for j in range(last - 1)]
    back = [a[last][j] - a[j + 1][j] for j in range(last - 1)]
    forward = [a[j][j] - a[0][j] for j in range(1, last)]
    return {
        "average_accuracy": average,
        "forgetting": sum(lost) / len(lost),
        "backward_transfer": sum(back) / len(back),
        "forward_transfer": sum(forward) / len(forward),
    }
