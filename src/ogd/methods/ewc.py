"""EWC: Elastic Weight Consolidation (Kirkpatrick et al., 2017).

To the loss is added ½ λ Σ_t Σ_j F_tj (w_j − w*_tj)², where w*_t are the weights at the end of task t and F_t is the
diagonal Fisher information there, the mean over examples of the squared gradient of the log-likelihood. For a layer
with inputs a and gradients δ at its outputs that is one product of squares, (1/n) (δ²)ᵀ (a²). The penalties of all
tasks add up to one quadratic, H = λ Σ_t F_t and b = λ Σ_t F_t w*_t, so a step costs the same after any number of tasks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ogd import catalogue, seeds
from ogd.benchmarks import Task
from ogd.benchmarks.batch import Batch, examples
from ogd.methods.method import Method
from ogd.methods.penalty import Quadratic
from ogd.models import StackedMLP
from ogd.models.loss import loss_gradient


class EWC(Method):
    """Penalise leaving the weights of finished tasks; λ is one number, or one a run.

    `fisher_labels="true"` takes the examples' labels, `"sampled"` draws them from the model's own predictions.

    Examples:
        >>> EWC(ewc_lambda=10.0).fisher_examples
        2000
    """

    name = "ewc"

    def __init__(
        self, ewc_lambda: float | Sequence[float] = 1.0, fisher_examples: int = 2000, fisher_labels: str = "true"
    ) -> None:
        for lam in ewc_lambda if isinstance(ewc_lambda, Sequence) else [ewc_lambda]:
            catalogue.check_options("ewc", ewc_lambda=lam)
        catalogue.check_options("ewc", fisher_examples=fisher_examples, fisher_labels=fisher_labels)
        self.ewc_lambda = torch.as_tensor(ewc_lambda, dtype=torch.float64)
        self.fisher_examples, self.fisher_labels = fisher_examples, fisher_labels

    def begin(self, model: StackedMLP, seed: int) -> None:
        if self.ewc_lambda.numel() not in (1, len(model.runs)):
            raise ValueError(f"ewc_lambda: {self.ewc_lambda.numel()} values do not fit {len(model.runs)} runs")
        self.seed, self.tasks = seed, 0
        self.quadratic: Quadratic | None = None

    def __repr__(self) -> str:
        return f"ewc (λ = {', '.join(f'{lam:g}' for lam in self.ewc_lambda.view(-1).tolist())})"

    def penalty(self) -> Quadratic | None:
        return self.quadratic

    @torch.no_grad()
    def end_task(self, model: StackedMLP, task: Task, columns: Tensor | None) -> None:
        self.tasks += 1
        index = seeds.draw(self.seed, model.runs, f"memory/{self.tasks}", len(task.train), self.fisher_examples)
        weights = [w for layer in model.layers for w in layer]
        F = fisher(model, examples(task, index, columns, model.sizes[-1]), self._labels(model))
        lam = [self.ewc_lambda.to(w.dtype).view(-1, *[1] * (w.ndim - 1)) for w in weights]
        H = [scale * f for scale, f in zip(lam, F, strict=True)]
        b = [h * w for h, w in zip(H, weights, strict=True)]
        if self.quadratic is not None:
            H = [old + new for old, new in zip(self.quadratic.H, H, strict=True)]
            b = [old + new for old, new in zip(self.quadratic.b, b, strict=True)]
        self.quadratic = Quadratic(H, b)

    def _labels(self, model: StackedMLP) -> list[torch.Generator] | None:
        if self.fisher_labels == "true":
            return None
        return [seeds.generator(self.seed, r, f"fisher/{self.tasks}") for r in model.runs]


def fisher(model: StackedMLP, batch: Batch, draws: list[torch.Generator] | None) -> list[Tensor]:
    """Return the diagonal Fisher information, weight and bias of each layer in turn.

    With generators `draws`, one a run, labels are drawn from the model's predictions instead of the examples'.
    """
    inputs, logits = model.activations(batch.x.to(model.layers[0][0].dtype))
    n, target = logits.shape[1], batch.target
    if draws is not None:
        p = (logits if batch.head is None else logits + batch.head).softmax(-1)
        drawn = [torch.multinomial(p[r], 1, generator=g)[:, 0] for r, g in enumerate(draws)]
        target = torch.eye(logits.shape[-1])[torch.stack(drawn)]
    delta = loss_gradient(logits, target, batch.head).mul_(n)  # of each example's own loss, not of their mean
    F = []
    for a, d in model.backward(inputs, delta):
        F += [torch.bmm((d * d).mT, a * a).div_(n), (d * d).mean(1)]
    return F
