"""The laboratory as one would first write it: one run, ordinary modules, autograd, one example at a time, float64.

Only the random draws are the laboratory's own; everything computed from them is computed anew.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ogd import seeds
from ogd.lab.methods import buffer
from reference import flat, gram_schmidt, logit_gradients, project_softly

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


class Storing(Naive):
    """Keeps examples, with the logits they had, and draws a batch of them per step, to use that of every k-th."""

    every = 1

    def __init__(self, run, per_task=6, batch=4, in_total=0):
        super().__init__(run)
        self.memory, self.step, self.batch = [], 0, batch
        self.per_task, self.in_total, self.by_task = per_task, in_total, []

    def draw(self):
        purpose = f"reference/{self.tasks}/{self.step // buffer.BLOCK}"
        draws = seeds.generator(0, self.run, purpose)
        index = torch.randint(len(self.memory), (buffer.BLOCK, self.batch), generator=draws)[self.step % buffer.BLOCK]
        self.step += 1
        return [self.memory[i] for i in index.tolist()]

    def gradient(self, module, g):
        if not self.memory:
            return g
        batch = self.draw()
        return g if self.step % self.every else self.changed(module, g, batch)

    def end_task(self, module, task):
        super().end_task(module, task)
        kept = self.kept(task, self.in_total or self.per_task)
        self.by_task.append([(*one, logits_of(module, one[0]).detach()) for one in kept])
        while self.in_total and sum(map(len, self.by_task)) > self.in_total:
            max(reversed(self.by_task), key=len).pop()  # from the longest, of equals from the last
        self.memory = [one for examples in self.by_task for one in examples]


class AGEM(Storing):
    def __init__(self, run, reference_batch, per_task=6, in_total=0):
        super().__init__(run, per_task, reference_batch, in_total)

    def changed(self, module, g, batch):
        r = gradient(module, [one[:3] for one in batch])
        return g - (g @ r) / (r @ r) * r if g @ r < 0 else g


class ER(Storing):
    def __init__(self, run, replay_batch, per_task=6, replay_every=1, in_total=0):
        super().__init__(run, per_task, replay_batch, in_total)
        self.every = replay_every

    def changed(self, module, g, batch):
        return g + self.every * gradient(module, [one[:3] for one in batch])


class DER(ER):
    def __init__(self, run, alpha, **options):
        super().__init__(run, **options)
        self.alpha = alpha

    def changed(self, module, g, batch):
        distance = torch.zeros((), dtype=torch.float64)
        for x, _, classes, z in batch:
            distance = distance + self.distance(F.mse_loss(logits_of(module, x)[classes], z[classes])) / len(batch)
        pulled = torch.autograd.grad(self.alpha * distance, list(module.parameters()))
        return super().changed(module, g, batch) + self.every * flat(pulled)

    def distance(self, m):
        return m


class Rehearsal(DER):
    def __init__(self, run, alpha, bound, **options):
        super().__init__(run, alpha, **options)
        self.bound, self.longest = bound, 0.0

    def changed(self, module, g, batch):
        own, added = float(g.norm()), super().changed(module, g, batch) - g
        self.longest = max(own, 0.9 * self.longest)
        longest = max(self.bound * self.longest, own)
        scale = longest_scale(g, added, longest) if self.bound * self.longest else 1.0
        return g + scale * added

    def distance(self, m):
        return 0.5 * ((1 + 4 * m).sqrt() - 1)

    def end_task(self, module, task):
        super().end_task(module, task)
        self.longest = 0.0

    def draw(self):
        self.step += 1
        seed = seeds.number(seeds.number(0, self.run, "rehearsal"), "rehearsal", self.step // self.every - 1)
        index = torch.randperm(len(self.memory), generator=torch.Generator().manual_seed(seed))
        return [self.memory[i] for i in index[: self.batch].tolist()]


def longest_scale(g, a, longest) -> float:
    """The largest s in [0, 1] with |g + s a| ≤ longest, by bisection; |g| ≤ longest."""
    if float((g + a).norm()) <= longest:
        return 1.0
    low, high = 0.0, 1.0  # the norm is convex in s
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if float((g + middle * a).norm()) <= longest else (low, middle)
    return low


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
            z[classes] = logits_of(module, x)[classes].detach()
            p.append(z.softmax(0))
        draws = seeds.generator(0, self.run, f"fisher/{self.tasks}")
        labels = torch.multinomial(torch.stack(p), 1, generator=draws)[:, 0].tolist()
        return [(x, label, classes) for (x, _, classes), label in zip(examples, labels, strict=True)]


class OGD(Naive):
    """The paper's Algorithm 1; what it projects is the update, which for plain SGD is the same."""

    def __init__(
        self, run, per_task=30, outputs="true", refresh=0, in_total=0, directions="drawn", candidates=0, softness=0, **_
    ):
        super().__init__(run)
        self.per_task, self.outputs, self.in_total, self.softness = per_task, outputs, in_total, softness
        self.refresh, self.examples, self.step = refresh, [], 0
        self.directions, self.candidates, self.S, self.G, self.B = directions, candidates, [], [], None

    def gradient(self, module, g):
        if self.refresh and self.step % self.refresh == 0:
            self.S = []
            for examples in self.examples:
                self.S = gram_schmidt(self.rows(module, examples), self.S)
        self.step += 1
        return g

    def update(self, u):
        if self.softness and self.G:
            return project_softly(torch.cat(self.G), u, self.softness)
        for v in self.S:
            u = u - (u @ v) / (v @ v) * v
        return u

    def end_task(self, module, task):
        super().end_task(module, task)
        width = len(task.classes or range(10)) if self.outputs == "all" else 1
        share = self.in_total // self.tasks if self.in_total else self.per_task
        self.examples = [examples[: share // width] for examples in self.examples]
        self.G = [G[: share // width * width] for G in self.G]
        self.S = gram_schmidt(torch.cat(self.G)) if self.G else []
        examples = self.kept(task, max(self.candidates, share) // width)
        new = self.rows(module, examples)
        if self.directions == "sketch":
            self.B = new if self.B is None else torch.cat([self.B, new])
            self.B = self.sketch(self.B, self.in_total or self.per_task * self.tasks)
            self.S = gram_schmidt(self.B)
            return
        rest = torch.stack([self.update(g) for g in new])
        if self.directions == "pca":
            _, sigma, Vh = torch.linalg.svd(rest, full_matrices=False)
            new = Vh[sigma > 1e-9][:share]
        if self.directions == "leverage":
            best = self.leverage(rest, share).view(-1, width).sum(1).argsort(descending=True)[: share // width]
            new = torch.cat([new[i * width : (i + 1) * width] for i in best.tolist()])
        self.examples.append(examples)
        self.G.append(new)
        self.S = gram_schmidt(new, self.S)
        self.step = 0

    @staticmethod
    def leverage(G, k):
        K = G @ G.T
        mu = torch.linalg.svdvals(G)[k:].square().sum() / k
        return (K @ torch.linalg.pinv(K + mu * torch.eye(len(K)), hermitian=True)).diagonal()

    @staticmethod
    def sketch(B, k):
        """Frequent Directions: the squares of all singular values shrink alike, until k rows are left."""
        _, sigma, Vh = torch.linalg.svd(B, full_matrices=False)
        lost = sigma[k] if k < len(sigma) else 0
        left = (sigma.square() - lost**2).clamp(min=0).sqrt()[:k]
        return left[left > 1e-9, None] * Vh[:k][left > 1e-9]

    def rows(self, module, examples):
        rows = []
        for x, y, classes in examples:
            label = torch.tensor([y])
            rows.append(logit_gradients(module, seen(module, x), label, outputs=self.outputs, classes=classes))
        return torch.cat(rows)


class GPM(Naive):
    """A basis of each layer's inputs, one direction at a time: the one that is farthest from being in it."""

    def __init__(self, run, threshold_input=0.95, threshold=0.99, threshold_growth=0.0, basis_examples=300):
        super().__init__(run)
        self.thresholds, self.growth, self.n, self.bases = (
            (threshold_input, threshold),
            threshold_growth,
            basis_examples,
            {},
        )

    def update(self, u):
        for i, (start, stop, shape, biased) in enumerate(self.layout if self.bases else []):
            part = u[start:stop]
            W = part[: shape[0] * shape[1]].view(shape)
            W = torch.cat([W, part[shape[0] * shape[1] :, None]], 1) if biased else W
            for v in self.bases[i]:
                W = W - torch.outer(W @ v, v)
            rest = [W[:, :-1].flatten(), W[:, -1]] if biased else [W.flatten()]
            u = torch.cat([u[:start], *rest, u[stop:]])
        return u

    def end_task(self, module, task):
        super().end_task(module, task)
        x = torch.stack([one[0].flatten() for one in self.kept(task, self.n)])
        self.layout, start = [], 0
        for i, layer in enumerate(layer for layer in module if isinstance(layer, nn.Linear)):
            biased = layer.bias is not None
            stop = start + layer.weight.numel() + biased * len(layer.weight)
            self.layout.append((start, stop, layer.weight.shape, biased))
            start = stop
            A = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1) if biased else x
            share = min(self.thresholds[min(i, 1)] + self.growth * (self.tasks - 1), 1)
            self.bases[i] = self.grown(self.bases.get(i, []), A, share)
            x = layer(x).relu().detach()

    @staticmethod
    def grown(basis, A, share):
        def inside():
            return sum(float((A @ v).square().sum()) for v in basis)

        while inside() < share * float(A.square().sum()):
            rest = A
            for v in basis:
                rest = rest - torch.outer(rest @ v, v)
            basis = [*basis, torch.linalg.eigh(rest.T @ rest).eigenvectors[:, -1]]
        return basis


METHODS = {
    "sgd": Naive,
    "mtl": MTL,
    "agem": AGEM,
    "er": ER,
    "der": DER,
    "rehearsal": Rehearsal,
    "ewc": EWC,
    "ogd": OGD,
    "gpm": GPM,
}


def example(task, i: int, run: int) -> Example:
    return ordered(task, task.train.x[i], run).double(), int(task.train.y[i]), list(task.classes or range(10))


def ordered(task, x: Tensor, run: int) -> Tensor:
    """An input as a run sees it."""
    columns = task.columns([run])
    return x if columns is None else x.flatten()[columns[0]].view(x.shape)


def seen(module: nn.Module, x: Tensor) -> Tensor:
    """A batch of one, as the module takes it."""
    return x.reshape(1, -1) if isinstance(module[0], nn.Linear) else x[None]


def logits_of(module: nn.Module, x: Tensor) -> Tensor:
    return module(seen(module, x))[0]


def gradient(module: nn.Module, examples: list[Example]) -> Tensor:
    """∂L/∂w of the mean loss; each example's softmax runs over its own head."""
    loss = torch.zeros((), dtype=torch.float64)
    for x, y, classes in examples:
        logits = logits_of(module, x)[classes]
        loss = loss + F.cross_entropy(logits[None], torch.tensor([classes.index(y)])) / len(examples)
    return flat(torch.autograd.grad(loss, list(module.parameters())))


def train(
    benchmark, method: Naive, module, *, epochs, batch_size, lr, optimizer="sgd", momentum=0.0, keep_optimizer=False
):
    """Train a module in place, with an optimizer of torch.optim per task or one, and return the accuracy matrix."""
    kinds = {"sgd": lambda w: torch.optim.SGD(w, lr, momentum), "adam": lambda w: torch.optim.Adam(w, lr)}
    matrix = [accuracies(module, benchmark, method.run)]
    for t, task in enumerate(benchmark.tasks):
        pool = [(source, i) for source in method.sources(benchmark.tasks[: t + 1]) for i in range(len(source.train))]
        if t == 0 or not keep_optimizer:
            moving = kinds[optimizer](module.parameters())
        for epoch in range(epochs):
            index = seeds.draw(0, [method.run], f"order/{t}/{epoch}", len(pool), len(task.train))[0].tolist()
            for start in range(0, len(index), batch_size):
                batch = [example(*pool[i], method.run) for i in index[start : start + batch_size]]
                step(module, moving, method, method.gradient(module, gradient(module, batch)))
        method.end_task(module, task)
        matrix.append(accuracies(module, benchmark, method.run))
    return np.array(matrix)


def step(module: nn.Module, optimizer: torch.optim.Optimizer, method: Naive, g: Tensor) -> None:
    """Let the optimizer move the weights by g, and put what the method makes of that move in its place."""
    weights = list(module.parameters())
    sizes = [w.numel() for w in weights]
    before = flat(weights)
    for w, part in zip(weights, g.split(sizes), strict=True):
        w.grad = part.view(w.shape).clone()
    optimizer.step()
    after = before + method.update(flat(weights) - before)
    with torch.no_grad():
        for w, part in zip(weights, after.split(sizes), strict=True):
            w.copy_(part.view(w.shape))


def accuracies(module, benchmark, run) -> list[float]:
    row = []
    for task in benchmark.tasks:
        x = torch.stack([ordered(task, one, run) for one in task.test.x])
        row.append(accuracy(module, x.double(), task.test.y, list(task.classes or range(10))))
    return row


def accuracy(module: nn.Module, x: Tensor, y: Tensor, classes: list[int]) -> float:
    right = 0
    for one, label in zip(x, y, strict=True):
        logits = logits_of(module, one).detach()
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
