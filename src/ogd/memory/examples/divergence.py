"""Compute the remembered loss of examples whose outputs are kept as their largest probabilities.

    ℓ = Σ_t w_t (a KL(q_t ‖ p_t) + b CE(p_t, y_t)),    p = softmax(z)

q is the remembered distribution over K outputs and all others taken together, p the model's over the same K + 1, and t
a position that counts. The gradient is

    ∂ℓ/∂z_c = w (a (p_c − q_c) + b (p_c − [c = y])),    q_c = q_rest · p_c / p_rest for an output that is not kept.

It is computed together with the loss, chunk by chunk. So the scores of a vocabulary are held twice, as z and as its
gradient, and never in float32 if the model works in bfloat16.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ogd.memory.data.labels import IGNORED
from ogd.memory.examples.top_probabilities import TopProbabilities, row_chunks, widen


def divergence_loss(z: Tensor, remembered: TopProbabilities, y: Tensor | None, w: Tensor, a: float) -> Tensor:
    """Return Σ ℓ, given scores z (…, C), labels y (…) or None for b = 0, and the weights w (…) of the positions."""
    logs, places = remembered.log_probabilities(), remembered.places
    labels = None if y is None else y.long().flatten()
    found: Tensor = _DivergenceLoss.apply(  # type: ignore[no-untyped-call]
        z.reshape(-1, z.shape[-1]), logs.flatten(0, -2), places.flatten(0, -2), labels, w.flatten(), a
    )
    return found


def divergences(logp: Tensor, remembered: TopProbabilities) -> Tensor:
    """Return KL(q ‖ p) of each position, given p as log-probabilities of the kept outputs and all others (…, K + 1)."""
    logq = remembered.log_probabilities(logp.dtype)
    found: Tensor = (logq.exp() * (logq - logp)).sum(-1).clamp(min=0)
    return found


@torch.no_grad()
def divergences_of_scores(z: Tensor, remembered: TopProbabilities) -> Tensor:
    """Return KL(q ‖ p) of each position, given scores z (…, C)."""
    rows, places = z.reshape(-1, z.shape[-1]), remembered.places.flatten(0, -2)
    chunks = row_chunks(torch.arange(len(rows), device=z.device), z.shape[-1])
    logp = torch.cat([_grouped(widen(rows[part]), places[part]) for part in chunks])
    return divergences(logp.view(*z.shape[:-1], -1), remembered)


def _grouped(f: Tensor, places: Tensor) -> Tensor:
    """Return the log-probabilities (n, K + 1) of the outputs at some places and of all others, and overwrite f."""
    total = f.logsumexp(1, keepdim=True)
    kept = f.gather(1, places)
    others = f.scatter_(1, places, -torch.inf).logsumexp(1, keepdim=True)
    return torch.cat([kept, others], 1) - total


class _DivergenceLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, logq: Tensor, places: Tensor, y: Tensor | None, w: Tensor, a: float) -> Tensor:
        gradient = torch.zeros_like(z) if ctx.needs_input_grad[0] else None
        loss = torch.zeros((), dtype=torch.promote_types(z.dtype, torch.float32), device=z.device)
        for rows in row_chunks(w.nonzero().flatten(), z.shape[1]):
            f = widen(z[rows])
            log_q, at, weight = logq[rows].to(f.dtype), places[rows], w[rows].to(f.dtype)
            q, total = log_q.exp(), f.logsumexp(1, keepdim=True)
            b = torch.zeros_like(weight)
            if y is not None:
                b, label = (y[rows] != IGNORED).to(f.dtype), y[rows].clamp(min=0).unsqueeze(1)
                loss += (weight * b * (total - f.gather(1, label)).squeeze(1)).sum()
            p = (f - total).exp_() if gradient is not None else None
            log_p = _grouped(f, at)  # f has lost the kept outputs
            loss += a * (weight * (q * (log_q - log_p)).sum(1)).sum()
            if gradient is None or p is None:
                continue
            others = f.sub_(log_p[:, -1:] + total).exp_()  # p_c / p_rest; 0 for kept outputs
            p.mul_((weight * (a + b)).unsqueeze(1))
            p.sub_(others.mul_(a * (weight * q[:, -1]).unsqueeze(1)))
            p.scatter_add_(1, at, -a * weight.unsqueeze(1) * q[:, :-1])
            if y is not None:
                p.scatter_add_(1, label, -(weight * b).unsqueeze(1))
            gradient[rows] = p.to(gradient.dtype)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (gradient * outer.to(gradient.dtype), None, None, None, None, None)
