"""EWC: Elastic Weight Consolidation (Kirkpatrick et al., 2017).

To the loss is added ½ λ Σ_t Σ_j F_tj (w_j − w*_tj)², where w*_t are the weights at the end of task t and F_t is the
diagonal Fisher information there, the mean over examples of the squared gradient of the log-likelihood. The penalties
of all tasks add up to one quadratic, H = λ Σ_t F_t and b = λ Σ_t F_t w*_t, so a step costs the same after any number
of tasks.
"""

from collections.abc import Sequence

import torch

from ogd import seeds
from ogd.lab import catalogue
from ogd.lab.benchmarks.batches import Batch
from ogd.lab.catalogue.methods import EWC_LAMBDA, FISHER_EXAMPLES, FISHER_LABELS
from ogd.lab.methods.finished_task import FinishedTask
from ogd.lab.methods.method import Method, per_run, stack_values
from ogd.lab.models.stack import Stack, loss_gradient
from ogd.lab.optimizers import Quadratic


class EWC(Method):
    """Penalise leaving the weights of finished tasks; λ is one number, or one per run.

    `fisher_labels="true"` takes the examples' labels, `"sampled"` draws them from the model's own predictions.

    Examples:
        >>> EWC(ewc_lambda=10.0).fisher_examples
        2000
    """

    name = "ewc"

    def __init__(
        self,
        ewc_lambda: float | Sequence[float] = EWC_LAMBDA.default,
        fisher_examples: int = FISHER_EXAMPLES.default,
        fisher_labels: str = FISHER_LABELS.default,
    ) -> None:
        catalogue.METHODS["ewc"].check(fisher_examples=fisher_examples, fisher_labels=fisher_labels)
        self.ewc_lambda = per_run(EWC_LAMBDA, ewc_lambda)
        self.fisher_examples, self.fisher_labels = fisher_examples, fisher_labels

    def __repr__(self) -> str:
        return f"ewc (λ = {', '.join(f'{lam:g}' for lam in self.ewc_lambda)})"

    def begin(self, model: Stack, seed: int) -> None:
        self._lambda = stack_values(EWC_LAMBDA, self.ewc_lambda, model)
        self.quadratic: Quadratic | None = None

    def penalty(self) -> Quadratic | None:
        return self.quadratic

    @torch.no_grad()
    def end_task(self, finished: FinishedTask) -> None:
        weights = list(finished.model.params.values())
        batch = finished.draw(self.fisher_examples)
        F = fisher(finished.model, batch, self._labels(finished))
        H = [self._lambda.view(-1, *[1] * (f.ndim - 1)) * f for f in F]
        b = [h * w for h, w in zip(H, weights, strict=True)]
        if self.quadratic is not None:
            H = [old + new for old, new in zip(self.quadratic.H, H, strict=True)]
            b = [old + new for old, new in zip(self.quadratic.b, b, strict=True)]
        self.quadratic = Quadratic(H, b)

    def _labels(self, finished: FinishedTask) -> list[torch.Generator] | None:
        if self.fisher_labels == "true":
            return None
        return [seeds.generator(finished.seed, r, f"fisher/{finished.number}") for r in finished.model.runs]


def fisher(model: Stack, batch: Batch, draws: list[torch.Generator] | None) -> list[torch.Tensor]:
    """Return the diagonal Fisher information, a tensor per parameter.

    With generators `draws`, one per run, labels are drawn from the model's predictions instead of the examples'.
    """
    tape, logits = model.passing(batch.x)
    target = batch.target
    if draws is not None:
        p = (logits if batch.head is None else logits + batch.head).softmax(-1)
        drawn = [torch.multinomial(p[r], 1, generator=g)[:, 0] for r, g in enumerate(draws)]
        target = torch.eye(logits.shape[-1])[torch.stack(drawn)]
    delta = loss_gradient(logits, target, batch.head).mul_(logits.shape[1])  # of each example's own loss
    return model.squares(tape, delta)
